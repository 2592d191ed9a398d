"""The first thing that `make` runs: looks at the version of Python, then hands over to `app/local/installation.py`.

Any Python from 3.6 can parse this file, so that one that is too old gets a sentence and no SyntaxError.
"""

import os
import pathlib
import sys

_OLDEST = (3, 11)
_NEWEST = (3, 13)


def main(arguments: "list[str]") -> int:
    """Sets up what the goals in `arguments` need; the exit status."""
    found = "%d.%d.%d" % sys.version_info[:3]
    advice = "Install Python 3.11, 3.12 or 3.13, or name the one to use: make PYTHON=/path/to/python3.12"
    problem = None
    if sys.version_info < _OLDEST:
        problem = "is too old for Wideload"
    elif sys.version_info[:2] > _NEWEST and not os.environ.get("PYTHON"):
        problem = "is newer than what Spark 4.0 and Faust were made for"
    if problem:
        sys.stderr.write("Set-up: Python %s (%s) %s. %s\n" % (found, sys.executable, problem, advice))
        return 1
    # By hand, for `make` runs this script with -I: the modules of this folder must not hide those of Python.
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
    from app.local import installation

    return installation.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
