"""Which GPU is current in a thread, by the driver itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dali_run.ops.gpu.current import OnGpu
from dali_run.ops.gpu.lane import Lane, gpu_count


def in_a_thread(function: Any) -> Any:
    """In one in which no GPU is current yet."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.mark.gpu(emulated=False)
def test_lanes_and_the_driver_agree_on_what_is_current() -> None:
    import cupy

    current = cupy.cuda.driver.ctxGetCurrent

    def work() -> list[int]:
        found = [current()]
        with Lane() as lane:
            found.append(current())
            (there,) = lane.upload(np.arange(1000))
            back = lane.download(there)
            with OnGpu(0):
                found.append(current())
            found.append(current())
        found.append(current())
        lane.synchronize()
        np.testing.assert_array_equal(back, np.arange(1000))
        lane.close()
        return [*found, current()]

    before, *others = in_a_thread(work)
    assert before == 0
    assert len(set(others)) == 1, "GPU 0 stays current where none was"
    assert others[0] != 0


@pytest.mark.gpu(emulated=False)
def test_cupy_takes_the_gpu_that_is_current() -> None:
    if gpu_count() < 2:
        pytest.skip("needs two GPUs")
    import cupy

    def work() -> list[int]:
        with OnGpu(1):
            there = cupy.zeros(10)
            return [cupy.cuda.runtime.getDevice(), int(there.device.id), int(cupy.cuda.Device().id)]

    def after() -> list[int]:
        return [*work(), int(cupy.cuda.driver.ctxGetCurrent())]

    assert in_a_thread(after) == [1, 1, 1, 0]
