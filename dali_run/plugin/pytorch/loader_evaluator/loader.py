"""LoaderEvaluator: a DataLoader that notes its times, or gives batches out of memory for comparison."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from itertools import cycle, islice
from pathlib import Path
from typing import Any


class LoaderEvaluator:
    """Wraps a DataLoader. In mode ``log`` it notes how long each batch took; in mode ``replay`` it repeats the last
    ``num_cached_batches`` of an epoch that it read when it was made, as a loader without cost would."""

    def __init__(
        self, dataloader: Any, mode: str = "log", num_cached_batches: int = 20, metrics_file: str | None = None
    ) -> None:
        """``dataloader`` needs a length for mode replay. Raises ValueError for another mode, or an empty loader."""
        if mode not in ("log", "replay"):
            raise ValueError(f"mode is log or replay, got {mode!r}")
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
                raise ValueError("the loader gives no batch that could be repeated")

    @property
    def cache_ready(self) -> bool:
        """There are batches to repeat."""
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
            asked = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                break
            self.batch_times.append(time.perf_counter() - asked)
            yield batch
        self.end_time = time.time()

    def get_metrics(self) -> dict[str, Any]:
        """Seconds of the last epoch: in all, and of a batch on average, at least and at most. Empty before one."""
        times = self.batch_times
        if not times:
            return {}
        whole = self.end_time - self.start_time if self.start_time and self.end_time else 0
        return {
            "mode": self.mode, "total_batches": len(times), "total_time": whole,
            "avg_batch_time": sum(times) / len(times), "min_batch_time": min(times), "max_batch_time": max(times),
            "batch_times": list(times), "cached_batches": len(self.cached_batches), "cache_ready": self.cache_ready,
        }  # fmt: skip

    def save_metrics(self, filename: str | None = None) -> None:
        """Write `get_metrics` as JSON. Raises ValueError where no file was named, here or before."""
        name = filename or self.metrics_file
        if name is None:
            raise ValueError("save_metrics needs a file name")
        Path(name).write_text(json.dumps(self.get_metrics(), indent=2))

    def print_summary(self) -> None:
        """Print `get_metrics` in words."""
        lines = ["Loader Evaluator Summary:", f"  Mode: {self.mode}", f"  Number of batches: {len(self)}",
                 f"  Cache size: {len(self.cached_batches)}/{self.num_cached_batches}"]  # fmt: skip
        found = self.get_metrics()
        lines += [f"  {k}: {found[k]:.4f} s" for k in ("total_time", "avg_batch_time", "min_batch_time",
                                                       "max_batch_time") if found]  # fmt: skip
        print("\n".join(lines))  # noqa: T201 - its purpose
