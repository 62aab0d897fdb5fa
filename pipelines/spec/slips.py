"""Common mistakes in specs, and what to write instead: hints that are appended to error messages.

Each hint starts with ``; ``, or is empty if there is nothing to suggest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import yaml

from ...ops.base import Operator, operators
from ..problems import Mark
from .other_libraries import LIBRARIES, bare, matches, split, table, with_values

# -- text that is no YAML ---------------------------------------------------------------------------------------------

_BARE = re.compile(r"[\s:,\[](\$\{[^{}]*\})")
"""Pattern of a variable ``${...}`` without quotes. Inside braces, YAML reads its opening brace as a nested mapping."""
_SECTION = re.compile(r"(\s+)(version|name|vars|plugins|pipeline|graph|outputs|write|on_error)\s*:(\s|$)")
_INDENT = ("did not find expected key", "did not find expected '-' indicator", "mapping values are not allowed")
_IN_BRACES = ("did not find expected ',' or '}'", "did not find expected ',' or ']'")


def syntax(e: yaml.YAMLError, name: str, text: str) -> tuple[Mark, str]:
    """Return the position at which ``text``, from the file ``name``, is not valid YAML, and a message with the correct
    form."""
    at = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
    if at is None:
        return Mark(name, 1, 1), f"is not valid YAML: {e}"
    reason = ", ".join(p for p in (getattr(e, "context", None), getattr(e, "problem", None)) if p)
    lines = text.split("\n")
    line = lines[at.line] if at.line < len(lines) else ""
    character = line[at.column : at.column + 1]
    if character == "\t" or " tab " in reason:
        reason += "; indent with spaces, not with tabs"
    elif character in ("@", "`", "%"):
        reason += f"; quote text that starts with {character}"
    elif variable := _BARE.search(line):
        reason += f'; quote variables between braces: "{variable[1]}"'
    elif "unknown escape character" in reason:
        reason += "; in double quotes a backslash starts an escape: write it twice, or use single quotes"
    elif any(p in reason for p in _IN_BRACES):
        reason += _unclosed(e, lines, at.line, at.column)
    elif "unexpected ':'" in reason:
        reason += "; put a space after the colon"
    elif any(p in reason for p in _INDENT):
        reason += _indent(line, at.column)
    return Mark(name, at.line + 1, at.column + 1), f"is not valid YAML: {reason}"


def _unclosed(e: yaml.YAMLError, lines: list[str], number: int, column: int) -> str:
    """Return a hint for a syntax error between braces: a comma, a colon or the closing brace is missing."""
    opened = getattr(e, "context_mark", None)
    if opened is not None and opened.line < number:
        brace = lines[opened.line][opened.column : opened.column + 1] or "{"
        return f"; the {brace} in line {opened.line + 1} is not closed"
    if opened is not None and lines[number][column : column + 1] in ("}", "]"):
        return f"; the {lines[opened.line][opened.column : opened.column + 1]} before it is not closed"
    before = lines[number][:column].rstrip() if number < len(lines) else ""
    if equals := re.search(r"([A-Za-z_]+)\s*=\s*$|([A-Za-z_]+)=\S*$", before):
        return f"; write {equals[1] or equals[2]}: with a colon and a space, not ="
    if no_space := re.search(r"[{,]\s*([A-Za-z_]+):[\[{]?$", before):
        return f"; put a space after the colon: {no_space[1]}: ..."
    if number + 1 >= len(lines) or not lines[number][column:].strip():
        return "; a closing brace is missing"
    return "; a comma is missing before this place, or a brace is not closed"


def _indent(line: str, column: int) -> str:
    section = _SECTION.match(line)
    if section:
        return f"; {section[2]}: is a section of the spec: begin it in the first column"
    if line[column : column + 1] == ":" and re.match(r"[\s-]*\w+:\s", line[:column]):
        return "; quote a text that contains a colon and a space"
    spaces = len(line) - len(line.lstrip())
    return (f"; this line is indented by {spaces} {'space' if spaces == 1 else 'spaces'}, which matches none of the "
            "lines "
            "above: keys of one mapping, and the - of one list, begin in the same column")  # fmt: skip


# -- keys -------------------------------------------------------------------------------------------------------------

_KEYS: dict[str, dict[str, tuple[str, ...]]] = {
    "": {
        "graph": ("steps", "ops", "operators", "nodes", "transforms", "stages", "tasks", "pipe"),
        "outputs": ("output", "out"),
        "vars": ("variables", "params", "parameters", "env", "arguments"),
        "write": ("writer", "sink", "save", "destination"),
        "on_error": ("errors", "error"),
        "plugins": ("plugin", "import", "imports"),
    },
    "pipeline": {
        "batch_size": ("batch", "bs", "batchsize"),
        "num_threads": ("workers", "num_workers", "threads", "jobs", "cpus"),
        "device": ("device_id", "gpu", "gpus"),
        "prefetch_queue_depth": ("prefetch", "prefetch_factor", "queue"),
        "seed": ("random_seed",),
    },
    "write": {
        "writer": ("format", "type", "to"),
        "path": ("out", "output", "dir", "directory", "folder", "root"),
        "shard": ("shards", "shard_size", "samples_per_shard"),
        "fields": ("columns", "features"),
    },
    "step": {
        "in": ("input", "inputs", "input_name", "src", "from"),
        "out": ("output", "outputs", "dst", "as", "to"),
        "op": ("operator", "type", "transform", "func", "function"),
    },
}  # fmt: skip


def key(section: str, word: str, missing: bool = True) -> str:
    """Return a hint for the unknown key ``word`` of ``section`` ("" for the top level, ``step``). If the similar key is
    already there (not ``missing``), it is not suggested."""
    low = word.lower().replace("-", "_")
    for meant, names in _KEYS.get(section, {}).items():
        if missing and (low in names or low == meant):
            return f"; it is called {meant}:"
    for other in ("pipeline", "write") if section == "" else ():
        if low in _KEYS[other] or any(low in names for names in _KEYS[other].values()):
            return f"; it belongs into `{other}:`"
    return ""


def colon(word: str) -> str:
    """Return a hint for the key ``word`` that contains a colon or = and a value, as in ``op:resize``; empty if it does
    not."""
    if glued := re.match(r"([A-Za-z_]+)\s*([:=])\s*(.*)", word, re.DOTALL):
        name, sign, remainder = glued.groups()
        return f"; write {name}: {remainder}" + (
            ", with a space after the colon" if sign == ":" else ", with a colon, not ="
        )
    return ""


def not_a_list(key: str) -> str:
    """Return a hint for a graph that is a mapping instead of a list; ``key`` is the key that holds it."""
    return f"; begin each step of `{key}:` with a dash: - {{op: ..., in: ..., out: ...}}"


def not_a_step(step: Any, keys: Collection[str]) -> str:
    """Return a hint for a step without the key ``op``. It may be a bare name, a mapping whose only key is the
    operator's name, or have a colon without a space after it, which YAML reads as part of the key."""
    if glued := next((key for key in keys if key.startswith("op:")), ""):
        return colon(glued)
    name = step if isinstance(step, str) else next(iter(keys)) if len(keys) == 1 else ""
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        return ""
    return f"; write {{op: {name}, in: ..., out: ...}}"


