"""Graphs drawn at random: as Python, as YAML, and serialised they are the same graph, with the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dali_run
from dali_run import Pipeline, fn, math, pipeline_def, types
from dali_run.pipelines.build import BuiltSpec
from dali_run.pipelines.compile import compile_graph
from dali_run.pipelines.execute import Engine, Options, Request
from dali_run.pipelines.feed import EndlessFeed, Sources
from dali_run.pipelines.job import run_job
from dali_run.pipelines.place import Target

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


def results_of(built: BuiltSpec) -> list[list[list[float]]]:
    """What the engine makes of a spec."""
    plan = compile_graph(built.graph, Target("cpu"), built.spec.pipeline.seed)
    size = built.spec.pipeline.batch_size
    requests = (Request(k * size, size) for k in range(3))
    found = []
    with Sources(plan, size) as sources, Engine(plan, EndlessFeed(sources), requests, Options()) as engine:
        for it in engine:
            for name in ("last", "first", "middle"):
                batch = it.outputs(plan)[name]
                found.append([batch.sample(i).reshape(-1).tolist() for i in range(len(batch))])
    return found


steps_of = st.lists(st.tuples(st.sampled_from(_KINDS), st.integers(0, 9)), min_size=1, max_size=7)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps_of, conditional=st.booleans())
def test_python_yaml_and_serialised_graphs_are_the_same(
    root: str, tmp_path: Path, steps: Steps, conditional: bool
) -> None:
    pipe = made(root, steps, conditional)
    text = pipe.to_yaml()
    spec = tmp_path / "spec.yaml"
    spec.write_text(text)
    wanted = arrays(pipe)
    assert results_of(dali_run.load_spec(spec)) == wanted
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
