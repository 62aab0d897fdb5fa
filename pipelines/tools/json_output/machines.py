"""JSON of machines: what one can do, and how fast a spec runs on it."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from .jobs import Machine, Report


class Finding(TypedDict):
    """One thing that the doctor looked at."""

    area: str
    what: str
    status: str
    value: str
    remedy: str


class Diagnosis(TypedDict):
    """The abilities of this machine."""

    version: str
    findings: list[Finding]
    remedies: list[str]


class Speed(TypedDict):
    """A rate of several turns."""

    median: float
    min: float
    max: float
    all: list[float]


class Result(TypedDict):
    """One setting of a bench. One that did not run has ``error``, or ``refused`` where a peer cannot do it, and no
    rates."""

    setting: str
    engine: str
    refused: NotRequired[str]
    error: NotRequired[str]
    version: NotRequired[str | None]
    samples_per_second: NotRequired[Speed]
    first_batch_seconds: NotRequired[float]
    memory: NotRequired[dict[str, float] | None]
    report: NotRequired[Report | None]


class Baseline(TypedDict):
    """The bench that another was compared with; ``other_machine`` says in what that one's machine differed."""

    time: str | None
    other_machine: list[str]
    samples_per_second: dict[str, float]


class Benched(TypedDict):
    """The results of a bench, as ``--report FILE`` writes them and ``--baseline FILE`` reads them."""

    schema_version: int
    kind: str
    command: list[str]
    specs: dict[str, str]
    overrides: dict[str, Any]
    seconds: float
    warm_up_batches: int
    repeats: int
    to_host: bool
    encode: bool
    machine: Machine
    limits_gb_per_second: dict[str, float] | None
    results: list[Result]
    baseline: NotRequired[Baseline]


class Loops(TypedDict):
    """Loops for the CPU that were compiled ahead."""

    needed: int
    ready: int
    compiled: int
    failed: list[str]


class LoadedKernels(TypedDict):
    """CUDA kernels that were loaded; ``why`` says why none were."""

    listed: int
    loaded: int
    failed: NotRequired[list[str]]
    why: NotRequired[str]


class Warmed(TypedDict):
    """The loops and kernels that were compiled ahead; of a spec, whether its job could be begun (``rehearsed``)."""

    folder: str
    loops: Loops
    packs: list[str]
    kernels: LoadedKernels
    rehearsed: NotRequired[str]
    seconds: float


class Setting(TypedDict):
    """Settings, and how fast a spec ran with them."""

    settings: dict[str, Any]
    samples_per_second: float


class Tuned(TypedDict):
    """The fastest settings."""

    settings: dict[str, Any]
    samples_per_second: float
    before: Setting
    tried: list[Setting]
    path: str
