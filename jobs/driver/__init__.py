"""What surrounds a job's work, on the driver: session, command line, progress, reports, failures, Spark's Java process.

May import nothing else of `jobs`.
"""
