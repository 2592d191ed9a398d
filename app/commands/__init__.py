"""The commands of `wideload` other than `worker`. Beside `app.cli` the only place that knows click.

Imports every room but `web`.
"""
