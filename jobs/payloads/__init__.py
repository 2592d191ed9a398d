"""The parts of `jobs.sweep`, `jobs.audit` and `jobs.references`: references, and the payloads in the store.

May import `reading`, `records` and `driver`.
"""
