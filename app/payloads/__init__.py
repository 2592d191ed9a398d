"""Payloads and the records that refer to them: audit and sweep, by an engine of this process or of Spark.

Knows neither click nor pyspark; may import `kafka` and `config`.
"""
