"""What a job needs around its work, on the driver: session, command line, progress, reports, failures, Spark's JVM.

May import nothing else of `jobs`.
"""
