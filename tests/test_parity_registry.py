"""The cases of `make parity` that come from the registry: every operator has some, without being listed, and takes the
first of them. DALI is not needed here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.base import parameters

from .parity_registry import BATCH, cases_of, ours, wanted

OPERATORS = wanted()


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_covered_by_its_declaration(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    op = OPERATORS[name]
    cases = cases_of(op, list(parameters(op)))
    assert cases, f"no kind of data fits the example {op.example!r}: mend it, or tests/parity_registry.py"
    got = ours(cases[0])
    assert not isinstance(got, str), got
    assert all(len(out) == BATCH for out in got)
    changed = {c.changed.split(" ")[0] for c in cases}
    flags = {p.name for p in parameters(op).values() if p.type is bool and not (p.arg.ignored or p.arg.deprecated)}
    assert flags <= changed
    assert [c.number for c in cases] == list(range(len(cases)))


def test_cases_are_the_same_every_time() -> None:
    for one, other in zip(*(cases_of(OPERATORS["flip"], ["horizontal", "vertical"]) for _ in range(2)), strict=True):
        assert str(one) == str(other)
        for a, b in zip(one.inputs[0], other.inputs[0], strict=True):
            np.testing.assert_array_equal(a, b)
