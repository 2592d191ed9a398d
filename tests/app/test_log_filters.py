import logging

from app.log_filters import RepeatFilter


def line(name: str, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, args, None)


def test_repeats_are_left_out_and_counted() -> None:
    """A line passes once in its time, whatever its arguments; the next one says how many were left out."""
    now = 100.0
    repeats = RepeatFilter("aiokafka", seconds=30, clock=lambda: now)
    assert repeats.filter(line("aiokafka.client", "no node %d", 1))
    assert not repeats.filter(line("aiokafka.client", "no node %d", 2))
    assert not repeats.filter(line("aiokafka.client", "no node %d", 3))
    assert repeats.filter(line("aiokafka.client", "another line"))
    now = 130.0
    late = line("aiokafka.client", "no node %d", 4)
    assert repeats.filter(late)
    assert late.getMessage() == "no node 4 (and 2 more like it)"


def test_repeats_of_other_loggers_pass() -> None:
    """Lines of other loggers always pass, even if the name has the same beginning."""
    repeats = RepeatFilter("aiokafka", clock=lambda: 0.0)
    for name in ("app.pipeline.flow", "aiokafkaesque"):
        assert repeats.filter(line(name, "same"))
        assert repeats.filter(line(name, "same"))
