"""Every reader against DALI 2.4's answers for the same files and arguments (tests/golden/readers.npz)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import find
from dali_run.ops.context import Context, KernelServices
from dali_run.pipelines.graph.arguments import check_arguments
from dali_run.pipelines.plugins import load_operators
from dali_run.readers.base import Reader

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "readers.npz")
CASES = json.loads(str(GOLDEN["cases"]))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data sets that DALI read."""
    root = tmp_path_factory.mktemp("golden")
    for k, name in enumerate(json.loads(str(GOLDEN["files"]))):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GOLDEN[f"file{k}"].tobytes())
    return root


def placed(value: Any, root: Path) -> Any:
    if isinstance(value, str):
        return str(root / value[1:]) if value.startswith("@") else value
    if isinstance(value, list):
        return [placed(v, root) for v in value]
    return {k: placed(v, root) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("staging", [False, True])
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda k: f"{k}-{CASES[k][0].removeprefix('readers.')}")
def test_samples_equal_dali(files: Path, case: int, staging: bool) -> None:
    load_operators()
    name, samples, batch, arguments = CASES[case]
    arguments = placed(arguments, files)
    seed = arguments.pop("seed", 1)
    cls = find(name)
    constants, _, problems = check_arguments(cls, arguments)
    assert not problems
    reader = cls(**constants)
    assert isinstance(reader, Reader)
    reader.check()
    source = reader.open()
    order = reader.order(len(source), seed, batch, source.groups)
    rows: list[list[np.ndarray[Any, Any]]] = []
    while len(rows) < samples:
        ctx = Context(op=reader, stage="cpu", samples=order.samples(len(rows), batch, source), source=source)
        if staging:
            ctx.services = KernelServices(lambda nbytes: np.empty(nbytes, np.uint8))
        outputs = reader.cpu(ctx)
        assert not ctx.rejects
        rows += [list(sample) for sample in zip(*outputs, strict=True)]
    for output, (column, spec) in enumerate(zip(zip(*rows[:samples], strict=True), reader.infer(), strict=True)):
        data, shapes = GOLDEN[f"data{case}_{output}"], GOLDEN[f"shape{case}_{output}"]
        assert [a.shape for a in column] == [tuple(s) for s in shapes.tolist()]
        assert {a.dtype for a in column} == {data.dtype}
        np.testing.assert_array_equal(np.concatenate([a.reshape(-1) for a in column]), data)
        assert spec.ndim in (None, shapes.shape[1])
