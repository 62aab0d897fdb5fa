"""Run a program written for DALI on this engine: ``python -m dali_run.compat [-m MODULE | PROGRAM] ARGUMENTS``."""

from __future__ import annotations

import os
import runpy
import sys

from .child import follow
from .importing import install

_USAGE = "usage: python -m dali_run.compat (PROGRAM.py | -m MODULE) [ARGUMENT ...]"


def main(arguments: list[str]) -> int:
    """Run the program as Python would. If it calls sys.exit, its SystemExit is passed on."""
    if not arguments or arguments[0] in ("-h", "--help"):
        (sys.stdout if arguments else sys.stderr).write(f"{_USAGE}\n")
        return 0 if arguments else 2
    module = arguments[0] == "-m"
    rest = arguments[1:] if module else arguments
    if not rest:
        sys.stderr.write(f"{_USAGE}\n")
        return 2
    install()
    follow()
    sys.argv = list(rest)
    if module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return 0
    if not os.path.exists(rest[0]):
        sys.stderr.write(f"there is no program {rest[0]}\n")
        return 2
    sys.path.insert(0, os.path.dirname(os.path.abspath(rest[0])))
    runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
