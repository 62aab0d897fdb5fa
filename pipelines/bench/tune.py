"""Tune: the pipeline settings that run a spec fastest on this machine, found by short measurements key by key."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...ops.errors import JobError, SpecError
from ..cores import threads_of, usable_cores
from ..problems import Problems
from ..spec.text import read
from .measure import Measurement
from .run import run_apart

Point = dict[str, int]
"""A value for each tuned key of ``pipeline:``."""

_RANGES = {"batch_size": (1, 4096), "num_threads": (1, 1024), "prefetch_queue_depth": (1, 16)}
_GAIN = 1.03
"""A step must win this much, or it is noise."""
_CONFIRMATIONS = 3
"""Measurements of the spec's settings and the best ones at the end."""
_ROUNDS = 3
"""Times that all keys are gone through, at most."""


def tune(base: Measurement, repeats: int = 1, note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The fastest settings found for the spec, and all that was tried, as plain data.

    Batch size, threads and depth of the queues are doubled or halved, one after the other, as long as that gains 3 %.
    Where the spec draws DALI's random numbers (``rng: dali``) the batch size decides results, and is left as it is.
    Raises SpecError for a wrong spec, JobError where it does not even run as it is.
    """
    built, plan = base.compiled()
    settings = built.spec.pipeline
    depth = settings.prefetch_cpu if plan.target.device == "cpu" else settings.prefetch_gpu
    threads = threads_of(settings.num_threads)
    at: Point = {"batch_size": settings.batch_size, "num_threads": threads, "prefetch_queue_depth": depth}
    keys = [k for k in at if k != "batch_size" or settings.rng != "dali"]
    tried: dict[tuple[int, ...], float] = {}

    def speed(point: Point) -> float:
        key = tuple(point.values())
        if key not in tried:
            tried[key] = _measured(base, point, repeats)
            note(f"{shown(point)}: {tried[key]:,.0f}/s" if tried[key] else f"{shown(point)}: does not run")
        return tried[key]

    before = speed(at)
    if not before:
        raise JobError(f"{base.spec} does not run as it is: {_problem(base, at)}")
    best = climb(at, keys, speed)
    if best != at:  # the winner of many noisy measurements looks better than it is: once more, in turns
        note("once more: what the spec says, and the best")
        pairs = [(_measured(base, at, 1), _measured(base, best, 1)) for _ in range(_CONFIRMATIONS)]
        before, after = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
        if after <= before:
            best = at
    return {
        "settings": best,
        "samples_per_second": round(before if best == at else after, 1),
        "before": {"settings": at, "samples_per_second": round(before, 1)},
        "tried": [{"settings": dict(zip(at, k, strict=True)), "samples_per_second": round(v, 1)}
                  for k, v in tried.items()],
    }  # fmt: skip


def climb(start: Point, keys: list[str], speed: Callable[[Point], float]) -> Point:
    """From ``start`` uphill by coordinates: each of ``keys`` is doubled or halved while that gains."""
    best = dict(start)
    for _ in range(_ROUNDS):
        began = dict(best)
        for key in keys:
            low, high = _RANGES[key]
            high = max(start[key], usable_cores()) if key == "num_threads" else max(start[key], high)
            for doubling in (True, False):
                moved = False
                while True:
                    value = best[key] * 2 if doubling else best[key] // 2
                    step = best | {key: min(max(value, low), high)}
                    if step == best or speed(step) < _GAIN * speed(best):
                        break
                    best, moved = step, True
                if moved:
                    break
        if best == began:
            break
    return best


def _overridden(base: Measurement, point: Mapping[str, int]) -> Measurement:
    return replace(base, overrides={**base.overrides, **{f"pipeline.{k}": str(v) for k, v in point.items()}})


def _measured(base: Measurement, point: Mapping[str, int], repeats: int) -> float:
    """The median speed, 0 for settings that do not run (too much memory)."""
    results = [run_apart(_overridden(base, point), "measure") for _ in range(repeats)]
    return statistics.median(float(r.get("samples_per_second", 0.0)) for r in results)


def _problem(base: Measurement, point: Mapping[str, int]) -> str:
    return str(run_apart(_overridden(base, point), "measure").get("error", "it ran when it was tried again"))


def shown(point: Mapping[str, int]) -> str:
    """``batch_size=64 num_threads=2 prefetch_queue_depth=2``."""
    return " ".join(f"{k}={v}" for k, v in point.items())


# -- files of settings ------------------------------------------------------------------------------------------------


def settings_text(found: Mapping[str, Any]) -> str:
    """The file that ``--settings`` takes, from the result of `tune`."""
    values = "".join(f"  {k}: {v}\n" for k, v in found["settings"].items())
    before = found["before"]
    return (
        "# Made by dali-run tune; dali-run run SPEC --settings THIS_FILE takes it.\n"
        f"# {found['samples_per_second']:,.0f} samples/s; before, with {shown(before['settings'])}: "
        f"{before['samples_per_second']:,.0f}.\n"
        f"pipeline:\n{values}"
    )


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The overrides in a file of settings: sections with values, as in a spec. Raises SpecError."""
    problems = Problems()
    root = read(Path(path), problems)
    problems.raise_any()
    plain = root.to_python() if root is not None else None
    if not isinstance(plain, dict) or not all(isinstance(v, dict) for v in plain.values()):
        raise SpecError(f"{path}: a file of settings holds sections of a spec, such as `pipeline: {{batch_size: 64}}`")
    return {f"{section}.{key}": value for section, values in plain.items() for key, value in values.items()}
