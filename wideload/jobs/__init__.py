"""Spark jobs, and functions for DataFrames: one module for each name. They need PySpark."""
