"""The dynamic mode beside DALI's: the same names, and the same results of the same programs (tests/golden)."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run.dynamic as ndd

from ...golden import dynamic_programs

GOLDEN = Path(__file__).parents[2] / "golden"
STORED = json.loads((GOLDEN / "dynamic.json").read_text())

IGNORED = {"shape_like", "input", "input_0", "inputs", "data", "anchor", "shape_input", "num_inputs"}
"""Inputs go by their places."""


def lookup(dotted: str) -> Any:
    found: Any = ndd
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", sorted(STORED["names"]))
def test_every_name_is_there(name: str) -> None:
    value, facts = lookup(name), STORED["names"][name]
    assert not {m for m in facts.get("members", ()) if not hasattr(value, m)}
    assert name.split(".")[-1] in dir(lookup(name.rpartition(".")[0]) if "." in name else ndd)


@pytest.mark.parametrize("name", ["flip", "resize", "random.uniform", "noise.gaussian", "decoders.image", "one_hot"])
def test_arguments_have_their_names(name: str) -> None:
    theirs = set(STORED["names"][name]["parameters"]) - IGNORED
    assert theirs <= set(inspect.signature(lookup(name)).parameters)


def same(got: Any, want: Any, where: str, bound: float) -> None:
    if isinstance(want, dict) and "values" in want:
        assert {k: v for k, v in got.items() if k != "values"} == {k: v for k, v in want.items() if k != "values"}, (
            where
        )
        np.testing.assert_allclose(got["values"], want["values"], rtol=bound, atol=bound, err_msg=where)
    elif isinstance(want, dict):
        assert got.keys() == want.keys(), where
        for k in want:
            same(got[k], want[k], f"{where}.{k}", bound)
    elif isinstance(want, list):
        assert len(got) == len(want), where
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            same(a, b, f"{where}[{k}]", bound)
    else:
        assert got == want, where


BOUNDS = {"draws": 1e-6, "calculations": 1e-6}
"""Logarithms and roots of another library, in parts of 1 or of the value; all else is equal to the bit."""


@pytest.mark.filterwarnings("ignore:.*from outside of the loop:UserWarning")  # captured loops say so
@pytest.mark.parametrize("name", sorted(dynamic_programs.PROGRAMS))
def test_programs_give_what_they_give_in_dali(name: str, tmp_path: Path) -> None:
    root = dynamic_programs.files(tmp_path)
    got = json.loads(json.dumps(dynamic_programs.plain(ndd, dynamic_programs.PROGRAMS[name](ndd, root))))
    same(got, STORED["results"][name], name, BOUNDS.get(name, 0.0))


@pytest.mark.dali
@pytest.mark.filterwarnings("ignore")
def test_the_stored_names_are_those_of_dali() -> None:
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed")
    theirs = importlib.import_module("nvidia.dali.experimental.dynamic")
    known = {n.split(".")[0] for n in STORED["names"]}
    new = {n for n in dir(theirs) if not n.startswith("_") and not inspect.ismodule(getattr(theirs, n))} - known
    assert not {n for n in new if getattr(getattr(theirs, n), "__module__", "").startswith("nvidia")}


def test_the_package_has_it() -> None:
    import dali_run

    assert dali_run.dynamic is ndd
    assert "dynamic" in dir(dali_run)
