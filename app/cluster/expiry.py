"""The expiry of payloads: whether a store keeps them as long as the records that refer to them, and not much longer.

`wideload store lifecycle` shows it; the worker and `wideload check` warn of payloads that expire too early or never.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from app.cluster.preflight import Plan
from app.config.settings import PipelineSettings
from app.kafka.topics import Topic
from stores.registry import STORE_CLASS, open_store
from stores.store import ExpiryRule, Lifecycle, PayloadStore, Store
from transforms.errors import PayloadStoreError
from transforms.logger_name import logger_name
from transforms.retention import Retention, State

log = logging.getLogger(logger_name(__name__))

Transform = Literal["offload", "inflate", "dead-letter", "client"]

GROWS = "payloads stay until a sweep deletes those without a record, so it grows unless a sweep is scheduled"
"""What a store without expiry rules does."""

_ADVISED = frozenset({"missing", "too-short", "too-long", "forbidden"})
_ASK_S = 10.0  # how long `wideload check` waits for the rules of one store


@dataclass(frozen=True, slots=True)
class TopicExpiry:
    """One topic whose records refer to payloads, and the expiry rules of the store for these payloads.

    Attributes:
        pipeline: the pipeline's name; None if clients publish the payloads.
        transform: `offload` if the pipeline publishes the payloads, `inflate` if it reads them, `dead-letter` if they
            are values of its dead-letter records; `client` without a pipeline.
        topic: the topic's name.
        retention: how long the topic keeps records; None if the topic does not exist.
        payloads: where they are.
        rules: the rules that may delete the payloads; empty if the store did not return them.
        state: of `Verdict`. `no-rules`: the store has no expiry rules; `unknown`: the store, or the cluster, did not
            answer.
        message: explains the state.
        warnings: what the worker and `wideload check` warn of, a sentence each.
        wrong: whether the user has to change something.
        changed: the rule that `--apply` has set or removed; None if it had nothing to do.
        notes: further sentences.
    """

    pipeline: str | None
    transform: Transform
    topic: str
    retention: Retention | None
    payloads: str
    rules: Sequence[ExpiryRule]
    state: State | Literal["no-rules", "unknown"]
    message: str
    warnings: Sequence[str] = ()
    wrong: bool = False
    changed: str | None = None
    notes: Sequence[str] = ()

    @property
    def margin_s(self) -> float | None:
        """How much longer the store keeps payloads than `retention.ms` the records, in seconds, by the earliest rule.

        Below 0 if payloads expire before their records; infinite if no rule deletes payloads. None if it is not known,
        or if neither is deleted for its age.
        """
        if self.retention is None or self.state in ("no-rules", "unknown"):
            return None
        return self.retention.margin_s(self.rules)


def survey(pipeline: PipelineSettings, found: Mapping[str, Topic], *, apply: bool = False) -> list[TopicExpiry]:
    """The expiry of each topic whose records refer to payloads: see `references`. Blocks.

    Args:
        pipeline: its store is asked for the rules.
        found: the topics that exist, by name.
        apply: whether to set Wideload's own rules, and to remove them from topics that keep records forever. No other
            rule is changed.

    Raises:
        ConfigurationError: the store cannot be opened.
    """
    if not pipeline.store:
        return []
    with closing(open_store(pipeline.store)) as store:
        place = _Place(pipeline.name, pipeline.store, store)
        return [
            _expiry(place, transform, name, found.get(name), apply=apply) for transform, name in references(pipeline)
        ]


def survey_topics(
    store: Mapping[str, object], names: Iterable[str], found: Mapping[str, Topic], *, apply: bool = False
) -> list[TopicExpiry]:
    """The expiry of topics whose payloads clients publish, without a pipeline. Blocks.

    Args:
        store: the configuration of the clients' store.
        names: of the topics.
        found: those that exist, by name.
        apply: as with `survey`.

    Raises:
        ConfigurationError: the store cannot be opened.
    """
    with closing(open_store(store)) as opened:
        place = _Place(None, store, opened)
        return [_expiry(place, "client", name, found.get(name), apply=apply) for name in names]


def references(pipeline: PipelineSettings) -> Iterator[tuple[Transform, str]]:
    """The topics whose records refer to payloads: inflated topics, output topics of offload, dead-letter topics."""
    if "inflate" in pipeline.transforms:
        for name in pipeline.topics:
            yield "inflate", name
    if pipeline.offloads:
        yield "offload", pipeline.output_topic
    if pipeline.store and pipeline.dead_letter_topic is not None:
        yield "dead-letter", pipeline.dead_letter_topic


@dataclass(frozen=True, slots=True)
class _Place:
    """A store that is asked, its configuration, and the pipeline that has it; None if clients have it."""

    pipeline: str | None
    config: Mapping[str, object]
    store: PayloadStore

    def payloads(self, topic: str) -> str:
        """Where the payloads of a topic are, as far as it is known."""
        return f"{self.store.root.uri}{topic}/" if isinstance(self.store, Store) else str(self.config[STORE_CLASS])


def _expiry(place: _Place, transform: Transform, name: str, topic: Topic | None, *, apply: bool = False) -> TopicExpiry:
    store = place.store
    retention = None if topic is None else _retention(topic)
    expiry = TopicExpiry(place.pipeline, transform, name, retention, place.payloads(name), (), "unknown", "")
    if retention is None:
        message = f"topic {name} does not exist, so its retention is not known; create it first"
        return dataclasses.replace(expiry, message=message, wrong=True)
    if not isinstance(store, Lifecycle):
        message = f"this store has no expiry rules: {GROWS}"
        return dataclasses.replace(expiry, state="no-rules", message=message + _forbidding(retention))
    try:
        rules = store.expiry_rules(name)
        changed = _apply(store, retention, rules) if apply else None
        if changed is not None:
            rules = store.expiry_rules(name)
    except PayloadStoreError as exc:
        return dataclasses.replace(expiry, message=f"{exc}{_forbidding(retention)}", wrong=True)
    verdict, outlived = retention.judge(rules), retention.outlived(rules)
    message = f"{verdict.message}; {_advice(retention, rules)}" if verdict.state in _ADVISED else verdict.message
    return dataclasses.replace(
        expiry,
        rules=rules,
        state=verdict.state,
        message=message,
        warnings=[*([message] if verdict.warns else []), *([outlived] if outlived else [])],
        wrong=verdict.wrong,
        changed=changed,
        notes=retention.notes(rules),
    )


def _forbidding(retention: Retention) -> str:
    """That a topic must not have a TTL, which is reported even if the store does not return its rules."""
    return f"; {retention.judge(()).message}" if retention.forever else ""


def _apply(store: Lifecycle, retention: Retention, rules: Sequence[ExpiryRule]) -> str | None:
    days = retention.own_days(rules)
    if _is_set(rules, days) or not store.set_expiry(retention.topic, days):
        return None
    return "Wideload's rule is removed" if days is None else f"Wideload's rule is set to {days} d"


def _is_set(rules: Sequence[ExpiryRule], days: int | None) -> bool:
    own = [rule for rule in rules if rule.own]
    return not own if days is None else any(rule.whole and rule.days == days for rule in own)


def _advice(retention: Retention, rules: Sequence[ExpiryRule]) -> str:
    """How to fix it: with `--apply`, and by changing rules of others."""
    days = retention.own_days(rules)
    advice = []
    if not _is_set(rules, days):
        advice.append(f"`wideload store lifecycle --apply` {'removes' if days is None else 'sets'} Wideload's rule")
    if retention.judge(rule for rule in rules if not rule.own).state in ("too-short", "forbidden"):
        advice.append("--apply does not change rules of others: change such a rule where it was created")
    return "; ".join(
        advice or ["--apply does not shorten it, because another cluster may need it: remove the rule to set a new one"]
    )


def referencing_topics(topic: str, pipelines: Sequence[PipelineSettings]) -> list[str]:
    """The topics to which the pipelines forward records of `topic` with their references."""
    found: list[str] = []
    waiting = [topic]
    while waiting:
        source = waiting.pop()
        for pipeline in pipelines:
            if source not in pipeline.topics:
                continue
            sink = None if "inflate" in pipeline.transforms else pipeline.output_topic
            new = [name for name in (sink, pipeline.dead_letter_topic) if name is not None and name not in found]
            found += new
            waiting += new
    return found


def with_referencing_topics(
    expiry: TopicExpiry, pipelines: Sequence[PipelineSettings], found: Mapping[str, Topic]
) -> TopicExpiry:
    """The expiry, with a note on each further topic that keeps the references longer than the store their payloads."""
    if expiry.state not in ("ok", "too-long"):
        return expiry
    notes = [
        f"references of topic {expiry.topic} are also forwarded to topic {topic.name}, where they outlive their "
        f"payloads: retention.ms is {topic.retention_ms}, cleanup.policy is {topic.cleanup_policy}"
        for topic in (found[name] for name in referencing_topics(expiry.topic, pipelines) if name in found)
        if _retention(topic).judge(expiry.rules).wrong
    ]
    return dataclasses.replace(expiry, notes=[*expiry.notes, *notes])


def _retention(topic: Topic) -> Retention:
    return Retention(topic.name, topic.retention_ms, topic.cleanup_policy, topic.segment_ms)


# --- warnings ---------------------------------------------------------------------------------------------------------


def warnings_within(pipeline: PipelineSettings, plan: Plan, seconds: float = _ASK_S) -> list[str]:
    """The warnings, a sentence each; none if the store fails, or does not answer in time."""
    if not pipeline.store:
        return []
    found: list[str] = []

    def ask() -> None:
        with closing(open_store(pipeline.store)) as store:
            for expiry in _expiries(pipeline, plan, store):
                found.extend(expiry.warnings)

    _in_background(pipeline, ask).join(seconds)
    return list(found)


def ask_in_background(
    pipeline: PipelineSettings, plan: Plan, store: PayloadStore, tell: Callable[[Sequence[TopicExpiry]], None]
) -> None:
    """Calls `tell` in another thread with the expiry of each topic of the pipeline, once the store has answered.

    Returns immediately, and never fails: if the store fails, for example without a permission, this is logged at DEBUG.
    """
    if isinstance(store, Lifecycle):
        _in_background(pipeline, lambda: tell(_expiries(pipeline, plan, store)))


def _expiries(pipeline: PipelineSettings, plan: Plan, store: PayloadStore) -> list[TopicExpiry]:
    dead = () if plan.dead_letters is None else (plan.dead_letters,)
    found = {topic.name: topic for topic in (*plan.sources, plan.sink, *dead)}
    place = _Place(pipeline.name, pipeline.store, store)
    expiries = [_expiry(place, transform, name, found.get(name)) for transform, name in references(pipeline)]
    for expiry in expiries:
        if expiry.state == "unknown":
            log.debug("pipeline %s: expiry of payloads is not known: %s", pipeline.name, expiry.message)
    return expiries


def _in_background(pipeline: PipelineSettings, ask: Callable[[], object]) -> threading.Thread:
    """Runs in a daemon thread, which delays neither records nor the exit of the process."""

    def run() -> None:
        try:
            ask()
        except Exception as exc:  # noqa: BLE001  # a warning that cannot be determined is not an error
            log.debug("pipeline %s: expiry of payloads is not known: %s: %s", pipeline.name, type(exc).__name__, exc)

    thread = threading.Thread(target=run, name=f"lifecycle-{pipeline.name}", daemon=True)
    thread.start()
    return thread
