"""The process that measures one setting of a benchmark. ``python -m ... JSON`` prints its result as JSON. Started by
`bench.run` and `bench.several`."""

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
from ...ops.storage.json_text import parse_json
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

MIN_BATCHES = 4
"""Minimum number of batches of a measurement. One batch alone would say nothing, because batches are computed ahead."""
READY = "ready"
"""Line that a measuring process prints when it has warmed up and is ready to measure."""
_MAX_FILES = 4096
"""Maximum number of samples whose files are read for measuring the speed of the page cache."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Settings of one measurement. Created by the command line, and passed to the measuring process as JSON."""

    spec: str
    overrides: Mapping[str, str]
    seconds: float
    warm_up: int
    """Number of batches that are run before the clock starts."""
    to_host: bool = False
    """Whether outputs of the GPU are copied to the host during the measurement."""
    encode: bool = True
    """Whether the encoders that ``write:`` needs are part of the measurement."""
    stratum: str = ""
    """Kind of files, such as ``progressive``, to which the measurement is limited; empty for all files. See
    `bench.strata`."""
    on: str = ""
    """``processes:N`` measures with N processes at the same time. Empty means one process, or one per GPU if the spec
    names several. See `bench.several`."""
    resources: Mapping[str, Any] | None = None
    """The `WorkerResources` (cores and GPU) of this process as plain data, if several processes measure together. None
    for a single process."""
    turn: tuple[int, int] = (0, 1)
    """Number of this process, and number of processes that measure together. Each process begins with its own part of
    the data set."""

    def compiled(self) -> tuple[BuiltSpec, Plan]:
        """Build and compile the spec as it is to be measured; return it and its plan. Raises SpecError and
        DeviceError."""
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
        """Return this measurement as JSON, the command-line argument of the process that performs it. ``what``:
        ``measure`` (the spec) or ``limits`` (the machine)."""
        return json.dumps({"what": what, **asdict(self)})


def measure(this: Measurement, together: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run the spec's graph repeatedly, without writing. Return a report of the time after the warm-up, with the samples
    per second. ``together()`` is called after the warm-up and waits for other processes that measure at the same
    time."""
    built, plan = this.compiled()
    settings = built.spec.pipeline
    by_batches = built.spec.depends_on_batches  # otherwise like `dali-run run`
    options = replace(options_of(built.spec, plan.target), to_host=this.to_host, whole_batches=by_batches,
                      merge_requests=not by_batches)  # fmt: skip
    size = settings.batch_size
    began = time.perf_counter()
    with Sources(plan, size) as sources, Engine(plan, EndlessFeed(sources), _requests(this, sources, size),
                                                options) as engine:  # fmt: skip
        next(engine)
        first = time.perf_counter() - began
        for _ in range(this.warm_up):
            next(engine)
        together()
        for _ in range(
            this.warm_up if this.resources is not None else 0
        ):  # batches that were finished during the wait would falsify the rate
            next(engine)
        _reset_counters(engine)
        samples = read = batches = 0
        recorder = Recorder(engine, lambda: Counts(read, 0, 0, 0.0))
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < this.seconds or batches < MIN_BATCHES:
            batch = next(engine)
            samples += len(batch.samples)
            read += batch.request.n
            batches += 1
            if recorder.due():
                recorder.record()
        report = build_report(engine, elapsed, {"read": read}, sink="take")
        report["over_time"] = recorder.over_time()
        outputs = [[from_numpy(b.dtype).name, b.shapes.shape[1], b.layout] for b in batch.outputs(plan).values()]
    return {"samples_per_second": samples / elapsed, "first_batch_seconds": first, "outputs": outputs, "report": report}


def _requests(this: Measurement, sources: Sources, size: int) -> Iterator[Request]:
    """Yield requests for batches without end. They begin with the part of the data set that belongs to this process."""
    turn, of = this.turn
    records = len(sources.readers[0][4].job()) if sources.readers else 0
    first = records * turn // of // size * size
    return (Request(at, size) for at in itertools.count(first, size))


def _reset_counters(engine: Engine) -> None:
    """Set all counters of the engine to zero after the warm-up, whose times must not count."""
    engine.services.stats = Stats()
    for channel in engine.channels:
        channel.waited_full = channel.waited_empty = 0.0
        channel.passed = channel.occupancy = 0


def measure_limits(this: Measurement) -> dict[str, float]:
    """Measure the machine's limits (`bench.machine.limits`), with this measurement's files, threads and GPU."""
    built, plan = this.compiled()
    with Sources(plan, built.spec.pipeline.batch_size) as sources:
        samples, _ = EndlessFeed(sources).samples(Request(0, _MAX_FILES))
        paths = dict.fromkeys(samples.origin(i).source for i in range(_MAX_FILES))
    files = [f for f in paths if f and Path(f).is_file()]
    gpu = plan.target.index if plan.target.device == "gpu" else None
    return limits(files, threads_of(built.spec.pipeline.num_threads), gpu)


def _wait_for_start() -> None:
    """Tell the parent process that this one is ready, and wait for its line to start. Exit if the parent has ended."""
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        sys.exit(1)


def main() -> None:
    """Main program of a measuring process. Perform the measurement in the first argument (JSON), and print the result
    as the last line."""
    arguments = parse_json(sys.argv[1])
    work = {"measure": measure, "limits": measure_limits}[arguments.pop("what")]
    this = Measurement(**{**arguments, "turn": tuple(arguments["turn"])})
    if this.resources is not None:
        bind_to(WorkerResources.of(this.resources))
        work = partial(measure, together=_wait_for_start)
    try:
        result: dict[str, Any] = work(this)
    except DaliRunError as e:
        result = {"error": str(e)}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
