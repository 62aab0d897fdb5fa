"""Operators are found by what their modules say, and only those modules are imported."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from dali_run.ops.base import Operator, operators
from dali_run.ops.errors import SpecError
from dali_run.pipelines.plugins import find_operator, load_operators
from tests.kit.long import thinned

ROOT = Path(__file__).parents[2]

# Every name in a process of its own, which has imported nothing but what a spec is checked with.
_EACH_ALONE = """
import os, sys
import dali_run.pipelines.spec.build
from dali_run.pipelines import plugins
plugins._declaring()
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        plugins.load_operators = lambda: print(name, "is in no module that says so")
        try:
            found = plugins.find_operator(name)
            assert name in (found.name, *found.aliases)
        except BaseException as e:
            print(name, repr(e))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_every_operator_is_found_alone() -> None:
    load_operators()
    ours = [op for op in operators().values() if op.__module__.startswith(("dali_run.ops.", "dali_run.readers."))]
    names = [known for op in ours for known in (op.name, *op.aliases)]
    assert len(names) > 150
    names = thinned(names, 6)
    done = subprocess.run(
        [sys.executable, "-c", _EACH_ALONE, *names], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == []


def test_an_unknown_operator_gets_the_nearest_of_all_names() -> None:
    code = "from dali_run.pipelines.plugins import find_operator; find_operator('rotat')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "did you mean rotate" in done.stderr
    with pytest.raises(SpecError, match="there is no operator"):
        find_operator('quoted"name')


def test_operators_are_frozen_dataclasses_by_shared_methods() -> None:
    """The methods are those that `dataclasses` would have compiled; an operator may have methods of any other name."""
    load_operators()
    made = find_operator("constant")(fdata=(1.0, 2.0))
    assert made == find_operator("constant")(fdata=(1.0, 2.0)) != find_operator("constant")(fdata=(1.0, 3.0))
    assert hash(made) == hash(dataclasses.replace(made))
    assert dataclasses.replace(made, fdata=(3.0,)).fdata == (3.0,)
    assert repr(made).startswith("Constant(per_sample=frozenset(), num_inputs=0,")
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.fdata = (4.0,)
    with pytest.raises(TypeError, match="no argument 'other'"):
        find_operator("constant")(other=1)
    for op in operators().values():
        own = {n for base in op.__mro__ if base not in (Operator, object) for n in vars(base)}
        assert not own & {"__init__", "__eq__", "__setattr__"}, op
