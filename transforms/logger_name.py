"""The names of our loggers, which are equal in a checkout and in an installed package."""

from __future__ import annotations

ROOT = "wideload"
"""The parent of all our loggers."""

_PACKAGE = (__package__ or "").removesuffix("transforms")  # the wheel has our directories in a package


def logger_name(module: str) -> str:
    """The name of a module's logger, from its `__name__`, as in logs, REST API and documentation.

    `app.pipeline.flow`, which the wheel has in a package, has `wideload.pipeline.flow`: `app` is the worker. The other
    directories keep their names: `stores.s3` has `wideload.stores.s3`.
    """
    ours = module.removeprefix(_PACKAGE)
    directory, _, inside = ours.partition(".")
    return f"{ROOT}.{inside if directory == 'app' else ours}"
