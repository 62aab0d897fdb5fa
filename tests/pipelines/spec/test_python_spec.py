"""A Python pipeline in the place of a spec."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.errors import SpecError
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.spec.build import load_spec

MODULE = """
import dali_run.fn as fn
from dali_run import pipeline_def
from helper_of_mine import SIZE

@pipeline_def(batch_size=4, num_threads=1, seed=3)
def pictures(root, size=SIZE):
    jpegs, labels = fn.readers.file(file_root=root, name="Reader")
    images = fn.resize(fn.decoders.image(jpegs), size=[size, size])
    return {"image": images, "label": labels}

@pipeline_def
def fails():
    raise ValueError("of its own")

@pipeline_def
def function():
    return fn.python_function(fn.constant(idata=[1]), function=lambda x: x)
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    for k in range(6):
        (tmp_path / "data" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 30, 3), k * 40, np.uint8)).save(tmp_path / "data" / "ab"[k % 2] / f"{k}.jpg")
    (tmp_path / "helper_of_mine.py").write_text("SIZE = 8\n")
    (tmp_path / "mine.py").write_text(MODULE)
    return tmp_path / "mine.py"


def test_a_job_from_python(module: Path) -> None:
    out = module.parent / "out"
    overrides = {"root": str(module.parent / "data"), "write.writer": "tfrecord", "write.path": str(out),
                 "write.shard": {"samples": 4}, "write.fields": {"image": {"encode": "raw"}, "label": {}}}  # fmt: skip
    result = run_job(f"{module}:pictures", overrides)
    assert result.exit_code == 0, result.message
    assert result.report["samples"]["written"] == 6
    assert list(out.glob("*00000-of-00002*"))


def test_arguments(module: Path) -> None:
    built = load_spec(f"{module}:pictures", {"root": "x", "size": "5", "pipeline.batch_size": 2})
    assert built.spec.pipeline.batch_size == 2
    (resize,) = [n for n in built.graph.nodes if n.op.name == "resize"]
    assert resize.op.size == (5.0, 5.0)
    assert list(built.graph.outputs) == ["image", "label"]


@pytest.mark.parametrize(("name", "message"), [
    ("nothing", "available: pictures, fails, function"), ("fails", "raised ValueError: of its own"),
    ("function", "function"), ("pictures", "missing 1 required positional argument: 'root'"),
])  # fmt: skip
def test_refusals(name: str, message: str, module: Path) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec(f"{module}:{name}", {})


def test_broken_modules(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no file"):
        load_spec(tmp_path / "none.py:pipe", {})
    (tmp_path / "bad.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(SpecError, match="cannot be imported: ModuleNotFoundError"):
        load_spec(tmp_path / "bad.py:pipe", {})
