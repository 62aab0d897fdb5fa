"""Numbers that no one gives on purpose, to every operator: refused, or a result. See tests/kit/extremes.py."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import yaml

from dali_run.ops.base import Spec, coerce, operators, parameters
from dali_run.ops.errors import DaliRunError
from dali_run.pipelines.plugins import load_operators

ROOT = Path(__file__).parents[2]
GROUPS = 6

load_operators()


SLIPS = ("abc", "12", -7, 0, 1.5, True, [], [1, 2, 3, 4, 5, 6, 7], ["a"], {"a": 1}, 1e30, 2**70)


def test_slips_of_any_type_are_refused_in_words() -> None:
    """Each argument of every operator, given what it may not be: never another exception than those for people."""
    faults = []
    for name, cls in operators().items():
        if not cls.__module__.startswith("dali_run.") or not cls.example:
            continue
        step = yaml.safe_load(cls.example)
        kept = {k: v for k, v in step.items() if k in parameters(cls) and not str(v).startswith("$")}
        unknown = [Spec(None, None, "")] * max(1, cls.inputs[0]) if cls.inputs[1] else []
        for parameter, value in itertools.product(parameters(cls).values(), SLIPS):
            if parameter.arg.ignored or parameter.arg.deprecated:
                continue
            try:
                arguments = {**kept, parameter.name: value}
                op = cls(**{k: coerce(parameters(cls)[k], v) for k, v in arguments.items()})
                op.check()
                op.infer(*unknown)
            except DaliRunError:
                pass
            except Exception as e:
                if Path(traceback.extract_tb(e.__traceback__)[-1].filename).name not in ("base.py", "types.py"):
                    faults.append(f"{name}, {parameter.name}: {value!r}: {type(e).__name__}: {e}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_operator(group: int) -> None:
    """In a process of its own, which may not take much memory; a crash or a hang leaves the call that did it last."""
    ours = sorted(name for name, cls in operators().items() if cls.__module__.startswith("dali_run."))
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.extremes", "--few", *ours[group::GROUPS]],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [line for line in lines if line[0] == "FAULT"]
    assert not faults, "\n".join(map(str, faults))
    assert done.returncode == 0, f"{lines[-1:]}\n{done.stderr[-3000:]}"
    assert len(lines) > 100
