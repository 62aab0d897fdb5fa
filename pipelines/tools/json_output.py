"""The output of commands with ``--json``, declared once: JSON Schema, documentation and tests follow from it.

Fields may be added at any time; those that are here stay, with their types.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict, get_args, get_origin, get_type_hints

from ...ops.base import nearest
from ...ops.errors import SpecError

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Place(TypedDict):
    """One problem of a spec, and where it stands."""

    file: NotRequired[str]
    line: NotRequired[int]
    column: NotRequired[int]
    text: str


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
    samples: dict[str, int]
    samples_per_second: float | None
    operators: list[Operator]
    stages: list[Stage]
    queues: list[Queue]
    rejected: dict[str, int]
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
    says who decodes for a GPU."""

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
    batch_size: int
    num_threads: int | str
    memory: dict[str, int | str]
    upload: str | None
    isolation: Isolation | None
    write: PlannedWrite | None
    forecast: Forecast
    on_machines: NotRequired[OnMachines | None]


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


class InspectedSpec(TypedDict):
    """The intermediates of a spec."""

    name: str
    folder: str
    samples: list[str]
    intermediates: list[Intermediate]
    rejects: list[dict[str, str]]


class Record(TypedDict):
    """One record of a data set."""

    key: str
    source: str
    record: int
    fields: dict[str, Any]
    problem: str


class InspectedData(TypedDict):
    """The first records of a data set."""

    target: str
    kind: str
    records: int | None
    samples: list[Record]


class Damage(TypedDict):
    """One thing that is wrong with an output."""

    file: str
    where: str
    message: str


class Verified(TypedDict):
    """The findings of ``verify`` in an output."""

    sound: bool
    problems: list[Damage]
    shards: int
    samples: int
    rejects: int
    bytes: int
    files: int
    hashed: int
    """Files whose SHA-256 was compared."""


class Merged(TypedDict):
    """An output of parts that is one now."""

    path: str
    parts: int


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
    seconds: NotRequired[float]
    samples_per_second: NotRequired[float | None]
    recent_samples_per_second: NotRequired[list[float]]
    operators: NotRequired[list[LiveOperator]]
    queues: NotRequired[list[LiveQueue]]
    loads: NotRequired[dict[str, float]]
    bottleneck: NotRequired[Bottleneck]
    memory: NotRequired[dict[str, int]]
    gpu_busy: NotRequired[float]


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


class Refused(TypedDict):
    """A sample that does not decode, or (``kept``) only with damage."""

    key: str
    source: str
    record: int
    operator: str
    code: str
    message: str
    kept: bool


class Measured(TypedDict):
    """A data set in numbers, or what a spec makes of one.

    ``fields`` (of a spec: ``outputs``) hold facts by what they are. Stored bytes: ``bytes``, ``sizes``, ``formats``.
    Numbers: ``spread``, and of few integers ``classes`` and ``counts``. Arrays: ``extents``, and ``mean``, ``std``,
    ``min`` and ``max`` of each channel. A spread is ``min``, ``p5``, ``median``, ``p95``, ``max`` and ``mean``.
    """

    target: str
    kind: str
    name: NotRequired[str]
    samples: int
    corrupt: int
    codes: dict[str, int]
    rejects: list[Refused]
    seconds: float
    samples_per_second: float | None
    device: str
    chosen_at_random: bool
    fields: NotRequired[dict[str, dict[str, Any]]]
    outputs: NotRequired[dict[str, dict[str, Any]]]
    images: NotRequired[dict[str, Any] | None]
    sounds: NotRequired[dict[str, Any] | None]


class CocoSample(TypedDict):
    """The part of sample data with boxes and masks."""

    images: int
    annotations: int


class SamplePicture(TypedDict):
    """One JPEG of sample data."""

    name: str
    number: int
    label: int
    width: int
    height: int
    subsampling: str
    gray: bool
    progressive: bool
    orientation: int
    quality: int


class Sampled(TypedDict):
    """Sample data that was made, or (``already_there``) had been."""

    version: int
    count: int
    seed: int
    classes: list[str]
    train: int
    val: int
    coco: CocoSample
    sounds: int
    pictures: list[SamplePicture]
    already_there: NotRequired[bool]


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


class Served(TypedDict):
    """A model for Triton that was written."""

    name: str
    files: list[str]
    inputs: list[str]
    outputs: list[str]


