"""Transforms of all radices as CUDA has them."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.audio.spectrogram import Spectrogram
from dali_run.ops.context import Context
from tests.kit.emulated_lane import EmulatedLane
from tests.kit.operators import batch_of


@pytest.mark.parametrize("size", [1, 2, 8, 24, 64, 200, 512, 600, 1001, 2048, 5000])
def test_transforms_of_all_radices_run_as_cuda(size: int) -> None:
    """Passes of 8, 4, 2, 3, 5, 7, 11 and 13, in a block's memory and beyond it."""
    random = np.random.default_rng(size)
    signals = batch_of([random.standard_normal(n).astype(np.float32) for n in (6000, 100)])
    op = Spectrogram(window_length=size, window_step=max(5, size // 2))
    ctx = Context(op, "gpu", signals.samples)
    ctx.device = EmulatedLane()
    got, want = op.cpu(ctx, signals), op.cpu(Context(op, "cpu", signals.samples), signals)
    for i in range(2):
        np.testing.assert_allclose(got.sample(i), want.sample(i), rtol=0, atol=2e-6 * want.sample(i).max())
