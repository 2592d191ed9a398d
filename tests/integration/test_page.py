"""The page at `/` of a running worker, in a real Chromium: one pipeline runs, one waits for its store, one has failed.

With `WIDELOAD_PICTURES=docs/images` it also makes the pictures for the documentation, which takes two minutes more.
"""

from __future__ import annotations

import http.client
import math
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.browser import Browser
from tests.integration import rest
from tests.integration.topics import Sent, send
from tests.integration.way import MakeTopic
from tests.integration.worker_process import WorkerProcess, until

pytestmark = pytest.mark.browser

RUNS, WAITS, FAILED = "orders-offload", "invoices-offload", "payments-inflate"
THRESHOLD = 20_000
PHONE = 360
CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"

# For each text its contrast with what is behind it, where that is below 4.5 (WCAG 2.2, 1.4.3).
CONTRASTS = """
    const number = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((each) => each / 255).map(
            (each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = (element) => {
        for (let each = element; each; each = each.parentElement) {
            if (each.tagName === "g") {
                const box = each.querySelector("rect");
                if (box) return number(getComputedStyle(box).fill);
            }
            const found = number(getComputedStyle(each).backgroundColor);
            if (found.length === 3 || found[3] > 0) return found;
        }
        return [255, 255, 255];
    };
    let texts = 0;
    const poor = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
        if (!own || element.tagName === "title" || !element.checkVisibility()) continue;
        texts += 1;
        const style = getComputedStyle(element);
        const two = [light(number(element.ownerSVGElement ? style.fill : style.color)), light(behind(element))].sort();
        const contrast = (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
        if (contrast < 4.5) poor.push(`${element.tagName} ${element.textContent}: ${contrast.toFixed(2)}`);
    }
    return [texts, poor];
"""
CARD = (
    "[...document.querySelectorAll('.list > tbody')].find("
    "(each) => each.querySelector('.open').textContent === arguments[0])"
)
OPEN = "location.hash = new URLSearchParams([...arguments].map((each) => ['open', each]))"
FOCUSED = """
    const element = document.activeElement;
    const style = getComputedStyle(element);
    return [element.tagName, element.textContent.trim() || element.getAttribute("aria-label") || "",
            style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2, element.className];
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """The worker of this file, and the tab that shows its page."""

    broker: str
    source: str
    worker: WorkerProcess
    browser: Browser

    @property
    def address(self) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{self.worker.port}/"

    def card(self, pipeline: str) -> str:
        """What the page says of a pipeline, in its row and in its card."""
        return str(self.browser.run(f"return {CARD}?.innerText ?? ''", pipeline)).replace("\u00a0", " ")

    def until_card(self, pipeline: str, *texts: str) -> str:
        """Waits until the page says these texts of a pipeline; all that it says."""

        def found() -> str | None:
            card = self.card(pipeline)
            return card if all(text in card for text in texts) else None

        return until(found, f"the page says {texts} of {pipeline}; it says:\n{self.card(pipeline)}", 20) or ""

    def send(self, count: int, size: int) -> None:
        """Sends records to the pipeline that runs, over both partitions."""
        send(self.broker, self.source, [(number % 2, b"k", os.urandom(size), [], 1) for number in range(count)])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One tab for all tests of this file."""
    with Browser.started(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def shown(
    browser: Browser, broker: str, make_module_topic: MakeTopic, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shown]:
    """A worker with three pipelines: one has moved records, the store of one is down, one has failed; all are open."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "store").mkdir()
    (folder / "down").touch()
    suffix = "" if pictures() else f"-{secrets.token_hex(3)}"

    def topic(name: str, partitions: int = 2) -> str:
        return make_module_topic(
            partitions, named=name + suffix, **{"retention.ms": "-1", "max.message.bytes": 2_000_000}
        )

    raw, invoices, payments = topic("raw-large"), topic("invoices-large"), topic("payments", 1)
    kept = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(folder / "store")}
    down = {
        "large.message.payload.store.class": "tests.integration.switched_store.SwitchedStore",
        "switched.root": str(folder),
        "large.message.store.timeout.ms": 300,
        "errors.retry.delay.max.ms": 500,
    }
    small = {"large.message.threshold.bytes": THRESHOLD}
    offload = {"transforms": ["offload"], **small, "group.id": f"wideload-{raw}"}
    pipelines: dict[str, dict[str, object]] = {
        RUNS: {
            "topics": [raw],
            "output.topic": topic("orders"),
            **offload,
            **kept,
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": topic("orders-dead"),
            "offload.on.reference": "fail",
        },
        WAITS: {
            "topics": [invoices],
            "output.topic": topic("invoices"),
            **offload,
            **down,
            "group.id": f"wideload-{invoices}",
        },
        FAILED: {
            "topics": [payments],
            "output.topic": topic("payments-inflated", 1),
            "transforms": ["inflate"],
            **kept,
            "group.id": f"wideload-{payments}",
        },
    }
    process = WorkerProcess(folder, {"bootstrap.servers": broker}, pipelines)
    if not pictures():
        process.constants = {"app.web.history:EVERY_S": 0.25}
    with process as worker:
        worker.wait_ready()
        headers = [("large-message", b"true"), ("large-message.size", b"many")]
        reference: Sent = (0, b"k", b"file:///payments/1", headers, 1)
        send(broker, payments, [reference])
        send(broker, invoices, [(0, b"k", os.urandom(THRESHOLD + 1), [], 1)])
        send(broker, raw, [reference, (1, b"k", os.urandom(THRESHOLD + 1), [], 1), (1, b"k", b"small", [], 1)])
        browser.look(1280, 900)
        page = Shown(broker, raw, worker, browser)
        browser.open(page.address)
        browser.run(OPEN, RUNS, WAITS, FAILED)
        yield page


def pictures() -> Path | None:
    """The folder for pictures, if they are asked for."""
    folder = os.environ.get("WIDELOAD_PICTURES")
    return Path(folder) if folder else None


@pytest.fixture
def wide(shown: Shown) -> Iterator[Shown]:
    """The page in a wide, light window, also after a test that looks at it otherwise."""
    yield shown
    shown.browser.look(1280, 900, {"prefers-color-scheme": "light"})


def test_browsers_get_the_page_and_others_json(shown: Shown) -> None:
    """`GET /` is HTML for a browser, and Connect's JSON for curl, for its clients, and for who says nothing."""
    for accept, kind in ((CHROME, "text/html"), ("*/*", "application/json"), ("application/json", "application/json")):
        headers, _ = rest.shown(shown.worker.port, "/", accept)
        assert (headers["Content-Type"].partition(";")[0], headers["Vary"]) == (kind, "Accept")
    assert set(shown.worker.get("/")[1]) == {"version", "commit", "kafka_cluster_id"}


@pytest.mark.parametrize("path", ["/", "/overview", "/static/page.js", "/docs/worker.md"])
def test_pages_of_other_hosts_read_nothing(shown: Shown, path: str) -> None:
    """A name of another host that leads here (DNS rebinding) is refused; and no answer lets another origin read it."""
    connection = http.client.HTTPConnection("127.0.0.1", shown.worker.port, timeout=30)
    try:
        connection.request("GET", path, headers={"Host": "page.example.com", "Accept": CHROME})
        assert connection.getresponse().status == 421
        connection.close()
        connection.request("GET", path, headers={"Origin": "http://page.example.com", "Accept": CHROME})
        answer = connection.getresponse()
        assert answer.status == 200
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
    finally:
        connection.close()


def test_pipeline_that_runs(shown: Shown) -> None:
    """Row and card of a pipeline have its state, its counts, its latency, its partitions, and the way of its data."""
    shown.until_card(RUNS, "running", "3 records in", "Lag\n0\nrecords, in 2 partitions")
    card = shown.until_card(RUNS, "Dead letters\n1\nto orders-dead", "mean of 1 publish", "no message waits")
    assert f"group wideload-{shown.source} · at least once" in card
    assert "of 256 MiB" in card
    words = shown.browser.run(f"return {CARD}.querySelector('.way').getAttribute('aria-label')", RUNS)
    assert words.startswith(f"From {shown.source} through offload to orders")
    assert "Store: filesystem" in words
    lines = [line.split("\t") for line in card.splitlines() if line.startswith(shown.source)]
    assert {line[0].strip() for line in lines} >= {f"{shown.source} 0", f"{shown.source} 1"}


def test_pipeline_whose_store_is_down(shown: Shown) -> None:
    """The card says `degraded`, why, and how many store calls have failed; the picture of the store is marked."""
    card = shown.until_card(WAITS, "degraded", "the store is switched off", "error")
    assert "Lag\n1\n" in card
    assert "no topic: a bad record stops the pipeline" in card
    assert shown.browser.run("return document.querySelectorAll('.way .bad').length") >= 1


def test_pipeline_that_has_failed(shown: Shown) -> None:
    """The card says `failed` and the reason with the record's place; its lag stays; so does the title of the tab."""
    card = shown.until_card(FAILED, "failed", "partition 0, offset 0")
    assert "Lag\n1\n" in card
    title = "1 failed, 1 degraded – Wideload"
    until(lambda: shown.browser.run("return document.title") == title, "the title says so", 20)
    assert "3 pipelines: 1 failed, 1 degraded, 1 running" in shown.browser.text("#summary")


def test_page_follows_by_itself(shown: Shown) -> None:
    """New records are on the page within seconds, until the user pauses that.

    Nothing is loaded from another host meanwhile, and the console has no complaint.
    """
    browser = shown.browser
    shown.send(40, THRESHOLD + 1)
    shown.until_card(RUNS, "43 records in")
    chart = f"{CARD}.querySelector('.chart')".replace("arguments[0]", f"'{RUNS}'")
    browser.until(f"{chart}.querySelector('.in').getAttribute('d').split('L').length > 4")
    assert "at most 0 " not in browser.run(f"return {chart}.getAttribute('aria-label')")
    button = "document.querySelector('#follow')"
    browser.run(f"{button}.click()")
    assert browser.text("#follow") == "Resume updates"
    assert browser.text("#updated").startswith("Paused at ")
    browser.until("performance.getEntriesByType('resource').every((each) => each.responseEnd > 0)")
    shown.send(1, 10)
    until(lambda: shown.worker.get("/pipelines")[1][0]["records_in"] == 44, "the worker has read it", 20)
    assert "43 records in" in shown.card(RUNS)
    browser.run(f"{button}.click()")
    shown.until_card(RUNS, "44 records in")
    assert browser.complaints() == []
    assert browser.hosts() == {f"127.0.0.1:{shown.worker.port}"}


def test_keyboard_reaches_everything(shown: Shown) -> None:
    """Tab goes through the skip link, each link, the buttons, the filter and the pipelines, in the order of the page.

    Focus can be seen. The skip link leads past the links. Enter and Space close and open a pipeline.
    """
    browser = shown.browser
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0); getSelection().removeAllRanges()")
    browser.run("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    seen = []
    for _ in range(12):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        tag, text, visible, _name = browser.run(FOCUSED)
        assert visible, text
        seen.append((tag, text))
    links = ["Skip to the pipelines", "Metrics", "Health", "Counters", "REST API", "Documentation"]
    assert seen[:7] == [*(("A", link) for link in links), ("BUTTON", "Pause updates")]
    assert [tag for tag, _ in seen[7:9]] == ["INPUT", "SELECT"]
    assert seen[9:] == [("BUTTON", name) for name in (FAILED, WAITS, RUNS)]
    for key, expanded in ((Keys.ENTER, "false"), (Keys.SPACE, "true")):
        ActionChains(browser.driver).send_keys(key).perform()
        assert browser.run("return document.activeElement.getAttribute('aria-expanded')") == expanded
        browser.until(f"document.querySelectorAll('.card').length === {2 + (expanded == 'true')}")
    browser.run("document.querySelector('.skip').focus()")
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    assert browser.run("return document.activeElement.id") == "pipelines"


def test_page_says_what_it_is_to_screen_readers(wide: Shown) -> None:
    """Chromium's accessibility tree has landmarks, headings, named pictures and meters, and headers of tables.

    The overview is a table whose rows are named by their pipelines, on a phone too. There are two live regions, and no
    number that follows is in one.
    """
    browser = wide.browser
    for width in (1280, PHONE):
        browser.look(width, 900)
        found = browser.accessible()
        assert {"banner", "navigation", "main", "contentinfo", "search", "searchbox"} <= found.keys()
        assert {name.split()[0] for name in found["heading"]} == {"Wideload", RUNS, WAITS, FAILED, "Documentation"}
        assert set(found["region"]) == {RUNS, WAITS, FAILED}
        assert all(found["image"])
        assert len(found["image"]) == 3 * 3
        assert len(found["meter"]) == 3
        columns = {"Pipeline", "State", "Records/s in", "Records/s out", "Lag", "Dead letters"}
        assert set(found["columnheader"]) == columns | {"Partition", "Committed", "End"}
        assert len(found["rowheader"]) == 3 + 5
        assert found["table"].count("Pipelines, those in trouble first") == 1
    live = "return document.querySelectorAll(arguments[0]).length"
    assert browser.run(live, "[aria-live], [role=alert], [role=status]") == 2
    assert browser.run(live, "main [aria-live], main [role=alert], main [role=status]") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(wide: Shown, scheme: str) -> None:
    """Each text has a contrast of 4.5 or more with what is behind it, in both schemes."""
    wide.browser.look(1280, 900, {"prefers-color-scheme": scheme})
    texts, poor = wide.browser.run(CONTRASTS)
    assert poor == []
    assert texts > 100
    ground = wide.browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(15, 18, 23)") == (scheme == "dark")


def test_phone(wide: Shown) -> None:
    """On a narrow window nothing is wider than that, and the way of the data goes down."""
    wide.browser.look(PHONE, 740)
    wide.browser.until(f"document.querySelector('.way').viewBox.baseVal.width < {PHONE}")
    assert wide.browser.run("return document.documentElement.scrollWidth") <= PHONE
    beyond = "[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1)"
    assert wide.browser.run(f"return {beyond}.map((e) => e.outerHTML.slice(0, 80))") == []
    assert wide.browser.run(
        "const way = document.querySelector('.way').viewBox.baseVal; return way.height > way.width / 2"
    )


def test_reduced_motion(wide: Shown) -> None:
    """Who wishes less motion gets none."""
    moving = "return parseFloat(getComputedStyle(document.querySelector('.meter span')).transitionDuration)"
    assert wide.browser.run(moving) > 0
    wide.browser.look(1280, 900, {"prefers-reduced-motion": "reduce"})
    assert wide.browser.run(moving) == 0


@pytest.mark.skipif(pictures() is None, reason="WIDELOAD_PICTURES names no folder")
def test_pictures_for_the_docs(wide: Shown) -> None:
    """The pictures of the documentation are those of a worker that has done something for two minutes."""
    folder = pictures()
    assert folder is not None
    began = time.monotonic()
    while (passed := time.monotonic() - began) < 118:
        wave = math.sin(passed / 9) + math.sin(passed / 4) / 3
        wide.send(int(14 + 6 * wave), 3 * THRESHOLD)
        wide.send(int(300 + 120 * wave), 300)
        time.sleep(0.3)  # traffic as it comes from people
    browser = wide.browser
    sizes: dict[str, tuple[int, str, Sequence[str]]] = {
        "page.png": (1200, "light", [RUNS]),
        "page-trouble.png": (1200, "dark", [WAITS]),
        "page-phone.png": (390, "light", [RUNS]),
    }
    for name, (width, scheme, opened) in sizes.items():
        browser.look(width, 900, {"prefers-color-scheme": scheme})
        browser.run(OPEN, *opened)
        browser.until(f"document.querySelectorAll('.card').length === {len(opened)}")
        fits = "(way) => Math.abs(way.viewBox.baseVal.width - way.clientWidth) < 2"
        browser.until(f"[...document.querySelectorAll('.way')].every({fits})")
        browser.run("window.scrollTo(0, 0)")
        height = int(browser.run("return document.querySelector('.list').getBoundingClientRect().bottom")) + 16
        browser.look(width, height, {"prefers-color-scheme": scheme})
        browser.picture(folder / name, (0, 0, width, height))
        assert (folder / name).stat().st_size < 150_000, name
    browser.run(OPEN, RUNS, WAITS, FAILED)


def test_worker_that_does_not_answer(shown: Shown) -> None:
    """The page says plainly that the worker does not answer, and since when.

    Once it does again, that is gone, and the numbers are those of the new process.
    """
    browser = shown.browser
    shown.worker.kill()
    browser.until("!document.querySelector('#away').hidden")
    assert browser.text("#away").startswith("The worker has not answered since ")
    assert "The data below is from before" in browser.text("#away")
    assert browser.run("return document.title") == "No answer – Wideload"
    assert shown.card(RUNS)
    shown.worker.start()
    browser.until("document.querySelector('#away').hidden")
    shown.until_card(RUNS, "0 records in")
    browser.until("performance.getEntriesByType('resource').at(-1).name.includes('after=')")
