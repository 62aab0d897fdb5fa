"""Run graphs on CuPy's stand-in, with a check before every allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from tests.kit.engine.joined import graph
from tests.kit.fake_cupy import faked

Results = dict[int, np.ndarray]


def results(plan: Plan, **options: Any) -> tuple[Results, dict[str, int]]:
    found: Results = {}
    with Sources(plan, 4) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(4), Options(lanes=2, **options)) as engine:
            for it in engine:
                batch = it.outputs(plan)["x"]
                found |= {i: np.array(batch.sample(k)) for k, i in enumerate(it.samples.position.tolist())}
            return found, dict(engine.stats.fallbacks)


def plan_of(folder: Path) -> Plan:
    return compile_graph(graph(folder, "decoders.image", {"size": (16, 16)}, None, False), Target("gpu"), 7)


@contextmanager
def device() -> Iterator[Callable[[Callable[[int], None]], None]]:
    """Install CuPy's stand-in. Yield a function that installs ``check(nbytes)``, which then runs before every
    allocation on the device."""
    with faked(memory=True) as fake:
        alloc = fake.alloc

        def watch(check: Callable[[int], None]) -> None:
            def checked(size: int) -> Any:
                check(size)
                return alloc(size)

            fake.allocator = checked  # used by cuda.alloc and by arrays

        yield watch
