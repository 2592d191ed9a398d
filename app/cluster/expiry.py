"""Whether payloads stay as long as the records that refer to them, and no longer: a look at the store and the cluster.

`wideload store lifecycle` shows it; the worker and `wideload check` warn of it.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from app.cluster.preflight import Plan
from app.config.settings import PipelineSettings
from app.kafka.topics import Topic
from stores.registry import STORE_CLASS, open_store
from stores.store import ExpiryRule, Lifecycle, PayloadStore, Store
from transforms.errors import PayloadStoreError
from transforms.retention import Retention, State

__all__ = ["Row", "carriers", "references", "survey", "warn_in_background", "warnings_within", "with_carriers"]

log = logging.getLogger(__name__)

Transform = Literal["offload", "inflate", "dead-letter"]

_ADVISED = frozenset({"missing", "too-short", "too-long", "forbidden"})
_ASK_S = 10.0  # how long `wideload check` waits for the rules of one store


@dataclass(frozen=True, slots=True)
class Row:
    """One topic whose records refer to payloads, and what the store does with those.

    Attributes:
        pipeline: the pipeline's name.
        transform: `offload` where the pipeline publishes them, `inflate` where it reads them, `dead-letter` where they
            are values of its dead letters.
        topic: the topic's name.
        retention: what the cluster says of the topic; None where there is no such topic.
        payloads: where they live.
        rules: what may delete them; empty where the store could not be asked.
        state: as `Verdict.state`. `no-rules`: the store has no such rules; `unknown`: it, or the cluster, did not say.
        message: what is to be said.
        warns: whether to say it without having been asked.
        wrong: whether it is to be set right.
        changed: what `--apply` did; None where there was nothing to do.
        notes: what is to be said besides.
    """

    pipeline: str
    transform: Transform
    topic: str
    retention: Retention | None
    payloads: str
    rules: Sequence[ExpiryRule]
    state: State | Literal["no-rules", "unknown"]
    message: str
    warns: bool = False
    wrong: bool = False
    changed: str | None = None
    notes: Sequence[str] = ()


def survey(pipeline: PipelineSettings, found: Mapping[str, Topic], *, apply: bool = False) -> list[Row]:
    """A row for each topic whose records refer to payloads: see `references`. Blocks.

    Args:
        pipeline: whose store is asked.
        found: what the cluster says of the topics, by name.
        apply: whether to set the project's own rules, or to remove those that must not be. No other rule is touched.

    Raises:
        ConfigurationError: the store cannot be opened.
    """
    if not pipeline.store:
        return []
    with closing(open_store(pipeline.store)) as store:
        return list(_rows(pipeline, found, store, apply=apply))


def _rows(
    pipeline: PipelineSettings, found: Mapping[str, Topic], store: PayloadStore, *, apply: bool = False
) -> Iterator[Row]:
    for transform, name in references(pipeline):
        yield _row(pipeline, transform, name, found.get(name), store, apply=apply)


def references(pipeline: PipelineSettings) -> Iterator[tuple[Transform, str]]:
    """The topics whose records refer to payloads: those that are inflated, and those that large values are kept for."""
    if "inflate" in pipeline.transforms:
        for name in pipeline.topics:
            yield "inflate", name
    if pipeline.offloads:
        yield "offload", pipeline.output_topic
    if pipeline.store and pipeline.dead_letter_topic is not None:
        yield "dead-letter", pipeline.dead_letter_topic


def _row(
    pipeline: PipelineSettings,
    transform: Transform,
    name: str,
    topic: Topic | None,
    store: PayloadStore,
    *,
    apply: bool,
) -> Row:
    payloads = f"{store.root.uri}{name}/" if isinstance(store, Store) else str(pipeline.store[STORE_CLASS])
    row = Row(pipeline.name, transform, name, None, payloads, (), "unknown", "")
    if topic is None:
        message = f"topic {name} does not exist, so nobody knows how long its records stay; create it first"
        return dataclasses.replace(row, message=message, wrong=True)
    retention = _retention(topic)
    row = dataclasses.replace(row, retention=retention)
    if not isinstance(store, Lifecycle):
        message = "this store has no expiry rules: payloads stay until those without a record are swept"
        message += _forbidding(retention)
        return dataclasses.replace(row, state="no-rules", message=message)
    try:
        rules = store.expiry_rules(name)
        changed = _apply(store, retention, rules) if apply else None
        if changed is not None:
            rules = store.expiry_rules(name)
    except PayloadStoreError as exc:
        return dataclasses.replace(row, message=f"{exc}{_forbidding(retention)}", wrong=True)
    verdict = retention.judge(rules)
    return dataclasses.replace(
        row,
        rules=rules,
        state=verdict.state,
        message=f"{verdict.message}; {_advice(retention, rules)}" if verdict.state in _ADVISED else verdict.message,
        warns=verdict.warns,
        wrong=verdict.wrong,
        changed=changed,
        notes=retention.notes(rules),
    )


def _forbidding(retention: Retention) -> str:
    """What has to be known of a topic also where the store cannot tell its rules."""
    return f"; {retention.judge(()).message}" if retention.forever else ""


def _apply(store: Lifecycle, retention: Retention, rules: Sequence[ExpiryRule]) -> str | None:
    days = retention.own_days(rules)
    if _is_set(rules, days) or not store.set_expiry(retention.topic, days):
        return None
    return "our own rule is removed" if days is None else f"our own rule is set to {days} d"


def _is_set(rules: Sequence[ExpiryRule], days: int | None) -> bool:
    own = [rule for rule in rules if rule.own]
    return not own if days is None else any(rule.whole and rule.days == days for rule in own)


def _advice(retention: Retention, rules: Sequence[ExpiryRule]) -> str:
    """What sets it right: `--apply`, where that can, and whoever made the other rules, where those are at fault."""
    days = retention.own_days(rules)
    advice = []
    if not _is_set(rules, days):
        advice.append(f"`wideload store lifecycle --apply` {'removes' if days is None else 'sets'} our own rule")
    if retention.judge(rule for rule in rules if not rule.own).state in ("too-short", "forbidden"):
        advice.append("a rule that is not ours is left as it is: change it where it was made")
    return "; ".join(advice or ["--apply makes it no shorter, as another cluster may need it: remove it to begin anew"])


def carriers(topic: str, pipelines: Sequence[PipelineSettings]) -> list[str]:
    """The topics into which the pipelines carry records of `topic` with their references still in them."""
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


def with_carriers(row: Row, pipelines: Sequence[PipelineSettings], found: Mapping[str, Topic]) -> Row:
    """The row, with a note on each topic that keeps references for longer than the store keeps the payloads."""
    if row.state not in ("ok", "too-long"):
        return row
    reached = [found[name] for name in carriers(row.topic, pipelines) if name in found]
    notes = [
        f"references of topic {row.topic} are also carried into topic {topic.name}, where they outlive their payloads: "
        f"retention.ms is {topic.retention_ms}, cleanup.policy is {topic.cleanup_policy}"
        for topic in reached
        if _retention(topic).judge(row.rules).wrong
    ]
    return dataclasses.replace(row, notes=[*row.notes, *notes])


def _retention(topic: Topic) -> Retention:
    return Retention(topic.name, topic.retention_ms, topic.cleanup_policy, topic.segment_ms)


# --- said without being asked -----------------------------------------------------------------------------------------


def warnings_within(pipeline: PipelineSettings, plan: Plan, seconds: float = _ASK_S) -> list[str]:
    """What is to be warned of, a sentence each; none where the store cannot be asked, or does not answer in time."""
    if not pipeline.store:
        return []
    told: list[str] = []

    def ask() -> None:
        with closing(open_store(pipeline.store)) as store:
            told.extend(_warnings(pipeline, plan, store))

    _in_background(pipeline, ask).join(seconds)
    return list(told)


def warn_in_background(pipeline: PipelineSettings, plan: Plan, store: PayloadStore) -> None:
    """Writes what is to be warned of to the log, in one line, once the store has said.

    Returns at once, and never fails: where the store cannot be asked, perhaps for want of a permission, the log says so
    at DEBUG.
    """

    def warn() -> None:
        told = _warnings(pipeline, plan, store)
        if told:
            log.warning("pipeline %s: %s", pipeline.name, "; ".join(told))

    if isinstance(store, Lifecycle):
        _in_background(pipeline, warn)


def _warnings(pipeline: PipelineSettings, plan: Plan, store: PayloadStore) -> list[str]:
    dead = () if plan.dead_letters is None else (plan.dead_letters,)
    rows = list(_rows(pipeline, {topic.name: topic for topic in (*plan.sources, plan.sink, *dead)}, store))
    for row in rows:
        if row.state == "unknown":
            log.debug("pipeline %s: expiry of payloads is not known: %s", pipeline.name, row.message)
    return [row.message for row in rows if row.warns]


def _in_background(pipeline: PipelineSettings, ask: Callable[[], object]) -> threading.Thread:
    """A thread of its own, which holds up nobody: not a record, and not the end of the process."""

    def run() -> None:
        try:
            ask()
        except Exception as exc:  # noqa: BLE001  # a warning that cannot be given is no reason for an error
            log.debug("pipeline %s: expiry of payloads is not known: %s: %s", pipeline.name, type(exc).__name__, exc)

    thread = threading.Thread(target=run, name=f"lifecycle-{pipeline.name}", daemon=True)
    thread.start()
    return thread
