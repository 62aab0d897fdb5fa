"""Tests of decoders run on an emulated GPU, and once more on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from tests.kit.emulated_lane import EmulatedLane
from tests.kit.fake_cupy import faked

GPUS = ["emulated", pytest.param("real", marks=pytest.mark.gpu(emulated=False))]


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    with faked(memory=True) if request.param == "emulated" else nullcontext():
        yield request.param


@pytest.fixture(params=GPUS)
def lane(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "emulated":
        yield EmulatedLane()
        return
    from dali_run.ops.gpu.lane import Lane

    real = Lane(0)
    with real:
        yield real
    real.close()
