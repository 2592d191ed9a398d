"""The local set-up: the embedded broker, the jars, Java, the set-up steps of `make`, and the files of the demo.

Imports `transforms` only.
"""
