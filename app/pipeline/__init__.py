"""The data plane: flow, lanes, budget, stages, retries, deliveries, transactions; its reports are for `web`.

Imports `deadletters` and the rooms below it.
"""
