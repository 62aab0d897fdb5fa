"""A valid spec to modify, and two operators whose declarations contain everything that specs can get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from dali_run.ops.base import Arg, Operator, Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.plugins import load_operators
from dali_run.pipelines.problems import SpecErrors
from dali_run.pipelines.spec.build import BuiltSpec, load_spec

load_operators()


class Make(Operator, name="example.make"):
    """An operator with two outputs and no input."""

    inputs = (0, 0)

    @property
    def num_outputs(self) -> int:
        return 2

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        return Spec((None, None, 3), DALIDataType.UINT8, "HWC"), Spec((), DALIDataType.BOOL)

    def cpu(self, ctx: Any) -> Any:
        raise AssertionError("only built here")

    gpu = cpu


class Turn(Operator, name="example.turn"):
    """An operator with every kind of argument."""

    angle: Annotated[float, Arg("degrees", ge=-360, le=360, per_sample=True)] = 0.0
    size: Annotated[tuple[int, int], Arg("height and width", ge=1)] = (8, 8)
    fill: Annotated[float | None, Arg("outside")] = None
    title: Annotated[str, Arg("any text")] = ""
    dtype: Annotated[DALIDataType, Arg("of the result")] = DALIDataType.UINT8
    count: Annotated[int, Arg("how often", required=True)] = 1
    turn: Annotated[float, Arg("the old name of angle", deprecated="angle")] = 0.0
    hint: Annotated[int, Arg("a hint", ignored="nothing needs it")] = 0

    def check(self) -> None:
        if self.fill is not None and self.angle == 0.0 and "angle" not in self.per_sample:
            raise SpecError("fill needs an angle")

    def infer(self, *specs: Spec) -> Spec:
        if specs[0].ndim == 0:
            raise SpecError("takes images, got numbers")
        return Spec((*self.size, 3), self.dtype, "HWC")

    def cpu(self, ctx: Any, images: Any) -> Any:
        raise AssertionError("only built here")

    gpu = cpu


VALID = """\
version: 1
name: job-1
vars: {root: ./data, size: [4, 6], times: 2}
pipeline: {batch_size: 32, num_threads: auto, device: auto, seed: 7, prefetch_queue_depth: {cpu_size: 3, gpu_size: 1}}
graph:
  - {op: example.make, name: Source, out: [images, flag]}
  - {op: example.turn, in: images, count: "${times}", size: "${size}", title: "in ${root}", out: turned}
  - {op: expr, expr: "float(turned) * 0.5 + 1", out: halved}
  - if: $flag
    then:
      - {op: example.turn, in: images, count: 1, dtype: FLOAT, size: [2, 2], out: images}
    else:
      - {op: expr, expr: "float(images)", out: images}
outputs: {half: halved, image: images, flag: flag}
write:
  writer: tfrecord
  path: "${root}/out"
  shard: {samples: 100, bytes: 1GiB}
  fields: {half: {encode: raw}, flag: {}}
on_error: {policy: skip, max_errors: 0.1%}
"""


def load(text: str, tmp_path: Path, **overrides: Any) -> BuiltSpec:
    """Build the spec ``text``; in the names of ``overrides``, ``__`` stands for a dot."""
    file = tmp_path / "t.yaml"
    file.write_text(text)
    return load_spec(file, {k.replace("__", "."): v for k, v in overrides.items()})


def errors(text: str, tmp_path: Path, **overrides: Any) -> list[str]:
    """Return the error lines for the spec ``text``, without the file's name."""
    with pytest.raises(SpecErrors) as caught:
        load(text, tmp_path, **overrides)
    return [line.removeprefix(f"{tmp_path / 't.yaml'}:") for line in str(caught.value).splitlines()]
