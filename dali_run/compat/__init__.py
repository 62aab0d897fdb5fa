"""``import dali_run.compat`` as the first line of a program lets its ``import nvidia.dali`` import this package, DALI
installed or not; ``python -m dali_run.compat train.py ARGUMENTS`` does so for a program as it is.

What DALI has and this package has not raises ImportError with its name when it is imported from there.
"""

from __future__ import annotations

from .importing import DALI_VERSION, install

__all__ = ["DALI_VERSION", "install"]

install()
