"""The checks of a cluster: the preflight and its plan, the audit of names, and the expiry of payloads.

Imports `kafka` and the rooms below it.
"""
