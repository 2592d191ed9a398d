"""The owners of dead letters in a topic that several pipelines share: which pipeline, and whose store opens them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.config.settings import PipelineSettings
from app.deadletters.reader import FoundLetter, LetterReader, LetterSummary
from transforms.letter import PREFIX
from transforms.record import RecordLike, SourceRecord

_NAME = "connector.name"
_HEADER = PREFIX + _NAME


@dataclass(frozen=True, slots=True)
class Owner:
    """One of the pipelines of a dead-letter topic.

    Attributes:
        name: of the pipeline.
        topics: that it reads.
        others: the names of the other pipelines of the topic, as far as they are known.
        rivals: the topics that these read, by their names, if the dead letters of all are replayed one pipeline
            after another, so that each has one owner, or none. None if only those of this pipeline are replayed.
        first: whether the pipeline is the first of these; what has no owner is reported once.
    """

    name: str
    topics: Collection[str]
    others: Collection[str]
    rivals: Mapping[str, Collection[str]] | None = None
    first: bool = True

    @classmethod
    def of(cls, pipeline: PipelineSettings, pipelines: Sequence[PipelineSettings]) -> Owner:
        """The pipeline among all pipelines of a file."""
        others = [each.name for each in pipelines if each.dead_letter_topic == pipeline.dead_letter_topic]
        return cls(pipeline.name, pipeline.topics, frozenset(others) - {pipeline.name})

    @classmethod
    def one_after_another(cls, pipelines: Sequence[PipelineSettings]) -> Iterator[Owner]:
        """All of these, which have one dead-letter topic, for a replay of each."""
        for pipeline in pipelines:
            rivals = {each.name: each.topics for each in pipelines if each is not pipeline}
            yield cls(pipeline.name, pipeline.topics, frozenset(rivals), rivals, pipeline is pipelines[0])

    def leaves(self, context: Mapping[str, str]) -> bool:
        """Whether the replay of another pipeline handles the dead letter."""
        if self.rivals is None or self.owns(context):
            return False
        return not self.first or self._readers(context) != []

    def _readers(self, context: Mapping[str, str]) -> Sequence[str]:
        """The pipeline that the dead letter names, or else the only one that reads its source topic; empty if none."""
        topics = {self.name: self.topics, **(self.rivals or {})}
        name = context.get(_NAME)
        if name in topics:
            return [name]
        found = [name for name, read in topics.items() if context.get("topic") in read]
        return found if len(found) == 1 else []

    def owns(self, context: Mapping[str, str]) -> bool:
        """Whether a dead letter with this context is the pipeline's own, or nothing shows that it is not.

        A dead letter names its pipeline. If that was renamed, the topic of the record decides. A dead letter without
        context may belong to any pipeline.
        """
        if self.rivals is not None:
            return self._readers(context) == [self.name]
        name = context.get(_NAME)
        if name == self.name:
            return True
        return name not in self.others and context.get("topic", next(iter(self.topics))) in self.topics


def told_context(record: RecordLike) -> Mapping[str, str]:
    """The context in the headers of a dead letter, which exist even if its value cannot be read."""
    return {
        name.removeprefix(PREFIX): value.decode(errors="replace")
        for name, value in record.headers
        if name.startswith(PREFIX) and value is not None
    }


class SharedReaders:
    """Reads the dead letters of a topic that several pipelines share; each is opened with its pipeline's store.

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
        """The summary by the dead letter's pipeline; if that is unknown, by the first that can read it. Blocks."""
        names = {(value or b"").decode(errors="replace") for name, value in found.record.headers if name == _HEADER}
        own_first = sorted(self._readers, key=lambda name: name not in names)
        summaries = [self._readers[own_first[0]].summarize(found)]
        for name in own_first[1:]:
            if summaries[-1].error is None:
                return summaries[-1]
            summaries.append(self._readers[name].summarize(found))
        return summaries[-1] if summaries[-1].error is None else summaries[0]
