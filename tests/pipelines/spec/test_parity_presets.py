"""`parity` for a whole pipeline: from YAML and Python, a step's own first, shown in plans."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run.pipeline import Pipeline, pipeline_def
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.problems import SpecErrors
from dali_run.pipelines.show.terminal import plan_view
from dali_run.pipelines.spec.build import load_spec

PIL = pytest.importorskip("PIL.Image")

SPEC = """\
version: 1
pipeline: {batch_size: 2, parity: %s}
graph:
  - {op: readers.file, files: [a.png], out: [files, labels]}
  - {op: decoders.image, in: files, out: images}
  - {op: resize, in: images, resize_shorter: 20, %sout: small}
  - {op: crop_mirror_normalize, in: small, crop: [11, 12], out: small}
outputs: {small: small}
"""


@pytest.fixture
def picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray[Any, Any]:
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (33, 50, 3)).astype(np.uint8)
    PIL.fromarray(pixels).save("a.png")
    return pixels


def plan(parity: str, step: str = "") -> Any:
    Path("spec.yaml").write_text(SPEC % (parity, step))
    return compile_graph(load_spec("spec.yaml").graph, Target("null"))


def parities(parity: str, step: str = "") -> list[str | None]:
    return [o["parity"] for o in plan(parity, step).describe()["operators"]]


@pytest.mark.usefixtures("picture")
def test_yaml() -> None:
    graph = load_spec_graph("pillow")
    assert [getattr(n.op, "parity", None) for n in graph.nodes][2:] == ["pillow", "pillow"]
    graph = load_spec_graph("pillow", "parity: dali, ")
    assert [getattr(n.op, "parity", None) for n in graph.nodes][2:] == ["dali", "pillow"]
    assert set(parities("dali")) == {None}
    assert parities("opencv")[-1] == "opencv"
    assert {n.stage for n in plan("opencv").graph.nodes} == {"cpu"}  # these presets run there
    assert "gpu" in {n.stage for n in plan("dali").graph.nodes}


def load_spec_graph(parity: str, step: str = "") -> Any:
    Path("spec.yaml").write_text(SPEC % (parity, step))
    return load_spec("spec.yaml").graph


@pytest.mark.usefixtures("picture")
def test_plans_show_it() -> None:
    from rich.console import Console

    console = Console(width=200, file=io.StringIO())
    console.print(plan_view({**plan("pillow").describe(), "name": "x"}))
    assert "parity: pillow" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("picture")
def test_mistakes_have_their_place() -> None:
    for parity, step, said in (
        ("pilow", "", "2:35: pipeline: parity must be dali, torchvision, opencv or pillow, got 'pilow'; did you mean"),
        ("pillow", "antialias: false, ", "6:5: step 3 (resize): Pillow's filters always antialias"),
        ("dali", "parity: pil, ", "step 3 (resize): argument 'parity': 'pil' is not one of"),
    ):
        with pytest.raises(SpecErrors) as e:
            load_spec_graph(parity, step)
        assert said in str(e.value)


def test_python(picture: np.ndarray[Any, Any]) -> None:
    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipe() -> Any:
        images = fn.external_source(source=lambda _: [picture], layout="HWC")
        return fn.resize(images, size=[20, 31]), fn.resize(images, size=[20, 31], parity="opencv")

    ours, theirs = (np.asarray(o.at(0)) for o in pipe(parity="pillow").run())
    want = np.asarray(PIL.fromarray(picture).resize((31, 20), PIL.Resampling.BILINEAR))
    np.testing.assert_array_equal(ours, want)
    assert np.abs(theirs.astype(int) - want).max() > 8
    with pytest.raises(ValueError, match="parity must be one of dali, torchvision"):
        Pipeline(1, 1, None, parity="pil")


def test_serialised(picture: np.ndarray[Any, Any]) -> None:
    pipe = Pipeline(1, 1, None, parity="torchvision")
    with pipe:
        pipe.set_outputs(fn.resize(fn.external_source(name="x", layout="HWC"), size=[20, 31]))
    again = Pipeline.deserialize(pipe.serialize())
    again.feed_input("x", [picture])
    pipe.feed_input("x", [picture])
    np.testing.assert_array_equal(np.asarray(again.run()[0].at(0)), np.asarray(pipe.run()[0].at(0)))
