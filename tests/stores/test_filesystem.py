"""What is the filesystem's own: links, permissions, full disks, crashes."""

from __future__ import annotations

import errno
import os
import pwd
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from stores.filesystem import FilesystemStore
from transforms.errors import (
    ConfigurationError,
    PayloadNotFoundError,
    PayloadStoreAccessError,
    PayloadStoreError,
    ReferenceRefusedError,
)


def opened(root: Path, config: Mapping[str, object] | None = None) -> FilesystemStore:
    store = FilesystemStore()
    store.configure({"filesystem.root": str(root), **(config or {})})
    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> FilesystemStore:
    return opened(root)


@pytest.mark.parametrize("fsync", [True, False])
def test_a_payload_is_a_file(root: Path, fsync: bool) -> None:  # noqa: FBT001
    """The path is the file's own as a URL, the file has the payload, and nothing else is left beside it."""
    path = opened(root, {"filesystem.fsync": fsync}).put("orders", "id", b"data")
    assert path == f"{root.as_uri()}/orders/id"
    assert [entry.relative_to(root).as_posix() for entry in sorted(root.rglob("*"))] == ["orders", "orders/id"]
    assert (root / "orders" / "id").read_bytes() == b"data"


def test_a_payload_may_be_read_by_the_group_only(root: Path) -> None:
    """Nobody outside the group reads a payload, whatever the umask."""
    before = os.umask(0)
    try:
        opened(root).put("orders", "id", b"data")
    finally:
        os.umask(before)
    modes = {
        entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in (root, root / "orders", root / "orders" / "id")
    }
    assert modes == {"root": 0o750, "orders": 0o750, "id": 0o640}


def test_the_root_is_resolved(tmp_path: Path) -> None:
    """A root behind a link, or with dots, is written as the folder that it leads to."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    store = opened(tmp_path / "link" / ".." / "link")
    assert store.root.uri == f"{(tmp_path / 'real').as_uri()}/"


def test_the_root_is_encoded(tmp_path: Path) -> None:
    """Characters that mean something in a URL are percent-encoded in the root, and the store finds its way back."""
    store = opened(tmp_path / "a b%41#?é")
    assert store.root.uri == f"{tmp_path.as_uri()}/a%20b%2541%23%3F%C3%A9/"
    assert store.download(store.publish("orders", b"data")) == b"data"
    assert (tmp_path / "a b%41#?é" / "orders").is_dir()


def test_two_stores_of_one_root_see_each_other(root: Path, tmp_path: Path) -> None:
    """Writer and reader are two processes that see the same folder."""
    path = opened(root).publish("orders", b"shared")
    assert opened(tmp_path / "." / "root").download(path) == b"shared"


@pytest.mark.parametrize(("value", "message"), [("", "is empty"), ("a\0b", "allowed is a directory")])
def test_a_root_that_is_no_folder_name_is_refused(value: str, message: str) -> None:
    """The mistake is said of its key."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        opened(Path("x"), {"filesystem.root": value})
    assert caught.value.key == "filesystem.root"


def test_the_root_is_required() -> None:
    """There is no folder that would be right for everybody."""
    with pytest.raises(ConfigurationError, match=r"filesystem\.root: is missing"):
        FilesystemStore().configure({})


# --- what must not be followed --------------------------------------------------------------------------------------


def test_a_link_below_the_root_is_not_followed(root: Path, store: FilesystemStore, tmp_path: Path) -> None:
    """A payload that is a link to a file elsewhere is refused, and so is one in a topic that is a link."""
    secret = tmp_path / "elsewhere" / "secret"
    secret.parent.mkdir()
    secret.write_text("secret")
    store.put("orders", "id", b"data")
    (root / "orders" / "link").symlink_to(secret)
    (root / "linked").symlink_to(secret.parent)
    for path in (store.root.path("orders", "link"), store.root.path("linked", "secret")):
        for read in (store.download, store.stat):
            with pytest.raises(ReferenceRefusedError, match="not a regular file"):
                read(path)
    assert [info.path for info in store.list()] == [store.root.path("orders", "id")]
    assert list(store.list("linked")) == []


def test_a_put_does_not_follow_links_either(root: Path, store: FilesystemStore, tmp_path: Path) -> None:
    """A topic that is a link is an error that stays; an id that is a link is replaced, not written through."""
    store.check()
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "linked").symlink_to(outside)
    with pytest.raises(PayloadStoreError, match="ENOTDIR") as caught:
        store.put("linked", "id", b"data")
    assert not caught.value.retriable
    target = outside / "target"
    target.write_text("untouched")
    (root / "orders").mkdir()
    (root / "orders" / "id").symlink_to(target)
    assert store.download(store.put("orders", "id", b"data")) == b"data"
    assert target.read_text() == "untouched"


