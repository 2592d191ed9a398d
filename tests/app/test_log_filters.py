"""The filters of the log: repeats that are bounded and counted, and errors of the Kafka client that are none."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import ssl
from collections.abc import Iterator

import pytest
from aiokafka.errors import (
    AuthenticationFailedError,
    GroupAuthorizationFailedError,
    InvalidProducerIdMapping,
    KafkaConnectionError,
)

from app import log_filters
from app.json_log import JsonFormatter
from app.log_filters import LineFormatter, RepeatFilter, bound_repeats, calm_clients

FAILS = "pipeline %s: topic %s, partition %d, offset %d goes to dead: %s"


class Log:
    """A logger of ours with a `RepeatFilter`, whose clock is set by hand."""

    def __init__(self, formatter: logging.Formatter | None = None) -> None:
        self.now = 100.0
        self._text = io.StringIO()
        self._handler = logging.StreamHandler(self._text)
        self._handler.setFormatter(formatter or logging.Formatter("%(levelname)s %(message)s"))
        self.repeats = RepeatFilter(self._handler, lambda: self.now)
        self._handler.addFilter(self.repeats)

    def write(
        self, name: str, message: str, *args: object, level: int = logging.WARNING, fields: object = None
    ) -> None:
        """Writes a line as the logger of this name does."""
        record = logging.LogRecord(name, level, __file__, 1, message, args, None)
        if fields is not None:
            record.fields = fields
        self._handler.handle(record)

    @property
    def lines(self) -> list[str]:
        """What has been written since the last look."""
        found = self._text.getvalue().splitlines()
        self._text.seek(0)
        self._text.truncate()
        return found


def test_lines_of_the_kafka_client_pass_once_in_their_time() -> None:
    """A line of aiokafka passes once in 30 s, whatever it names; then another says how many were left out."""
    log = Log()
    for node in (1, 2, 3):
        log.write("aiokafka.client", "no node %d", node)
    log.write("aiokafka.client", "another line")
    assert log.lines == ["WARNING no node 1", "WARNING another line"]
    log.now = 130.0
    log.write("aiokafka.client", "no node %d", 4)
    assert log.lines == ["WARNING left out 2 lines like this: no node 3", "WARNING no node 4"]


def test_lines_of_ours_are_bounded_by_pipeline() -> None:
    """A text passes once; of records that fail in the same way ten pass, for each pipeline; the rest is counted."""
    log = Log()
    for offset in range(1_000):
        log.write("wideload.pipeline.error_policy", FAILS, "one", "raw", 0, offset, "100% X")
    log.write("wideload.pipeline.error_policy", FAILS, "two", "raw", 0, 7, "wrong")
    for _ in range(300):
        log.write("wideload.pipeline.delivery", "the group has moved on", level=logging.INFO)
    lines = log.lines
    assert len(lines) == 12
    assert lines[9:] == [
        "WARNING pipeline one: topic raw, partition 0, offset 9 goes to dead: 100% X",
        "WARNING pipeline two: topic raw, partition 0, offset 7 goes to dead: wrong",
        "INFO the group has moved on",
    ]
    log.now = 131.0
    log.write("wideload.x", "any other line")
    assert log.lines == [
        "WARNING left out 990 lines like this: pipeline one: topic raw, partition 0, offset 999 goes to dead: 100% X",
        "INFO left out 299 lines like this: the group has moved on",
        "WARNING any other line",
    ]
    log.write("wideload.x", "any other line")
    log.repeats.log_left_out()
    assert log.lines == ["WARNING left out 1 lines like this: any other line"]


def test_lines_that_are_never_left_out() -> None:
    """Changes of state, lines at DEBUG, and lines of an application's own loggers all pass."""
    log = Log()
    for _ in range(50):
        log.write("wideload.pipeline.flow", "pipeline %s reads %s", "p", "raw-0", fields={})
        log.write("aiokafka.conn", "a request", level=logging.DEBUG)
        log.write("orders.agent", "same")
        log.write("aiokafkaesque", "same")
        log.write("application", "same")
    assert len(log.lines) == 250


