"""Models for Triton: what is written, and how it answers, with a stand-in for Triton's module."""

import importlib.util
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run import pipeline_def
from dali_run.cli import main as cli
from dali_run.ops.errors import SpecError
from dali_run.pipelines.serve.triton import make_model, write_model
from dali_run.plugin.triton import autoserialize
from tests.kit import triton_stand_in
from tests.kit.golden import FOLDER
from tests.kit.triton_stand_in import InferenceRequest, InferenceResponse

SPEC = """
version: 1
pipeline: {batch_size: 4, num_threads: 2, device: cpu}
graph:
  - {op: readers.file, file_root: nowhere, out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, out: pictures}
  - {op: resize, in: pictures, size: [8, 6], out: small}
  - {op: reductions.max, in: small, axes: [0, 1, 2], keep_dims: false, out: brightest}
outputs: {small: small, picture: pictures, brightest: brightest, label: labels}
"""


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton_stand_in)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path / "spec.yaml"


def png(value: int, height: int = 10, width: int = 12) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), value, np.uint8)).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)


class Loaded:
    """The model in a folder as Triton runs it."""

    def __init__(self, folder: Path, kind: str = "CPU", max_batch_size: int = 0) -> None:
        found = importlib.util.spec_from_file_location("model", folder / "1" / "model.py")
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        self.model = module.TritonPythonModel()
        config = {"max_batch_size": max_batch_size} if max_batch_size else {}
        self.model.initialize({"model_config": json.dumps(config), "model_instance_kind": kind,
                               "model_instance_device_id": "0"})  # fmt: skip

    def ask(self, *requests: dict[str, Any], outputs: tuple[str, ...] = ("small", "brightest")) -> list[Any]:
        """Arrays by output, or the text of the error, for each request."""
        responses: list[InferenceResponse] = self.model.execute([InferenceRequest(r, outputs) for r in requests])
        answers: list[Any] = []
        for response in responses:
            error = response.error()
            answers.append(
                {t.name(): t.as_numpy() for t in response.output_tensors()} if error is None else error.message()
            )
        return answers


@pytest.fixture
def served(spec: Path, tmp_path: Path) -> Iterator[Loaded]:
    write_model(make_model(str(spec), "pictures", outputs=["small", "picture", "brightest"]), tmp_path / "models")
    loaded = Loaded(tmp_path / "models" / "pictures")
    yield loaded
    loaded.model.finalize()


def rows(*files: np.ndarray) -> np.ndarray:
    """Files of one request in one array, padded with zeros, as clients send them."""
    return np.stack([np.pad(f, (0, max(map(len, files)) - len(f))) for f in files])


def test_requests_share_a_batch_and_are_answered_apart(served: Loaded) -> None:
    requests = [
        {"jpegs": rows(png(10), png(20, 30))},
        {"jpegs": png(30)[None]},
        {"jpegs": rows(png(40), png(50), png(60))},
    ]
    answers = served.ask(*requests)
    assert [a["small"].shape for a in answers] == [(2, 8, 6, 3), (1, 8, 6, 3), (3, 8, 6, 3)]
    assert [a["brightest"].tolist() for a in answers] == [[10, 20], [30], [40, 50, 60]]
    for one, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(served.ask(one)[0]["small"], answer["small"])


