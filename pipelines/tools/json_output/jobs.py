"""JSON of jobs: how they ended, their reports, and how they are doing."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Operator(TypedDict):
    """One operator in a run."""

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
    """Seconds of worker threads in the stage, added over threads."""
    processor_seconds: NotRequired[float]
    """Seconds in which these were on processors."""
    core_wait_seconds: NotRequired[float]
    """Seconds in which these were ready, and all cores had other threads. In the rest of ``worker_seconds`` they waited
    for something else, for Python's lock above all."""


class Queue(TypedDict):
    """One queue between stages."""

    name: str
    depth: int
    batches: int
    mean_fill: float
    full_seconds: float
    empty_seconds: float


class DecoderTimes(TypedDict):
    """The costs of one decoder: seconds of CPU threads, and those that batches on their way to a GPU waited for it."""

    busy_seconds: float
    waited_seconds: float


class Bottleneck(TypedDict):
    """The part that held the run back."""

    what: str
    share: float
    sentence: str
    advice: str


class QueueOverTime(TypedDict):
    """How many batches were in a queue, row by row."""

    depth: int
    fill: list[int]


class OverTime(TypedDict):
    """A run over time, as columns of at most 241 rows. Counts and seconds add up from the start."""

    seconds: list[float]
    samples: list[int]
    rejected: list[int]
    left_out: NotRequired[list[int]]
    """Samples left out on purpose; not known while several workers run."""
    queues: dict[str, QueueOverTime]
    operators: dict[str, list[float]]
    memory: dict[str, list[int]]
    gpu_busy_seconds: NotRequired[list[float]]
    workers: NotRequired[dict[str, list[int]]]
    """Samples of each worker of several; of more than 64, of each machine."""


class Machine(TypedDict):
    """The machine that something ran on, and when."""

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
    """Shares of a worker's time in which a stage was busy, waited for input, and was blocked."""

    busy: float
    waiting_for_input: float
    blocked_on_output: float


class Worker(TypedDict):
    """One of several workers of a run. ``ended`` says why it did not work to the end."""

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
    """The start of a job: ``spec`` is a path, or the spec itself where no file holds it; ``on`` names its
    workers."""

    spec: str | dict[str, Any]
    overrides: dict[str, Any]
    device: str | None
    on: NotRequired[str]


class CudaKernels(TypedDict):
    """Where the CUDA kernels of a run, and of those before it in the process, came from."""

    images: int
    """Modules that were loaded from the wheel's images."""
    nvrtc: dict[str, float]
    """Kernels without an image, and the seconds that NVRTC took for them, or CuPy to load what it had kept."""


class Report(TypedDict):
    """report.json: what a run did and cost."""

    schema_version: int
    name: NotRequired[str]
    device: str
    threads: int
    seconds: float
    processor_seconds: NotRequired[float]
    """Seconds of processors that the process took."""
    samples: dict[str, int]
    samples_per_second: float | None
    operators: list[Operator]
    stages: list[Stage]
    queues: list[Queue]
    rejected: dict[str, int]
    left_out: dict[str, int]
    """Samples that each operator left out on purpose (`keep_if`)."""
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
    resumed_from: NotRequired[int]
    schema: NotRequired[dict[str, Any]]
    compiling_seconds: NotRequired[float]
    cuda_kernels: NotRequired[CudaKernels]
    warm_up_seconds: NotRequired[float]
    start_seconds: NotRequired[float]
    work_seconds: NotRequired[float]


class Nothing(TypedDict):
    """An empty object: there is nothing to report."""


class Finished(TypedDict):
    """How a job ended. Before there is anything to report, ``report`` is empty and ``path`` null."""

    exit_code: int
    message: str
    path: str | None
    report: Report | Nothing


class LiveOperator(TypedDict):
    """One operator of a job at work: the share of the last seconds in which it was busy."""

    name: str
    runs_on: Literal["cpu", "mixed", "gpu"]
    busy: float


class LiveQueue(TypedDict):
    """One queue between stages, and how many batches are in it."""

    name: str
    depth: int
    fill: int


class Live(TypedDict):
    """A job at work: rates and loads are of the last seconds. While it is prepared there are no counts."""

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
