"""The parts of `jobs.backfill`: partitions, their ranges, the checkpoint, and the writer of the output topic.

May import `reading`, `records` and `driver`.
"""
