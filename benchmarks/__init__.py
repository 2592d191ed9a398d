"""Measurements anyone can repeat: `python -m benchmarks.run`. May know app, stores and transforms, and tests.s3_server;
nothing knows it. Each script asserts that what it timed is correct."""
