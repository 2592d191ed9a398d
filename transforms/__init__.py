"""Formats and decisions as pure code: no I/O, no clock, no event loop, no framework.

Imports nothing of ours from outside this directory.
"""
