"""A folder that takes the values of records, under names that no record can misuse."""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path

from transforms.errors import ConfigurationError

__all__ = ["Folder", "safe_name"]

# Letters, digits and a few marks, not first a dot (hidden) or a dash (an option), not last a dot or a space.
_SAFE = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_ .,+=@()-]{0,198}[A-Za-z0-9_)])?", re.ASCII)
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)  # Windows' devices
_LONGEST = 200  # bytes; leaves room for a suffix within the 255 of most file systems


def safe_name(key: bytes | None) -> str | None:
    """The key as the name of a file, if it can be one as it is on any system; None otherwise."""
    if key is None or len(key) > _LONGEST:
        return None
    try:
        text = key.decode("ascii")
    except UnicodeDecodeError:
        return None
    return text if _SAFE.fullmatch(text) and not _RESERVED.fullmatch(text) else None


class Folder:
    """Writes values below one folder; nothing that is there is overwritten, and no name leads out of it.

    Args:
        path: made if it is not there.

    Raises:
        ConfigurationError: it cannot be made, or is a file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigurationError("--output", f"{path} cannot be a folder: {exc.strerror}") from exc

    def write(self, value: bytes, key: bytes | None, fallback: str) -> Path:
        """Writes a file and returns its path.

        Its name is the key where that is a safe name and free, else `fallback`, which is made of letters, digits, dots
        and dashes; with a number behind it where that is taken too.

        Raises:
            OSError: it cannot be written; no part of it is left.
        """
        named = safe_name(key)
        names = [] if named is None else [named]
        for name in (*names, fallback):
            path = self._create(name, value)
            if path is not None:
                return path
        for number in count(1):
            path = self._create(f"{fallback}.{number}", value)
            if path is not None:
                return path
        raise AssertionError("count does not end")

    def _create(self, name: str, value: bytes) -> Path | None:
        """None where something of that name is there already, be it a symbolic link to nowhere."""
        path = self._path / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return None
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(value)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path