def test_a_delete_does_not_follow_links(root: Path, store: FilesystemStore, tmp_path: Path) -> None:
    """What lies behind a topic that is a link stays."""
    store.check()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "id").write_text("kept")
    (root / "linked").symlink_to(tmp_path / "outside")
    with pytest.raises(PayloadStoreError, match="ENOTDIR"):
        store.delete(store.root.path("linked", "id"))
    assert (tmp_path / "outside" / "id").read_text() == "kept"


def test_what_is_no_regular_file_is_refused(root: Path, store: FilesystemStore) -> None:
    """A folder or a pipe is refused at once; a pipe does not hold the reader until somebody writes."""
    (root / "orders" / "folder").mkdir(parents=True)
    os.mkfifo(root / "orders" / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(ReferenceRefusedError, match="not a regular file"):
            store.download(store.root.path("orders", name))
    assert list(store.list()) == []


def test_list_passes_over_what_is_not_ours(root: Path, store: FilesystemStore) -> None:
    """Unfinished writes, nested folders and odd names are no payloads."""
    path = store.publish("orders", b"data")
    (root / "orders" / "deeper").mkdir()
    (root / "orders" / "deeper" / "id").write_text("foreign")
    for name in ("lost", "orders/~0123", "orders/an id", "orders/é"):
        (root / name).write_text("foreign")
    assert [info.path for info in store.list()] == [path]


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.fixture
def one_mebibyte_files() -> Iterator[None]:
    """No file of this process may grow over 1 MiB: the nearest to a full disk that a test may make."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("one_mebibyte_files")
def test_a_write_that_fails_leaves_what_was_there(root: Path, store: FilesystemStore) -> None:
    """When there is no room the old payload stays whole, no rest lies about, and waiting may help."""
    path = store.put("orders", "id", b"old")
    with pytest.raises(PayloadStoreError, match=r"cannot write .*orders/id: File too large \(EFBIG\)") as caught:
        store.put("orders", "id", bytes((1 << 20) + 1))
    assert caught.value.retriable
    assert store.download(path) == b"old"
    assert [entry.name for entry in (root / "orders").iterdir()] == ["id"]


def test_a_disk_that_fails_is_told_by_its_first_error(store: FilesystemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after, such as that the rest cannot be removed from a disk that turned read-only, does not hide it."""
    path = store.put("orders", "id", b"old")

    def failing(number: int) -> Callable[..., None]:
        def fail(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        return fail

    with monkeypatch.context() as disk:  # no disk that a test can have fails on demand
        disk.setattr(os, "fsync", failing(errno.EIO))
        disk.setattr(os, "unlink", failing(errno.EROFS))
        with pytest.raises(PayloadStoreError, match="EIO") as caught:
            store.put("orders", "id", b"new")
    assert (caught.value.retriable, isinstance(caught.value, PayloadStoreAccessError)) == (True, False)
    assert store.download(path) == b"old"
    assert [info.path for info in store.list()] == [path]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_payload_that_cannot_be_read_is_not_missing(
    store: FilesystemStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A bad sector, or a handle that an NFS server has forgotten, is no verdict on the record; the path is told."""
    path = store.publish("orders", b"data")

    def read(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as disk:
        disk.setattr(os, "read", read)
        with pytest.raises(PayloadStoreError, match=rf"cannot read {path}: .*{errno.errorcode[number]}") as caught:
            store.download(path)
    assert caught.value.retriable
    assert store.download(path) == b"data"


def test_a_topic_folder_that_is_deleted_is_made_again(root: Path, store: FilesystemStore) -> None:
    """What lay in it is missing, and says so; the next payload has its folder again."""
    path = store.publish("orders", b"data")
    shutil.rmtree(root / "orders")
    with pytest.raises(PayloadNotFoundError):
        store.download(path)
    assert store.download(store.publish("orders", b"data")) == b"data"


def test_a_full_disk_may_pass(tmp_path: Path) -> None:
    """On a disk that is really full the error says so, and that waiting may help."""
    in_namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    mount = 'mount -t tmpfs -o size=1m tmpfs "$1"'
    try:
        subprocess.run([*in_namespace, mount, "sh", str(tmp_path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine does not permit mounting a small disk (unshare --user --mount)")
    code = (
        "import sys\n"
        "from stores.filesystem import FilesystemStore\n"
        "from transforms.errors import PayloadStoreError\n"
        "store = FilesystemStore()\n"
        "store.configure({'filesystem.root': sys.argv[1]})\n"
        "try:\n"
        "    store.put('orders', 'id', bytes(2 << 20))\n"
        "except PayloadStoreError as exc:\n"
        "    print(exc, exc.retriable)\n"
        "store.put('orders', 'id', bytes(1 << 19))\n"
        "print([info.size for info in store.list()])\n"
    )
    script = f'{mount} && exec "$2" -c "$3" "$1"'
    ended = subprocess.run(
        [*in_namespace, script, "sh", str(tmp_path), sys.executable, code], check=True, capture_output=True, text=True
    )
    assert ended.stdout.splitlines() == [
        f"cannot write {tmp_path.as_uri()}/orders/id: No space left on device (ENOSPC) True",
        f"[{1 << 19}]",
    ]


def test_a_root_that_is_gone_is_a_store_that_is_down(root: Path, store: FilesystemStore) -> None:
    """A mount that went away is waited for: its payloads are not missing, and nothing is written below its folder."""
    path = store.publish("orders", b"data")
    root.rename(root.with_name("away"))
    for call in (lambda: store.download(path), lambda: store.publish("orders", b"data"), lambda: store.stat(path)):
        with pytest.raises(PayloadStoreError, match="is it mounted") as caught:
            call()
        assert caught.value.retriable
        assert not isinstance(caught.value, PayloadNotFoundError)
    assert not root.exists()
    root.with_name("away").rename(root)
    assert store.download(path) == b"data"


def test_check_makes_the_root(tmp_path: Path) -> None:
    """A writer's check makes the folder with those above it, and leaves it empty."""
    store = opened(tmp_path / "a" / "b")
    store.check()
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_check_of_a_reader_makes_nothing(root: Path, store: FilesystemStore) -> None:
    """A reader whose root is not there is told so."""
    with pytest.raises(PayloadStoreError, match="is it mounted"):
        store.check(writing=False)
    assert not root.exists()


def test_check_of_a_root_that_is_a_file(root: Path, store: FilesystemStore) -> None:
    """A file in the way stays in the way."""
    root.write_text("a file")
    with pytest.raises(PayloadStoreError, match=r"EEXIST|ENOTDIR") as caught:
        store.check()
    assert not caught.value.retriable


@pytest.fixture
def folder_of_a_user() -> Iterator[Path]:
    """A folder of somebody who is not root, as whom the test goes on: root may write everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        nobody = pwd.getpwnam("nobody").pw_uid
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(folder, nobody, -1)
            os.seteuid(nobody)
        try:
            yield Path(folder)
        finally:
            if is_root:
                os.seteuid(0)


def test_a_root_that_may_not_be_written_is_final(folder_of_a_user: Path) -> None:
    """Permission denied stays until somebody acts; a reader does not mind."""
    root = folder_of_a_user / "root"
    store = opened(root)
    path = store.publish("orders", b"data")
    for folder in (root, root / "orders"):
        folder.chmod(0o550)
    try:
        for call in (store.check, lambda: store.publish("orders", b"more"), lambda: store.publish("new", b"more")):
            with pytest.raises(PayloadStoreError, match="EACCES") as caught:
                call()
            assert not caught.value.retriable
        store.check(writing=False)
        assert store.download(path) == b"data"
    finally:
        for folder in (root, root / "orders"):
            folder.chmod(0o750)


def test_a_killed_writer_leaves_whole_payloads_only(root: Path) -> None:
    """After `kill -9` in the middle of writing, what is listed is whole, and rests are not listed."""
    code = (
        "import sys\n"
        "from stores.filesystem import FilesystemStore\n"
        "store = FilesystemStore()\n"
        "store.configure({'filesystem.root': sys.argv[1], 'filesystem.fsync': False})\n"
        "for i in range(1_000_000):\n"
        "    store.put('orders', str(i % 8), bytes([i % 251]) * (1 << 20))\n"
        "    print(i, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        for _ in range(20):
            assert writer.stdout.readline()
    finally:
        writer.kill()
        writer.communicate()
    store = opened(root)
    found = list(store.list("orders"))
    assert {info.size for info in found} == {1 << 20}
    for info in found:
        data = store.download(info.path)
        assert data == data[:1] * (1 << 20)
