"""The main module of processes that a program for DALI spawns: the program's own, as `multiprocessing` runs it again
there, with ``nvidia.dali`` being this package."""

from __future__ import annotations

import os
import runpy
from multiprocessing import spawn
from typing import Any

from .importing import install

_PROGRAM = "DALI_RUN_COMPAT_PROGRAM"
"""The program's file, or a colon and its module."""


def follow() -> None:
    """Have processes that are spawned from now on begin with this module."""
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
