"""Graphs drawn at random: as Python, as YAML, and serialised they are the same graph, with the same results."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dali_run
from dali_run import Pipeline, fn, math, pipeline_def, types
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.problems import SpecErrors
from dali_run.pipelines.spec.build import load_spec
from tests.kit.long import examples

Steps = list[tuple[str, int]]

_KINDS = ("draw", "transpose", "add", "times", "compare", "cast", "reshape", "part", "pad", "math", "choose", "stack",
          "permute", "negative", "shape", "normal")  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("files") / "data"
    (folder / "a").mkdir(parents=True)
    for k in range(7):
        np.save(folder / "a" / f"{k}.npy", np.arange(12, dtype=np.float32).reshape(4, 3) + k)
    return str(folder)


def grown(root: str, steps: Steps, conditional: bool) -> Any:
    """A definition: every step takes an earlier value, chosen by its number, and makes a new one."""

    def definition() -> Any:
        values = [fn.readers.numpy(file_root=root, name="Reader", random_shuffle=True)]
        for kind, number in steps:
            x = values[number % len(values)]
            y = values[number // 3 % len(values)]
            if kind == "draw":
                made = fn.random.uniform(range=(0.0, 1.0 + number), shape=(4, 3))
            elif kind == "normal":
                made = fn.random.normal(mean=number, stddev=2.0, shape=(4, 3), seed=number)
            elif kind == "transpose":
                made = fn.transpose(fn.transpose(x, perm=[1, 0]), perm=[1, 0])
            elif kind == "add":
                made = x + y - number
            elif kind == "times":
                made = (x * 0.5 + number) / 3
            elif kind == "compare":
                made = fn.cast((x > number) & (y <= 3) | ~(x == y), dtype=types.FLOAT)
            elif kind == "cast":
                made = fn.cast(fn.cast(x, dtype=types.INT32), dtype=types.FLOAT)
            elif kind == "reshape":
                made = fn.reshape(fn.reshape(x, shape=[-1]), shape=[4, 3])
            elif kind == "part":
                made = fn.pad(x[1 + number % 2 :, ::-1], shape=[4, 3], fill_value=float(number))
            elif kind == "pad":
                made = fn.pad(x, shape=[4, 3], fill_value=number)
            elif kind == "math":
                made = math.clamp(math.sqrt(math.abs(x)), 0, number)
            elif kind == "choose":
                flag = fn.random.coin_flip(probability=0.5, dtype=types.BOOL)
                if conditional:
                    if flag:
                        made = x + 1
                    else:
                        made = y * 2
                else:
                    made = x * fn.cast(flag, dtype=types.FLOAT)
            elif kind == "stack":
                made = fn.stack(x, y)[number % 2]
            elif kind == "permute":
                made = fn.permute_batch(x, indices=[1, 0, 1])
            elif kind == "negative":
                made = -x
            else:
                made = x + fn.cast(x.shape()[number % 2], dtype=types.FLOAT)
            values.append(made)
        return {"last": values[-1], "first": values[0], "middle": values[len(values) // 2]}

    return definition


def made(root: str, steps: Steps, conditional: bool) -> Pipeline:
    definition = grown(root, steps, conditional)
    return pipeline_def(definition, enable_conditionals=conditional)(batch_size=3, num_threads=2, seed=11)


def arrays(pipe: Pipeline) -> list[list[list[float]]]:
    return [[out.at(i).reshape(-1).tolist() for i in range(len(out))] for _ in range(3) for out in pipe.run()]


steps_of = st.lists(st.tuples(st.sampled_from(_KINDS), st.integers(0, 9)), min_size=1, max_size=7)


@settings(
    max_examples=examples(30, 8), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=steps_of, conditional=st.booleans())
def test_python_yaml_and_serialised_graphs_are_the_same(
    root: str, tmp_path: Path, steps: Steps, conditional: bool
) -> None:
    pipe = made(root, steps, conditional)
    text = pipe.to_yaml()
    spec = tmp_path / "spec.yaml"
    spec.write_text(text)
    wanted = arrays(pipe)
    assert arrays(dali_run.load_spec(spec)) == wanted
    assert arrays(Pipeline.deserialize(made(root, steps, conditional).serialize())) == wanted
    assert made(root, steps, conditional).to_yaml() == text


_MODULE = """
from dali_run import fn, pipeline_def, types


@pipeline_def(batch_size=3, num_threads=1, seed=5)
def pipe(root, scale=2.0, shift: int = 1):
    x = fn.readers.numpy(file_root=root, name="Reader")
    return {"x": fn.cast(x * scale + shift, dtype=types.FLOAT), "noise": fn.random.uniform(range=(0.0, 1.0))}
