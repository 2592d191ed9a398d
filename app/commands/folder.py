"""A directory of values, one file for each record, with file names that a record cannot misuse."""

from __future__ import annotations

import os
import re
from itertools import chain, count
from pathlib import Path

from transforms.errors import ConfigurationError

# Alphanumeric and a few others; no dot (hidden) or dash (an option) first, and no dot or space last.
_SAFE = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_ .,+=@()-]{0,198}[A-Za-z0-9_)])?", re.ASCII)
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)  # Windows' devices
_LONGEST = 200  # bytes; leaves room for a suffix within the 255 of most file systems


def safe_name(key: bytes | None) -> str | None:
    """The key as a file name, if it is a valid and safe name on all systems; otherwise None."""
    if key is None or len(key) > _LONGEST:
        return None
    try:
        text = key.decode("ascii")
    except UnicodeDecodeError:
        return None
    return text if _SAFE.fullmatch(text) and not _RESERVED.fullmatch(text) else None


class Folder:
    """Writes values into one directory; overwrites no file, and writes nothing outside the directory.

    Only the user may read the files, as the ACLs of the topic protect their contents.

    Args:
        path: the directory; it is created if it does not exist.

    Raises:
        ConfigurationError: the directory cannot be created, or is a file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigurationError("--output", f"directory {path} cannot be created: {exc.strerror}") from exc

    def write(self, value: bytes, key: bytes | None, fallback: str) -> Path:
        """Writes a file and returns its path.

        The name is the key if it is safe and not in use, otherwise `fallback`, which is always safe. If both are in
        use, a number is appended to `fallback`.

        Raises:
            OSError: the file cannot be written; no part of it is left.
        """
        numbered = (f"{fallback}.{number}" for number in count(1))
        names = chain(filter(None, (safe_name(key), fallback)), numbered)
        return next(path for name in names if (path := self._create(name, value)) is not None)

    def _create(self, name: str, value: bytes) -> Path | None:
        """Writes a new file; None if the name is in use, even by a broken symbolic link."""
        path = self._path / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return None
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(value)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path
