"""The measuring process of a benchmark: one setting, in a process of its own. ``python -m ... JSON`` prints JSON."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...ops.errors import DaliRunError
from ...ops.types import from_numpy
from ..compile.place import resolve_target
from ..compile.plan import Plan, compile_graph
from ..cores import threads_of
from ..engine.engine import Engine, Request
from ..engine.inputs import EndlessFeed, Sources
from ..engine.stats import Stats
from ..fleet.job_message import WorkerResources
from ..fleet.worker import bind_to, fitted_spec
from ..job.live import Counts, Recorder
from ..job.report import build_report
from ..job.run import options_of
from ..spec.build import BuiltSpec, build, load_spec
from .machine import limits
from .strata import only

FEWEST_BATCHES = 4
"""A measurement has so many at least, however short: with one, it would say when a batch happened to come."""
READY = "ready"
"""The line that a process prints when it could begin to measure."""
_FILES_ASKED = 4096
"""Samples whose files are looked up to measure the page cache."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurements of one process."""

    spec: str
    overrides: Mapping[str, str]
    seconds: float
    warm_up: int
    """Batches before the clock starts."""
    to_host: bool = False
    """Bring outputs of the GPU to the host; else they stay where they are."""
    encode: bool = True
    """Include the encoders that ``write:`` asks for."""
    stratum: str = ""
    """Of the data set's files only these; see `bench.strata`."""
    on: str = ""
    """``processes:N``: by so many processes together. Several GPUs have one each; see `bench.several`."""
    resources: Mapping[str, Any] | None = None
    """The `WorkerResources` of one of several processes, as plain data; it then waits for the others before it
    measures."""
    turn: tuple[int, int] = (0, 1)
    """Which of how many it is: it begins at its part of the data set."""

    def compiled(self) -> tuple[BuiltSpec, Plan]:
        """The spec as it is measured, and its plan. Raises SpecError, DeviceError."""
        built = load_spec(self.spec, self.overrides)
        if self.resources is not None:
            built = replace(built, spec=fitted_spec(built.spec, WorkerResources.of(self.resources)))
        if not self.encode:
            built = build(replace(built.spec, write=None))
        if self.stratum:
            built = replace(built, graph=only(built.graph, self.stratum))
        settings = built.spec.pipeline
        return built, compile_graph(built.graph, resolve_target(settings.device), settings.seed)

    def as_json(self, what: str) -> str:
        """The argument of the process that does ``what``: measure or limits."""
        return json.dumps({"what": what, **asdict(self)})


def measure(this: Measurement, together: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run the spec's graph endlessly, without writing; samples/s after the warm-up, and the report of that time.
    ``together()`` is called between both, and waits for other processes."""
    built, plan = this.compiled()
    settings = built.spec.pipeline
    whole = built.spec.depends_on_batches  # else as `run` does it
    options = replace(options_of(built.spec, plan.target), to_host=this.to_host, whole_batches=whole,
                      merge_requests=not whole)  # fmt: skip
    size = settings.batch_size
    began = time.perf_counter()
    with Sources(plan, size) as sources, Engine(plan, EndlessFeed(sources), _requests(this, sources, size),
                                                options) as engine:  # fmt: skip
        next(engine)
        first = time.perf_counter() - began
        for _ in range(this.warm_up):
            next(engine)
        together()
        for _ in range(this.warm_up if this.resources is not None else 0):  # what came meanwhile is no rate
            next(engine)
        _forget(engine)
        samples = read = batches = 0
        recorder = Recorder(engine, lambda: Counts(read, 0, 0, 0.0))
        began = time.perf_counter()
        while (taken := time.perf_counter() - began) < this.seconds or batches < FEWEST_BATCHES:
            batch = next(engine)
            samples += len(batch.samples)
            read += batch.request.n
            batches += 1
            if recorder.due():
                recorder.record()
        report = build_report(engine, taken, {"read": read}, sink="take")
        report["over_time"] = recorder.over_time()
        outputs = [[from_numpy(b.dtype).name, b.shapes.shape[1], b.layout] for b in batch.outputs(plan).values()]
    return {"samples_per_second": samples / taken, "first_batch_seconds": first, "outputs": outputs, "report": report}


def _requests(this: Measurement, sources: Sources, size: int) -> Iterator[Request]:
    """Batches from this process' part of the data set on, as each worker of a job has a part of its own."""
    turn, of = this.turn
    records = len(sources.readers[0][4].job()) if sources.readers else 0
    first = records * turn // of // size * size
    return (Request(at, size) for at in itertools.count(first, size))


def _forget(engine: Engine) -> None:
    """Start counting anew: what was recorded while caches filled and kernels compiled is no part of the result."""
    engine.services.stats = Stats()
    for channel in engine.channels:
        channel.waited_full = channel.waited_empty = 0.0
        channel.passed = channel.occupancy = 0


def measure_limits(this: Measurement) -> dict[str, float]:
    """The machine's speeds, with the files, threads and GPU of this spec."""
    built, plan = this.compiled()
    with Sources(plan, built.spec.pipeline.batch_size) as sources:
        samples, _ = EndlessFeed(sources).samples(Request(0, _FILES_ASKED))
        found = dict.fromkeys(samples.origin(i).source for i in range(_FILES_ASKED))
    files = [f for f in found if f and Path(f).is_file()]
    gpu = plan.target.index if plan.target.device == "gpu" else None
    return limits(files, threads_of(built.spec.pipeline.num_threads), gpu)


def _meet() -> None:
    """Say that this process is ready, and wait for the word to measure; end with the one that was to give it."""
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        sys.exit(1)


def main() -> None:
    """Do what the first argument says; the last line that is printed is the result."""
    asked = json.loads(sys.argv[1])
    work = {"measure": measure, "limits": measure_limits}[asked.pop("what")]
    this = Measurement(**{**asked, "turn": tuple(asked["turn"])})
    if this.resources is not None:
        bind_to(WorkerResources.of(this.resources))
        work = partial(measure, together=_meet)
    try:
        result: dict[str, Any] = work(this)
    except DaliRunError as e:
        result = {"error": str(e)}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
