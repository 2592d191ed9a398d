"""The errors of one table of a configuration file: all of them are found, not only the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from app.config.secret import Secret, known
from stores.keys import Key
from transforms.errors import ConfigurationError, WideloadError


class WrongValueError(WideloadError):
    """A check needs a value that is itself wrong, so it cannot be made. `Findings.noted` ignores it."""


class Checked(dict[str, Any]):
    """The values of properties, by name. A wrong value is not passed to a check, which would blame another property."""

    def __init__(self, values: Mapping[str, Any], wrong: set[str]) -> None:
        super().__init__(values)
        self._wrong = wrong

    def __getitem__(self, name: str) -> Any:
        if name in self._wrong:
            raise WrongValueError(name)
        return super().__getitem__(name)


class Findings:
    """The errors of one table, or of the properties before the first one.

    Attributes:
        errors: in the order in which they were found.
        wrong: the names of properties that are wrong, or that are missing because they are misspelt.
    """

    # State that changes: `errors` and `wrong`, which grow. One caller.

    def __init__(self, pipeline: str | None = None) -> None:
        self._pipeline = pipeline
        self.errors: list[ConfigurationError] = []
        self.wrong: set[str] = set()

    def add(self, error: ConfigurationError) -> None:
        """Notes an error once, and marks its property as wrong."""
        for each in error.each:
            self.wrong.add(each.key)
            found = each if self._pipeline is None else each.of(self._pipeline)
            if str(found) not in map(str, self.errors):
                self.errors.append(found)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the error that ends the block; a block that needs a wrong value ends without an error."""
        try:
            yield
        except ConfigurationError as exc:
            self.add(exc)
        except WrongValueError:
            pass

    def read(self, keys: Iterable[Key], config: Mapping[str, object]) -> Checked:
        """The values of the properties, with defaults; notes each wrong one, and each that is missing.

        The text of a placeholder is converted to its property's type, and secrets are hidden.
        """
        values = {}
        for key in keys:
            if key.name in self.wrong:
                continue
            with self.noted():
                values[key.name] = _value(key, config)
        return Checked(values, self.wrong)

    def check(self, place: Callable[[ConfigurationError], float] = lambda _: 0) -> None:
        """Raises an error if anything is wrong.

        Args:
            place: of an error in the order of the file; errors of one place stay as they were found.

        Raises:
            ConfigurationError: with all errors.
        """
        if self.errors:
            raise ConfigurationError.together(sorted(self.errors, key=place))


def _value(key: Key, config: Mapping[str, object]) -> Any:
    given = config.get(key.name)
    value = key.read({**config, key.name: key.coerce(given)} if isinstance(given, Secret) else config)
    return known(value) if key.secret else value
