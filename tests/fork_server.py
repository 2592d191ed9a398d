"""The process from which tests fork commands: it has imported what they need, so that they start immediately.

It is started by `tests.forks`, and ends with the process that started it. What it forks ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any, NoReturn

BARE = "--bare"
"""The argument with which it imports nothing ahead."""

SIZE = struct.Struct("!I")
"""Of a request, before it; and the process id, after it."""
STATUS = struct.Struct("!i")
"""How a command has ended, as `Popen.returncode` says it."""
FILES = 4
"""Standard input, output and error of the command, and where its end is reported."""

# What commands import at their start, or as soon as they connect. What is missing here costs time and nothing else.
_FOLDERS = ("app.commands", "faust", "stores", "transforms")
_MODULES = ("aiokafka.admin", "app.run", "boto3", "botocore.handlers", "encodings.idna", "encodings.utf_8_sig")
_NOT = ("app.commands.demo", "app.commands.job", "faust.__main__")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl.h


@dataclass(frozen=True)
class _Request:
    body: dict[str, Any]
    files: list[int]


def main() -> None:
    """Forks commands until the other end of the socket is closed; in a child, becomes the command."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    if sys.argv[2:] != [BARE]:
        _import()
    gc.collect()
    gc.freeze()
    with contextlib.closing(_Server(connection)) as server:
        request = server.serve()
    if request is not None:
        status: object = None
        try:
            _become(request)
        except SystemExit as exc:
            status = exc.code
        if request.body["warnings"]:
            sys.exit(status)  # type: ignore[arg-type]  # as it was given
        _end(status)


def _end(status: object) -> NoReturn:
    """Does what an interpreter does at its end, and leaves out that it takes all modules apart.

    That would touch, and so copy, each object that was imported before the fork: a tenth of a second of a core.
    """
    if not (status is None or isinstance(status, int)):
        print(status, file=sys.stderr)  # noqa: T201  # as Python does
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as those of pools
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # it is closed
            stream.flush()
    os._exit((status or 0) & 0xFF)


def _import() -> None:
    from tests.s3_models import share_models

    names = [*_MODULES]
    for folder in _FOLDERS:
        package = importlib.import_module(folder)
        names += [module.name for module in pkgutil.walk_packages(package.__path__, f"{folder}.")]
    for name in names:
        if name not in _NOT:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    share_models(read=True)
    # Faust looks where each page of the worker's is written; Python then looks where each module comes from, once.
    inspect.getmodule(inspect.currentframe())


class _Server:
    """Owns the socket, and where to report the end of each child."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._children: dict[int, int] = {}
        self._woken, self._wake = socket.socketpair()
        for each in (self._woken, self._wake):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def close(self) -> None:
        """Gives back what a child must not have."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._connection, self._woken, self._wake):
            each.close()
        for told in self._children.values():
            os.close(told)

    def serve(self) -> _Request | None:
        """Returns in a child, with what it is to become; or at the end, with nothing."""
        with DefaultSelector() as selector:
            selector.register(self._connection, EVENT_READ)
            selector.register(self._woken, EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._woken in ready:
                    self._woken.recv(4096)
                    self._reap()
                if self._connection in ready:
                    request = self._receive()
                    if request is None or self._fork(request) == 0:
                        return request

    def _receive(self) -> _Request | None:
        head, files, _, _ = socket.recv_fds(self._connection, SIZE.size, FILES)
        if len(head) < SIZE.size:
            return None
        (left,) = SIZE.unpack(head)
        body = bytearray()
        while len(body) < left:
            some = self._connection.recv(left - len(body))
            if not some:
                return None
            body += some
        return _Request(json.loads(body), files)

    def _fork(self, request: _Request) -> int:
        parent = os.getpid()
        process = os.fork()
        *files, told = request.files
        if process:
            self._children[process] = told
            for each in files:
                os.close(each)
            self._connection.sendall(SIZE.pack(process))
        else:
            os.close(told)
            _end_with(parent)
        return process

    def _reap(self) -> None:
        for process in self._ended():
            told = self._children.pop(process[0])
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                os.write(told, STATUS.pack(os.waitstatus_to_exitcode(process[1])))
            os.close(told)

    def _ended(self) -> Iterator[tuple[int, int]]:
        while self._children:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            yield process, status


def _end_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def _become(request: _Request) -> None:
    body = request.body
    for number, file in enumerate(request.files[: FILES - 1]):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(body["environ"])
    os.chdir(body["folder"])
    sys.path[1:1] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    for action in body["warnings"]:
        warnings.simplefilter(action)
    for place, value in body["constants"].items():
        module, _, constant = place.partition(":")
        owner = importlib.import_module(module)
        assert hasattr(owner, constant), place
        setattr(owner, constant, value)
    kind, name, *arguments = body["command"]
    sys.argv = [name, *arguments]
    if kind == "module":
        package = sys.modules.get(name)
        if package is not None and package.__spec__ is None:  # Faust replaces the module
            package.__spec__ = PathFinder.find_spec(name)
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(name).parent))
        runpy.run_path(name, run_name="__main__")


if __name__ == "__main__":
    main()
