"""What must be true of a cluster: the preflight and its plan, the audit of names, and how long payloads stay.

Imports `kafka` and the rooms below it.
"""
