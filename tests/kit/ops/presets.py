"""Run steps with the parity of another library."""

from __future__ import annotations

import typing
from typing import Any

import numpy as np
import yaml

from dali_run.ops.base import operators, parameters
from dali_run.pipelines.plugins import load_operators
from tests.golden.library_calls import Case
from tests.kit.operators import apply, batch_of, operator


def ours(case: Case, images: list[np.ndarray], **more: Any) -> list[np.ndarray]:
    step = yaml.safe_load(case.step)
    name = step.pop("op")
    known = typing.get_args(parameters(type(operator(name, **step)))["parity"].type) if has_parity(name) else ()
    if case.library in known:
        step["parity"] = case.library
    out, rejects = apply(operator(name, **step, **more), batch_of(images, "HWC"))
    assert not rejects
    return [np.asarray(a) for a in out]


def has_parity(name: str) -> bool:
    load_operators()
    return "parity" in parameters(operators()[name])
