"""Operators on audio against DALI's results (tests/golden/make_audio.py), on the CPU and, emulated, on the GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec, coerce, find, outputs_of, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.types import from_numpy
from dali_run.pipelines.plugins import load_operators

from ...golden.audio_inputs import source
from ...kit.emulated_lane import EmulatedLane

load_operators()

FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = np.load(FOLDER / "audio.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
FILES: list[dict[str, Any]] = json.loads(str(GOLDEN["files"]))
OPERATORS = sorted({case["op"] for case in CASES})
BOUNDS = {  # of the largest value of a result
    "spectrogram": 1e-6, "mel_filter_bank": 1e-5, "mfcc": 1e-5, "power_spectrum": 1e-6, "to_decibels": 1e-6,
    "preemphasis_filter": 1e-6, "audio_resample": 2e-5, "nonsilent_region": 0,
}  # fmt: skip


def operator(name: str, arguments: dict[str, Any]) -> Any:
    cls = find(name)
    op = cls(**{k: coerce(parameter(cls, k), v) for k, v in arguments.items()})
    op.check()
    return op


def run(op: Any, data: np.ndarray, layout: str, lane: Any = None, stage: Any = None) -> tuple[Batch, ...]:
    batch = Batch.from_list([data], layout, Samples.numbered(1))
    stage = stage or ("cpu" if lane is None else "gpu")
    ctx = Context(op, stage, batch.samples, device=lane)
    real = lane is not None and not isinstance(lane, EmulatedLane)
    out = outputs_of(op.kernel(stage)(ctx, lane.to_device(batch) if real and stage == "gpu" else batch))
    assert not ctx.rejects, ctx.rejects
    if real:
        out = tuple(lane.to_host(b) for b in out)
        lane.synchronize()
    return out


def check(name: str, make_lane: Any) -> None:
    checked = 0
    for number, case in enumerate(CASES):
        if case["op"] != name:
            continue
        arguments = case["arguments"] | ({"parity": "dali"} if name == "audio_resample" else {})
        op = operator(name, arguments)
        data = source(number, case["kind"], tuple(case["shape"]))
        if make_lane is not None and "gpu" not in op.runs_in():
            continue
        outputs = run(op, data, case["layout"], make_lane() if make_lane else None)
        known = op.infer(Spec(data.shape, from_numpy(data.dtype), case["layout"]))
        assert outputs[0].layout == case["out_layout"], case
        for k, (out, spec) in enumerate(zip(outputs, known if isinstance(known, tuple) else (known,), strict=True)):
            got, want = out.sample(0), GOLDEN[f"{number}.{k}"]
            assert got.shape == want.shape, case
            assert got.dtype == want.dtype, case
            assert spec.dtype == from_numpy(want.dtype)
            assert all(a in (None, b) for a, b in zip(spec.shape, want.shape, strict=True)), case
            off = np.abs(got.astype(np.float64) - want).max(initial=0)
            most = BOUNDS[name] * max(np.abs(want).max(initial=0), 1e-9)
            if want.dtype.kind in "iu":
                most = float(name == "audio_resample")  # a rounded half may be the other one
            assert off <= most, (case, off, np.abs(want).max())
        checked += 1
    assert checked >= 4


@pytest.mark.parametrize("name", OPERATORS)
def test_cpu_gives_what_dali_gives(name: str) -> None:
    check(name, None)


@pytest.mark.parametrize("name", [n for n in OPERATORS if n != "power_spectrum"])
def test_cuda_run_on_the_cpu_gives_what_dali_gives(name: str) -> None:
    check(name, EmulatedLane)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [n for n in OPERATORS if n != "power_spectrum"])
def test_a_gpu_gives_what_dali_gives(name: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:
        check(name, lambda: lane)


def test_files_decode_as_in_dali() -> None:
    check_files(None)


@pytest.mark.gpu
def test_files_decode_on_a_gpu_as_in_dali() -> None:
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:
        check_files(lane)


def check_files(lane: Any) -> None:
    pytest.importorskip("soundfile")
    for number, case in enumerate(FILES):
        op = operator("decoders.audio", case["arguments"] | {"parity": "dali"})
        audio, rate = run(op, GOLDEN[f"file {case['file']}"], "", lane, "cpu" if lane is None else "mixed")
        want = GOLDEN[f"decoded {number}.0"]
        assert audio.sample(0).shape == want.shape, case
        assert audio.sample(0).dtype == want.dtype, case
        off = np.abs(audio.sample(0).astype(np.float64) - want).max()
        resampled = "sample_rate" in case["arguments"]
        rounded = want.dtype.kind == "i" and (resampled or "VORBIS" in case["file"])
        lossy = 1e-6 if "VORBIS" in case["file"] else 0  # another build of the decoder
        assert off <= (1 if rounded else 2e-5 if resampled else lossy), (case, off)
        assert rate.sample(0) == GOLDEN[f"decoded {number}.1"]