# -- values -----------------------------------------------------------------------------------------------------------

_WORDS = {"none": "null", "nil": "null", "undefined": "null"}
_VALUES = {
    "device": {"cuda": "gpu", "cuda:0": "gpu:0", "cuda:1": "gpu:1", "mixed": "gpu", "nvidia": "gpu", "host": "cpu"},
    "writer": {
        "tar": "webdataset", "wds": "webdataset", "webdatasets": "webdataset", "npy": "numpy", "npz": "numpy",
        "tfrecords": "tfrecord", "tf": "tfrecord", "mxnet": "recordio", "rec": "recordio", "arrow": "parquet",
        "huggingface": "parquet", "folder": "files", "imagefolder": "files", "jpg": "files", "jpeg": "files",
        "png": "files", "mdb": "lmdb",
    },
    "policy": {"ignore": "skip", "drop": "skip", "continue": "skip", "raise": "fail", "stop": "fail", "abort": "fail"},
    "encode": {"jpg": "jpeg", "none": "raw", "bytes": "keep", "copy": "keep", "npz": "npy", "numpy": "npy"},
}  # fmt: skip


def value(wrong: Any, of: str = "", takes: Callable[[Any], bool] = lambda _: True) -> str:
    """Return a hint for ``wrong``, an invalid value of the setting ``of``. ``takes`` returns whether the setting
    accepts a value."""
    if not isinstance(wrong, str):
        return ""
    low = wrong.strip().lower()
    if low in _VALUES.get(of, {}):
        return f"; write {_VALUES[of][low]}"
    if low in _WORDS:
        return f"; in YAML, write {_WORDS[low]}"
    if pair := re.fullmatch(r"\(?\s*(\d+)\s*[x×,]\s*(\d+)\s*\)?", low):
        return f"; a list is written [{pair[1]}, {pair[2]}]"
    if re.match(r"\(\s*[-\d.]", low):
        return "; a list is written in square brackets: [224, 224]"
    if re.fullmatch(r"[-+]?\d+(\.\d+)?", low) and takes(float(low) if "." in low else int(low)):
        return f"; leave out the quotes: {low}"
    return ""


