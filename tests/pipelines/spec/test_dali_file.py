"""Pipelines that DALI serialized, as specs: the results are those that DALI gave (tests/golden/make_serialized.py)."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run import Pipeline, load_spec
from dali_run.cli import main as cli
from dali_run.ops.base import find
from dali_run.ops.errors import SpecError
from dali_run.pipelines.problems import SpecErrors
from dali_run.pipelines.python.functions import names
from dali_run.pipelines.spec.dali_file import spec_text
from dali_run.pipelines.spec.serialized.definition import LARGEST, SavedOperator, SavedPipeline, parse
from dali_run.pipelines.spec.serialized.graph import _names_of_schemas
from dali_run.pipelines.spec.serialized.wire import shortest
from tests.kit.golden import FOLDER
from tests.kit.serialized import encoded, op, tensor

SAVED = np.load(FOLDER / "serialized.npz")
TOLERANCES = {"pictures": 0.02, "arithmetic": 1e-6, "arrays": 1e-6, "conditionals": 1e-6, "indexing": 0.0}
"""A pixel of another JPEG decoder and rotation by one level; sums in another order; libm."""


def file_of(name: str) -> bytes:
    return bytes(SAVED[f"{name}/file"].tobytes())


def series(prefix: str) -> list[np.ndarray]:
    keys = [k for k in SAVED.files if re.fullmatch(re.escape(prefix) + r"/\d+", k)]
    return [SAVED[f"{prefix}/{k}"] for k in range(len(keys))]


def fed(name: str) -> dict[str, list[np.ndarray]]:
    keys = sorted({k.split("/")[2] for k in SAVED.files if k.startswith(f"{name}/input/")})
    return {k: series(f"{name}/input/{k}") for k in keys}


def compare(name: str, outputs: Any) -> None:
    for n, output in enumerate(outputs):
        wanted = series(f"{name}/output/{n}")
        assert len(wanted) == len(output)
        for k, sample in enumerate(wanted):
            got = np.asarray(output.at(k))
            assert (got.shape, got.dtype) == (sample.shape, sample.dtype), f"output {n}, sample {k}"
            np.testing.assert_allclose(got, sample, rtol=1e-6, atol=TOLERANCES[name], err_msg=f"output {n}, sample {k}")


@pytest.mark.parametrize("name", TOLERANCES)
def test_results_are_those_of_dali(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.dali"
    path.write_bytes(file_of(name))
    pipe = load_spec(path, rng="dali", prefetch_queue_depth=1)
    compare(name, pipe.run(**fed(name)))


@pytest.mark.parametrize("name", TOLERANCES)
def test_deserialize_takes_such_files(name: str) -> None:
    pipe = Pipeline.deserialize(file_of(name), rng="dali", prefetch_queue_depth=1)
    assert (pipe.max_batch_size, pipe.num_threads, pipe.seed) == (4, 1, 12)
    compare(name, pipe.run(**fed(name)))


def test_names_of_all_operators_are_known() -> None:
    known, own = _names_of_schemas(), names()
    pairs = [str(line).split("=") for line in SAVED["schemas"]]
    assert len(pairs) > 200
    checked = 0
    for function, schema in pairs:
        if function in own:
            assert find(known[schema]).name == find(own[function]).name, function
            checked += 1
    assert checked >= 195


def test_readers_their_arguments_and_features() -> None:
    text = spec_text(file_of("sources"))
    assert "name: Reader, random_shuffle: true, initial_fill: 2, num_shards: 2, shard_id: 1" in text
    assert "files: [a.bin, b.bin, c.bin], labels: [3, 4, 5]" in text
    features = re.search(r"features: (\{.*\}), out", text)
    assert features is not None
    assert "image: {dtype: string, shape: []" in features[1]
    assert "label: {dtype: int64, shape: [1], default: -1}" in features[1]
    assert "box: {dtype: float, shape: [], var_len: true}" in features[1]
    assert "points: {dtype: float, shape: [2, 3], default: 0.5}" in features[1]
    assert "layout: HWC, dtype: UINT8" in text


def test_a_reader_reads(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin", "c.bin"):
        (tmp_path / name).write_bytes(name.encode())
    source = op("readers__File", outputs=[tensor("f[0]"), tensor("f[1]")], file_root=str(tmp_path),
                files=["a.bin", "b.bin", "c.bin"], labels=[3, 4, 5], name="Reader", preserve_name=True)  # fmt: skip
    saved = SavedPipeline(1, 3, -1, operators=[source], outputs=[tensor("f[0]"), tensor("f[1]")])
    (tmp_path / "x.dali").write_bytes(encoded(saved))
    files, labels = load_spec(tmp_path / "x.dali").run()
    assert [bytes(np.asarray(f)) for f in files] == [b"a.bin", b"b.bin", b"c.bin"]
    assert np.asarray(labels).reshape(-1).tolist() == [3, 4, 5]


def test_a_pipeline_for_a_gpu() -> None:
    saved = SavedPipeline(
        4, 8, 1, seed=3, cpu_queue=3, gpu_queue=3, outputs=[tensor("small", "gpu"), tensor("n", "gpu")]
    )
    saved.operators = [
        op("readers__File", outputs=[tensor("j"), tensor("n")], file_root="/data", device="cpu"),
        op("decoders__Image", [tensor("j")], [tensor("i", "gpu")], device="mixed"),
        op("Resize", [tensor("i", "gpu")], [tensor("small", "gpu")], device="gpu", size=[8.0, 9.0], interp_type=2),
    ]
    text = spec_text(encoded(saved))
    assert 'device: "gpu:1", seed: 3, prefetch_queue_depth: 3' in text.replace("gpu:1,", '"gpu:1",')
    assert "op: decoders.image, in: jpegs" in text.replace("readers_file_0", "jpegs")
    assert "device: mixed" in text
    assert "interp_type: INTERP_CUBIC" in text
    assert re.search(r"op: copy, in: \w+, device: gpu, out: output1", text)  # the labels are wanted there


def test_arrays_that_a_gpu_reads_are_outputs_on_the_gpu() -> None:
    saved = SavedPipeline(4, 8, 1, outputs=[tensor("a", "gpu")])
    saved.operators = [op("readers__Numpy", outputs=[tensor("a", "gpu")], file_root="/data", device="gpu")]
    text = spec_text(encoded(saved))
    assert "op: readers.numpy, device: gpu" in text
    assert re.search(r"op: copy, in: \w+, device: gpu, out: \w+", text)


def test_numbers_are_as_short_as_they_were() -> None:
    assert [shortest(float(np.float32(v))) for v in (0.3, 1e-20, 123.675, -2.0, 16777217.0)] == [
        0.3, 1e-20, 123.675, -2.0, 16777216.0
    ]  # fmt: skip
    for value in np.random.default_rng(0).normal(0, 1e3, 1000).astype(np.float32):
        assert np.float32(shortest(float(value))) == value


# -- what is wrong is said --------------------------------------------------------------------------------------------


def one(*operators: SavedOperator, output: str = "y") -> bytes:
    source = op("ExternalSource", outputs=[tensor("x")], name="x", preserve_name=True)
    return encoded(SavedPipeline(1, 2, -1, operators=[source, *operators], outputs=[tensor(output)]))


WRONG = {
    "a Python function": (one(op("PythonFunctionImpl", [tensor("x")], [tensor("y")], function_id=140234)),
                          r"PythonFunctionImpl .*calls a Python function"),
    "torch's": (one(op("TorchPythonFunction", [tensor("x")], [tensor("y")])), "calls a Python function"),
    "numba's": (one(op("NumbaFuncImpl", [tensor("x")], [tensor("y")])), "calls a Python function"),
    "an unknown operator": (one(op("my__Plugin", [tensor("x")], [tensor("y")])), r"my__Plugin .*dali-run does not"),
    "an unknown argument": (one(op("Resize", [tensor("x")], [tensor("y")], no_such=1)), "has no argument 'no_such'"),
    "a wrong value": (one(op("Resize", [tensor("x")], [tensor("y")], size=[-1.0, 3.0], interp_type=99)), "interp_type"),
    "an input from nowhere": (one(op("Resize", [tensor("z")], [tensor("y")])), "'z' before it is defined"),
    "an output from nowhere": (one(), "'y' before it is defined"),
    "an output twice": (one(op("Copy", [tensor("x")], [tensor("x")])), "defines 'x' twice"),
    "too many outputs": (one(op("Copy", [tensor("x")], [tensor("y"), tensor("z")])), "has 2 outputs in the file"),
    "too many inputs": (one(op("Copy", [tensor("x"), tensor("x")], [tensor("y")])), "input"),
    "a constant argument as an input": (
        one(op("Resize", [tensor("x"), tensor("x", argument="antialias")], [tensor("y")])), "must be a constant"),
    "a device": (one(op("Copy", [tensor("x")], [tensor("y", "tpu")])), "'tpu'"),
    "no expression": (one(op("ArithmeticGenericOp", [tensor("x")], [tensor("y")], expression_desc="add(&0 &1")),
                      "not an operand|not an expression"),
    "an input that is not there": (
        one(op("ArithmeticGenericOp", [tensor("x")], [tensor("y")], expression_desc="add(&0 &7)")), "does not have"),
    "a function that is not there": (
        one(op("ArithmeticGenericOp", [tensor("x")], [tensor("y")], expression_desc="exec(&0)")), "exec"),
    "a constant that is not there": (
        one(op("ArithmeticGenericOp", [tensor("x")], [tensor("y")], expression_desc="add(&0 $3:int32)")), "constant 3"),
    "subscripts": (one(op("_TensorSubscript", [tensor("x")], [tensor("y")], num_subscripts=10**9)), "num_subscripts"),
    "a merge of one branch": (
        one(op("_conditional__Merge", [tensor("x"), tensor("x"), tensor("x", argument="predicate")], [tensor("y")])),
        "not the two branches"),
    "nothing": (b"", "no operators"),
    "text": (b"version: 1\ngraph: []\n", "not a serialized pipeline"),
    "a picture": (b"\xff\xd8\xff\xe0" * 10, "not a serialized pipeline"),
    "more than is read": (b"\x08\x01" * (LARGEST // 2 + 1), "more than"),
    "many operators": (b"\x2a\x03\x0a\x01a" * 10_001, "more than 10,000 operators"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str) -> None:
    data, words = WRONG[case]
    with pytest.raises(SpecError, match=words):
        spec_text(data)


def test_nesting_is_bounded() -> None:
    value: Any = 1
    for _ in range(50):
        value = [value]
    with pytest.raises(SpecError, match="nested too deeply"):
        parse(one(op("Copy", [tensor("x")], [tensor("y")], a=value)))


# -- commands ---------------------------------------------------------------------------------------------------------


def test_convert_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "model.dali", tmp_path / "model.yaml"
    source.write_bytes(file_of("pictures"))
    assert cli.main(["convert-pipeline", str(source), str(out)]) == 0
    compare("pictures", load_spec(out, rng="dali", prefetch_queue_depth=1).run(**fed("pictures")))
    capsys.readouterr()
    assert cli.main(["convert-pipeline", str(source)]) == 0
    assert capsys.readouterr().out == out.read_text()
    assert cli.main(["convert-pipeline", str(source), str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert cli.main(["convert-pipeline", str(source), str(out), "--force"]) == 0
    assert cli.main(["convert-pipeline", str(tmp_path / "none.dali")]) == 2


def test_a_file_is_a_spec_for_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.dali", tmp_path / "bad.dali"
    good.write_bytes(file_of("arrays"))
    bad.write_bytes(b"nothing")
    assert cli.main(["validate", str(good)]) == 0
    assert cli.main(["validate", str(bad)]) == 2
    assert f"{bad}:1:1" in capsys.readouterr().err
    with pytest.raises(SpecErrors, match="serialized"):
        load_spec(bad)
