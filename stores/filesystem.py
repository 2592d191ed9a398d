"""The embedded default: one file for each payload, `<root>/<topic>/<id>`, on a disk that writers and readers share.

A payload is written to a temporary file in the same directory and then renamed, so a reader sees all of it or nothing.
The names of temporary files begin with `~`, which no id does, so `list` skips them. After a crash they remain. They may
be deleted when no writer is running, or when they are older than any put can take.

References come from records that anyone may write. A path is checked as text first (`stores.root`), and the last two
segments are then opened without following symbolic links, so a link below the root leads nowhere either. Links above
the root are resolved once, when the store is configured.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, cast
from urllib.parse import quote

from stores.keys import REQUIRED, Key, Value
from stores.root import Root, check_object_id
from stores.store import PayloadInfo, Removal, RemovalOutcome, Store
from transforms.errors import (
    ConfigurationError,
    PayloadNotFoundError,
    PayloadStoreAccessError,
    PayloadStoreError,
    PayloadTooLargeError,
    ReferenceRefusedError,
)

__all__ = ["FilesystemStore"]

# Less the umask. The group may read, as the reader is often another user of the same group.
_FILE_MODE = 0o640
_FOLDER_MODE = 0o750

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_UNFINISHED = "~"

# These errors are permanent. All others (a full disk, a lost network mount, too many open files) may be transient and
# are not caused by the record, so the caller waits.
_FINAL = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class FilesystemStore(Store):
    """Paths are `file://<root>/<topic>/<id>`, the root absolute, resolved and percent-encoded.

    A put is durable when it returns: file, directory and, for a new topic, the parent directory are flushed.
    """

    KEYS: ClassVar[Sequence[Key]] = (
        Key(
            "filesystem.root",
            "string",
            "The directory of the payloads. It is created if it does not exist. Symbolic links in its path are "
            "resolved at start. The result is part of every reference, so writers and readers must use the same path.",
            default=REQUIRED,
        ),
        Key(
            "filesystem.fsync",
            "boolean",
            "Whether a payload is flushed to the disk before its reference is sent. If not, a power failure can lose "
            "payloads whose references were already sent.",
            default=True,
        ),
    )

    def open(self, values: Mapping[str, Value | None]) -> None:
        found = cast("str", values["filesystem.root"])
        if not found:
            raise ConfigurationError("filesystem.root", "is empty, allowed is a directory")
        try:
            self._folder = Path(found).expanduser().resolve()
        except (ValueError, RuntimeError, OSError) as exc:
            raise ConfigurationError("filesystem.root", f"found {found!r}, allowed is a directory: {exc}") from None
        self._fsync = cast("bool", values["filesystem.fsync"])
        self.root = Root(f"file://{quote(os.fsencode(self._folder)).rstrip('/')}/")
        # Two threads may both find the root missing or a topic new: to make and flush it twice does no harm.
        self._made_root = False
        self._is_mount = False
        self._flushed_topics: set[str] = set()

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        path = self.root.path(topic, object_id)
        with _translated("write", path):
            if not self._made_root:
                self._make_root()
            with self._opened_root() as root, self._topic_for_writing(root, topic) as folder:
                self._write(folder, object_id, data)
        return path

    def get(self, full_path: str, max_bytes: int) -> bytes:
        with self._opened(full_path) as (file, status):
            if status.st_size > max_bytes:
                raise PayloadTooLargeError(full_path, status.st_size, max_bytes)
            data = os.read(file, status.st_size)
            if len(data) == status.st_size:
                return data
            pieces = [data]
            missing = status.st_size - len(data)
            while missing:
                piece = os.read(file, missing)
                if not piece:
                    raise PayloadStoreError(
                        f"payload {full_path} ended {missing:,} bytes early: it was truncated while being read",
                        retriable=True,
                    )
                pieces.append(piece)
                missing -= len(piece)
            return b"".join(pieces)

    def stat(self, full_path: str) -> PayloadInfo:
        with self._opened(full_path) as (_, status):
            return _info(full_path, status)

    def delete(self, full_path: str) -> None:
        topic, object_id = self.root.split(full_path)
        with _translated("delete", full_path), self._opened_root() as root:
            try:
                with _folder(topic, root) as folder:
                    os.unlink(object_id, dir_fd=folder)
                    if self._fsync:
                        os.fsync(folder)
            except FileNotFoundError:
                return

    def delete_unchanged(self, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
        """See `DeleteUnchanged.delete_unchanged`; between look and removal are two system calls, microseconds.

        A client of NFS may answer the look with what it has seen before, up to a minute ago.

        Nothing is flushed: the next sweep removes what a power cut brings back.
        """
        for payload in payloads:
            topic, object_id = self.root.split(payload.path)
            try:
                with _translated("delete", payload.path), self._opened_root() as root:
                    outcome = _remove(root, topic, object_id, payload)
            except PayloadStoreError as exc:
                yield Removal(payload, "failed", str(exc))
            else:
                yield Removal(payload, outcome)

    def topics(self) -> Iterator[str]:
        with _translated("list", self.root.uri), contextlib.suppress(FileNotFoundError), _folder(self._folder) as root:
            yield from _topics(root)

    def list(self, topic: str | None = None) -> Iterator[PayloadInfo]:
        """See `List.list`. A payload that is deleted at the same time may be missing."""
        if topic is not None:
            check_object_id(topic)
        with _translated("list", self.root.uri), contextlib.suppress(FileNotFoundError), _folder(self._folder) as root:
            if topic is not None:
                yield from self._list_topic(root, topic)
                return
            for name in _topics(root):
                yield from self._list_topic(root, name)

    def check(self, *, writing: bool = True, topic: str | None = None) -> None:  # noqa: ARG002
        """See `Check.check`: creates the root, writes an empty file and deletes it."""
        with _translated("use", self.root.uri):
            if writing:
                self._make_root()
                with self._opened_root() as root:
                    _discard(root, *_create(root))
            else:
                with self._opened_root():
                    pass

    def close(self) -> None:
        """Does nothing: no resources are held."""

    def _make_root(self) -> None:
        missing = [folder for folder in (self._folder, *self._folder.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(_FOLDER_MODE, exist_ok=True)
            if self._fsync:
                with _folder(folder.parent) as parent:
                    os.fsync(parent)
        self._made_root = True

    @contextlib.contextmanager
    def _opened_root(self) -> Iterator[int]:
        """The open root. A missing root means an unmounted file system, not that payloads do not exist."""
        try:
            root = os.open(self._folder, _FOLDER_FLAGS)
        except FileNotFoundError as exc:
            raise PayloadStoreError(f"directory {self._folder} does not exist; is it mounted?", retriable=True) from exc
        try:
            self._check_mount(root)
            yield root
        finally:
            os.close(root)

    def _check_mount(self, root: int) -> None:
        """Refuses the empty mount point that an unmount leaves; payloads in it would be hidden by the next mount.

        Raises:
            PayloadStoreError: the root was the mount point of another file system, and no longer is.
        """
        is_mount = os.stat("..", dir_fd=root).st_dev != os.fstat(root).st_dev
        if self._is_mount and not is_mount:
            raise PayloadStoreError(f"the file system on {self._folder} is no longer mounted", retriable=True)
        self._is_mount = is_mount

    @contextlib.contextmanager
    def _topic_for_writing(self, root: int, topic: str) -> Iterator[int]:
        try:
            folder = os.open(topic, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=root)
        except FileNotFoundError:
            self._flushed_topics.discard(topic)
            with contextlib.suppress(FileExistsError):
                os.mkdir(topic, _FOLDER_MODE, dir_fd=root)
            folder = os.open(topic, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=root)
        try:
            if self._fsync and topic not in self._flushed_topics:
                os.fsync(root)
                self._flushed_topics.add(topic)
            yield folder
        finally:
            os.close(folder)

    def _write(self, folder: int, object_id: str, data: bytes) -> None:
        file, name = _create(folder)
        try:
            with memoryview(data) as view:
                written = 0
                while written < len(view):
                    written += os.write(file, view[written:])
            if self._fsync:
                os.fsync(file)
            os.rename(name, object_id, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _discard(folder, file, name)
            raise
        os.close(file)
        if self._fsync:
            os.fsync(folder)

    @contextlib.contextmanager
    def _opened(self, full_path: str) -> Iterator[tuple[int, os.stat_result]]:
        """A payload, open for reading, and its status.

        Raises:
            ReferenceRefusedError: it is not below the root, or not a regular file: a link, a directory, a pipe.
            PayloadNotFoundError: it is not there.
        """
        topic, object_id = self.root.split(full_path)
        refused = ReferenceRefusedError(full_path, self.root.uri, "it is not a regular file below")
        with _translated("read", full_path), self._opened_root() as root:
            try:
                with _folder(topic, root) as folder:
                    # Without O_NONBLOCK the open of a pipe would wait for a writer.
                    file = os.open(object_id, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            except FileNotFoundError:
                raise PayloadNotFoundError(full_path) from None
            except OSError as exc:
                if exc.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}:
                    raise refused from exc
                raise
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise refused
                yield file, status
            finally:
                os.close(file)

    def _list_topic(self, root: int, topic: str) -> Iterator[PayloadInfo]:
        try:
            folder = os.open(topic, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=root)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not _is_name(entry.name) or not entry.is_file(follow_symlinks=False):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        yield _info(self.root.path(topic, entry.name), entry.stat(follow_symlinks=False))
        finally:
            os.close(folder)


def _topics(root: int) -> Iterator[str]:
    with os.scandir(root) as entries:
        for entry in entries:
            if _is_name(entry.name) and entry.is_dir(follow_symlinks=False):
                yield entry.name


def _remove(root: int, topic: str, object_id: str, payload: PayloadInfo) -> RemovalOutcome:
    try:
        with _folder(topic, root) as folder:
            status = os.stat(object_id, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or _info(payload.path, status).modified != payload.modified:
                return "changed"
            os.unlink(object_id, dir_fd=folder)
    except FileNotFoundError:
        return "gone"
    return "deleted"


def _is_name(name: str) -> bool:
    try:
        check_object_id(name)
    except ValueError:
        return False
    return True


def _info(path: str, status: os.stat_result) -> PayloadInfo:
    return PayloadInfo(path, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


@contextlib.contextmanager
def _folder(name: str | Path, parent: int | None = None) -> Iterator[int]:
    folder = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield folder
    finally:
        os.close(folder)


def _create(folder: int) -> tuple[int, str]:
    name = f"{_UNFINISHED}{secrets.token_hex(16)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(name, flags, _FILE_MODE, dir_fd=folder), name


def _discard(folder: int, file: int, name: str) -> None:
    # Neither may hide the error of the write: a disk that fails, or becomes read-only, fails here again.
    with contextlib.suppress(OSError):
        os.close(file)
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _translated(operation: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        message = f"cannot {operation} {path}: {exc.strerror} ({errno.errorcode.get(exc.errno or 0, 'no number')})"
        if exc.errno in _DENIED:
            raise PayloadStoreAccessError(message) from exc
        raise PayloadStoreError(message, retriable=exc.errno not in _FINAL) from exc