def dollar(text: str, variables: Iterable[str] = ()) -> str:
    """Return a hint for ``text`` that starts with $, but does not name a batch; ``variables`` are the spec's
    variables."""
    name = re.match(r"\$([A-Za-z_]\w*)", text)
    if name and name[1] in variables:
        return f'; a variable is written "${{{name[1]}}}"'
    if name and name[1].isupper():
        return f'; an environment variable is written "${{env:{name[1]}}}"'
    return ""


# -- operators --------------------------------------------------------------------------------------------------------

_PYTHON = ("nvidia.dali.fn.", "dali_run.fn.", "fn.", "ops.")
_CALLED = {
    "decode": "decoders.image", "imdecode": "decoders.image", "imread": "decoders.image", "open": "decoders.image",
    "decodeimage": "decoders.image", "pil": "decoders.image", "read": "readers.file", "load": "readers.file",
    "imagefolder": "readers.file", "glob": "readers.file", "webdataset": "readers.webdataset", "astype": "cast",
    "cvtcolor": "color_space_conversion", "hflip": "flip", "vflip": "flip", "onehot": "one_hot", "tofloat": "cast",
    "spectrogram": "spectrogram", "melspectrogram": "mel_filter_bank", "lambda": "expr", "compose": "",
}  # fmt: skip


def operator(word: str, arguments: Mapping[str, Any] | None = None) -> str:
    """Return a hint for the unknown operator ``word``. For a transform of another library, it is the equivalent steps,
    with the values of ``arguments`` if they are constants. For a name from a Python program, it is the name without its
    prefix, such as ``fn.``."""
    registered = operators()
    for prefix in _PYTHON:
        if word.startswith(prefix) and (rest := word.removeprefix(prefix)) in registered:
            return f"; write {rest}"
    order = list(LIBRARIES)
    transforms = sorted(matches(word), key=lambda known: order.index(known.partition(".")[0]))
    named = _CALLED.get(bare(word.rpartition(".")[2]))
    if transforms and named != "" and (split(word)[0] or word.lower() != word):
        entry = table()[transforms[0]]
        if not entry["steps"]:
            return f"; {transforms[0]}: {entry['note']}"
        more = f" (more: dali-run ops --like {transforms[0]})" if "note" in entry else ""
        steps = with_values(transforms[0], entry["steps"], arguments or {})
        return f"; {transforms[0]} is written {' and '.join(steps)}{more}"
    if named == "":
        return "; steps are simply listed under `graph:`"
    return f"; did you mean {named}?" if named in registered else ""


def no_input(op: type[Operator], known: Sequence[str]) -> str:
    """Return a hint for a step without inputs; ``known`` are the batches that may be meant, the most likely first."""
    if not op.inputs[0]:
        return ""
    example, *others = known or ("images",)
    return f"; name its input: in: {example}" + (f" (or {', '.join(others)})" if others else "")
