"""A real Chromium for the tests, where this machine has one; driven by Selenium.

`chromium` and `chromedriver` are Debian's packages of these names, which the set-up of the tests installs where it may.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from tests.integration.worker_process import until

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # a container lacks the permissions for it, and only our own page is shown
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--no-proxy-server",
    "--force-color-profile=srgb",
)
_PATIENCE_S = 20


class Browser:
    """One tab.

    Attributes:
        driver: Selenium's.
    """

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path) -> Iterator[Browser]:
        """Starts one with a profile in this directory; skips the test if there is none."""
        driver = shutil.which("chromedriver")
        browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
        if driver is None or browser is None:
            pytest.skip(
                "no Chromium: install the packages chromium and chromium-driver (as root: sh tests/chromium.sh)"
            )
        options = ChromeOptions()
        options.binary_location = browser
        for option in (*_OPTIONS, f"--user-data-dir={folder}"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        # With both paths, Selenium looks for nothing and fetches nothing.
        started = Chrome(options=options, service=ChromeService(driver, log_output=str(folder / "chromedriver.log")))
        try:
            started.set_page_load_timeout(_PATIENCE_S)
            started.set_script_timeout(_PATIENCE_S)
            yield cls(started)
        finally:
            started.quit()

    def open(self, address: str) -> None:
        """Opens a page, and forgets what was logged before."""
        self.driver.get("about:blank")
        self.complaints()
        self.hosts()
        self.driver.get(address)

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def until(self, expression: str, seconds: float = 20.0) -> Any:
        """Waits for an expression to be true in the page, and returns its value."""
        return until(
            lambda: self.run(f"return {expression}"), f"the page has {expression}; it has {self.text()}", seconds
        )

    def text(self, selector: str = "body") -> str:
        """The visible text of the first element that fits, or nothing; with plain spaces."""
        found = str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))
        return found.replace("\u00a0", " ")

    def complaints(self) -> Sequence[str]:
        """What the console had since the last call: errors, and violations of the policy."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]  # type: ignore[no-untyped-call]

    def hosts(self) -> set[str]:
        """The hosts, with their ports, to which requests went since the last call."""
        found = set()
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.add(urlsplit(message["params"]["request"]["url"]).netloc)
        return found - {""}

    def accessible(self) -> Mapping[str, Sequence[str]]:
        """What the page is to assistive technology: for each role the names of its nodes, in any order."""
        found: dict[str, list[str]] = {}
        for node in self._tell("Accessibility.getFullAXTree", {})["nodes"]:
            if not node["ignored"]:
                found.setdefault(str(node["role"]["value"]), []).append(str(node.get("name", {}).get("value", "")))
        return found

    def look(self, width: int, height: int, features: Mapping[str, str] | None = None) -> None:
        """Gives the window a size, and the user wishes such as `prefers-color-scheme`."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._tell("Emulation.setDeviceMetricsOverride", size)
        wishes = [{"name": name, "value": value} for name, value in (features or {}).items()]
        self._tell("Emulation.setEmulatedMedia", {"features": wishes})
        self._tell("Emulation.setScrollbarsHidden", {"hidden": True})  # as on a phone

    def picture(self, path: Path, clip: tuple[float, float, float, float]) -> None:
        """Writes a part of the page as a PNG: from the left, from the top, width, height."""
        area = dict(zip(("x", "y", "width", "height"), clip, strict=True)) | {"scale": 1}
        answer = self._tell("Page.captureScreenshot", {"format": "png", "clip": area})
        path.write_bytes(base64.b64decode(answer["data"]))

    def _tell(self, command: str, parameters: Mapping[str, object]) -> Any:
        return self.driver.execute_cdp_cmd(command, dict(parameters))
