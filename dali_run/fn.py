"""DALI's operators as functions, generated from the registry: fn.resize, fn.decoders.image, fn.readers.file, ...

The stub file fn.pyi lists them for type checkers and editors.
"""

from __future__ import annotations

import sys
from typing import Any

from .ops.dali_names import FOLDERS
from .pipelines.python.control_flow import by_hand as _conditional
from .pipelines.python.functions import Namespace, operator_function

_functions = Namespace(__name__, "", operator_function, str)
sys.modules[f"{__name__}._conditional"] = _conditional
for _path in ("auto_aug", "encoders", *FOLDERS):
    # so that `import dali_run.fn.readers` works before the registry is loaded
    _above, _, _last = _path.rpartition(".")
    _folder = Namespace(f"{__name__}.{_path}", f"{_path}.", operator_function, str)
    setattr(sys.modules[f"{__name__}.{_above}"] if _above else _functions, _last, _folder)
    sys.modules[_folder.__name__] = _folder


def __getattr__(name: str) -> Any:
    return getattr(_functions, name)


def __dir__() -> list[str]:
    return dir(_functions)
