"""Main module of the processes that a program started by ``python -m dali_run.compat`` spawns.

It makes ``nvidia.dali`` this package, then runs the program's main module as `multiprocessing` would.
"""

from __future__ import annotations

import os
import runpy
from multiprocessing import spawn
from typing import Any

from .importing import install

_PROGRAM = "DALI_RUN_COMPAT_PROGRAM"
"""Environment variable with the path of the program's file, or a colon and the name of its module."""


def follow() -> None:
    """Let every process that is spawned from now on begin with this module."""
    prepare: Any = spawn.get_preparation_data

    def prepared(name: str) -> Any:
        data = prepare(name)
        path, module = data.pop("init_main_from_path", None), data.pop("init_main_from_name", None)
        if path is not None or module is not None:
            os.environ[_PROGRAM] = f":{module}" if path is None else path
            data["init_main_from_name"] = __spec__.name
        return data

    spawn.get_preparation_data = prepared


if __name__ == "__mp_main__":
    install()
    follow()
    program = os.environ[_PROGRAM]
    run = runpy.run_module if program.startswith(":") else runpy.run_path
    globals().update(run(program.removeprefix(":"), run_name=__name__))
