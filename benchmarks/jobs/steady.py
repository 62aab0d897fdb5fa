"""A rate, measured once an engine runs steadily: ours and DALI's by the same loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def processor_seconds() -> float:
    """Of this process and those below it: decoders may run in processes of their own."""
    spent = spent_below()
    return time.process_time() + sum(spent.values()) / os.sysconf("SC_CLK_TCK")


def spent_below() -> dict[int, int]:
    """The processes below this one, and their ticks of processor time."""
    parents, spent = dict[int, int](), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):  # not every kernel lists a process's children
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(stat.parent.name)
        parents[pid], spent[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return {pid: spent[pid] for pid in below - {os.getpid()}}


@dataclass(frozen=True)
class Rate:
    """The result of `steady`."""

    samples: int
    seconds: float
    processor: float
    """Seconds of all cores."""
    first_batch: float
    """Seconds from the beginning of everything to the first batch."""

    def per_second(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds

    def cpu_ms(self) -> float:
        """Milliseconds of processor time a sample."""
        return 1e3 * self.processor / self.samples


def steady(step: Callable[[], int], began: float, seconds: float, warm_up: float, least: int = 0) -> Rate:
    """Take batches by ``step``, which says how many samples one has: the first, those of ``warm_up`` seconds and of
    ``least`` samples at least, and then those that count. ``began``: by time.perf_counter, before anything was made."""
    step()
    warming = time.perf_counter()
    while time.perf_counter() - warming < warm_up or least > 0:
        least -= step()
    start, used, n = time.perf_counter(), processor_seconds(), 0
    while time.perf_counter() - start < seconds:
        n += step()
    return Rate(n, time.perf_counter() - start, processor_seconds() - used, warming - began)