def test_a_bad_sample_fails_its_request_only(served: Loaded) -> None:
    bad = np.frombuffer(b"no picture at all", np.uint8)
    good, broken, also_good = served.ask(
        {"jpegs": png(10)[None]}, {"jpegs": rows(png(20), bad)}, {"jpegs": png(30)[None]}
    )
    assert good["brightest"].tolist() == [10]
    assert re.match(r"sample 1: decoders\.image: ", broken)
    assert also_good["brightest"].tolist() == [30]
    assert "sample 0" in served.ask({"jpegs": bad[None]})[0]
    assert served.ask({"jpegs": png(40)[None]})[0]["brightest"].tolist() == [40]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a type": ({"jpegs": np.zeros((1, 9), np.float32)}, "jpegs: takes uint8 with 2 dimensions"),
    "dimensions": ({"jpegs": np.zeros((1, 9, 3), np.uint8)}, "got uint8 of shape"),
    "an input too many": ({"jpegs": np.zeros((1, 9), np.uint8), "x": np.zeros((1, 1))}, "the inputs are jpegs"),
    "no input": ({}, "the request has none"),
    "no samples": ({"jpegs": np.zeros((0, 9), np.uint8)}, "1 to 4 samples, got 0"),
    "too many samples": ({"jpegs": np.zeros((5, 9), np.uint8)}, "1 to 4 samples, got 5"),
    "objects": ({"jpegs": np.array([["text"]], np.object_)}, "byte strings"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_told_so(case: str, served: Loaded) -> None:
    request, words = WRONG[case]
    wrong, right = served.ask(request, {"jpegs": png(7)[None]})
    assert words in wrong
    assert right["brightest"].tolist() == [7]


def test_lists_of_another_length_fail_their_request_only(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("""
version: 1
pipeline: {batch_size: 8, num_threads: 2, device: cpu}
graph:
  - {op: external_source, name: image, dtype: UINT8, ndim: 3, layout: HWC, out: x}
  - {op: external_source, name: size, dtype: FLOAT, ndim: 1, out: size}
  - {op: external_source, name: start, dtype: INT64, ndim: 1, out: start}
  - {op: resize, in: x, size: $size, out: x}
  - {op: slice, in: x, start: $start, shape: [2, 2], axes: [0, 1], out: x}
outputs: {x: x}
""")
    write_model(make_model(str(tmp_path / "spec.yaml"), "m"), tmp_path / "models")
    loaded = Loaded(tmp_path / "models" / "m", max_batch_size=8)

    def request(size: list[float], start: list[int]) -> dict[str, Any]:
        return {"image": np.full((1, 9, 9, 3), 7, np.uint8), "size": np.float32([size]), "start": np.int64([start])}

    good = request([6, 6], [1, 1])
    for odd in (request([6, 6, 6], [1, 1]), request([], [1, 1]), request([6, 6], [1, 1, 1])):
        for place in range(3):
            answers = loaded.ask(*(odd if k == place else good for k in range(3)), outputs=("x",))
            assert "bad_argument" in answers[place]
            assert str(tmp_path) not in answers[place]
            assert [a["x"].shape for k, a in enumerate(answers) if k != place] == [(1, 2, 2, 3)] * 2
    loaded.model.finalize()


def test_more_requests_than_a_batch_holds(served: Loaded) -> None:
    answers = served.ask(*({"jpegs": rows(png(k), png(k + 100))} for k in range(11)))
    assert [a["brightest"].tolist() for a in answers] == [[k, k + 100] for k in range(11)]


def test_shapes_may_differ_between_requests_and_not_within_one(served: Loaded) -> None:
    one, both, other = served.ask(
        {"jpegs": png(1, 10)[None]}, {"jpegs": rows(png(2, 10), png(3, 11))}, {"jpegs": png(4, 11)[None]},
        outputs=("picture",),
    )  # fmt: skip
    assert (one["picture"].shape, other["picture"].shape) == ((1, 10, 12, 3), (1, 11, 12, 3))
    assert "must have one shape, got (10, 12, 3) and (11, 12, 3)" in both


def test_only_requested_outputs_come(served: Loaded) -> None:
    assert set(served.ask({"jpegs": png(1)[None]}, outputs=("brightest",))[0]) == {"brightest"}


def test_strings_of_bytes(spec: Path, tmp_path: Path) -> None:
    model = make_model(str(spec), "strings", outputs=["small", "brightest"], strings=["jpegs"])
    write_model(model, tmp_path)
    assert 'name: "jpegs", data_type: TYPE_STRING, dims: [ 1 ] }' in model.config
    loaded = Loaded(tmp_path / "strings")
    files = np.array([[png(3).tobytes()], [png(4, 40).tobytes()]], np.object_)
    assert loaded.ask({"jpegs": files}, {"jpegs": files[:1]})[0]["brightest"].tolist() == [3, 4]
    loaded.model.finalize()


def test_the_configuration(spec: Path) -> None:
    model = make_model(str(spec), "pictures", {"pipeline.batch_size": 32}, instances=2)
    assert model.config.splitlines() == [
        'name: "pictures"', 'backend: "python"', "max_batch_size: 32",
        'input [ { name: "jpegs", data_type: TYPE_UINT8, dims: [ -1 ], allow_ragged_batch: true } ]',
        'input [ { name: "labels", data_type: TYPE_INT32, dims: [ -1 ], allow_ragged_batch: true } ]',
        'output [ { name: "small", data_type: TYPE_UINT8, dims: [ 8, 6, 3 ] } ]',
        'output [ { name: "picture", data_type: TYPE_UINT8, dims: [ -1, -1, 3 ] } ]',
        'output [ { name: "brightest", data_type: TYPE_UINT8, dims: [ 1 ], reshape: { shape: [ ] } } ]',
        'output [ { name: "label", data_type: TYPE_INT32, dims: [ -1 ] } ]',
        "dynamic_batching { }", "instance_group [ { count: 2, kind: KIND_CPU } ]",
    ]  # fmt: skip
    kinds = {"auto": "kind: KIND_AUTO", "gpu": "kind: KIND_GPU }", "gpu:1": "kind: KIND_GPU, gpus: [ 1 ]",
             "gpu:0,2": "gpus: [ 0, 2 ]"}  # fmt: skip
    for device, words in kinds.items():
        assert words in make_model(str(spec), "x", {"pipeline.device": device}).config


def test_triton_itself_reads_the_configuration(spec: Path) -> None:
    """Its own schema of config.pbtxt, where the client package is installed."""
    schema = pytest.importorskip("tritonclient.grpc.model_config_pb2", exc_type=ImportError)
    from google.protobuf import text_format

    for strings in ((), ("jpegs",)):
        made = make_model(str(spec), "pictures", strings=strings)
        config = text_format.Parse(made.config, schema.ModelConfig())
        assert config.max_batch_size == 4
        assert [i.name for i in config.input] == ["jpegs", "labels"]
        assert [list(o.dims) for o in config.output] == [[8, 6, 3], [-1, -1, 3], [1], [-1]]
        assert config.instance_group[0].kind == schema.ModelInstanceGroup.KIND_CPU


PROGRAM = """
import dali_run.fn as fn
from dali_run import pipeline_def, types
from dali_run.plugin.triton import autoserialize

@autoserialize
@pipeline_def(batch_size=3, num_threads=1)
def doubled():
    x = fn.external_source(name="x", dtype=types.FLOAT, ndim=1)
    return x * 2

@pipeline_def(batch_size=3, num_threads=1)
def other():
    return fn.external_source(name="x", dtype=types.FLOAT, ndim=1) * 3
"""


@pytest.mark.parametrize(("suffix", "factor"), [("", 2), (":other", 3)])
def test_python_definitions(suffix: str, factor: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        "serve-model",
        f"{tmp_path / 'program.py'}{suffix}",
        str(tmp_path / "models"),
        "--set",
        "pipeline.device=cpu",
    ]
    assert cli.main(command) == 0
    loaded = Loaded(tmp_path / "models" / "program", max_batch_size=8)
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.testing.assert_array_equal(loaded.ask({"x": x}, outputs=("output0",))[0]["output0"], x * factor)
    loaded.model.finalize()


def test_autoserialize_marks_definitions_only() -> None:
    with pytest.raises(TypeError, match="@pipeline_def"):
        autoserialize(lambda: None)
    marked = autoserialize(pipeline_def(lambda: None))
    assert marked._is_autoserialize


def test_a_serialized_pipeline_of_dali(tmp_path: Path) -> None:
    saved = np.load(FOLDER / "serialized.npz")
    (tmp_path / "model.dali").write_bytes(saved["pictures/file"].tobytes())
    assert (
        cli.main(["serve-model", str(tmp_path / "model.dali"), str(tmp_path / "models"), "--strings", "encoded"]) == 0
    )
    loaded = Loaded(tmp_path / "models" / "model")
    files = np.array([saved[f"pictures/input/encoded/{k}"].tobytes() for k in range(4)], np.object_)
    (answer,) = loaded.ask({"encoded": files}, outputs=("output0", "output3"))
    assert answer["output0"].shape == (4, 3, 12, 14)
    np.testing.assert_array_equal(answer["output3"], [saved[f"pictures/output/3/{k}"] for k in range(4)])
    loaded.model.finalize()


REFUSED = {
    "nothing to feed": ("  - {op: constant, idata: [1], out: x}\noutputs: {y: x}", "has no inputs"),
    "an input of no type": ("  - {op: external_source, out: x}\n  - {op: cast, in: x, dtype: FLOAT, out: y}\n"
                            "outputs: {y: y}", "needs dtype= and ndim="),
    "an output of no type": ("  - {op: readers.numpy, files: [a.npy], out: x}\noutputs: {y: x}", "is unknown"),
    "an output that is an input": ("  - {op: readers.file, file_root: a, out: [x, y]}\noutputs: {y: y}", "two differ"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_said(case: str, tmp_path: Path) -> None:
    graph, words = REFUSED[case]
    (tmp_path / "spec.yaml").write_text(f"version: 1\npipeline: {{device: cpu}}\ngraph:\n{graph}\n")
    with pytest.raises(SpecError, match=words):
        make_model(str(tmp_path / "spec.yaml"), "x")


def test_wrong_options_and_files_that_are_there(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = str(tmp_path / "models")
    assert cli.main(["serve-model", str(spec), models, "--output", "none"]) == 2
    assert cli.main(["serve-model", str(spec), models, "--strings", "labels"]) == 2
    assert cli.main(["serve-model", str(spec), models, "--strings", "none"]) == 2
    assert cli.main(["serve-model", str(spec), models, "--name", "../up"]) == 2
    assert not (tmp_path / "models").exists()
    assert cli.main(["serve-model", str(spec), models]) == 0
    assert cli.main(["serve-model", str(spec), models]) == 2
    assert "--force" in capsys.readouterr().err
    assert cli.main(["serve-model", str(spec), models, "--force"]) == 0
