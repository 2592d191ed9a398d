"""The composition root: settings, Kafka clients, pipelines, the worker, the command line, the HTTP pages.

May import `transforms` and `stores`.
"""
