"""JSON about jobs: their end, their reports, and the state of running jobs."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Operator(TypedDict):
    """Statistics of one operator in a run."""

    name: str
    op: str
    runs_on: Literal["cpu", "mixed", "gpu"]
    stage: str
    calls: int
    samples: int
    bytes_in: int
    bytes_out: int
    cpu_seconds: float
    gpu_seconds: float
    p50_ms: float
    p95_ms: float
    samples_per_second: float | None
    waiting_for_input_seconds: float
    blocked_on_output_seconds: float


class Stage(TypedDict):
    """One stage of a run: operators that run together, or the writer."""

    id: str
    kind: str
    operators: list[str]
    busy_seconds: float
    waiting_for_input_seconds: float
    blocked_on_output_seconds: float
    worker_seconds: NotRequired[float]
    """Seconds that worker threads spent in the stage, summed over threads."""
    processor_seconds: NotRequired[float]
    """Seconds of ``worker_seconds`` during which the threads ran on cores."""
    core_wait_seconds: NotRequired[float]
    """Seconds of ``worker_seconds`` during which the threads were ready to run, but no core was free. For the rest,
    they waited for something else, mostly for Python's GIL."""


class Queue(TypedDict):
    """One queue between two stages."""

    name: str
    depth: int
    batches: int
    mean_fill: float
    full_seconds: float
    empty_seconds: float


class DecoderTimes(TypedDict):
    """Costs of one decoder: seconds of CPU threads, and seconds that batches waited for it before their upload to a
    GPU."""

    busy_seconds: float
    waited_seconds: float


class Bottleneck(TypedDict):
    """The part, such as a stage or a resource, that limited the speed of a run."""

    what: str
    share: float
    sentence: str
    advice: str


class QueueOverTime(TypedDict):
    """Number of batches in one queue between two stages, at each row of ``over_time``."""

    depth: int
    fill: list[int]


class OverTime(TypedDict):
    """The course of a run over time, as columns of at most 241 rows. Counts and seconds are totals since the start."""

    seconds: list[float]
    samples: list[int]
    rejected: list[int]
    left_out: NotRequired[list[int]]
    """Number of samples that filters left out; absent while several workers run."""
    queues: dict[str, QueueOverTime]
    operators: dict[str, list[float]]
    memory: dict[str, list[int]]
    gpu_busy_seconds: NotRequired[list[float]]
    workers: NotRequired[dict[str, list[int]]]
    """Number of samples that each of several workers processed; with more than 64 workers, each machine."""


class Machine(TypedDict):
    """The machine of a measurement, and the time at which it was made."""

    time: str
    cpu: str
    usable_cores: int
    cores: int | None
    memory_bytes: int
    system: str
    python: str
    gpus: list[str]
    cuda: str | None
    driver: str | None
    versions: dict[str, str]


class Shares(TypedDict):
    """Shares of a worker's time in which a stage was busy, waited for input, or was blocked on output."""

    busy: float
    waiting_for_input: float
    blocked_on_output: float


class Worker(TypedDict):
    """One of several workers of a run. ``ended`` is the reason for which it ended before the job, if it did."""

    name: str
    node: str
    parts: int
    samples: int
    busy_seconds: float
    idle_seconds: float
    samples_per_second: float | None
    bottleneck: str
    stages: dict[str, Shares]
    ended: NotRequired[str]


class Node(TypedDict):
    """One of several machines of a run."""

    name: str
    workers: int
    samples: int
    samples_per_second: float | None
    loads: dict[str, float]
    bottleneck: Bottleneck


class Command(TypedDict):
    """The command that started a job: ``spec`` is its path, or its text if it is not in a file; ``on`` names the
    workers."""

    spec: str | dict[str, Any]
    overrides: dict[str, Any]
    device: str | None
    on: NotRequired[str]


class CudaKernels(TypedDict):
    """Counts of CUDA kernels that were compiled in advance or during a run, including earlier runs in the same
    process."""

    images: int
    """Number of CUDA modules that were loaded as compiled in the wheel."""
    nvrtc: dict[str, float]
    """Kernels that are not in the wheel, each with the seconds for compiling it with NVRTC, or loading it from CuPy's
    cache."""


class Report(TypedDict):
    """The contents of report.json: results and costs of a run."""

    schema_version: int
    name: NotRequired[str]
    device: str
    threads: int
    seconds: float
    processor_seconds: NotRequired[float]
    """Processor seconds that the process used."""
    samples: dict[str, int]
    samples_per_second: float | None
    operators: list[Operator]
    stages: list[Stage]
    queues: list[Queue]
    rejected: dict[str, int]
    left_out: dict[str, int]
    """Number of samples that each filter operator (such as `keep_if`) left out."""
    decoders: dict[str, int]
    decoder_times: dict[str, DecoderTimes]
    fallbacks: dict[str, int]
    uploads: dict[str, int]
    fused: list[str]
    loads: dict[str, float]
    bottleneck: Bottleneck
    memory: dict[str, float]
    started: NotRequired[str]
    machine: NotRequired[Machine]
    workers: NotRequired[list[Worker]]
    nodes: NotRequired[list[Node]]
    over_time: NotRequired[OverTime]
    command: NotRequired[Command]
    mixtures: NotRequired[dict[str, dict[str, int]]]
    """For each mixture (`readers.mix`), by the reader's name, the number of samples from each data set."""
    splits: NotRequired[dict[str, dict[str, int]]]
    """If a job writes all parts of a split (such as train and val), the counts of samples of each part. Other tables
    are then of the last part."""
    resumed_from: NotRequired[int]
    schema: NotRequired[dict[str, Any]]
    compiling_seconds: NotRequired[float]
    cuda_kernels: NotRequired[CudaKernels]
    warm_up_seconds: NotRequired[float]
    start_seconds: NotRequired[float]
    work_seconds: NotRequired[float]


class Nothing(TypedDict):
    """An empty object, if there is nothing to report."""


class Finished(TypedDict):
    """The result of a finished job. If nothing was done, ``report`` is empty and ``path`` null."""

    exit_code: int
    message: str
    path: str | None
    report: Report | Nothing


class LiveOperator(TypedDict):
    """One operator of a running job, with the share of the last seconds in which it was busy."""

    name: str
    runs_on: Literal["cpu", "mixed", "gpu"]
    busy: float


class LiveQueue(TypedDict):
    """One queue between two stages, with the number of batches in it."""

    name: str
    depth: int
    fill: int


class Live(TypedDict):
    """A running job; rates and loads refer to the last seconds. There are no counts while the job is being prepared."""

    schema_version: int
    output: str
    state: str
    message: NotRequired[str]
    name: str
    part: list[int] | None
    pid: int
    host: str
    started: float
    written: float
    total: int
    device: str
    threads: int
    done: NotRequired[int]
    rejected: NotRequired[int]
    left_out: NotRequired[int]
    seconds: NotRequired[float]
    samples_per_second: NotRequired[float | None]
    recent_samples_per_second: NotRequired[list[float]]
    operators: NotRequired[list[LiveOperator]]
    queues: NotRequired[list[LiveQueue]]
    loads: NotRequired[dict[str, float]]
    bottleneck: NotRequired[Bottleneck]
    memory: NotRequired[dict[str, int]]
    gpu_busy: NotRequired[float]
