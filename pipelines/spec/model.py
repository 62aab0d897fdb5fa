"""The model of a spec: the contents of a YAML file as frozen dataclasses with the positions of all parts.

`parse_spec` makes every check that needs no operators, and continues after mistakes; `build.load_spec` makes the other
checks and raises all problems at once.
"""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin

from ...ops.base import Parameter, coerce, nearest, parameters, type_name
from ...writers.base import CHECKSUMS, ENCODINGS, FieldConfig
from ..graph.nodes import DeviceRequest
from ..limits import Limit, Memory, parse_limit
from ..problems import Mark, Problems, show
from ..settings import RunSettings
from . import slips
from .python_file import is_python, read_python
from .shipped import known_spec
from .text import Value, is_field_name, read
from .variables import override, substitute

VERSION = 1
Policy = Literal["fail", "skip", "replace"]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DEVICE = re.compile(r"auto|cpu|gpu|gpu:[0-9]{1,3}(,[0-9]{1,3})*|gpu:all|null")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?B|B)?")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ref:
    """A batch name in a spec, with the position at which it is defined or used."""

    name: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Step:
    """One step in a spec's graph: an operator with its inputs, arguments and outputs."""

    label: str
    """Position of the step in words, for messages: ``step 3 (resize)``."""
    mark: Mark
    op: str
    op_mark: Mark
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref, ...]
    args: Mapping[str, Value]
    arg_marks: Mapping[str, Mark]
    """Positions of the arguments' names in the text of the spec."""
    name: str | None = None
    device: DeviceRequest = "auto"
    seed: int | None = None
    broken: bool = False
    """Whether the step has mistakes. Its arguments are still checked, but it is not built, and its outputs are
    unknown."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A conditional in a spec's graph: ``if:`` with the steps of both branches."""

    label: str
    mark: Mark
    predicate: Ref
    """The condition to evaluate: a batch (``$name``) or an expression."""
    then: tuple[Step | Condition, ...]
    otherwise: tuple[Step | Condition, ...]
    broken: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """Values of the ``pipeline:`` section of a spec."""

    batch_size: int = 64
    num_threads: int | Literal["auto"] = "auto"
    device: str = "auto"
    """``auto``, ``cpu``, ``gpu``, ``gpu:1``, ``gpu:0,2``, ``gpu:all``, or ``null``, which compiles for a GPU without
    having one."""
    seed: int = 0
    prefetch_cpu: int = 2
    prefetch_gpu: int = 2
    prefetch_asked: bool = False
    """Whether the spec sets the queue depth ``prefetch_cpu``. If it does not, a job may read further ahead than the
    default."""


