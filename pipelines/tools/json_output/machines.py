"""JSON about machines: their abilities, and the speed of specs on them."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from .jobs import Machine, Report


class Finding(TypedDict):
    """One result of the doctor's examination."""

    area: str
    what: str
    status: str
    value: str
    remedy: str


class Diagnosis(TypedDict):
    """All results of ``doctor``."""

    version: str
    findings: list[Finding]
    remedies: list[str]


class Speed(TypedDict):
    """A rate, from several repeated measurements."""

    median: float
    min: float
    max: float
    all: list[float]


class Result(TypedDict):
    """Results of a bench under one setting. If it could not run, it has no rates, but ``error``, or ``refused`` if a
    compared library does not support it."""

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
    """The earlier bench to compare with. ``other_machine`` lists the differences between the two machines."""

    time: str | None
    other_machine: list[str]
    samples_per_second: dict[str, float]


class Benched(TypedDict):
    """The results of a bench, as ``--report FILE`` writes and ``--baseline FILE`` reads them."""

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
    """CPU kernels that were compiled in advance."""

    needed: int
    ready: int
    compiled: int
    failed: list[str]


class LoadedKernels(TypedDict):
    """CUDA kernels that were loaded in advance. If none were, ``why`` is the reason."""

    listed: int
    loaded: int
    failed: NotRequired[list[str]]
    why: NotRequired[str]


class Warmed(TypedDict):
    """Loops and kernels that were compiled in advance. ``rehearsed`` says whether a trial of the job ran."""

    folder: str
    loops: Loops
    packs: list[str]
    kernels: LoadedKernels
    rehearsed: NotRequired[str]
    seconds: float


class Setting(TypedDict):
    """Settings of a pipeline, with the speed that a spec reached under them."""

    settings: dict[str, Any]
    samples_per_second: float


class Tuned(TypedDict):
    """The fastest settings, and the other settings that were tried."""

    settings: dict[str, Any]
    samples_per_second: float
    before: Setting
    tried: list[Setting]
    path: str
