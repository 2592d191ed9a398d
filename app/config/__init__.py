"""Configuration: properties as data, parsing, secrets, and the checks that need no cluster.

Imports `transforms` and `stores`.
"""
