"""The contract with aiokafka's private names: which of them `app/kafka/` uses, what for, and which release has them.

A new release of aiokafka may lack a name. Then the first test says which, and what has to be written anew.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import Fetcher, FetchResult, PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
from aiokafka.producer.message_accumulator import BatchBuilder, MessageAccumulator, MessageBatch
from aiokafka.producer.sender import Sender
from aiokafka.producer.transaction_manager import TransactionManager

ROOT = Path(__file__).parents[3]


class PrivateName(NamedTuple):
    """A private name of aiokafka: which module of `app/kafka/` uses it, and why there is no public way."""

    module: str
    owner: type
    name: str
    purpose: str


RELEASE = "0.14.0"  # which has each of them
TABLE: Mapping[str, Sequence[tuple[type, str, str]]] = {
    "admin": ((AIOKafkaAdminClient, "_send_request", "send requests that have no method"),),
    "consumer_controls": (
        (AIOKafkaConsumer, "_coordinator", "commits with metadata, leaving"),
        (AIOKafkaConsumer, "_fetcher", "see its end, replace its records"),
        (AIOKafkaConsumer, "_subscription", "positions without waiting"),
        (Fetcher, "_pending_tasks", "stop in bounded time"),
        (SubscriptionState, "_last_fetch_ended", "count a download as a poll"),
    ),
    "fetched": (
        (Fetcher, "_records", "poll batches in the place of records"),
        (Fetcher, "_set_error", "keep the first error of a partition"),
        (FetchResult, "_partition_records", "poll batches in the place of records"),
        (PartitionRecords, "_check_crcs", "the consumer's settings"),
    ),
    "membership": (
        (GroupCoordinator, "_commit_refresh_task", "stop in bounded time"),
        (GroupCoordinator, "_coordination_task", "stop in bounded time"),
        (GroupCoordinator, "_do_commit_offsets", "commit as a member alone"),
        (GroupCoordinator, "_group_instance_id", "leave unless it is static"),
        (GroupCoordinator, "_heartbeat_task", "end a heartbeat before its first step"),
        (GroupCoordinator, "_stop_heartbeat_task", "let a rebalance go on"),
        (GroupCoordinator, "_maybe_leave_group", "leave a group in any case"),
    ),
    "gate": (
        (AIOKafkaConnection, "_request_timeout", "wait as long as a rebalance takes"),
        (AIOKafkaAdminClient, "_client", "stand at it"),
        (AIOKafkaConsumer, "_client", "stand at it"),
        (AIOKafkaClient, "_get_conn_lock_value", "connect apart while it connects"),
        (AIOKafkaClient, "_conns", "tell a new connection from an old one"),
        (AIOKafkaClient, "_get_conn", "see connections that fail"),
        (AIOKafkaClient, "_md_update_fut", "let nobody wait for a closed client"),
        (AIOKafkaClient, "_request_timeout_ms", "leave time to other addresses"),
    ),
    "producer": (
        (MessageAccumulator, "_compression_type", "the producer's settings"),
        (Sender, "_acks", "the producer's settings"),
        (AIOKafkaProducer, "_message_accumulator", "what it holds when it is abandoned"),
        (MessageAccumulator, "_append_batch", "split a batch of `send` that is refused"),
        (MessageAccumulator, "_batches", "let nothing wait for what is dropped"),
        (MessageAccumulator, "_pending_batches", "let nothing wait for what is dropped"),
        (MessageBatch, "_drain_waiter", "let the loop not log a failure that is reported"),
        (MessageBatch, "_msg_futures", "give the parts of a batch the records' futures"),
        (AIOKafkaProducer, "_partition", "the partitioner's choice for a batch"),
        (AIOKafkaProducer, "_sender", "stop without a flush"),
        (AIOKafkaProducer, "_txn_manager", "begin a transaction without a turn of the loop"),
    ),
    "subscriptions": (
        (SubscriptionState, "_assignment_waiters", "log no error that was given"),
        (SubscriptionState, "_fetch_count", "count a poll that is cancelled"),
        (SubscriptionState, "_fetch_waiters", "log no error, wake calls that wait"),
        (SubscriptionState, "_last_fetch_ended", "count a poll that is cancelled"),
    ),
    "receiver": (
        (AIOKafkaConnection, "_handle_frame", "receive responses with one copy"),
        (AIOKafkaConnection, "_requests", "see whether a connection is at rest"),
        (AIOKafkaConnection, "_writer", "give its transport another protocol"),
    ),
}
NAMES = [PrivateName(f"app.kafka.{module}", *row) for module, rows in TABLE.items() for row in rows]

# Names without an underscore, of objects that only a private name leads to.
BEHIND = {
    Fetcher: "error_future",
    GroupCoordinator: "check_errors coordinator_id generation group_id member_id reset_generation",
    BatchBuilder: "_build _set_producer_state",  # which aiokafka calls of `Batch`
    MessageAccumulator: "fail_all",
    PartitionRecords: "next_fetch_offset",
    Sender: "close",
    SubscriptionState: "abort_waiters fetch_context subscription",
    TopicPartitionState: "has_valid_position position",
    TransactionManager: "begin_transaction increment_sequence_number is_in_transaction notify_task_waiter producer_id "
    "transaction_timeout_ms transactional_id wait_for_transaction_end",
}


@cache
def names_of(owner: type) -> frozenset[str]:
    """The attributes of a class and of its objects, as the class body and the assignments to `self` say."""
    found = set(dir(owner))
    for each in owner.__mro__:
        if each.__module__.startswith("aiokafka."):
            found |= own_names(ast.parse(textwrap.dedent(inspect.getsource(each))))
    return frozenset(found)


def own_names(tree: ast.AST) -> set[str]:
    """What the code assigns to `self`, and the functions that it defines."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value)
    } | {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def is_self(node: ast.AST) -> bool:
    """True for `self`, `cls` and `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def is_private(name: str) -> bool:
    """True for `_name`, not for `__name__`, nor for what named tuples have."""
    return name.startswith("_") and not name.endswith("__") and name != "_replace"


def foreign_names(module: str, tree: ast.Module) -> Iterator[str]:
    """The private names of other packages that a module of the room uses."""
    for scope in tree.body:
        own: set[str] = set()
        inherited: set[str] = set()
        if isinstance(scope, ast.ClassDef):
            own = own_names(scope)
            bases = getattr(importlib.import_module(module), scope.name).__mro__[1:]
            inherited = {name for each in bases if each.__module__.startswith("aiokafka") for name in names_of(each)}
        for node in ast.walk(scope):
            yield from (name for name in names_in(node, own, inherited) if is_private(name))


def names_in(node: ast.AST, own: set[str], inherited: set[str]) -> Iterator[str]:
    """What one node of a class with these names uses of others."""
    if isinstance(node, ast.Attribute):
        # A plain name may be another object of the same class.
        if (
            node.attr in inherited
            if is_self(node.value)
            else not (isinstance(node.value, ast.Name) and node.attr in own)
        ):
            yield node.attr
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if node.name in inherited:
            yield node.name
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"getattr", "setattr"}:
        yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiokafka"):
        yield from (each.name for each in node.names)


def used(*rooms: str) -> set[tuple[str, str]]:
    """The names that these rooms of `app/` use, by module."""
    gc.collect()  # or what earlier tests left is collected in `ast.parse`, and a warning there calls `ast.parse`, too
    found = set()
    for path in sorted(path for room in rooms for path in (ROOT / "app" / room).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found |= {(module, name) for name in foreign_names(module, ast.parse(path.read_text("utf-8")))}
    return found


@pytest.mark.parametrize("private", NAMES, ids=lambda private: f"{private.owner.__name__}.{private.name}")
def test_the_installed_release_has_each_name(private: PrivateName) -> None:
    """Else what stands in the message needs another way."""
    found = f"{private.owner.__name__}.{private.name}, which {RELEASE} has"
    assert private.name in names_of(private.owner), (
        f"aiokafka {version('aiokafka')} lacks {found}; {private.module} needs it: {private.purpose}"
    )


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in BEHIND.items() for name in names.split()]
)
def test_the_installed_release_has_each_name_behind(owner: type, name: str) -> None:
    """The same for names without an underscore, of objects that are private as a whole."""
    assert name in names_of(owner), f"aiokafka {version('aiokafka')} lacks {owner.__name__}.{name}"


def test_the_table_has_the_names_that_are_used() -> None:
    """A name that is new in the room goes into the table with its purpose; one that is not used any more goes out."""
    listed = {(each.module, each.name) for each in NAMES}
    assert sorted(used("kafka") - listed) == [], "used, and not in the table"
    assert sorted(listed - used("kafka")) == [], "in the table, and not used"


def test_no_other_room_uses_private_names() -> None:
    """Not by inheritance either, which no linter sees.

    Faust's thread has no public way to its consumer, and none to outlive a crash.
    The codes of librdkafka's own errors begin with an underscore, and are public.
    """
    others = {
        ("app.serializers.faust_app", "_thread"),
        ("app.serializers.faust_app", "_consumer"),
        ("app.serializers.faust_app", "_crash"),
        ("app.serializers.faust_app", "_producer"),
        ("app.serializers.confluent_writes", "_STATE"),
        ("app.serializers.confluent_messages", "_PARTITION_EOF"),
    }
    assert used("chunks", "serializers", "deadletters", "cluster", "pipeline") <= others