@dataclass(frozen=True, slots=True)
class WriteField:
    """One field of the records that a spec writes."""

    name: str
    mark: Mark
    config: FieldConfig = field(default_factory=FieldConfig)
    encoder_args: Mapping[str, Value] = field(default_factory=dict)
    """Arguments of the encoder, apart from the encoding itself."""
    arg_marks: Mapping[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Write:
    """Values of the ``write:`` section of a spec."""

    mark: Mark
    writer: str
    writer_mark: Mark
    path: str
    shard_samples: int | None = None
    shard_bytes: int | None = None
    shard_full: bool = False
    sha256: bool = False
    fields: tuple[WriteField, ...] | None = None
    """The fields to write; None to write every output of the graph."""
    options: Mapping[str, Value] = field(default_factory=dict)
    """Options of the writer, such as the compression."""
    option_marks: Mapping[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OnError:
    """Values of the ``on_error:`` section of a spec. Rejected samples are limited by a count or by a fraction of the
    samples; without either there is no limit."""

    policy: Policy = "skip"
    max_errors: int | None = None
    max_error_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A whole spec after parsing, before its graph is built."""

    file: str
    name: str
    vars: Mapping[str, Any]
    """Variables of the spec with their values after overrides."""
    plugins: tuple[Ref, ...]
    """Paths of Python files to run before the graph is built, because they define operators."""
    pipeline: Settings
    graph: tuple[Step | Condition, ...]
    outputs: tuple[tuple[str, Ref], ...]
    write: Write | None = None
    on_error: OnError = field(default_factory=OnError)
    version: int = VERSION

    @property
    def depends_on_batches(self) -> bool:
        """Whether the result for a sample depends on the other samples of its batch."""
        return self.pipeline.rng == "dali" or self.on_error.policy == "replace"


def parse_spec(path: str | os.PathLike[str], overrides: Mapping[str, Any], problems: Problems) -> Spec | None:
    """Return the spec in the file at ``path``. Mistakes are added to ``problems``; the result is None if nothing of the
    spec can be used.

    ``overrides`` are variables or dotted paths (``pipeline.batch_size``) with new values; a text means what it would
    mean without quotes in YAML.
    """
    if is_python(path):
        root, overrides = read_python(path, overrides, problems)
    elif os.fspath(path).endswith(".dali"):
        from .dali_file import read_dali_file  # few specs are one

        root = read_dali_file(path, problems)
    else:
        root = read(known_spec(path), problems)
    if root is None:
        return None
    return spec_of(root, overrides, problems)


def spec_of(root: Value, overrides: Mapping[str, Any], problems: Problems) -> Spec | None:
    """Return the spec for ``root``, a document that was already read from its file; see `parse_spec`."""
    if not isinstance(root.data, dict):
        problems.add(root.mark, f"is not a spec: a spec is a mapping that starts with `version: 1`, got {root.kind}")
        return None
    if not set(root.data) & set(_SECTIONS):
        problems.add(root.mark, f"is not a spec: it has none of the keys {', '.join(_SECTIONS)}")
        return None
    root = override(root, overrides, _SECTIONS, problems)
    root = substitute(root, problems)
    if _zero_characters(root, problems):
        return None
    top = _Section(root, "", problems)
    version = top.take("version")
    if version is None:
        problems.add(root.mark, "needs `version: 1`")
    elif version.data != VERSION or isinstance(version.data, bool):
        problems.add(version.mark, f"version must be 1, got {version.kind}")
    file = root.mark.file
    name = top.match("name", _JOB_NAME, "letters, digits, '.', '_' and '-'", _default_name(file))
    spec = Spec(
        file=file,
        name=name,
        vars=_vars(top.take("vars")),
        plugins=_plugins(top.take("plugins"), file, problems),
        pipeline=_settings(top.section("pipeline")),
        graph=_graph(top, problems),
        outputs=_outputs(top, problems),
        write=_write(top.section("write")),
        on_error=_on_error(top.section("on_error")),
    )
    top.finish("")
    return spec


def _zero_characters(value: Value, problems: Problems) -> bool:
    """Report every text in ``value`` that contains the character with code 0, which operating systems reject in file
    names and no text needs. Return whether there is one."""
    if isinstance(value.data, str):
        if "\0" in value.data:
            problems.add(
                value.mark, f"{show(value.data)} contains a zero character (\\0), which is not allowed in file names"
            )
            return True
        return False
    inner = value.data.values() if isinstance(value.data, dict) else value.data if isinstance(value.data, tuple) else ()
    return sum(_zero_characters(v, problems) for v in inner) > 0


_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "version": (),
    "name": (),
    "vars": (),
    "plugins": (),
    "pipeline": (
        "batch_size",
        "num_threads",
        "device",
        "seed",
        "prefetch_queue_depth",
        *parameters(RunSettings),
    ),
    "graph": (),
    "outputs": (),
    "write": ("writer", "path", "shard", "fields", "checksums"),
    "on_error": ("policy", "max_errors"),
}


def _default_name(file: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", Path(file).stem).lstrip("._-")
    return stem[:100] or "job"


# -- sections ---------------------------------------------------------------------------------------------------------


class _Section:
    """A mapping of the spec while it is parsed. `take` removes each known key; `finish` then reports the remaining keys
    as unknown. Wrong values are reported and replaced by defaults."""

    def __init__(self, value: Value, title: str, problems: Problems) -> None:
        self.value = value
        self.title = title
        self.problems = problems
        self.entries = dict(value.data) if isinstance(value.data, dict) else {}
        self.known: list[str] = []

    def say(self, mark: Mark, text: str) -> None:
        self.problems.add(mark, f"{self.title}: {text}" if self.title else text)

    def take(self, key: str) -> Value | None:
        """Remove and return the value of ``key``; None if the key is missing, or if a problem of its value is already
        reported."""
        self.known.append(key)
        value = self.entries.pop(key, None)
        return None if value is None or value.broken else value

    def has(self, key: str) -> bool:
        return isinstance(self.value.data, dict) and key in self.value.data

    def need(self, key: str, description: str) -> Value | None:
        """Remove and return the value of ``key``, like `take`; report a problem if the key is missing."""
        if not self.has(key):
            self.say(self.value.mark, f"needs {description}")
        return self.take(key)

    def section(self, key: str) -> _Section | None:
        value = self.take(key)
        if value is None:
            return None
        if value.data is not None and not isinstance(value.data, dict):
            self.say(value.mark, f"{key} must be a mapping, got {value.kind}")
            return None
        return _Section(value, f"{self.title}.{key}" if self.title else key, self.problems)

    def integer(self, key: str, default: int, low: int, high: int = 1 << 40) -> int:
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value.data, int) and not isinstance(value.data, bool) and low <= value.data <= high:
            return value.data
        limit = f"of at least {low}" if high >= 1 << 40 else f"from {low} to {high}"
        self.say(value.mark, f"{key} must be an integer {limit}, got {value.kind}{slips.value(value.data)}")
        return default

    def number(self, p: Parameter) -> Any:
        """Return the value of the setting ``p``, which is a number, or its default."""
        value = self.take(p.name)
        if value is None:
            return p.default
        if isinstance(value.data, (int, float)) and not isinstance(value.data, bool):
            with suppress(ValueError):
                return coerce(p, value.data)
        self.say(value.mark, f"{p.name} must be {type_name(p.type)}{within(p)}, got {value.kind}")
        return p.default

    def text(self, key: str, default: str) -> str:
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value.data, str) and value.data:
            return value.data
        self.say(value.mark, f"{key} must be text, got {value.kind}")
        return default

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value.data, str) and value.data in allowed:
            return value.data
        close = slips.value(value.data, key) or (nearest(value.data, allowed) if isinstance(value.data, str) else "")
        self.say(value.mark, f"{key} must be {', '.join(allowed[:-1])} or {allowed[-1]}, got {value.kind}{close}")
        return default

    def match(self, key: str, pattern: re.Pattern[str], description: str, default: str) -> str:
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value.data, str) and pattern.fullmatch(value.data):
            return value.data
        self.say(value.mark, f"{key} must be {description}, got {value.kind}")
        return default

    def size(self, key: str) -> int | None:
        """Return the value of ``key`` as a number of bytes. In the spec it is an integer, or a text with a unit."""
        value = self.take(key)
        if value is None:
            return None
        match = _SIZE.fullmatch(str(value.data)) if isinstance(value.data, (int, str)) else None
        number = int(float(match[1]) * _UNITS[match[2] or "B"]) if match and not isinstance(value.data, bool) else 0
        if 0 < number < 1 << 63:
            return number
        self.say(value.mark, f"{key} must be a number of bytes such as 1000000, 512MB or 1GiB, got {value.kind}")
        return None

    def finish(self, kind: str | None = None) -> None:
        """Report the keys that were not taken as unknown. ``kind`` is the section's name in `slips`, by default its
        title."""
        assert isinstance(self.value.data, dict) or not self.entries
        kind = self.title if kind is None else kind
        for key in self.entries:
            mark = self.value.key_marks[key]
            hint = slips.key(kind, key) or nearest(key, self.known)
            self.say(mark, f"there is no key {show(key)}{hint} (known: {', '.join(self.known)})")


def within(p: Parameter) -> str:
    """Return the bounds of the number ``p`` in words, such as `` from 1 to 8``."""
    low, high = p.arg.ge, p.arg.le
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    return f" of at least {low:g}" if low is not None else f" of at most {high:g}" if high is not None else ""


def _settings(section: _Section | None) -> Settings:
    default = Settings()
    if section is None:
        return default
    threads = section.take("num_threads")
    num_threads: int | Literal["auto"] = "auto"
    if threads is not None and threads.data != "auto":
        if isinstance(threads.data, int) and not isinstance(threads.data, bool) and 1 <= threads.data <= 4096:
            num_threads = threads.data
        else:
            section.say(threads.mark, f"num_threads must be auto or an integer from 1 to 4096, got {threads.kind}")
    ahead, behind = _prefetch(section)
    settings = Settings(
        batch_size=section.integer("batch_size", default.batch_size, 1, 1 << 20),
        num_threads=num_threads,
        device=_device(section),
        seed=section.integer("seed", default.seed, 0, (1 << 63) - 1),
        prefetch_cpu=2 if ahead is None else ahead,
        prefetch_gpu=behind,
        prefetch_asked=ahead is not None,
        **{name: _setting(section, p) for name, p in parameters(RunSettings).items()},
    )
    section.finish()
    return settings


def _setting(section: _Section, p: Parameter) -> Any:
    if p.type is Memory:
        return _memory(section.section(p.name))
    if get_origin(p.type) is Literal:
        return section.choice(p.name, get_args(p.type), p.default)
    return section.number(p)


def _device(section: _Section) -> str:
    value = section.take("device")
    if value is None:
        return "auto"
    if value.data is None:
        return "null"
    if isinstance(value.data, str) and _DEVICE.fullmatch(value.data):
        return value.data
    hint = slips.value(value.data, "device")
    section.say(value.mark, f"device must be auto, cpu, gpu, gpu:N, gpu:N,N, gpu:all or null, got {value.kind}{hint}")
    return "auto"


def _memory(section: _Section | None) -> Memory:
    if section is None:
        return Memory()
    limits: dict[str, Limit] = {}
    for key in ("host", "gpu"):
        value = section.take(key)
        try:
            limits[key] = parse_limit(None if value is None else value.data)
        except ValueError as e:
            assert value is not None
            section.say(value.mark, f"{key} {str(e).rpartition(', got ')[0]}, got {value.kind}")
    section.finish()
    return Memory(**limits)


def _prefetch(section: _Section) -> tuple[int | None, int]:
    """Return (number of batches to prefetch on the CPU, or None if the spec does not set it, and on the GPU)."""
    depths = _entry(section, "prefetch_queue_depth")
    if not isinstance(depths, dict):
        depth = section.integer("prefetch_queue_depth", 2, 1, 1024)
        return None if depths is None else depth, depth
    inner = section.section("prefetch_queue_depth")
    if inner is None:
        return None, 2
    is_set = _entry(inner, "cpu_size") is not None
    ahead, behind = inner.integer("cpu_size", 2, 1, 1024), inner.integer("gpu_size", 2, 1, 1024)
    inner.finish()
    return ahead if is_set else None, behind


def _entry(section: _Section, key: str) -> Any:
    """Return the value of ``key``, but leave it in the section; None if there is none."""
    entries = section.value.data
    value = entries.get(key) if isinstance(entries, dict) else None
    return None if value is None else value.data


def _vars(value: Value | None) -> Mapping[str, Any]:
    variables = value.to_python() if value is not None else None
    return variables if isinstance(variables, dict) else {}


def _plugins(value: Value | None, file: str, problems: Problems) -> tuple[Ref, ...]:
    if value is None or value.data is None:
        return ()
    if not isinstance(value.data, tuple):
        problems.add(value.mark, f"plugins must be a list of Python files, got {value.kind}")
        return ()
    plugins = []
    for item in value.data:
        if isinstance(item.data, str) and item.data.endswith(".py"):
            # relative to the spec, so that both can be moved together
            plugins.append(Ref(os.path.join(os.path.dirname(file), item.data), item.mark))
        elif not item.broken:
            problems.add(item.mark, f"a plugin is a Python file (my_ops.py), got {item.kind}")
    return tuple(plugins)


def _on_error(section: _Section | None) -> OnError:
    if section is None:
        return OnError()
    policy = cast(Policy, section.choice("policy", get_args(Policy), "skip"))
    value = section.take("max_errors")
    count: int | None = None
    rate: float | None = None
    if value is not None and value.data is not None:
        percent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", value.data) if isinstance(value.data, str) else None
        if percent and float(percent[1]) <= 100:
            rate = float(percent[1]) / 100
        elif isinstance(value.data, int) and not isinstance(value.data, bool) and value.data >= 0:
            count = value.data
        else:
            section.say(value.mark, f"max_errors must be a count (10) or a share (0.1%), got {value.kind}")
    section.finish()
    return OnError(policy, count, rate)


# -- the graph --------------------------------------------------------------------------------------------------------


def _graph(top: _Section, problems: Problems) -> tuple[Step | Condition, ...]:
    other = [k for k in top.entries if not top.has("graph") and slips.key("", k) == "; it is called graph:"]
    if other:
        given = top.entries.pop(other[0])
        hint = slips.not_a_list("graph") if isinstance(given.data, dict) else ""
        top.say(top.value.key_marks[other[0]], f"the list of steps is called `graph:`, not `{other[0]}:`{hint}")
        return ()
    value = top.need("graph", "`graph:`, the list of steps")
    if value is None:
        return ()
    if not isinstance(value.data, tuple) or not value.data:
        hint = slips.not_a_list("graph") if isinstance(value.data, dict) else ""
        kind = "none" if value.data == () else value.kind
        problems.add(value.mark, f"graph must be a list of steps, got {kind}{hint}")
        return ()
    return _steps(value.data, "", problems)


def _steps(values: tuple[Value, ...], prefix: str, problems: Problems) -> tuple[Step | Condition, ...]:
    steps = [_step(v, f"{prefix}step {i}", problems) for i, v in enumerate(values, 1) if not v.broken]
    return tuple(s for s in steps if s is not None)


def _step_name(section: _Section) -> str | None:
    """Return a step's ``name``; None if it has none, or a wrong one, which is reported."""
    name = section.take("name")
    if name is not None and not (isinstance(name.data, str) and name.data):
        section.say(name.mark, f"name must be text, got {name.kind}")
        return None
    return None if name is None else str(name.data)


def _step_seed(section: _Section) -> int | None:
    """Return a step's ``seed``; None if it has none, or a wrong one, which is reported, or takes the pipeline's."""
    seed = section.take("seed")
    if seed is None:
        return None
    if not isinstance(seed.data, int) or isinstance(seed.data, bool) or seed.data < -1:
        section.say(
            seed.mark, f"seed must be an integer of at least 0, or -1 for one from the pipeline's, got {seed.kind}"
        )
        return None
    return seed.data if seed.data >= 0 else None


def _step(value: Value, label: str, problems: Problems) -> Step | Condition | None:
    if not isinstance(value.data, dict):
        hint = slips.not_a_step(value.data, ())
        problems.add(value.mark, f"{label}: a step is a mapping with `op:` or `if:`, got {value.kind}{hint}")
        return None
    if "if" in value.data and "op" not in value.data:
        return _condition(value, label, problems)
    op = value.data.get("op")
    if op is not None and isinstance(op.data, str):
        label = f"{label} ({op.data[:60]})"
    elif op is None and (hint := slips.not_a_step(None, value.data)):
        problems.add(value.mark, f"{label}: needs `op:`, the operator's name{hint}")
        return None
    section = _Section(value, label, problems)
    before = len(problems.found)
    glued = [key for key in value.data if slips.colon(key)]
    for key in glued:
        section.take(key)
        section.say(value.key_marks[key], f"there is no key {show(key)}{slips.colon(key)}")
    name = section.need("op", "`op:`, the operator's name")
    if name is not None and not isinstance(name.data, str):
        section.say(name.mark, f"op must be an operator's name, got {name.kind}")
    given_name, seed = _step_name(section), _step_seed(section)
    device = section.choice("device", get_args(DeviceRequest), "auto")
    inputs, outputs = _names(section, "in"), _names(section, "out")
    for i, ref in enumerate(outputs):
        if ref.name != "_" and ref.name in (r.name for r in outputs[:i]):
            section.say(ref.mark, f"`out` names {ref.name!r} twice; every output needs a name of its own (or _)")
    if not section.has("out") and not glued and not (name is not None and name.data == "keep_if"):
        section.say(value.mark, "needs `out:`, the names of its outputs (_ for those you do not want)")
    return Step(
        label=label,
        mark=value.mark,
        op=name.data if name is not None and isinstance(name.data, str) else "",
        op_mark=name.mark if name is not None else value.mark,
        inputs=inputs,
        outputs=outputs,
        args=section.entries,
        arg_marks=value.key_marks,
        name=given_name,
        device=cast(DeviceRequest, device),
        seed=seed,
        broken=len(problems.found) > before or not value.sound,
    )


def _names(section: _Section, key: str) -> tuple[Ref, ...]:
    """Return the batch names under ``key``, which is ``in`` or ``out``: one name or a list."""
    value = section.take(key)
    if value is None:
        return ()
    items = value.data if isinstance(value.data, tuple) else (value,)
    refs = [_ref(section, key, item) for item in items if not item.broken]
    return tuple(r for r in refs if r is not None)


def _ref(section: _Section, key: str, item: Value) -> Ref | None:
    name = item.data
    if isinstance(name, str) and name.startswith("$") and _IDENTIFIER.fullmatch(name[1:]):
        section.say(item.mark, f"`{key}` takes names without $: write {name[1:]}")
        return None
    if isinstance(name, str) and keyword.iskeyword(name):
        section.say(item.mark, f"{name!r} is a Python keyword and cannot name a batch")
        return None
    if isinstance(name, str) and _IDENTIFIER.fullmatch(name):
        return Ref(name, item.mark)
    section.say(item.mark, f"`{key}` must be a name (letters, digits, _) or a list of names, got {item.kind}")
    return None


def _condition(value: Value, label: str, problems: Problems) -> Condition:
    section = _Section(value, f"{label} (if)", problems)
    before = len(problems.found)
    predicate = section.take("if")
    ref = Ref("", value.mark)
    if predicate is not None:
        if isinstance(predicate.data, str) and predicate.data:
            ref = Ref(predicate.data, predicate.mark)
        else:
            section.say(predicate.mark, f"`if` must be $name or an expression, got {predicate.kind}")
    branches: list[tuple[Step | Condition, ...]] = []
    for key in ("then", "else"):
        steps = section.take(key) if key == "else" else section.need("then", "`then:`, a list of steps")
        if steps is None or steps.data is None:
            branches.append(())
        elif isinstance(steps.data, tuple):
            branches.append(_steps(steps.data, f"{label}, {key} ", problems))
        else:
            section.say(steps.mark, f"`{key}` must be a list of steps, got {steps.kind}")
            branches.append(())
    section.finish()
    broken = len(problems.found) > before or not value.sound
    return Condition(f"{label} (if)", value.mark, ref, branches[0], branches[1], broken)


def _outputs(top: _Section, problems: Problems) -> tuple[tuple[str, Ref], ...]:
    value = top.need("outputs", "`outputs:`, what leaves the graph")
    if value is None:
        return ()
    section = _Section(value, "outputs", problems)
    named: list[tuple[str, Value, Mark]] = []
    if isinstance(value.data, dict):
        named = [(k, v, value.key_marks[k]) for k, v in value.data.items()]
    elif isinstance(value.data, tuple):
        named = [(v.data, v, v.mark) if isinstance(v.data, str) else ("", v, v.mark) for v in value.data]
    if not named:
        section.say(value.mark, f"must be a mapping (name: batch) or a list of batches, got {value.kind}")
    outputs: dict[str, Ref] = {}
    for name, item, mark in named:
        if isinstance(value.data, dict) and not is_field_name(name):
            section.say(
                mark, f"{show(name)} is not a valid name for an output: use letters, digits, '_', '.', '-' and '/'"
            )
        ref = None if item.broken else _ref(section, "outputs", item)
        if ref is None:
            continue
        if name in outputs:
            section.say(mark, f"{name!r} is listed twice")
        outputs[name] = ref
    return tuple(outputs.items())


# -- writing ----------------------------------------------------------------------------------------------------------


def _write(section: _Section | None) -> Write | None:
    if section is None:
        return None
    misnamed = [k for k in section.entries if not section.has("writer") and slips.key("write", k).endswith(" writer:")]
    writer = section.need("writer", f"`writer:`, the format{f' (not `{misnamed[0]}:`)' if misnamed else ''}")
    for key in misnamed:
        del section.entries[key]
    if writer is not None and not isinstance(writer.data, str):
        section.say(writer.mark, f"writer must be the name of a format, got {writer.kind}")
        writer = None
    if not section.has("path"):
        section.say(section.value.mark, "needs `path:`, where the shards go")
    path = section.text("path", "")
    samples: int | None = None
    size: int | None = None
    full = False
    shard = section.section("shard")
    if shard is not None:
        samples = shard.integer("samples", 0, 1) or None
        size = shard.size("bytes")
        flag = shard.take("full")
        full = flag is not None and flag.data is True
        if flag is not None and not isinstance(flag.data, bool):
            shard.say(flag.mark, f"full must be true or false, got {flag.kind}")
        elif flag is not None and full and samples is None:
            shard.say(flag.mark, "full needs samples, the number of samples per shard")
        shard.finish()
    fields = section.section("fields")
    return Write(
        mark=section.value.mark,
        writer=str(writer.data) if writer is not None else "",
        writer_mark=writer.mark if writer is not None else section.value.mark,
        path=path,
        shard_samples=samples,
        shard_bytes=size,
        shard_full=full,
        sha256=section.choice("checksums", CHECKSUMS, "tree") == "sha256",
        fields=None if fields is None else _fields(fields),
        options=section.entries,
        option_marks=section.value.key_marks,
    )


def _fields(section: _Section) -> tuple[WriteField, ...]:
    fields = []
    for name in list(section.entries):
        mark = section.value.key_marks[name]
        field = section.section(name)
        if field is None:
            continue
        encode = field.choice("encode", ENCODINGS, "auto")
        quality = field.integer("quality", -1, 1, 100)
        extension = field.match("extension", re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}"), "letters and digits", "")
        if quality >= 0 and encode not in ("jpeg", "webp", "avif"):
            field.say(
                field.value.key_marks["quality"], f"quality has no effect for encode: {encode}; use jpeg, webp or avif"
            )
        if encode not in ("jpeg", "png", "webp", "avif", "flac", "wav"):
            field.finish()
        config = FieldConfig(encode, quality if quality >= 0 else None, extension)
        fields.append(WriteField(name, mark, config, field.entries, field.value.key_marks))
    return tuple(fields)