"""


@pytest.mark.parametrize("scale", ["2.0", "0.25", "3"])
def test_a_python_pipeline_runs_as_a_job_and_as_its_yaml(root: str, tmp_path: Path, scale: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(_MODULE)
    values = {"root": root, "scale": scale}
    write = {"write.writer": "numpy", "pipeline.device": "cpu"}
    done = run_job(f"{module}:pipe", {**values, **write, "write.path": str(tmp_path / "python")})
    assert done.exit_code == 0, done.message
    spec = tmp_path / "spec.yaml"
    namespace: dict[str, Any] = {}
    exec(compile(_MODULE, str(module), "exec"), namespace)
    spec.write_text(namespace["pipe"](root, scale=float(scale)).to_yaml())
    done = run_job(str(spec), {**write, "write.path": str(tmp_path / "yaml")})
    assert done.exit_code == 0, done.message
    for side in ("python", "yaml"):
        assert list((tmp_path / side).glob("*.npy"))
    files = {
        side: {p.name.split("-", 1)[1]: p.read_bytes() for p in (tmp_path / side).glob("*.npy")}
        for side in ("python", "yaml")
    }
    assert sorted(files["python"].values()) == sorted(files["yaml"].values())


SPEC = """
version: 1
name: training
vars: {data: .}
pipeline: {batch_size: 3, num_threads: 2, device: cpu, seed: 9, prefetch_queue_depth: 3, memory: {host: 25%, gpu: 2GiB}}
graph:
  - {op: readers.numpy, name: Reader, file_root: "${data}", random_shuffle: true, out: x}
  - {op: random.coin_flip, probability: 0.5, dtype: BOOL, out: flag}
  - if: $flag
    then:
      - {op: expr, expr: "x + 1", out: y}
    else:
      - {op: expr, expr: "x * 2", out: y}
