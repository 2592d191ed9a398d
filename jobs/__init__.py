"""Spark jobs: DataFrame in, DataFrame out. The only directory that knows pyspark. May import `transforms` and `stores`.

A module here is a name that users type; its parts are in the rooms below, none of which imports it.
"""
