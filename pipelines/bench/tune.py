"""Find the pipeline settings that run a spec fastest on this machine, by short measurements, key by key: `dali-run
tune`."""

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
from .run import run_in_process

Point = dict[str, int]
"""One combination of settings: the value of each tuned key of ``pipeline:``."""

_RANGES = {"batch_size": (1, 4096), "num_threads": (1, 1024), "prefetch_queue_depth": (1, 16)}
_GAIN = 1.03
"""Minimum factor by which a new setting must be faster to be accepted; smaller gains count as noise."""
_CONFIRMATIONS = 3
"""Number of times that the spec's own and the fastest settings are measured again at the end of tuning."""
_MAX_ROUNDS = 3
"""Maximum number of times that tuning goes through all keys."""


def tune(base: Measurement, repeats: int = 1, note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Return the fastest settings that were found for the spec, and all settings that were tried, as plain data.

    Batch size, threads and depth of the queues are doubled or halved, one after the other, as long as that gains 3 %.
    If the spec uses DALI's random numbers (``rng: dali``), the batch size changes results and is not tuned. Raises
    SpecError for a wrong spec, and JobError if it does not run with its own settings."""
    built, plan = base.compiled()
    settings = built.spec.pipeline
    depth = settings.prefetch_cpu if plan.target.device == "cpu" else settings.prefetch_gpu
    threads = threads_of(settings.num_threads)
    start: Point = {"batch_size": settings.batch_size, "num_threads": threads, "prefetch_queue_depth": depth}
    keys = [k for k in start if k != "batch_size" or settings.rng != "dali"]
    tried: dict[tuple[int, ...], float] = {}

    def speed(point: Point) -> float:
        key = tuple(point.values())
        if key not in tried:
            tried[key] = _measured(base, point, repeats)
            note(f"{text_of(point)}: {tried[key]:,.0f}/s" if tried[key] else f"{text_of(point)}: does not run")
        return tried[key]

    before = speed(start)
    if not before:
        raise JobError(f"{base.spec} does not run with its own settings: {_problem(base, start)}")
    best = climb(start, keys, speed)
    if best != start:  # the best of many noisy measurements looks better than it is: measure both again, in turns
        note("measuring the spec's settings and the best ones again")
        pairs = [(_measured(base, start, 1), _measured(base, best, 1)) for _ in range(_CONFIRMATIONS)]
        before, after = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
        if after <= before:
            best = start
    return {
        "settings": best,
        "samples_per_second": round(before if best == start else after, 1),
        "before": {"settings": start, "samples_per_second": round(before, 1)},
        "tried": [{"settings": dict(zip(start, k, strict=True)), "samples_per_second": round(v, 1)}
                  for k, v in tried.items()],
    }  # fmt: skip


def climb(start: Point, keys: list[str], speed: Callable[[Point], float]) -> Point:
    """Return the fastest settings that hill climbing from ``start`` finds. Each of ``keys`` in turn is doubled or
    halved as long as that raises ``speed``."""
    best = dict(start)
    for _ in range(_MAX_ROUNDS):
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
    """Return the median speed, in samples per second, with the settings ``point``; 0 if they do not run (for example
    for lack of memory)."""
    results = [run_in_process(_overridden(base, point), "measure") for _ in range(repeats)]
    return statistics.median(float(r.get("samples_per_second", 0.0)) for r in results)


def _problem(base: Measurement, point: Mapping[str, int]) -> str:
    return str(run_in_process(_overridden(base, point), "measure").get("error", "it ran when it was tried again"))


def text_of(point: Mapping[str, int]) -> str:
    """Return settings as text: ``batch_size=64 num_threads=2 prefetch_queue_depth=2``."""
    return " ".join(f"{k}={v}" for k, v in point.items())


# -- files of settings ------------------------------------------------------------------------------------------------


def settings_text(result: Mapping[str, Any]) -> str:
    """Return the content of a file for the option ``--settings``, from the result of `tune`."""
    values = "".join(f"  {k}: {v}\n" for k, v in result["settings"].items())
    before = result["before"]
    return (
        "# Written by dali-run tune; use it with dali-run run SPEC --settings THIS_FILE.\n"
        f"# {result['samples_per_second']:,.0f} samples/s; before, with {text_of(before['settings'])}: "
        f"{before['samples_per_second']:,.0f}.\n"
        f"pipeline:\n{values}"
    )


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of settings and return them as overrides of a spec. The file has sections with values, as a spec has.
    Raises SpecError."""
    problems = Problems()
    root = read(Path(path), problems)
    problems.raise_any()
    plain = root.to_python() if root is not None else None
    if not isinstance(plain, dict) or not all(isinstance(v, dict) for v in plain.values()):
        raise SpecError(f"{path}: a file of settings holds sections of a spec, such as `pipeline: {{batch_size: 64}}`")
    return {f"{section}.{key}": value for section, values in plain.items() for key, value in values.items()}
