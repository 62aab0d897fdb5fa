"""Let programs that import ``nvidia.dali`` run on this package, whether DALI is installed or not.

Either ``import dali_run.compat`` in the first line of a program, or start the unchanged program with ``python -m
dali_run.compat train.py ARGUMENTS``.

If a program takes a name from ``nvidia.dali`` that this package does not have, it gets an ImportError with that name.
"""

from __future__ import annotations

from .importing import DALI_VERSION, install

__all__ = ["DALI_VERSION", "install"]

install()
