"""A job leaves nothing in memory but what serves the next one. Errors that are kept hold the frames that they came
through, and frames hold batches: jobs once after the other grew by a quarter of a gigabyte each."""

from __future__ import annotations

import ast
import gc
import random
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dali_run.ops.batch import Batch
from dali_run.ops.errors import SampleError
from dali_run.pipelines.job.run import run_job
from tests.fuzz.jobs import IMAGES, mutated
from tests.kit.jobs.small_spec import small_spec

ROOT = Path(__file__).parents[3]


def alive() -> Counter[str]:
    """Errors of samples, batches, and frames of our code that have ended, as far as the collector sees them."""
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance would ask a weak proxy's object, which may be gone
        if issubclass(kind, (SampleError, Batch)):
            found[kind.__name__] += 1
        elif kind is types.TracebackType and "dali_run" in thing.tb_frame.f_code.co_filename:
            found[f"traceback in {thing.tb_frame.f_code.co_qualname}"] += 1
    return found


def test_a_job_of_damaged_images_leaves_nothing(tmp_path: Path) -> None:
    data, rng = tmp_path / "data", random.Random(5)
    (data / "0").mkdir(parents=True)
    for k in range(160):
        name, make = list(IMAGES.items())[k % len(IMAGES)]
        content = make(rng)
        damaged = (content[: len(content) // 50 + 4], mutated(content, rng), content)[k % 3]
        (data / "0" / f"{k:03d}-{name}").write_bytes(damaged)
    spec = tmp_path / "spec.yaml"
    text = small_spec(data, tmp_path / "out", size=24).replace("random_shuffle: true", 'file_filters: ["*"]')
    spec.write_text(text.replace("max_errors: 50%", "max_errors: 100%"))
    run_job(spec)  # compiles its loops, if no test before did: Numba keeps what it tried, with its frames, in circles
    gc.collect()
    before = alive()
    gc.disable()  # it may come late: what is held by a circle of references until then is held too long
    try:
        report = run_job(spec, fresh=True).report
        assert report["samples"]["rejected"] > 40, report["samples"]
        del report
        left = alive() - before
    finally:
        gc.enable()
    assert not left, left


def kept_with_frames(tree: ast.AST) -> Iterator[int]:
    """Lines that keep a caught error as it is: put into a list, a dictionary or an attribute; a SampleError also where
    it is returned, or gets another name."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None or handler.type is None:
            continue
        samples = "SampleError" in ast.unparse(handler.type)
        for node in ast.walk(handler):
            values: list[ast.expr] = []
            if isinstance(node, ast.Return | ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else []
                if samples or any(isinstance(t, ast.Attribute | ast.Subscript) for t in targets):
                    values = [node.value]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".append", ".add", ".put")):
                values = list(node.args)
            for value in values:
                inside = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
                if any(isinstance(v, ast.Name) and v.id == handler.name for v in inside):
                    yield node.lineno


def test_errors_are_kept_without_their_frames() -> None:
    """`SampleError.bare` makes one that may be kept, and `kept` lets any error be. A list that a function fills
    and that holds an error raised below it is a circle: error, frames, list, error."""
    assert list(kept_with_frames(ast.parse("try:\n a()\nexcept SampleError as e:\n b.append((1, e))"))) == [4]
    assert list(kept_with_frames(ast.parse("try:\n a()\nexcept OSError as e:\n f = e\n self.f = e"))) == [5]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("ops", "pipelines/engine", "pipelines/job", "pipelines/serve", "readers", "writers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in kept_with_frames(ast.parse(path.read_text()))
    ]
    assert not found, f"keep e.bare(), or kept(e), instead: {found}"
