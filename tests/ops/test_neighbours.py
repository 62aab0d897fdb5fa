"""A sample's result is the one that it would have alone, whatever differs about its neighbours: every operator, every
argument that may come as an input, every input."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.base import Operator, Spec, operators, parameters
from dali_run.ops.errors import DaliRunError
from dali_run.ops.types import from_numpy
from dali_run.pipelines.plugins import load_operators
from tests.kit.emulated_lane import EmulatedLane
from tests.kit.long import examples
from tests.kit.operators import operator
from tests.kit.ops.neighbours import UNTRIED, Case, N, cases, equal, kinds_of, operators_tried, outcome

ROOT = Path(__file__).parents[2]
load_operators()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a new folder, because dump_image writes files."""
    monkeypatch.chdir(tmp_path)


tried = pytest.mark.parametrize("cls", operators_tried(), ids=lambda cls: cls.name)


PLACES = (0, N // 2, N - 1)[: examples(3, 2)]
"""Positions of the odd sample."""


def faults(case: Case, places: tuple[int, ...] = PLACES, **how: Any) -> list[str]:
    """The faults in outcomes of batches that hold the odd sample at one of ``places``."""
    good = outcome(case, None, [0], **how)[0]
    if isinstance(good, tuple):
        return [f"{case.name}: the good sample alone: {good}"]
    kinds, found = kinds_of(good), list[str]()
    for at in places:
        odd, rest = outcome(case, at, [at], kinds, **how)[at], outcome(case, at, [(at + 1) % N], kinds, **how)
        together = outcome(case, at, range(N), kinds, **how)
        if isinstance(odd, tuple) and odd[0] == "internal":
            found.append(f"{case.name}: {odd[1]}")
        if not equal(odd, together.get(at, ("lost", str(together)))):
            found.append(f"{case.name}, at {at}: alone {_short(odd)}, with others {_short(together.get(at))}")
        for i in set(range(N)) - {at}:
            if case.op.random or len(case.inputs) > 1 or i == (at + 1) % N:
                rest = outcome(case, at, [i], kinds, **how)
            alone = next(iter(rest.values()))
            if i not in together or not equal(alone, together[i]):
                found.append(f"{case.name}, odd at {at}: sample {i} is {_short(together.get(i))}, not {_short(alone)}")
    return found


def _short(outcome: Any) -> str:
    return str(outcome) if isinstance(outcome, tuple) or outcome is None else "a result"


@tried
def test_a_sample_is_what_it_is_alone(cls: type[Operator]) -> None:
    found = [fault for case in cases(cls) for fault in faults(case)]
    assert not found, "\n".join(found)


@tried
def test_a_list_that_is_an_input_is_what_it_is_as_a_constant(cls: type[Operator]) -> None:
    """Refused, or the same result. An empty constant may stand for the default, an input is a list of no numbers; axes
    of slice are weaker than axis_names if they are a constant alone."""
    found = []
    for case in cases(cls):
        for name, (_, odd) in case.args.items():
            if not parameters(cls)[name].is_vector or not odd.size or (cls.name, name) == ("slice", "axes"):
                continue
            given = outcome(case, 0, [0])[0]
            kept = {k: getattr(case.op, k) for k in parameters(cls) if k != name and case.op.is_set(k)}
            try:
                op = operator(cls.name, **kept, **{name: odd.tolist()})
                specs = (Spec(a.shape, from_numpy(a.dtype), case.layout if k == 0 else "")
                         for k, a in enumerate(case.inputs))  # fmt: skip
                op.infer(*specs)
                constant = outcome(Case(op, case.inputs, case.inputs, case.layout, {}, ""), 0, [0])[0]
            except DaliRunError as e:
                constant = "spec", str(e)
            refused = isinstance(given, tuple), isinstance(constant, tuple)
            if refused[0] != refused[1] or not (refused[0] or equal(given, constant)):
                found.append(f"{case.name}: {_short(given)} as an input, {_short(constant)} as a constant")
    assert not found, "\n".join(found)


@pytest.mark.gpu
@pytest.mark.parametrize("cls", [c for c in operators_tried() if "gpu" in c.stages], ids=lambda cls: cls.name)
def test_lists_on_a_gpu(cls: type[Operator]) -> None:
    """Where the odd list is the first of its batch."""
    found = [
        fault
        for case in cases(cls)
        if case.args and "longer" in case.name
        for fault in faults(case, (0,), device=EmulatedLane(), stage="gpu")
    ]
    assert not found, "\n".join(found)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["decoders.audio", "decoders.image", "decoders.inflate", "decoders.video"])
def test_files_on_a_gpu(name: str) -> None:
    """Where the odd file is the first of its batch."""
    cls = operators()[name]
    if name in UNTRIED:
        pytest.skip("its package is not installed")
    stage = "gpu" if "gpu" in cls.stages else "mixed"
    found = [
        fault
        for case in cases(cls)
        if "a file that" in case.name
        for fault in faults(case, (0,), device=EmulatedLane(), stage=stage)
    ]
    assert not found, "\n".join(found)


def test_no_kernel_raises_an_error_about_the_spec() -> None:
    """Code that is given batches raises errors about samples: an error about the spec would end the job for one of
    them."""
    found = []
    for path in sorted([*(ROOT / "ops").rglob("*.py"), *(ROOT / "readers").rglob("*.py")]):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and _takes_batches(function):
                found += [
                    f"{path.relative_to(ROOT)}:{node.lineno}: {function.name}"
                    for node in ast.walk(function)
                    if isinstance(node, ast.Raise) and node.exc is not None and _of_spec(node.exc)
                ]
    assert not found


def _takes_batches(function: ast.FunctionDef) -> bool:
    return any(isinstance(a.annotation, ast.Name) and a.annotation.id == "Context" for a in function.args.args)


def _of_spec(raised: ast.expr) -> bool:
    names = {n.id for n in ast.walk(raised) if isinstance(n, ast.Name)}
    return bool(names & {"SpecError", "ArgumentValueError", "ArgumentTypeError", "ArgumentNameError"})
