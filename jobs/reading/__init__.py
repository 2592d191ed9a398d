"""What a task reads: ranges of offsets, partitions, messages, topics; and the options that say which.

May import `records` and `driver`.
"""
