"""JSON of specs: whether they are right, what they would do, and what they are made of."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Place(TypedDict):
    """One problem of a spec, and where it stands."""

    file: NotRequired[str]
    line: NotRequired[int]
    column: NotRequired[int]
    text: str


class Checked(TypedDict):
    """One spec that was checked."""

    file: str
    problems: list[Place]
    notes: list[Place]
    summary: str


class Forecast(TypedDict):
    """How large a job is; null is unknown, and ``why`` says the reason. Rates, ``bytes`` and ``seconds`` need
    ``plan --measure``."""

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
    """The time of a job on several machines (``plan --nodes``), each as fast as this one was when it was measured."""

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
    """Operators that will run together."""

    id: str
    kind: str
    operators: list[str]


class PlannedOperator(TypedDict):
    """One operator of a plan. ``stage`` is a number in ``stages``; ``inputs`` and ``arguments`` name results of others;
    ``outputs`` are types, shapes and layouts. ``parity`` names a library that it follows instead of DALI, ``decoders``
    says what decodes for a GPU."""

    name: str
    op: str
    runs_on: Literal["cpu", "mixed", "gpu"]
    stage: int
    inputs: list[str]
    arguments: dict[str, str]
    outputs: list[str]
    parity: str | None
    decoders: str | None


PlannedOutput = TypedDict("PlannedOutput", {"from": str, "spec": str})
PlannedOutput.__doc__ = """One output: the result it is, and its type, shape and layout."""


class ShardSize(TypedDict):
    """The most that a shard may hold."""

    samples: int | None
    bytes: int | None


class PlannedWrite(TypedDict):
    """The output of a job: ``fields`` says how each is stored."""

    writer: str
    path: str
    shard: ShardSize
    fields: dict[str, str]


class Isolation(TypedDict):
    """Decoders in processes of their own: when, and after how many seconds one is given up."""

    mode: str
    timeout: float


class Planned(TypedDict):
    """The plan and the forecast of a job. ``upload`` says how records of containers come to a GPU, ``memory`` the
    budgets: bytes, or a share of what is free."""

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
    isolation: Isolation | None
    write: PlannedWrite | None
    forecast: Forecast
    on_machines: NotRequired[OnMachines | None]


class Apart(TypedDict):
    """How far the results of one operator are apart in two runs (``--against``), over the values of samples that have
    the same shape in both."""

    samples: int
    other_shape: int
    differ: float | None
    max: float | None
    mean: float | None


class Intermediate(TypedDict):
    """The results of one operator for the samples that were inspected."""

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
    """The intermediates of a spec."""

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
    """Steps that do what another library's transform does."""

    name: str
    steps: list[str]
    note: str
    operators: list[str]


class Begun(TypedDict):
    """A spec that was written for a data set."""

    spec: str
    files: list[str]
    kind: str
    about: str
    task: str


class PortFinding(TypedDict):
    """One place in a program for DALI."""

    line: int
    column: int
    kind: str
    text: str


class Ported(TypedDict):
    """One program for DALI."""

    path: str
    runs: bool
    rewritten: bool
    findings: list[PortFinding]


class Shipped(TypedDict):
    """A spec that comes with dali-run."""

    name: str
    path: str
    summary: str


class ShippedText(TypedDict):
    """A spec that comes with dali-run, and its text."""

    name: str
    path: str
    text: str


class Served(TypedDict):
    """A model for Triton that was written."""

    name: str
    files: list[str]
    inputs: list[str]
    outputs: list[str]
