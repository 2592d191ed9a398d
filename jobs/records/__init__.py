"""What a task does with records, on executors: Arrow's batches, the columns, payloads in place of references.

May import `driver`.
"""
