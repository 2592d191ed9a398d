"""The web server of the worker: pages, REST and metrics.

Imports the reports of `pipeline`, and `config`; nothing else of ours in app.
"""
