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
    machine: NotRequired[dict[str, Any]]
    workers: NotRequired[list[dict[str, Any]]]
    nodes: NotRequired[list[dict[str, Any]]]
    over_time: NotRequired[OverTime]
    command: NotRequired[dict[str, Any]]
    compiling_seconds: NotRequired[float]
    warm_up_seconds: NotRequired[float]
    work_seconds: NotRequired[float]


class Finished(TypedDict):
    """How a job ended. Before there is anything to report, ``report`` is empty and ``path`` null."""

    exit_code: int
    message: str
    path: str | None
    report: Report | dict[str, Any]


class Retried(TypedDict):
    """How a retry ended."""

    exit_code: int
    message: str
    path: str | None


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
    seconds: float | None
    bytes: int | None


class Planned(TypedDict):
    """The plan and the forecast of a job."""

    name: str
    device: str
    seed: int
    stages: list[dict[str, Any]]
    operators: list[dict[str, Any]]
    outputs: dict[str, Any]
    fused: list[str]
    batch_size: int
    num_threads: int | str
    memory: dict[str, Any]
    write: dict[str, Any] | None
    forecast: Forecast


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


class Begun(TypedDict):
    """A spec that was written for a data set."""

    spec: str
    files: list[str]
    kind: str
    about: str
    task: str


class Ported(TypedDict):
    """One program for DALI."""

    path: str
    runs: bool
    rewritten: bool
    findings: list[Any]


class Speed(TypedDict):
    """A rate of several turns."""

    median: float
    min: float
    max: float
    all: list[float]


class Result(TypedDict):
    """One setting of a bench."""

    setting: str
    engine: str
    samples_per_second: Speed


class Benched(TypedDict):
    """The results of a bench, as ``--report FILE`` writes them and ``--baseline FILE`` reads them."""

    schema_version: int
    command: list[str]
    machine: dict[str, Any]
    results: list[Result]


class Live(TypedDict):
    """A job at work. While it is prepared there are no counts."""

    schema_version: int
    output: str
    state: str
    name: str
    part: list[int] | None
    total: int
    done: NotRequired[int]
    rejected: NotRequired[int]
    seconds: NotRequired[float]
    samples_per_second: NotRequired[float | None]
    operators: NotRequired[list[dict[str, Any]]]
    queues: NotRequired[list[dict[str, Any]]]


class Loops(TypedDict):
    """Loops for the CPU that were compiled ahead."""

    needed: int
    ready: int
    compiled: int
    failed: list[str]


class Warmed(TypedDict):
    """The loops and kernels that were compiled ahead."""

    folder: str | None
    loops: Loops
    kernels: dict[str, Any]
    seconds: float


class Shipped(TypedDict):
    """A spec that comes with dali-run."""

    name: str
    path: str
    summary: str


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


class Sampled(TypedDict):
    """Sample data that was made."""

    count: int
    seed: int
    classes: list[str]
    train: int
    val: int


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
    "retry-failed": ("retry-failed", Retried),
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
        hints = get_type_hints(declared, include_extras=True)
        text = (declared.__doc__ or "").split("\n\n")[0]
        return {
            "type": "object",
            **({"description": text} if text and not text.startswith("dict") else {}),
            "properties": {name: _schema(tp) for name, tp in get_type_hints(declared).items()},
            # not __required_keys__: Python does not see NotRequired in annotations that are text
            "required": sorted(name for name, tp in hints.items() if get_origin(tp) is not NotRequired),
        }
    raise AssertionError(f"no schema for {declared}")


def as_page() -> str:
    """docs/json.md."""
    lines = [
        "# JSON for programs",
        "",
        "Commands print JSON with `--json`: on stdout, and nothing else there. Lines for people stay on stderr; exit",
        "codes are the same. Fields may be added at any time; those below stay. `dali-run schema --of run` prints the",
        "JSON Schema of what `run --json` prints; the names are those in the first column.",
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
            known = "" if name in declared.__required_keys__ else ", where known"
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
