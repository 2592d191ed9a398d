"""Measurements anyone can repeat: `python -m benchmarks.run`. Each asserts that what it timed is correct.

May know app, transforms and tests.s3_server; nothing knows it.
"""
