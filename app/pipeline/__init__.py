"""The data plane: flow, lanes, budget, stages, retries, commits, transactions.

Imports `deadletters` and the rooms below it.
"""
