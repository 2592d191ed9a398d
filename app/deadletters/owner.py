"""Whose letters are in a dead-letter topic that several pipelines share: whose each is, and whose store opens it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.config.settings import PipelineSettings
from app.deadletters.reader import FoundLetter, LetterReader, LetterSummary
from transforms.letter import PREFIX
from transforms.record import SourceRecord

__all__ = ["Owner", "SharedReaders"]

_NAME = "connector.name"
_HEADER = PREFIX + _NAME


@dataclass(frozen=True, slots=True)
class Owner:
    """One of the pipelines of a dead-letter topic.

    Attributes:
        name: of the pipeline.
        topics: that it reads.
        others: the names of the other pipelines of the topic, as far as they are known.
    """

    name: str
    topics: Collection[str]
    others: Collection[str]

    @classmethod
    def of(cls, pipeline: PipelineSettings, pipelines: Sequence[PipelineSettings]) -> Owner:
        """The pipeline among all pipelines of a file."""
        others = [each.name for each in pipelines if each.dead_letter_topic == pipeline.dead_letter_topic]
        return cls(pipeline.name, pipeline.topics, frozenset(others) - {pipeline.name})

    def owns(self, context: Mapping[str, str]) -> bool:
        """Whether a letter with this context is the pipeline's own, or nothing says that it is not.

        A letter names its pipeline. If that has another name by now, the topic of the record decides. A letter without
        context may be anybody's.
        """
        name = context.get(_NAME)
        if name == self.name:
            return True
        return name not in self.others and context.get("topic", next(iter(self.topics))) in self.topics


class SharedReaders:
    """Reads the letters of a topic that several pipelines share; each is opened with the store of its own pipeline.

    Args:
        readers: by the name of the pipeline; at least one.
    """

    # State that changes is that of the reader which assembles chunks: one caller at a time of `add` and `incomplete`.

    def __init__(self, readers: Mapping[str, LetterReader]) -> None:
        self._readers = readers
        self._assembling = max(readers.values(), key=lambda reader: reader.max_bytes)

    def add(self, record: SourceRecord) -> Iterator[FoundLetter]:
        """See `LetterReader.add`."""
        return self._assembling.add(record)

    def incomplete(self) -> Iterator[FoundLetter]:
        """See `LetterReader.incomplete`."""
        return self._assembling.incomplete()

    def summarize(self, found: FoundLetter) -> LetterSummary:
        """The summary by the letter's own pipeline; if that is not known, by the first that can read it. Blocks."""
        names = {(value or b"").decode(errors="replace") for name, value in found.record.headers if name == _HEADER}
        own_first = sorted(self._readers, key=lambda name: name not in names)
        summaries = [self._readers[own_first[0]].summarize(found)]
        for name in own_first[1:]:
            if summaries[-1].error is None:
                return summaries[-1]
            summaries.append(self._readers[name].summarize(found))
        return summaries[-1] if summaries[-1].error is None else summaries[0]
