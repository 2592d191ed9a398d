"""Spark jobs: DataFrame in, DataFrame out. The only folder that knows pyspark.

May import `transforms` and `stores`.
"""
