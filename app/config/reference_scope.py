"""The scope of references: which payloads of the store a topic may refer to (`large.message.root`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.config.fields import keyed, settings_of
from stores.root import Root
from stores.store import PayloadStore, Store
from transforms.errors import ConfigurationError, ReferenceRefusedError
from transforms.record import RecordLike, SourceRecord

_ROOT = "large.message.root"
_TOPICS = "large.message.root.topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScopeSettings:
    """Which payloads the records of a pipeline may refer to."""

    root: Literal["store", "topic"] = keyed(
        _ROOT,
        "string",
        "Which payloads `inflate` may read. `store`: all payloads below the root of the store. `topic`: only payloads "
        "of the topic from which the record is read, so that a producer with access to one topic cannot read the "
        "payloads of another.",
        default="store",
        allowed=("store", "topic"),
    )
    topics: tuple[str, ...] = keyed(
        _TOPICS,
        "list",
        "Other topics whose payloads may be read if `large.message.root` is `topic`, for instance the original topic "
        "of a mirror, or the topic to which a large key was first written.",
    )

    @property
    def by_topic(self) -> bool:
        """Whether a reference may lead only to payloads of its topic, and of `topics`."""
        return self.root == "topic"


def reference_scope_settings(values: Mapping[str, Any], transforms: Sequence[str]) -> ReferenceScopeSettings:
    """The settings of a pipeline.

    Raises:
        ConfigurationError: the properties contradict each other, or the transforms.
    """
    by_topic = values[_ROOT] == "topic"
    if by_topic and "inflate" not in transforms:
        raise ConfigurationError(_ROOT, f"found 'topic', which requires inflate; transforms are {list(transforms)}")
    if values[_TOPICS] is not None and not by_topic:
        raise ConfigurationError(_TOPICS, f'has no effect unless {_ROOT} is "topic"')
    return settings_of(ReferenceScopeSettings, values, topics=tuple(values[_TOPICS] or ()))


@dataclass(frozen=True, slots=True)
class ReferenceScope:
    """Checks whether a record may refer to a payload.

    Attributes:
        root: of the store.
        topics: the allowed topics in addition to the record's topic.
    """

    root: Root
    topics: frozenset[str]

    def check(self, path: str, source: RecordLike) -> None:
        """Checks that a path leads to a payload of an allowed topic.

        Raises:
            ReferenceRefusedError: it does not; no request was made.
        """
        topic = self.root.topic(path)
        own = source.topic if isinstance(source, SourceRecord) else None
        if topic != own and topic not in self.topics:
            root = f"{self.root.uri}{own}/" if own is not None else self.root.uri
            raise ReferenceRefusedError(path, root, "large.message.root is topic, and it is not below")

    def check_letter(self, path: str) -> None:
        """Checks that a path leads to the payload of a dead-letter record.

        Raises:
            ReferenceRefusedError: it leads to the payload of another topic; no request was made.
        """
        if self.root.topic(path) not in self.topics:
            below = " or ".join(f"{self.root.uri}{topic}/" for topic in sorted(self.topics))
            raise ReferenceRefusedError(path, below, "the payload of a dead-letter record is below")


def reference_scope(settings: ReferenceScopeSettings, store: PayloadStore) -> ReferenceScope | None:
    """The check of a pipeline's references; None if they may lead to any payload of the store.

    Raises:
        ConfigurationError: the store does not report the topic of a payload.
    """
    if not settings.by_topic:
        return None
    if not isinstance(store, Store):
        raise ConfigurationError(
            _ROOT,
            "found 'topic'; a custom store class does not report the topic of a payload; use a built-in store",
        )
    return ReferenceScope(store.root, frozenset(settings.topics))
