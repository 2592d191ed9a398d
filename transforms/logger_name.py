"""The names of our loggers, the same in a checkout and in an installed package."""

from __future__ import annotations

__all__ = ["ROOT", "logger_name"]

ROOT = "wideload"
"""The logger above all of ours."""

_PACKAGE = __name__.removesuffix("transforms.logger_name")  # of our folders: the wheel has them in a package


def logger_name(module: str) -> str:
    """The name of the logger of a module of ours, from its `__name__`; logs, REST API and documentation have it.

    `app.pipeline.flow`, in the wheel `wideload._internal.app.pipeline.flow`, has `wideload.pipeline.flow`: `app` is the
    worker. The other folders keep their names: `stores.s3` has `wideload.stores.s3`.
    """
    return f"{ROOT}.{module.removeprefix(_PACKAGE).removeprefix('app.')}"
