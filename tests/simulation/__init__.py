"""The worker simulated; see `__main__.py`."""

from tests.simulation import clock as clock  # first of all: it takes the place of `time`
