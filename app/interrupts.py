"""Ctrl-C that reaches the process during a callback of Python's own."""

import _thread
import signal
import sys
import threading
import time
from typing import Final

_AFTER_S: Final = 0.05  # by then the callback has returned


def keep_interrupts() -> None:
    """From now on no `KeyboardInterrupt` is lost.

    Python cannot raise out of the callback of a weak reference or out of `__del__`: it reports what was raised to
    `sys.unraisablehook` and continues, so the command would continue too. Here the main thread gets a SIGINT again.
    All other reports go where they went before.
    """
    report = sys.unraisablehook

    def report_or_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # Not `threading.Thread`: the callback may run while the main thread has a lock of `threading`.
            _thread.start_new_thread(_interrupt, ())
        else:
            report(unraisable)

    sys.unraisablehook = report_or_interrupt


def _interrupt() -> None:
    time.sleep(_AFTER_S)
    # Not `_thread.interrupt_main`: it does not end a wait of the main thread.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
