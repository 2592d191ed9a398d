"""Dead letters: their form, how they are written and read, and their replay.

Imports `cluster` and the rooms below it.
"""