OUTPUTS: dict[str, tuple[str, Any]] = {
    "run": ("run", Finished),
    "convert": ("convert", Finished),
    "retry-failed": ("retry-failed", Finished),
    "validate": ("validate", list[Checked]),
    "plan": ("plan", Planned),
    "init": ("init", Begun),
    "inspect": ("inspect SPEC", InspectedSpec),
    "inspect-data": ("inspect DATA", InspectedData),
    "stats": ("stats", Measured),
    "verify": ("verify", Verified),
    "merge": ("merge", Merged),
    "ops": ("ops", list[Described]),
    "ops-name": ("ops NAME", Described),
    "ops-like": ("ops --like", list[Alike]),
    "bench": ("bench", Benched),
    "tune": ("tune", Tuned),
    "configs": ("configs", list[Shipped]),
    "configs-name": ("configs NAME", ShippedText),
    "serve-model": ("serve-model", Served),
    "warm": ("warm", Warmed),
    "top": ("top", list[Live]),
    "doctor": ("doctor", Diagnosis),
    "port": ("port", list[Ported]),
    "sample-data": ("sample-data", Sampled),
    "report": ("report.json", Report),
}
"""Types of the printed objects, by the name for `output_schema`: the command."""


def output_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one of `OUTPUTS`. Raises SpecError with the nearest names."""
    if name not in OUTPUTS:
        raise SpecError(f"there is no schema {name!r}{nearest(name, OUTPUTS)} (known: spec, {', '.join(OUTPUTS)})")
    command, declared = OUTPUTS[name]
    return {"$schema": DIALECT, "title": f"dali-run {command}", **_schema(declared)}


_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def _schema(declared: Any) -> dict[str, Any]:
    origin, given = get_origin(declared), get_args(declared)
    if declared is Any:
        return {}
    if declared in _PLAIN:
        return {"type": _PLAIN[declared]}
    if origin is Literal:
        return {"enum": list(given)}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(x) for x in given]}
    if origin is list:
        return {"type": "array", "items": _schema(given[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(given[1])}
    if typing.is_typeddict(declared):
        text = (declared.__doc__ or "").split("\n\n")[0]
        return {
            "type": "object",
            **({"description": text} if text and not text.startswith("dict") else {}),
            "properties": {name: _schema(tp) for name, tp in get_type_hints(declared).items()},
            "required": sorted(_required(declared)),
        }
    raise AssertionError(f"no schema for {declared}")


def _required(declared: Any) -> set[str]:
    """Fields that are always there. (`__required_keys__` does not see NotRequired in annotations that are text.)"""
    hints = get_type_hints(declared, include_extras=True)
    return {name for name, tp in hints.items() if get_origin(tp) is not NotRequired}


def as_page() -> str:
    """docs/json.md."""
    lines = [
        "# JSON for programs",
        "",
        "Commands print JSON with `--json`: on stdout, and nothing else there. Lines for people stay on stderr; exit",
        "codes are the same. Fields may be added at any time; those below stay. `dali-run schema --of run` prints the",
        "JSON Schema of what `run --json` prints; the names are those in the first column. What ends any command",
        "before it has a result is printed as [Finished](#finished), with an empty report.",
        "",
        "```sh",
        "dali-run schema --of validate",
        "dali-run validate configs/quickstart.yaml --json",
        "```",
        "",
        "| `--of` | printed by | |",
        "|---|---|---|",
    ]
    for name, (command, declared) in OUTPUTS.items():
        inner = get_args(declared)[0] if get_origin(declared) is list else declared
        many = "a list of: " if get_origin(declared) is list else ""
        by = command if "." in command else f"{command} --json"
        lines.append(f"| `{name}` | `{by}` | {many}[{inner.__name__}](#{inner.__name__.lower()}) |")
    for declared in _declared():
        lines += ["", f"## {declared.__name__}", "", (declared.__doc__ or "").strip(), "", "| field | |", "|---|---|"]
        for name, tp in get_type_hints(declared).items():
            known = "" if name in _required(declared) else "; may be missing"
            lines.append(f"| `{name}` | {_words(tp)}{known} |")
    return "\n".join(lines) + "\n"


def _declared() -> list[Any]:
    """Every TypedDict, each once, in the order in which they are first named."""
    found: dict[Any, None] = {}

    def visit(declared: Any) -> None:
        if typing.is_typeddict(declared) and declared not in found:
            found[declared] = None
            for tp in get_type_hints(declared).values():
                visit(tp)
        for inner in get_args(declared):
            visit(inner)

    for _, declared in OUTPUTS.values():
        visit(declared)
    return list(found)


def _words(declared: Any) -> str:
    origin, given = get_origin(declared), get_args(declared)
    if origin is list:
        return f"list of {_words(given[0])}"
    if origin is dict:
        return f"object of {_words(given[1])}"
    if origin is Literal:
        return " or ".join(f"`{x}`" for x in given)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_words(x) for x in given)
    if typing.is_typeddict(declared):
        return f"[{declared.__name__}](#{declared.__name__.lower()})"
    words: Mapping[Any, str] = {Any: "anything", str: "text", int: "integer", float: "number", bool: "boolean"}
    return words.get(declared, "null")
