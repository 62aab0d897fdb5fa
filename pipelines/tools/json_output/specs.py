"""JSON about specs: their validity, their plans, and the outputs of their operators."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Place(TypedDict):
    """One problem of a spec, with its position."""

    file: NotRequired[str]
    line: NotRequired[int]
    column: NotRequired[int]
    text: str


class Checked(TypedDict):
    """One checked spec."""

    file: str
    problems: list[Place]
    notes: list[Place]
    summary: str


class Forecast(TypedDict):
    """The expected size of a job. Unknown numbers are null, with the reason in ``why``. Rates, ``bytes`` and
    ``seconds`` are known only with ``plan --measure``."""

    samples: int | None
    why: str
    shards: int | None
    measured_seconds: float | None
    samples_per_second: float | None
    bytes_per_sample: float | None
    read_bytes_per_sample: float | None
    seconds: float | None
    bytes: int | None


class OnMachines(TypedDict):
    """The duration of a job on several machines (``plan --nodes``), each as fast as the measured one."""

    nodes: int
    gpus: int
    measured_on: str
    workers: int
    parts: int
    seconds: float
    efficiency: float
    read_per_second: float | None
    written_per_second: float
    index_bytes: float
    manifest_bytes: float
    idle_workers: int


class PlannedStage(TypedDict):
    """Operators of a plan that run together, as one stage."""

    id: str
    kind: str
    operators: list[str]


class PlannedOperator(TypedDict):
    """One operator of a plan. ``stage`` is an index into ``stages``; ``inputs`` and ``arguments`` name results of other
    operators; ``outputs`` are types, shapes and layouts. ``parity`` is the library, if not DALI, whose results it
    reproduces; ``decoders`` are its decoders for a GPU."""

    name: str
    op: str
    runs_on: Literal["cpu", "mixed", "gpu"]
    stage: int
    inputs: list[str]
    arguments: dict[str, str]
    outputs: list[str]
    parity: str | None
    selects: str
    """Text about the samples that the operator chooses; empty if it takes all."""
    decoders: str | None


PlannedOutput = TypedDict("PlannedOutput", {"from": str, "spec": str})
PlannedOutput.__doc__ = """One output: the result that it consists of, and its type, shape and layout."""


class ShardSize(TypedDict):
    """Limits for the size of a shard."""

    samples: int | None
    bytes: int | None


class PlannedWrite(TypedDict):
    """The output of a job: ``fields`` is the encoding of each field."""

    writer: str
    path: str
    shard: ShardSize
    fields: dict[str, str]


class Isolation(TypedDict):
    """The decoders that run in separate processes, and their timeout in seconds."""

    mode: str
    timeout: float


class Planned(TypedDict):
    """The plan and the size of a job. ``upload`` is the method of copying records to a GPU, ``arrays`` how a reader
    with ``device: gpu`` gets arrays there. ``memory`` are the limits of memory, in bytes or as a share of the free
    memory."""

    name: str
    device: str
    seed: int
    stages: list[PlannedStage]
    operators: list[PlannedOperator]
    outputs: dict[str, PlannedOutput]
    fused: list[str]
    promoted: list[str]
    batch_size: int
    num_threads: int | str
    memory: dict[str, int | str]
    upload: str | None
    arrays: str | None
    isolation: Isolation | None
    write: PlannedWrite | None
    forecast: Forecast
    on_machines: NotRequired[OnMachines | None]


class Apart(TypedDict):
    """Differences between the results of one operator in two runs (``--against``), for samples with equal shapes in
    both."""

    samples: int
    other_shape: int
    differ: float | None
    max: float | None
    mean: float | None


class Intermediate(TypedDict):
    """The outputs of one operator for the inspected samples."""

    name: str
    samples: int
    shapes: list[list[int]]
    dtype: str
    layout: str
    min: float | None
    max: float | None
    mean: float | None
    files: list[str]
    apart: NotRequired[Apart | None]


class InspectedSpec(TypedDict):
    """The outputs of every operator of a spec, for its first samples."""

    name: str
    folder: str
    samples: list[str]
    intermediates: list[Intermediate]
    rejects: list[dict[str, str]]


class Argument(TypedDict):
    """One argument of an operator, or option of a writer."""

    name: str
    type: str
    default: Any
    per_sample: bool
    help: str
    without_effect: str


class Described(TypedDict):
    """One operator or writer."""

    name: str
    aliases: list[str]
    summary: str
    doc: str
    stages: list[str]
    inputs: list[int | None]
    layouts: list[str]
    random: bool
    bound: str
    arguments: list[Argument]
    example: str
    facts: dict[str, str]


class Alike(TypedDict):
    """Steps that are equivalent to another library's transform."""

    name: str
    steps: list[str]
    note: str
    operators: list[str]


class Begun(TypedDict):
    """A spec that ``init`` wrote for a data set."""

    spec: str
    files: list[str]
    kind: str
    about: str
    task: str


class PortFinding(TypedDict):
    """One finding in a program for DALI."""

    line: int
    column: int
    kind: str
    text: str


class Ported(TypedDict):
    """The findings in one program for DALI."""

    path: str
    runs: bool
    rewritten: bool
    findings: list[PortFinding]


class Shipped(TypedDict):
    """A spec that is part of dali-run."""

    name: str
    path: str
    summary: str


class ShippedText(TypedDict):
    """A spec that is part of dali-run, with its text."""

    name: str
    path: str
    text: str


class Served(TypedDict):
    """A model for Triton that ``serve-model`` wrote."""

    name: str
    files: list[str]
    inputs: list[str]
    outputs: list[str]
