"""The parts of `jobs.ingest`: its options, checkpoint, micro-batches, values and table.

May import `reading`, `records` and `driver`.
"""
