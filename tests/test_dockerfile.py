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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
import yaml

from app.cli import cli
from stores.registry import STORE_NAMES
from tests.s3_server import free_port

ROOT = Path(__file__).parent.parent
WEB_PORT = "6066"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continued lines joined."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Stage:
    """The instructions from one FROM to the next."""

    image: str
    instructions: tuple[Instruction, ...]

    def all(self, name: str) -> list[str]:
        """The texts of all instructions of that name."""
        return [each.text for each in self.instructions if each.name == name]

    def last(self, name: str) -> str:
        """The text of the last such instruction, which applies."""
        return self.all(name)[-1]


def read_stages() -> list[Stage]:
    """The stages of the Dockerfile, the one of the image last."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    stages: list[tuple[str, list[Instruction]]] = []
    for line in filter(None, text.replace("\\\n", " ").splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append((rest.split()[0], []))
        else:
            stages[-1][1].append(Instruction(name, rest.strip()))
    return [Stage(image, tuple(instructions)) for image, instructions in stages]


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    """All stages."""
    return read_stages()


def health_check(stage: Stage) -> list[str]:
    """The command of the image's health check."""
    return [str(word) for word in json.loads(stage.last("HEALTHCHECK").partition("CMD ")[2])]


def compose_health_check() -> list[str]:
    """The command of the worker's health check in docker-compose.yml."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    kind, *command = services["worker"]["healthcheck"]["test"]
    assert kind == "CMD"
    return [str(word) for word in command]


def ignored(path: str) -> bool:
    """Whether .dockerignore excludes a path; the last pattern that matches decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!")
        if pattern and not line.startswith("#") and fnmatch.fnmatchcase(path, pattern.removeprefix("**/")):
            out = not line.startswith("!")
    return out


def test_dockerfile_runs_as_a_user_by_number(stages: list[Stage]) -> None:
    """The user of the image is a number and not root, which Kubernetes can check."""
    user, _, group = stages[-1].last("USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_dockerfile_base_images_are_pinned(stages: list[Stage]) -> None:
    """Both stages use the same image with a full version: a venv cannot move to another Python."""
    assert len(stages) == 2
    assert len({stage.image for stage in stages}) == 1
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", stages[0].image)


def test_dockerfile_copies_what_is_there(stages: list[Stage]) -> None:
    """Each source is in the repository, and .dockerignore does not exclude it."""
    sources = [source for text in stages[0].all("COPY") for source in shlex.split(text)[:-1]]
    assert len(sources) == 12
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [source for source in sources if ignored(source)] == []


def test_lock_has_what_the_worker_stores_and_msk_take() -> None:
    """Nothing can be installed into the image later, so it has the packages of these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    extras = project["optional-dependencies"]
    for extra in ("worker", "msk", "encryption", *[name for name in STORE_NAMES if name in extras]):
        wanted = {re.split(r"[=<>]", each)[0] for each in extras[extra]}
        assert wanted <= set(locked)


def test_dockerfile_copies_every_package(stages: list[Stage]) -> None:
    """Each folder that is part of the package is in the image's build, and so is what builds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {*project["build-system"]["backend-path"]} | {
        pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    copied = {source for text in stages[0].all("COPY") for source in shlex.split(text)[:-1]}
    assert packages <= copied


@pytest.mark.parametrize("name", [".git", ".venv", "tests", "docker-compose.yml", ".env", "build"])
def test_dockerfile_build_sees_nothing_else(name: str) -> None:
    """History, environments, secrets and tests are not part of the build."""
    assert ignored(name)


def test_dockerfile_installs_by_hash(stages: list[Stage]) -> None:
    """Each install from an index checks hashes."""
    installs = [part for text in stages[0].all("RUN") for part in text.split("&&") if " install " in part]
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes" in install or "--no-index" in install


def test_dockerfile_build_lock_has_one_package() -> None:
    """The awk of the Dockerfile selects setuptools with its hashes from the development lock, and nothing else."""
    (command,) = re.findall(r"awk '[^']+' requirements-dev\.lock", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    found = subprocess.run(shlex.split(command), cwd=ROOT, check=True, capture_output=True, text=True).stdout
    first, *rest = found.splitlines()
    assert re.fullmatch(r"setuptools==[\d.]+ \\", first)
    assert any("--hash=sha256:" in line for line in rest)
    assert all(line.startswith(" ") for line in rest)


def test_dockerfile_image_has_no_build_tools(stages: list[Stage]) -> None:
    """The image itself installs nothing; it copies the environment from the build, and removes pip."""
    image = stages[-1]
    assert image.all("COPY") == ["--from=build /opt/wideload /opt/wideload"]
    (run,) = image.all("RUN")
    assert run.startswith("python -m pip uninstall ")


def test_dockerfile_environment_is_meant_for_a_container(stages: list[Stage]) -> None:
    """Log lines appear at once, SIGTERM stops it, and `wideload` is on the path."""
    image = stages[-1]
    assert "PYTHONUNBUFFERED=1" in image.last("ENV").split()
    assert "PATH=/opt/wideload/bin:$PATH" in image.last("ENV").split()
    assert image.last("STOPSIGNAL") == "SIGTERM"
    assert image.last("EXPOSE") == WEB_PORT


def test_dockerfile_version_is_the_project_s(stages: list[Stage]) -> None:
    """The label has the version of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f'org.opencontainers.image.version="{project["version"]}"' in stages[-1].last("LABEL")


def test_dockerfile_runs_a_command_that_there_is(stages: list[Stage]) -> None:
    """The entry point is a script of the project, in exec form, and its default arguments are right."""
    (script,) = json.loads(stages[-1].last("ENTRYPOINT"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert script in project["scripts"]
    arguments = json.loads(stages[-1].last("CMD"))
    with cli.make_context("wideload", list(arguments)) as context:
        name, command, rest = cli.resolve_command(context, list(arguments))
        assert isinstance(command, click.Command)
        with command.make_context(name, rest, parent=context) as inner:
            assert inner.params["config"] == "/etc/wideload/wideload.toml"


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


CHECKS = [
    pytest.param(health_check(read_stages()[-1]), "/health/live", id="image"),
    pytest.param(compose_health_check(), "/health/ready", id="compose"),
]


@pytest.mark.parametrize(("command", "page"), CHECKS)
def test_health_check_passes_where_the_page_says_so(command: list[str], page: str) -> None:
    """A worker that answers 200 on its page is healthy."""
    with http_server(page, 200) as port:
        assert run_check(command, port) == 0


@pytest.mark.parametrize(("command", "page"), CHECKS)
def test_health_check_fails_where_the_page_says_so(command: list[str], page: str) -> None:
    """A worker that answers 503 is not healthy; Docker knows only the statuses 0 and 1."""
    with http_server(page, 503) as port:
        assert run_check(command, port) == 1


@pytest.mark.parametrize(("command", "page"), CHECKS)
def test_health_check_fails_where_nobody_answers(command: list[str], page: str) -> None:
    """A worker that does not listen is not healthy."""
    assert page in command[-1]
    assert run_check(command, free_port()) == 1