def test_what_was_left_out_is_a_field() -> None:
    """As JSON the line keeps what it names, and says in `left_out` how many were left out."""
    log = Log(JsonFormatter())
    for offset in range(12):
        log.write("wideload.x", FAILS, "p", "raw", 3, offset, "wrong")
    log.repeats.log_left_out()
    last = json.loads(log.lines[-1])
    named = ("pipeline", "topic", "partition", "offset", "left_out")
    assert [last[name] for name in named] == ["p", "raw", 3, 11, 2]
    for now in (131.0, 162.0):
        log.now = now
        for _ in range(3):
            log.write("aiokafka.x", "no topic %s", "raw")
    assert [json.loads(line).get("left_out") for line in log.lines] == [None, 2, None]


def test_filter_remembers_little() -> None:
    """A million different lines do not fill the memory, and those that were left out are told all the same."""
    log = Log()
    for number in range(2_500):
        log.write("aiokafka.x", f"line {'x' * number}")
    log.write("aiokafka.x", f"line {'x' * 2_499}")
    log.repeats.log_left_out()
    assert len(log.repeats._passed) <= 1_000
    assert log.lines[-1].startswith("WARNING left out 1 lines like this: line xxx")


@pytest.fixture
def calmed() -> Iterator[list[logging.LogRecord]]:
    """What passes the clients' loggers."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign,assignment]
    logger = logging.getLogger("aiokafka")
    level = logger.level
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)
    calm_clients(whole=True)
    logger.setLevel(level)


def test_errors_of_a_healthy_rebalance_are_none(
    calmed: list[logging.LogRecord], caplog: pytest.LogCaptureFixture
) -> None:
    """What aiokafka logs in each healthy start and rebalance is there at DEBUG only; its other errors stay errors."""
    logger = logging.getLogger("aiokafka.consumer.group_coordinator")
    for level, expected in ((logging.INFO, ["ERROR"]), (logging.DEBUG, ["DEBUG", "DEBUG", "ERROR"])):
        caplog.set_level(level)
        calm_clients()
        logger.error("Group Coordinator Request failed: %s", "[Error 15] GroupCoordinatorNotAvailableError")
        logger.warning("Heartbeat failed for group %s because it is rebalancing", "g")
        logger.error("Heartbeat failed: %r", GroupAuthorizationFailedError("g"))
        assert [record.levelname for record in calmed] == expected
        calmed.clear()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError(111, "Connect call failed"), False),
        (TimeoutError(), False),
        (KafkaConnectionError("closed"), False),
        (AuthenticationFailedError("wrong password"), True),
        (ssl.SSLCertVerificationError("expired"), True),
        (socket.gaierror("no such name"), True),
        (GroupAuthorizationFailedError("g"), True),
    ],
)
def test_reasons_that_only_the_client_tells_stay(
    error: Exception, *, told: bool, calmed: list[logging.LogRecord]
) -> None:
    """A line is taken down only if its error passes by itself; a refused login, a certificate, a name stay errors."""
    calm_clients()
    logging.getLogger("aiokafka").error("Unable connect to node with id %s: %s", 1, error)
    logging.getLogger("aiokafka.consumer.group_coordinator").error("Group Coordinator Request failed: %s", error)
    assert [record.levelname for record in calmed] == ["ERROR", "ERROR"] * told


@pytest.mark.parametrize(("error", "told"), [(InvalidProducerIdMapping(), False), (ValueError("a defect"), True)])
def test_a_traceback_of_the_client_is_of_a_defect(
    error: Exception, *, told: bool, calmed: list[logging.LogRecord]
) -> None:
    """An answer of brokers that ends a producer ends its flow, which reports it; only a listener's is logged."""
    calm_clients()
    logging.getLogger("aiokafka.producer.sender").error("Unexpected error in sender routine", exc_info=error)
    assert len(calmed) == told
    coordinator = logging.getLogger("aiokafka.consumer.group_coordinator")
    coordinator.error("User provided listener %s for group %s failed", "x", "g", exc_info=error)
    assert len(calmed) == told + 1