outputs: {image: y, flag: flag}
write: {writer: numpy, path: out}
on_error: {policy: replace}
"""


def as_python(root: str, **options: Any) -> Pipeline:
    @pipeline_def(enable_conditionals=True, batch_size=3, num_threads=2, seed=9, **options)
    def pipe() -> Any:
        x = fn.readers.numpy(file_root=root, random_shuffle=True, name="Reader")
        flag = fn.random.coin_flip(probability=0.5, dtype=types.BOOL)
        if flag:
            y = x + 1
        else:
            y = x * 2
        return {"image": y, "flag": flag}

    return pipe()


def test_a_spec_is_a_pipeline(root: str, tmp_path: Path) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(SPEC)
    made = dali_run.load_spec(file, {"data": root})
    assert isinstance(made, Pipeline)
    assert made.output_names == ("image", "flag")
    assert (made.max_batch_size, made.num_threads, made.device_id, made.seed) == (3, 2, None, 9)
    assert made.prefetch_queue_depth == 3
    assert made._settings.on_error == "replace"
    assert made.settings.to_dict()["memory"] == {"host": "25%", "gpu": 2 << 30}
    assert made.reader_meta("Reader")["epoch_size"] == 7
    python = as_python(root)
    again = dali_run.load_spec(file, {"data": root, "pipeline.batch_size": 2}, batch_size=3, seed=9, on_error="fail")
    for _ in range(5):
        for a, b in zip(again.run(), python.run(), strict=True):
            assert np.array_equal(a.as_array(), b.as_array())
    assert dali_run.load_spec(file, {"data": root, "pipeline.batch_size": 2}).max_batch_size == 2


def test_a_python_pipeline_goes_to_yaml_and_back(root: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(as_python(root).to_yaml())
    back, first = dali_run.load_spec(file), as_python(root)
    assert back.output_names == first.output_names == ("image", "flag")
    for _ in range(4):
        for a, b in zip(back.run(), first.run(), strict=True):
            assert np.array_equal(a.as_array(), b.as_array())
    checkpoint = back.checkpoint()
    rest = [t.as_array() for t in back.run()]
    restored = dali_run.load_spec(file, checkpoint=checkpoint)
    assert all(np.array_equal(a, t.as_array()) for a, t in zip(rest, restored.run(), strict=True))
    again = tmp_path / "again.yaml"
    again.write_text(dali_run.load_spec(file).to_yaml())
    for a, b in zip(dali_run.load_spec(again).run(), as_python(root).run(), strict=True):
        assert np.array_equal(a.as_array(), b.as_array())


@pytest.mark.parametrize("given_settings", [
    {"rng": "dali", "parity": "torchvision"},
    {"prefetch_queue_depth": 3, "isolation": "none", "decode_timeout": 5.0, "on_error": "skip"},
    {"prefetch_queue_depth": {"cpu_size": 3, "gpu_size": 2}, "memory": {"host": 1 << 30}, "upload": "copy"},
])  # fmt: skip
def test_yaml_keeps_the_settings(given_settings: dict[str, Any], root: str, tmp_path: Path) -> None:
    @pipeline_def(batch_size=3, num_threads=2, seed=7, **given_settings)
    def definition():
        x = fn.readers.numpy(file_root=root, random_shuffle=True)
        return x, fn.random.uniform(range=(0.0, 1.0)), fn.random.normal()

    file = tmp_path / "spec.yaml"
    file.write_text(definition().to_yaml())
    first, back = definition(), dali_run.load_spec(file)
    assert back._settings.arguments() == first._settings.arguments()
    assert arrays(back) == arrays(first)
    assert back.to_yaml() == first.to_yaml()


def test_yaml_leaves_threads_to_the_machine() -> None:
    @pipeline_def(batch_size=3)
    def definition():
        return fn.random.uniform()

    assert "num_threads" not in definition().to_yaml()
    assert "num_threads: 2" in definition(num_threads=2).to_yaml()


def test_what_python_pipelines_that_run_as_jobs_do_with_bad_samples(tmp_path: Path) -> None:
    """As specs do, unless they say otherwise."""
    module = tmp_path / "module.py"
    head = "from dali_run import fn, pipeline_def\n"
    body = "def {}():\n    return fn.random.uniform()\n"
    parts = ["@pipeline_def\n", body.format("plain"), "@pipeline_def(on_error='replace')\n", body.format("own")]
    module.write_text(head + "".join(parts))
    policies = [load_spec(f"{module}:{name}").spec.on_error.policy for name in ("plain", "own")]
    assert policies == ["skip", "replace"]


def test_iterators_take_the_names_of_a_spec(root: str, tmp_path: Path) -> None:
    from dali_run.plugin.numpy import DALIGenericIterator

    file = tmp_path / "training.yaml"
    file.write_text(SPEC)
    batches = DALIGenericIterator(dali_run.load_spec(file, {"data": root}), reader_name="Reader", auto_reset=True)
    assert len(batches) == 3
    for epoch in (3, 2):  # 9 samples of 7, then the 5 that are left
        assert [(sorted(b[0]), b[0]["image"].shape) for b in batches] == [(["flag", "image"], (3, 4, 3))] * epoch

    @pipeline_def(batch_size=2, num_threads=1)
    def unnamed() -> Any:
        return fn.external_source(lambda: np.zeros((2, 1)))

    with pytest.raises(ValueError, match="output_map is needed"):
        DALIGenericIterator(unnamed())


@pytest.mark.parametrize(("package", "framework"), [("pytorch", "torch"), ("jax", "jax")])
def test_frameworks_iterate_over_specs(package: str, framework: str, root: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    iterator = importlib.import_module(f"dali_run.plugin.{package}").DALIGenericIterator
    file = tmp_path / "training.yaml"
    file.write_text(SPEC)
    plain = dali_run.load_spec(file, {"data": root})
    batches = list(iterator(dali_run.load_spec(file, {"data": root}), reader_name="Reader"))
    assert len(batches) == 3
    for batch in batches:
        found = batch[0] if package == "pytorch" else batch
        for name, want in zip(("image", "flag"), plain.run(), strict=True):
            assert np.array_equal(np.asarray(found[name]), want.as_array())


def test_devices_of_specs(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(SPEC)
    null = dali_run.load_spec(file, {"data": root, "pipeline.device": "null"})
    assert (null.device_id, null._target().device) == (0, "null")
    assert null.run()[0].as_array().shape == (3, 4, 3)
    monkeypatch.setattr("dali_run.pipelines.compile.place.gpu_count", lambda: 2)
    monkeypatch.setattr("dali_run.pipelines.python.settings.gpu_count", lambda: 2)
    automatic = dali_run.load_spec(file, {"data": root, "pipeline.device": "auto"})
    assert automatic._target() == Target("gpu", (0,), auto_mixed=True)
    several = dali_run.load_spec(file, {"data": root, "pipeline.device": "gpu:all"})
    assert several.device_id == (0, 1)
    assert dali_run.load_spec(file, {"data": root}, device_id=1)._target() == Target("gpu", (1,), auto_mixed=True)
    assert dali_run.load_spec(file, {"data": root}, device_id=None)._target().device == "cpu"


def test_specs_that_are_wrong(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(SPEC.replace("x + 1", "z + 1").replace("coin_flip", "coinflip"))
    with pytest.raises(SpecErrors, match=r"coinflip(.|\n)*'z'"):
        dali_run.load_spec(file, {"data": "."})
    with pytest.raises(SpecErrors, match=r"[Nn]o such file|cannot be read"):
        dali_run.load_spec(tmp_path / "none.yaml")
