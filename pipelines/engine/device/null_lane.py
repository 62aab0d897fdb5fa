"""Stand-in for the lane of a GPU (a CUDA stream with its memory), for machines without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops.batch import Batch


class NullLane:
    """Replaces a GPU lane (CUDA stream with memory) if the device is ``null``: host memory and CPU kernels, but the
    same steps and threads as on a GPU. Created by `open_lane`."""

    free_memory = 1 << 62
    """Free memory in bytes: unlimited."""

    def __init__(self, index: int = 0) -> None:
        self.index = index

    def __enter__(self) -> NullLane:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def empty(self, n: int, dtype: Any) -> Any:
        return np.empty(n, dtype)

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def to_host(self, batch: Batch) -> Batch:
        return batch

    def holds(self, batch: Batch) -> bool:
        return True

    def wait(self) -> None:
        pass

    def release_memory(self, *, launching: bool) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass
