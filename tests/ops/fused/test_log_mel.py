"""Spectrogram, mel bands and decibels as one kernel: the same as one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dali_run.ops.audio.levels import ToDecibels
from dali_run.ops.audio.mel import MelFilterBank
from dali_run.ops.audio.spectrogram import Spectrogram
from dali_run.ops.batch import Batch
from dali_run.ops.context import Context
from dali_run.ops.fused.log_mel import LogMel, can_join, joined
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.plugins import load_operators
from tests.kit.emulated_lane import EmulatedLane
from tests.kit.operators import batch_of


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def lane(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "emulated":
        yield EmulatedLane()
    else:
        from dali_run.ops.gpu.lane import Lane

        with Lane() as lane:
            yield lane


WINDOWS: list[dict[str, Any]] = [
    {"nfft": 512, "window_length": 400, "window_step": 160},
    {"window_length": 96, "window_step": 33, "layout": "tf", "power": 1, "parity": "torchaudio"},
    {"nfft": 64, "window_length": 50, "window_step": 20, "center_windows": False, "parity": "kaldi", "layout": "tf"},
    {"nfft": 2048, "window_length": 2048, "window_step": 700, "reflect_padding": False},
]
LOUD: list[dict[str, Any] | None] = [
    None,
    {"reference": 1.0, "cutoff_db": -80.0},
    {"reference": 0.3, "multiplier": 20.0},
]


@pytest.mark.parametrize("kind", ["float32", "int16"])
@pytest.mark.parametrize("windows", WINDOWS)
def test_one_kernel_gives_what_three_give(windows: dict[str, Any], kind: str, lane: Any) -> None:
    random = np.random.default_rng(1)
    signals = [random.standard_normal(n).astype(np.float32) * 0.1 for n in (5000, 0, 2049, 3001, 10)]
    if kind == "int16":
        signals = [(s * 32767).clip(-32768, 32767).astype(np.int16) for s in signals]
    batch = batch_of(signals)
    for loud in LOUD:
        op = joined(Spectrogram(**windows), MelFilterBank(nfilter=30, sample_rate=16000.0))
        if loud is not None:
            op = joined(op, ToDecibels(**loud))
        wanted = Context(op, "cpu", batch.samples)
        want = op.cpu(wanted, batch)
        ctx = Context(op, "gpu", batch.samples)
        ctx.device = lane
        there = lane.to_device(batch)
        got: Batch = lane.to_host(op.gpu(ctx, there))
        lane.synchronize()
        assert got.layout == want.layout
        assert [(r.slot, r.code, r.part) for r in ctx.rejects] == [(r.slot, r.code, r.part) for r in wanted.rejects]
        assert {r.part for r in ctx.rejects} == {"spectrogram."}
        good = sorted({*range(len(signals))} - {r.slot for r in ctx.rejects})
        assert 0 in good
        for i in good:
            assert got.sample(i).shape == want.sample(i).shape
            largest = np.abs(want.sample(i)).max()
            np.testing.assert_allclose(got.sample(i), want.sample(i), rtol=0, atol=2e-5 * largest)
        if isinstance(lane, EmulatedLane):
            assert len(lane.launched) == 1
            lane.launched.clear()


def test_what_is_joined() -> None:
    spectrogram, mel = Spectrogram(nfft=512, window_length=400), MelFilterBank()
    assert can_join(spectrogram, mel)
    assert not can_join(Spectrogram(window_length=4096), mel)  # too large for a block
    assert not can_join(spectrogram, ToDecibels(reference=1.0))
    both = joined(spectrogram, mel)
    assert can_join(both, ToDecibels(reference=1.0))
    assert not can_join(both, ToDecibels())  # the loudest is not known yet
    assert not can_join(both, ToDecibels(reference=1.0, top_db=80.0))
    assert not can_join(joined(both, ToDecibels(reference=1.0)), ToDecibels(reference=1.0))


@pytest.mark.parametrize(("device", "keeps"), [("gpu", False), ("gpu", True), ("cpu", False), ("null", False)])
def test_graphs(device: Any, keeps: bool) -> None:
    """Only a GPU's, and only where nobody else wants the spectrogram."""
    load_operators()
    b = GraphBuilder()
    (x,) = b.add("external_source", (), {"dtype": "FLOAT", "ndim": 1})
    (spectrum,) = b.add("spectrogram", [x], {"nfft": 512, "window_length": 400}, device="gpu")
    (mel,) = b.add("mel_filter_bank", [spectrum], {"sample_rate": 16000.0}, device="gpu")
    (loud,) = b.add("to_decibels", [mel], {"reference": 1.0}, device="gpu")
    outputs = {"x": loud} | ({"spectrum": spectrum} if keeps else {})
    plan = compile_graph(b.build(outputs), Target(device), 1)
    found = [n for n in plan.graph.nodes if isinstance(n.op, LogMel)]
    if device != "gpu" or keeps:
        assert not found
    else:
        (node,) = found
        assert list(node.parts) == ["spectrogram.", "mel.", "decibels."]
        assert node.name == "spectrogram+mel_filter_bank+to_decibels"
