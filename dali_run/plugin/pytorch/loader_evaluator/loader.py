"""LoaderEvaluator: wraps a DataLoader and measures its times, or repeats batches from memory for comparison."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from itertools import cycle, islice
from pathlib import Path
from typing import Any


class LoaderEvaluator:
    """Wraps a DataLoader to measure how long a training waits for data.

    In mode ``log`` it measures the time of each batch. In mode ``replay`` its constructor reads an epoch; it then
    repeats the last ``num_cached_batches`` of it, as a loader without cost would.
    """

    def __init__(
        self, dataloader: Any, mode: str = "log", num_cached_batches: int = 20, metrics_file: str | None = None
    ) -> None:
        """In mode ``replay`` ``dataloader`` must have a length. Raises ValueError for an unknown mode or an empty
        loader."""
        if mode not in ("log", "replay"):
            raise ValueError(f"mode must be log or replay, got {mode!r}")
        self.dataloader = dataloader
        self.mode = mode
        self.num_cached_batches = num_cached_batches
        self.metrics_file = metrics_file
        self.cached_batches: deque[Any] = deque(maxlen=num_cached_batches)
        self.batch_times: list[float] = []
        self.start_time: float | None = None
        self.end_time: float | None = None
        if mode == "replay":
            self.cached_batches.extend(dataloader)
            if not self.cached_batches:
                raise ValueError("the loader is empty: there is no batch to repeat")

    @property
    def cache_ready(self) -> bool:
        """Whether there are batches to repeat."""
        return bool(self.cached_batches)

    def __len__(self) -> int:
        sized: Sized = self.dataloader
        return len(sized)

    def __iter__(self) -> Iterator[Any]:
        source: Iterable[Any] = self.dataloader
        if self.mode == "replay":
            source = islice(cycle(self.cached_batches), len(self))
        return self._timed(source)

    def _timed(self, source: Iterable[Any]) -> Iterator[Any]:
        self.batch_times, self.end_time = [], None
        self.start_time = time.time()
        batches = iter(source)
        while True:
            start = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                break
            self.batch_times.append(time.perf_counter() - start)
            yield batch
        self.end_time = time.time()

    def get_metrics(self) -> dict[str, Any]:
        """Return the seconds of the last epoch: the total, and the mean, minimum and maximum per batch. Empty before
        the first epoch."""
        times = self.batch_times
        if not times:
            return {}
        total = self.end_time - self.start_time if self.start_time and self.end_time else 0
        return {
            "mode": self.mode, "total_batches": len(times), "total_time": total,
            "avg_batch_time": sum(times) / len(times), "min_batch_time": min(times), "max_batch_time": max(times),
            "batch_times": list(times), "cached_batches": len(self.cached_batches), "cache_ready": self.cache_ready,
        }  # fmt: skip

    def save_metrics(self, filename: str | None = None) -> None:
        """Write `get_metrics` as JSON. Raises ValueError without a file name, here or in the constructor."""
        name = filename or self.metrics_file
        if name is None:
            raise ValueError("save_metrics needs a file name")
        Path(name).write_text(json.dumps(self.get_metrics(), indent=2))

    def print_summary(self) -> None:
        """Print `get_metrics` as text."""
        lines = ["Loader Evaluator Summary:", f"  Mode: {self.mode}", f"  Number of batches: {len(self)}",
                 f"  Cache size: {len(self.cached_batches)}/{self.num_cached_batches}"]  # fmt: skip
        metrics = self.get_metrics()
        lines += [f"  {k}: {metrics[k]:.4f} s" for k in ("total_time", "avg_batch_time", "min_batch_time",
                                                       "max_batch_time") if metrics]  # fmt: skip
        print("\n".join(lines))  # noqa: T201 - its purpose
