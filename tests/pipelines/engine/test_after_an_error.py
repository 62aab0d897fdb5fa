"""A batch that fails costs itself, whichever way batches go: the program may go on with the next, up to the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from dali_run import Pipeline, fn, pipeline_def
from dali_run.ops.errors import JobError, SpecError
from tests.kit.fake_cupy import faked

BATCH, COUNT = 3, 12

EVERY_THIRD = [None if k % 3 == 1 else k for k in range(COUNT)]


def fed(device: int | None, bad: tuple[int, ...]) -> Callable[[], Any]:
    """Batches of one number each; every third is of the shape ``bad``."""
    turn = iter(range(COUNT))

    def source() -> list[Any]:
        k = next(turn)
        arrays = [np.full(bad if k % 3 == 1 else (4, 5, 3), k, np.uint8) for _ in range(BATCH)]
        if device is None:
            return arrays
        import cupy

        return [cupy.asarray(a) for a in arrays]

    return source


def a_sample(device: int | None, **more: Any) -> Pipeline:
    """Its samples are refused, and may not be."""

    @pipeline_def(batch_size=BATCH, num_threads=2, device_id=device, **more)
    def pipe() -> Any:
        on = "cpu" if device is None else "gpu"
        x = fn.external_source(source=fed(device, (1, 1, 3)), layout="HWC", device=on)
        return fn.crop(x, crop=[2, 2])

    return pipe()


def a_kernel(device: int | None, **more: Any) -> Pipeline:
    """An operator cannot take it."""

    @pipeline_def(batch_size=BATCH, num_threads=2, device_id=device, **more)
    def pipe() -> Any:
        on = "cpu" if device is None else "gpu"
        x = fn.external_source(source=fed(device, (4, 5)), device=on)
        return fn.crop(fn.reshape(x, layout="HWC"), crop=[2, 2])

    return pipe()


def taken(pipe: Pipeline) -> list[int | None]:
    """The number of each batch, None where it failed, until the source ends."""
    found: list[int | None] = []
    while len(found) <= COUNT:
        try:
            (out,) = pipe.run()
            found.append(int(np.asarray(out.as_cpu()[0]).reshape(-1)[0]))
        except StopIteration:
            return found
        except (JobError, SpecError):
            found.append(None)
    return found


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("device", [None, 0])
@pytest.mark.parametrize("make", [a_sample, a_kernel])
def test_the_source_ends_all_the_same(make: Callable[..., Pipeline], device: int | None, pipelined: bool) -> None:
    """A batch that failed is in flight no more: nothing waits for it at the end."""
    with nullcontext() if device is None else faked(memory=True):
        pipe = make(device, exec_pipelined=pipelined, exec_async=pipelined)
        assert taken(pipe) == EVERY_THIRD
        assert pipe._session.in_flight == 0
        pipe.close()
