"""Local set-up: the embedded broker, jars, Java, what `make` installs, and the files of the demo.

Imports `transforms` only.
"""
