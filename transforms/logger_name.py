"""The names of our loggers, the same in a checkout and in an installed package."""

from __future__ import annotations

ROOT = "wideload"
"""The logger above all of ours."""

_PACKAGE = (__package__ or "").removesuffix("transforms")  # of our folders: the wheel has them in a package


def logger_name(module: str) -> str:
    """The name of the logger of a module of ours, from its `__name__`; logs, REST API and documentation have it.

    `app.pipeline.flow`, in the wheel below a package, has `wideload.pipeline.flow`: `app` is the worker. The other
    folders keep their names: `stores.s3` has `wideload.stores.s3`.
    """
    ours = module.removeprefix(_PACKAGE)
    folder, _, inside = ours.partition(".")
    return f"{ROOT}.{inside if folder == 'app' else ours}"
