"""The files that the demo sends, and their comparison with the result."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.local import spark_home
from transforms.errors import ConfigurationError
from transforms.text import bytes_text

_COUNT = 100
_DEFAULT_LARGEST_BYTES = 16_000_000
_LARGE_ONES = 12  # the largest of Spark's jars; the others are chosen evenly

# The embedded broker, the worker and Spark hold a whole value in memory, some of them several times.
LARGEST_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class DemoFile:
    """A file to send.

    Attributes:
        path: the path of the file.
        key: the key of its message; different for each file.
        size: the size in bytes when it was listed.
    """

    path: Path
    key: bytes
    size: int


def from_folder(folder: Path) -> list[DemoFile]:
    """All files below a directory; the key is the path relative to the directory.

    Raises:
        ConfigurationError: the directory does not exist, has no file, or has a file that cannot be sent.
    """
    if not folder.exists():
        raise ConfigurationError("INPUT", f"directory {folder} does not exist")
    if not folder.is_dir():
        raise ConfigurationError("INPUT", f"{folder} is not a directory; pass the directory that contains it")
    try:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        found = [
            DemoFile(path, os.fsencode(path.relative_to(folder).as_posix()), path.stat().st_size) for path in paths
        ]
    except OSError as exc:
        raise ConfigurationError("INPUT", f"{exc.filename or folder} cannot be read: {exc.strerror}") from exc
    if not found:
        raise ConfigurationError("INPUT", f"directory {folder} contains no files")
    for file in found:
        if not os.access(file.path, os.R_OK):
            raise ConfigurationError("INPUT", f"{file.path} cannot be read: permission denied")
        if file.size > LARGEST_BYTES:
            raise ConfigurationError(
                "INPUT",
                f"{file.path} has {bytes_text(file.size)}; the demo accepts files of up to "
                f"{bytes_text(LARGEST_BYTES)}, because its broker and Spark hold them in memory",
            )
    return found


def from_jars(fetched: Sequence[Path]) -> list[DemoFile]:
    """The fetched jars, and jars of Spark to make about a hundred files, of up to 16 MB each."""
    home = spark_home.find()
    shipped = sorted(home.glob("jars/*.jar") if home else (), key=lambda path: path.stat().st_size)
    fitting = [path for path in shipped if path.stat().st_size <= _DEFAULT_LARGEST_BYTES]
    small, large = fitting[:-_LARGE_ONES], fitting[-_LARGE_ONES:]
    missing = max(1, _COUNT - len(fetched) - len(large))
    step = max(1, len(small) // missing)
    by_name = {path.name: path for path in [*small[::step][:missing], *large, *fetched]}
    return [DemoFile(path, name.encode(), path.stat().st_size) for name, path in sorted(by_name.items())]


@dataclass(slots=True)
class Comparison:
    """The values that were sent, compared with the values that arrived, by key.

    Attributes:
        identical: the number of keys whose values all have the SHA-256 of the value that was sent.
        different: keys with a different value.
        missing: keys that did not arrive.
        strange: keys that were not sent.
    """

    identical: int = 0
    different: list[bytes] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    strange: list[bytes] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether all values arrived unchanged, and no others."""
        return not (self.different or self.missing or self.strange)


def compare(sent: Mapping[bytes, bytes], parquet: Path) -> Comparison:
    """Compares SHA-256 digests by key with the records in Parquet files, with one row group in memory at a time.

    Raises:
        OSError: a file cannot be read.
    """
    result = Comparison()
    same_by_key: dict[bytes, bool] = {}
    for key, digest in _digests(parquet):
        if key not in sent:
            result.strange.append(key or b"")
            continue
        assert key is not None
        same_by_key[key] = same_by_key.get(key, True) and digest == sent[key]
    result.identical = sum(same_by_key.values())
    result.different = [key for key, same in same_by_key.items() if not same]
    result.missing = [key for key in sent if key not in same_by_key]
    return result


def _digests(folder: Path) -> Iterator[tuple[bytes | None, bytes | None]]:
    import pyarrow.parquet as pq

    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, columns=["key", "value"])
                for key, value in zip(rows["key"], rows["value"], strict=True):
                    digest = hashlib.sha256(value.as_buffer()).digest() if value.is_valid else None
                    yield key.as_py(), digest
