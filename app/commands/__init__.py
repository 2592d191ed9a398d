"""The commands of `wideload` other than `worker`. Only this package and `app.cli` use click.

Imports every package of `app` except `web`.
"""