async def test_error_of_a_call_that_was_cancelled_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """aiokafka shields its calls: if one fails after the caller was cancelled, Python 3.14 would log a traceback."""
    loop = asyncio.get_running_loop()
    for level, most in ((logging.INFO, set()), (logging.DEBUG, {"DEBUG"})):
        caplog.set_level(level)
        calm_clients(whole=True)
        call = loop.create_future()
        asyncio.shield(call).cancel()
        await asyncio.sleep(0)
        call.set_exception(ValueError("no"))
        await asyncio.sleep(0)
        loop.call_exception_handler({"message": "ValueError exception in shielded future"})  # as Python 3.14 does it
        told = {each.levelname for each in caplog.records if "shielded" in each.getMessage()}
        assert told == most


def test_where_credentials_come_from_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each pipeline has a store, and each store asks for its credentials; another origin is logged, too."""
    calm_clients()
    with caplog.at_level(logging.INFO, "botocore.credentials"):
        for role in ("one", "one", "two"):
            logging.getLogger("botocore.credentials").info("Found credentials from IAM Role: %s", role)
    assert [record.args for record in caplog.records] == [("one",), ("two",)]


def test_credentials_that_are_not_renewed_are_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore logs a traceback with each call; its last line says it, and the store says the rest."""
    monkeypatch.setattr(log_filters, "_first", {})
    calm_clients()
    for error in (OSError("the provider is away"), OSError("it is still away"), ValueError("100 % denied")):
        logging.getLogger("botocore.credentials").warning("Refreshing failed during %s period.", "r", exc_info=error)
    assert [(record.getMessage(), record.exc_info) for record in caplog.records] == [
        ("Refreshing failed during r period. OSError: the provider is away", None),
        ("Refreshing failed during r period. ValueError: 100 % denied", None),
    ]


@pytest.mark.parametrize(
    ("level", "levels"),
    [
        (logging.DEBUG, (logging.INFO, logging.DEBUG, logging.DEBUG)),
        (logging.INFO, (logging.INFO, logging.WARNING, logging.CRITICAL)),
        (logging.WARNING, (logging.WARNING, logging.WARNING, logging.CRITICAL)),
        (logging.ERROR, (logging.ERROR, logging.ERROR, logging.CRITICAL)),
    ],
)
def test_no_client_logs_more_than_the_log(
    level: int, levels: tuple[int, ...], calmed: list[logging.LogRecord], caplog: pytest.LogCaptureFixture
) -> None:
    """What `--log-level` leaves out, no library logs; only botocore stays above DEBUG, where it would log secrets."""
    del calmed  # it takes the levels back
    caplog.set_level(level)
    calm_clients(whole=True)
    clients = (("botocore",), ("aiokafka", "asyncio", "faust", "mode"), ("aiohttp.server",))
    for names, expected in zip(clients, levels, strict=True):
        assert {logging.getLogger(f"{name}.below").getEffectiveLevel() for name in names} == {expected}


def test_code_of_users_logs_its_errors(caplog: pytest.LogCaptureFixture) -> None:
    """In the process of an application, what is said of its own pages and tasks is as loud as before."""
    names = ("asyncio", "aiohttp.server")
    for name in names:
        caplog.set_level(logging.INFO, name)
    calm_clients()
    assert [logging.getLogger(name).level for name in names] == [logging.INFO] * 2


def test_line_breaks_stay_in_the_line() -> None:
    """A message with line breaks and control sequences is one line; the traceback behind it keeps its lines."""
    log = Log(LineFormatter("%(message)s"))
    log.write("wideload.x", "topic %s", "a\nb\x1b[2J")
    assert log.lines == ["topic a\\nb\\x1b[2J"]


def test_handlers_get_one_filter() -> None:
    """To bound the repeats of a logger twice bounds them once."""
    logger = logging.getLogger("tests.own")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    bound_repeats(logger)
    bound_repeats(logger)()
    assert len(logger.handlers[0].filters) == 1
