"""The Dockerfile, as far as it can be checked without Docker, and its health check against a real HTTP server."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from stores.registry import STORE_NAMES
from tests.s3_server import free_port
from tests.test_compose import accepted

ROOT = Path(__file__).parent.parent
WEB_PORT = "6066"


def read_stages() -> list[dict[str, list[str]]]:
    """The instructions of each stage of the Dockerfile, by name, continued lines joined; the image's stage is last."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: list[dict[str, list[str]]] = []
    for line in filter(None, text.replace("\\\n", " ").splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append(defaultdict(list))
        found[-1][name].append(rest.strip())
    return found


BUILD, IMAGE = read_stages()
SOURCES = [source for text in BUILD["COPY"] for source in shlex.split(text)[:-1]]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def ignored(path: str) -> bool:
    """Whether .dockerignore excludes a path; the last pattern that matches decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!")
        if pattern and not line.startswith("#") and fnmatch.fnmatchcase(path, pattern.removeprefix("**/")):
            out = not line.startswith("!")
    return out


def test_dockerfile_build_is_pinned() -> None:
    """Both stages use one image of one digest, as a venv cannot move to another Python; installs check hashes."""
    bases = {text.split()[0] for stage in (BUILD, IMAGE) for text in stage["FROM"]}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", bases.pop())
    installs = [part for text in BUILD["RUN"] for part in text.split("&&") if " install " in part]
    assert len(installs) == 3
    assert [each for each in installs if "--require-hashes" not in each and "--no-index" not in each] == []


def test_dockerfile_image_is_meant_for_a_container() -> None:
    """A user by number that is not root, no build tools, unbuffered log lines, SIGTERM, and the project's version.

    Kubernetes can check a number.
    """
    assert all(int(each) > 0 for each in IMAGE["USER"][-1].split(":"))
    assert IMAGE["COPY"] == ["--from=build /opt/wideload /opt/wideload"]
    assert [text.startswith("python -m pip uninstall ") for text in IMAGE["RUN"]] == [True]
    assert {"PYTHONUNBUFFERED=1", "PATH=/opt/wideload/bin:$PATH"} <= set(IMAGE["ENV"][-1].split())
    assert (IMAGE["STOPSIGNAL"], IMAGE["EXPOSE"]) == (["SIGTERM"], [WEB_PORT])
    assert f'org.opencontainers.image.version="{PROJECT["project"]["version"]}"' in IMAGE["LABEL"][-1]


def test_dockerfile_copies_what_is_there() -> None:
    """Each source is there and not ignored; each package is one; history, environments, secrets and tests are not."""
    assert len(SOURCES) == 12
    assert [source for source in SOURCES if not (ROOT / source).exists() or ignored(source)] == []
    packages = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {*PROJECT["build-system"]["backend-path"], *(each.rstrip("*") for each in packages)} <= set(SOURCES)
    assert all(map(ignored, (".git", ".venv", "tests", "docker-compose.yml", ".env", "build")))


def test_lock_has_what_the_worker_stores_and_msk_take() -> None:
    """Nothing can be installed into the image later, so it has the packages of these extras."""
    locked = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    extras = PROJECT["project"]["optional-dependencies"]
    for extra in ("worker", "msk", "encryption", *[name for name in STORE_NAMES if name in extras]):
        wanted = {re.split(r"[=<>]", each)[0] for each in extras[extra]}
        assert wanted <= set(locked)


def test_dockerfile_build_lock_has_one_package() -> None:
    """The awk of the Dockerfile selects setuptools with its hashes from the development lock, and nothing else."""
    (command,) = re.findall(r"awk '[^']+' requirements-dev\.lock", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    found = subprocess.run(shlex.split(command), cwd=ROOT, check=True, capture_output=True, text=True).stdout
    first, *rest = found.splitlines()
    assert re.fullmatch(r"setuptools==[\d.]+ \\", first)
    assert any("--hash=sha256:" in line for line in rest)
    assert all(line.startswith(" ") for line in rest)


def test_dockerfile_runs_a_command_that_there_is() -> None:
    """The entry point is a script of the project, in exec form, and its default arguments are right."""
    (script,) = json.loads(IMAGE["ENTRYPOINT"][-1])
    assert script in PROJECT["project"]["scripts"]
    assert accepted(json.loads(IMAGE["CMD"][-1]))["config"] == "/etc/wideload/wideload.toml"


@contextmanager
def http_server(page: str, status: int) -> Iterator[int]:
    """A server with one page; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == page else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name that the base class gives it
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def run_check(command: list[str], port: int) -> int:
    """The exit status of a health check on our own port, with a proxy in the environment that does not exist."""
    python, *arguments = (word.replace(WEB_PORT, str(port)) for word in command)
    assert python == "python"
    environ = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
    done = subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, check=False, timeout=30)
    return done.returncode


_COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["worker"]
CHECKS = [
    pytest.param(json.loads(IMAGE["HEALTHCHECK"][-1].partition("CMD ")[2]), "/health/live", id="image"),
    pytest.param(_COMPOSE["healthcheck"]["test"][1:], "/health/ready", id="compose"),
]


@pytest.mark.parametrize(("command", "page"), CHECKS)
def test_health_check_says_what_the_page_says(command: list[str], page: str) -> None:
    """200 of its page is healthy, 503 is not, nor is where nobody answers; Docker knows the statuses 0 and 1 only."""
    for answer, status in ((200, 0), (503, 1)):
        with http_server(page, answer) as port:
            assert run_check(command, port) == status
    assert run_check(command, free_port()) == 1
