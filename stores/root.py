"""The root of a store as a URI, and the paths below it: `<root>/<topic>/<id>`.

A path is never decoded, resolved or normalized. It is below the root if it begins with the root's own characters and
the rest is a topic, a slash and an id, both of `[a-zA-Z0-9._-]`. So `..`, `%2e%2e`, an encoded slash, a query, a NUL
and any other trick of a forged reference are refused without a separate rule.

Payloads of bakdata's kafka-large-message-serde, `<root>/<topic>/values/<id>` or `keys`, can only be read: a store never
makes, lists or deletes such paths.
"""

from __future__ import annotations

from dataclasses import dataclass

from transforms.errors import ConfigurationError, ReferenceRefusedError

_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LENGTH = 249  # the longest topic name; every file system and S3 accept it as a segment of a path

_PROBE = "~wideload-check"  # no topic and no payload can have this name, so none is ever listed

# The longest name of an object is 1,024 bytes or characters in all clouds; topic and id with their slashes take up to
# 500 of them.
_LONGEST_PREFIX = 1024 - 500


def check_prefix(name: str, prefix: str) -> str:
    """`prefix` without a slash at its end, if object keys can begin with it.

    Args:
        name: of the key that has it.
        prefix: its value.

    Raises:
        ConfigurationError: they cannot.
    """
    prefix = prefix.removesuffix("/")
    if prefix and ({"", ".", ".."} & set(prefix.split("/")) or not prefix.isprintable()):
        raise ConfigurationError(
            name, f"found {prefix!r}, allowed are names with a slash between them, none empty, '.' or '..'"
        )
    if len(prefix.encode(errors="surrogatepass")) > _LONGEST_PREFIX:
        raise ConfigurationError(name, f"is too long; allowed are {_LONGEST_PREFIX} of the 1,024 bytes of a name")
    return prefix


def check_object_id(object_id: str) -> str:
    """`object_id` if it can be a segment of a path.

    Raises:
        ValueError: empty, over 249 characters, `.`, `..`, or with a character outside `[a-zA-Z0-9._-]`.
    """
    if not object_id or len(object_id) > _LENGTH or object_id in {".", ".."} or not _CHARACTERS.issuperset(object_id):
        raise ValueError(f"{object_id!r} cannot be the name of an object")
    return object_id


@dataclass(frozen=True, slots=True)
class Root:
    """Where a store keeps its payloads.

    Attributes:
        uri: scheme, authority and path, with a slash at the end: `s3://bucket/prefix/`, `file:///root/`.
    """

    uri: str

    def path(self, topic: str, object_id: str) -> str:
        """The full path of a payload.

        Raises:
            ValueError: `topic` or `object_id` cannot be a segment of a path.
        """
        return f"{self.uri}{check_object_id(topic)}/{check_object_id(object_id)}"

    def probe(self, topic: str | None, tail: str = "") -> str:
        """A path next to the payloads of a topic, or next to all topics, where no payload can be.

        Permissions may be given for the payloads of a topic alone.
        """
        return f"{self.uri}{'' if topic is None else f'{check_object_id(topic)}/'}{_PROBE}{tail}"

    def holds(self, full_path: str) -> bool:
        """Whether `split` accepts the path."""
        try:
            self.split(full_path)
        except ReferenceRefusedError:
            return False
        return True

    def split(self, full_path: str) -> tuple[str, str]:
        """Topic and id of a path; the inverse of `path`.

        Raises:
            ReferenceRefusedError: `path` never returns this.
        """
        return self._checked(full_path, self._segments(full_path))

    def check_readable(self, full_path: str) -> None:
        """Accepts what `split` accepts, and also a path in `values/` or `keys/` below a topic.

        Raises:
            ReferenceRefusedError: it is neither.
        """
        match self._segments(full_path):
            case [topic, ("values" | "keys"), object_id]:
                self._checked(full_path, [topic, object_id])
            case segments:
                self._checked(full_path, segments)

    def topic(self, full_path: str) -> str:
        """The topic of a payload whose path `check_readable` accepts.

        Raises:
            ReferenceRefusedError: it refuses the path.
        """
        self.check_readable(full_path)
        return self._segments(full_path)[0]

    def _segments(self, full_path: str) -> list[str]:
        if not full_path.startswith(self.uri):
            raise ReferenceRefusedError(full_path, self.uri)
        return full_path[len(self.uri) :].split("/")

    def _checked(self, full_path: str, segments: list[str]) -> tuple[str, str]:
        try:
            topic, object_id = segments
            return check_object_id(topic), check_object_id(object_id)
        except ValueError:
            raise ReferenceRefusedError(full_path, self.uri, "it is not TOPIC/ID below") from None
