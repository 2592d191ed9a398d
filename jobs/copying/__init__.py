"""The parts of `jobs.backfill`: partitions, their ranges, the checkpoint, and the writer of the sink.

May import `reading`, `records` and `driver`.
"""
