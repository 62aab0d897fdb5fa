"""Cases for `make parity` from the registry: what an operator declares, and its example, say what to try.

For every operator that DALI has, too: the example as it stands, then one thing changed at a time: the type of the
data, its layout, each argument (all values of flags, enumerations and choices such as borders and filters; some of
numbers), each argument as an input. A new operator is covered without being listed. DALI runs the same, in processes
of its own, because some cases crash it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dali_run.ops.base import (
    Operator,
    Parameter,
    Spec,
    coerce,
    operators,
    outputs_of,
    parameter,
    parameters,
    strip_optional,
)
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import DaliRunError
from dali_run.ops.types import DALIDataType, DALIImageType, from_numpy
from dali_run.pipelines.plugins import load_operators
from tests.kit.ops.comparing import difference

RUNNER = Path(__file__).parent / "golden" / "run_cases.py"
BATCH = 3
TYPES = ("uint8", "int16", "uint16", "int32", "float32")
EXTENTS = {"H": (9, 14, 6), "W": (12, 7, 10), "C": (3, 3, 3), "F": (5, 6, 5), "D": (4, 5, 3)}
"""Of the samples, by axis."""
LARGE = {"H": (240, 256, 260), "W": (270, 250, 240), "C": (3, 3, 3), "F": (5, 6, 5), "D": (4, 5, 3)}
"""For operators whose examples cut more than that out."""
LAYOUTS = ("HWC", "CHW", "FHWC", "DHWC")
FLOAT_BOUND = 1e-5
"""Of floats, in parts of the larger of 1 and the value, where an operator states none: sums in another order."""
_RESERVED = {"op", "in", "out", "name", "device", "seed"}
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")

_MIRROR = "mirror 1 is left to right in every layout, in DALI top to bottom but in HWC"
_GAUSSIAN = "INTERP_GAUSSIAN: up to 5 levels in single rows and columns"
_NARROW = "sums are in 64 bits, and saturate; DALI adds up in the output's type"
_SALT = "values are rounded and saturate; DALI cuts fractions off and wraps around"
_SIZE = "sizes are rounded, as constants are by both; as inputs DALI cuts fractions off"
DIFFERENT: dict[str, str] = {
    "resize_crop_mirror.layout": _MIRROR,
    "fast_resize_crop_mirror.layout": _MIRROR,
    "fast_resize_crop_mirror.interp_type": _GAUSSIAN,
    "fast_resize_crop_mirror.mag_filter": _GAUSSIAN,
    "resize_crop_mirror.interp_type": _GAUSSIAN,
    "resize_crop_mirror.mag_filter": _GAUSSIAN,
    "reductions.sum.dtype": _NARROW,
    "reductions.mean.dtype": _NARROW,
    "reductions.rms.dtype": _NARROW,
    "noise.salt_and_pepper.salt_val": _SALT,
    "noise.salt_and_pepper.pepper_val": _SALT,
    "noise.gaussian.type": "integers of 32 and 64 bits draw in single precision, as all other types do",
    "normalize.stddev": "sums in another order: up to 1.5e-5",
    "rotate.size": _SIZE,
    "warp_affine.size": _SIZE,
    "random.beta": "other numbers of the same distribution",
    "random.uniform.dtype": "a range that the type does not hold is cut, not wrapped",
    "pad": "fill values saturate",
    "hue.image_type": "BGR is taken as such",
    "saturation.image_type": "BGR is taken as such",
    "color_twist.image_type": "BGR is taken as such",
    "grid_mask.layout": "the axes H and W of the layout are masked, not the first two",
    "audio_resample.dtype": "integers saturate",
}
"""Where results differ on purpose, by operator or ``operator.argument``: why. docs/dali-differences.md says it to
users."""


@dataclass(slots=True)
class Case:
    """One call."""

    number: int
    op: str
    arguments: dict[str, Any]
    """As YAML has them."""
    inputs: list[list[np.ndarray]]
    layouts: list[str]
    per_sample: dict[str, list[np.ndarray]] = field(default_factory=dict)
    changed: str = ""
    """A change to an operator's example, to be tried here and in DALI."""

    def __str__(self) -> str:
        return f"{self.changed or 'example'} {self.arguments}"


# -- making them ------------------------------------------------------------------------------------------------------

_LEFT_OUT = {"readers", "io", "decoders", "encoders", "inputs", "auto_aug"}
_NOT_ARRAYS = {
    "external_source", "python_function", "expr", "keep_if", "peek_image_shape", "encoded_as", "get_property",
    "tensor_subscript", "number_from_text", "json_value", "optical_flow", "dl_tensor_python_function", "text_length",
    "permute_batch", "segmentation.select_masks", "split_samples", "video_cuts", "cut_video",
    "jpeg_quality",
}  # fmt: skip
"""They take files, functions, texts, or numbers that depend on each other: other tests compare them."""


def wanted() -> dict[str, type[Operator]]:
    """The operators that compute on the CPU, from arrays."""
    load_operators()
    return {
        name: op
        for name, op in operators().items()
        if "cpu" in op.stages
        and op.__module__.startswith("dali_run.")  # other tests declare operators, too
        and not name.startswith("_")
        and _LEFT_OUT.isdisjoint(name.split("."))
        and name not in _NOT_ARRAYS
    }


@dataclass(frozen=True, slots=True)
class Kind:
    """Data that an operator may take."""

    layout: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    low: float = 0
    high: float = 256

    @functools.cache  # noqa: B019  # a handful of kinds, each for many cases
    def samples(self, seed: int, dtype: str | None = None) -> tuple[np.ndarray, ...]:
        """One array a sample."""
        random = np.random.default_rng(seed)
        dtype = dtype or self.dtype
        if np.dtype(dtype).kind == "f":
            return tuple((random.random(s) * (self.high - self.low) + self.low).astype(dtype) for s in self.shapes)
        low, high = max(self.low, np.iinfo(dtype).min), min(self.high, np.iinfo(dtype).max)
        return tuple(random.integers(int(low), max(int(high), 2), s).astype(dtype) for s in self.shapes)


def picture(layout: str, large: bool = False) -> Kind:
    """Images, sequences or volumes of ``layout``."""
    of = LARGE if large and layout in ("HWC", "CHW") else EXTENTS
    return Kind(layout, "uint8", tuple(tuple(of[a][i] for a in layout) for i in range(BATCH)))


KINDS = (
    picture("HWC"), picture("HWC", large=True), picture("FHWC"), picture("HW"),
    Kind("HWC", "uint8", ((9, 12, 1), (14, 7, 1), (6, 10, 1))),
    Kind("", "float32", ((2, 4), (4, 4), (1, 4)), 0.0, 0.9),
    Kind("ft", "float32", ((33, 11), (33, 8), (33, 15)), 0.0, 1.0),
    Kind("", "float32", ((900,), (1300,), (700,)), -1.0, 1.0),
    Kind("", "float32", ((5, 2), (3, 2), (8, 2)), 0.0, 1.0),
    Kind("", "float32", ((2, 3), (2, 3), (2, 3)), -1.0, 1.0),
    Kind("", "float32", ((), (), ()), 0.0, 5.0),
    Kind("F", "float32", ((4,), (5,), (4,)), 0.0, 5.0),
    Kind("", "int32", ((2,), (2,), (2,)), 60, 200),
)  # fmt: skip
"""Candidates for the inputs of an example, tried one after the other until the operator takes one."""
_LIKELY = {"audio": KINDS[7], "spectrogram": KINDS[6], "boxes": KINDS[5], "points": KINDS[8]}
"""The first candidate, by the name of an example's first input."""
_SECOND = {
    "boxes": lambda k: Kind("", "float32", tuple((*s[:1], 4) for s in k.shapes), 0.0, 0.9),
    "mapx": lambda k: Kind("", "float32", tuple(s[:2] for s in k.shapes), 0.0, 9.0),
    "mapy": lambda k: Kind("", "float32", tuple(s[:2] for s in k.shapes), 0.0, 6.0),
    "labels": lambda k: Kind("", "int32", tuple(s[:1] for s in k.shapes), 1, 9),
    "kernel": lambda k: Kind("", "float32", ((3, 3),) * BATCH, 0.0, 1.0),
    "means": lambda k: Kind(k.layout, "float32", tuple((1, 1, *s[2:]) for s in k.shapes), 100, 130),
    "masks": lambda k: Kind("", "uint8", tuple(s[:2] for s in k.shapes), 0, 3),
}
"""Inputs whose shape is that of the first one's, by their names in examples; others are as the first."""


def cases_of(op: type[Operator], known: list[str]) -> list[Case]:
    """The cases of ``op``; ``known`` are the arguments that DALI has. None where it takes no kind of data."""
    if not op.example:
        return []
    step = yaml.safe_load(op.example)
    named = step.get("in", [])
    names = [named] if isinstance(named, str) else list(named)
    given = {k: v for k, v in step.items() if k not in _RESERVED and k in known}
    constants = {k: v for k, v in given.items() if not (isinstance(v, str) and v.startswith("$"))}
    linked = {}
    for name in given.keys() - constants.keys():
        arrays = as_input(parameter(op, name), None, op.name)
        if arrays is None:
            return []
        linked[name] = arrays

    def case(changed: str, kind: Kind, how: Any = None, linking: Any = None, dtype: str | None = None) -> Case:
        kinds = [_SECOND.get(n, lambda k: k)(kind) if k else kind for k, n in enumerate(names)]
        inputs = [list(k.samples(i, None if i else dtype)) for i, k in enumerate(kinds)]
        for k in (k for k, n in enumerate(names) if n == "boxes" and kinds[k].shapes[0][1:] == (4,)):
            inputs[k] = [np.hstack([b[:, :2], b[:, :2] + b[:, 2:] * b.dtype.type(0.1)]) for b in inputs[k]]
        per_sample = {**linked, **(linking or {})}
        arguments = {k: v for k, v in {**constants, **(how or {})}.items() if k not in per_sample}
        return Case(0, op.name, arguments, inputs, [k.layout for k in kinds], per_sample, changed)

    likely = [k for n, k in _LIKELY.items() if names and n == names[0]]
    taken = next((k for k in [*likely, *KINDS] if not isinstance(ours(case("", k)), str)), None)
    if taken is None:
        return []
    found = [case("", taken)]
    if names:
        found += [case(f"type {dtype}", taken, dtype=dtype) for dtype in TYPES if dtype != taken.dtype]
    if names and "C" in taken.layout:
        large = taken == KINDS[1]
        found += [
            case(f"layout {lay}", picture(lay, large), small(constants) if "D" in lay else None)
            for lay in op.layouts or LAYOUTS
            if lay != taken.layout
        ]
    for p in parameters(op).values():
        if p.name not in known or p.arg.ignored or p.arg.deprecated or p.name == "parity":
            continue
        base = constants.get(p.name, None if p.required else p.default)
        if p.name not in linked:
            found += [case(p.name, taken, {p.name: value}) for value in values_of(p, base)]
        if p.arg.per_sample and (arrays := as_input(p, base, op.name)) is not None:
            found.append(case(f"{p.name} as an input", taken, linking={p.name: arrays}))
    return [dataclasses.replace(c, number=k) for k, c in enumerate(found)]


def small(arguments: dict[str, Any]) -> dict[str, Any]:
    """Sizes of images, as examples have them, as sizes of volumes: 256 x 256 x 256 took DALI and us 10 GB."""
    return {
        k: [small({k: e})[k] for e in v] if isinstance(v, list) else v // 16 if isinstance(v, int) and v > 64 else v
        for k, v in arguments.items()
    }


_AFFINE = (0.9, 0.1, 0.2, -0.1, 1.1, 0.3)
_INPUTS: dict[str, tuple[float, ...]] = {
    "M": _AFFINE[:4], "T": _AFFINE[:2], "MT": _AFFINE, "matrix": _AFFINE, "out_anchors": (0, 0, 20, 30),
    "experimental.warp_perspective.matrix": (1.0, 0.1, 0.0, 0.0, 1.0, 0.5, 0.001, 0.0, 1.0),
    "roi_start": (5, 6), "roi_end": (40, 30), "in_shape": (100, 120),
    "from_start": (10, 20), "from_end": (200, 230),
}  # fmt: skip
"""Values of arguments whose examples take an input, where their type says too little."""


def values_of(p: Parameter, base: Any) -> list[Any]:
    """Values to try for an argument, as YAML has it: all of few values, some of many."""
    tp = strip_optional(p.type)
    if typing.get_origin(tp) is typing.Literal:
        return [v for v in typing.get_args(tp) if v != base]
    if tp is bool:
        return [not base]
    if tp is DALIDataType:
        return ["UINT8", "INT16", "FLOAT"]
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        if tp is DALIImageType:
            return ["RGB", "BGR", "GRAY", "YCbCr"]
        return [m.name for m in tp]
    if tp is int:
        tried: list[Any] = [0, 1, 2, 3, *([base + 1] if isinstance(base, int) else [])]
    elif tp is float:
        known = isinstance(base, (int, float))
        tried = (
            [base * 0.7, base * 1.2] if known and abs(base) > 4 else [0.0, 0.5, 1.0, 2.0, base * 0.7 if known else 0.1]
        )
    elif typing.get_origin(tp) is tuple and isinstance(base, (tuple, list)) and base:
        if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in base):
            return []
        whole = all(isinstance(v, int) for v in base)
        tried = [[v + 1 if whole else v * 0.7 for v in base], list(base)[::-1]]
    else:
        return []
    return [v for v in tried if v != base and allowed(p, v)]


def allowed(p: Parameter, value: Any) -> bool:
    try:
        coerce(p, value)
    except ValueError:
        return False
    return True


def as_input(p: Parameter, base: Any, op: str = "") -> list[np.ndarray] | None:
    """An argument that differs by sample, near ``base``; None where its type says too little."""
    tp = strip_optional(p.type)
    if base is None and tp in (int, float):
        base = next((v for v in (0.5, 1, 1.5, 3) if allowed(p, v)), None)
    if tp in (int, bool):
        start = int(base) if isinstance(base, (int, float)) else 1
        made = [np.array(start + i % 2 if tp is int else i % 2, np.int32) for i in range(BATCH)]
    elif tp is float:
        start = float(base) if isinstance(base, (int, float)) else 0.5
        made = [
            np.array(start * (1 + (0.1 if start <= 0.8 else -0.1 if p.arg.ge is None else 0.2) * i), np.float32)
            for i in range(BATCH)
        ]
    elif typing.get_origin(tp) is tuple and typing.get_args(tp)[0] in (int, float):
        if isinstance(base, (int, float)):
            base = (base,)
        if not base:
            base = _INPUTS.get(f"{op}.{p.name}") or _INPUTS.get(p.name)
        if not base:
            base = (9, 7) if typing.get_args(tp)[0] is int else (0.3, 0.5)
        whole = typing.get_args(tp)[0] is int
        made = [
            np.array([v + i % 2 if whole else v * (1 - 0.1 * i) for v in base], np.int32 if whole else np.float32)
            for i in range(BATCH)
        ]
    else:
        return None
    return made if all(allowed(p, m.tolist()) for m in made) else None


# -- running them -----------------------------------------------------------------------------------------------------


def ours(case: Case) -> list[list[np.ndarray]] | str:
    """Our operator's results for a case, or why it refuses it."""
    cls = operators()[case.op]
    samples = Samples.numbered(BATCH)
    try:
        constants = {k: coerce(parameter(cls, k), v) for k, v in case.arguments.items()}
        if "parity" in parameters(cls):
            constants["parity"] = "dali"
        op = cls(per_sample=frozenset(case.per_sample), num_inputs=len(case.inputs), **constants)
        op.check()
        inputs = [Batch.from_list(x, lay, samples) for x, lay in zip(case.inputs, case.layouts, strict=True)]
        args = {k: Batch.from_list(v, "", samples) for k, v in case.per_sample.items()}
        op.infer(*(Spec((None,) * b.ndim, from_numpy(b.dtype), b.layout) for b in inputs))
        if "cpu" not in op.runs_in():
            return "has no CPU kernel for this"
        ctx = Context(op, "cpu", samples, args=args, seed=7, rng="dali")
        got = outputs_of(op.kernel("cpu")(ctx, *inputs))
    except (DaliRunError, ValueError, TypeError) as e:
        return f"{type(e).__name__}: {e}"
    if ctx.rejects:
        return ctx.rejects[0].message
    return [[np.asarray(x) for x in out] for out in got]


def dalis(python: Path, name: str, cases: list[Case], folder: Path) -> Iterator[list[list[np.ndarray]] | str]:
    """DALI's results for the cases of one operator, one after the other."""
    arrays: dict[str, Any] = {}
    told = []
    for case in cases:
        for a in [a for given in [*case.inputs, *case.per_sample.values()] for a in given]:
            arrays[str(id(a))] = a  # the same data serves many cases
        told.append({
            "number": case.number, "op": case.op, "arguments": case.arguments, "layouts": case.layouts, "batch": BATCH,
            "inputs": [[str(id(a)) for a in given] for given in case.inputs],
            "per_sample": {key: [str(id(a)) for a in given] for key, given in case.per_sample.items()},
        })  # fmt: skip
    out = folder / name
    out.mkdir()
    np.savez(out / "cases.npz", cases=json.dumps(told), **arrays)
    crashed: set[int] = set()
    first = 0
    while first < len(cases):
        subprocess.run([python, RUNNER, out / "cases.npz", out, str(first)], capture_output=True, check=False)
        done = [c.number for c in cases if (out / f"{c.number}.npz").exists() or (out / f"{c.number}.txt").exists()]
        after = max([*done, *crashed], default=-1) + 1
        if after < len(cases):
            crashed.add(after)
        first = after + 1
    for case in cases:
        if case.number in crashed:
            yield "DALI crashed"
        elif (out / f"{case.number}.txt").exists():
            yield (out / f"{case.number}.txt").read_text()
        else:
            stored = np.load(out / f"{case.number}.npz")
            outputs = 1 + max(int(key.split("/")[0]) for key in stored.files)
            yield [[stored[f"{k}/{i}"] for i in range(BATCH)] for k in range(outputs)]
            (out / f"{case.number}.npz").unlink()


def arguments_of_dali(python: Path) -> dict[str, list[str]]:
    """The arguments of every operator of the installed DALI."""
    done = subprocess.run([python, RUNNER], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def bound_of(op: type[Operator]) -> float:
    """The bound that an operator states of its own CPU and GPU, for DALI's CPU: a number of levels, or of parts."""
    number = _NUMBER.search(op.bound)
    return float(number.group()) if number else 0.0


@dataclass(slots=True)
class Tally:
    """The outcomes of the cases of one operator."""

    name: str
    same: int = 0
    refused: int = 0
    """By both."""
    wider: int = 0
    """DALI refuses, or crashes, we do not."""
    narrower: list[str] = field(default_factory=list)
    """We refuse, DALI does not."""
    different: dict[str, int] = field(default_factory=dict)
    """On purpose: why, and how many."""
    problems: list[str] = field(default_factory=list)
    largest: float = 0.0
    bound: float = 0.0

    @property
    def cases(self) -> int:
        explained = sum(self.different.values())
        return self.same + self.refused + self.wider + len(self.narrower) + explained + len(self.problems)

    def add(self, case: Case, got: list[list[np.ndarray]] | str, want: list[list[np.ndarray]] | str) -> None:
        """Count a case."""
        why = why_different(case)
        if isinstance(want, str):
            self.refused += isinstance(got, str)
            self.wider += not isinstance(got, str)
        elif isinstance(got, str):
            self.narrower.append(f"{case}: {got}")
        elif problem := self._apart(got, want):
            if why:
                self.different[why] = self.different.get(why, 0) + 1
            else:
                self.problems.append(f"{case}: {problem}")
        else:
            self.same += 1

    def _apart(self, got: list[list[np.ndarray]], want: list[list[np.ndarray]]) -> str:
        if len(got) != len(want):
            return f"{len(got)} outputs, DALI has {len(want)}"
        largest = 0.0
        for ours_, theirs in zip(got, want, strict=True):
            for a, b in zip(ours_, theirs, strict=True):
                if a.shape != b.shape or a.dtype != b.dtype:
                    return f"{a.dtype}{list(a.shape)}, DALI {b.dtype}{list(b.shape)}"
                off = float(difference(a, b).max(initial=0))
                if off > (max(self.bound, FLOAT_BOUND) if a.dtype.kind == "f" else self.bound):
                    return f"differs by {off:g}"
                largest = max(largest, off)
        self.largest = max(self.largest, largest)
        return ""


def tallies(python: Path, folder: Path) -> Iterator[Tally]:
    """All operators that DALI has, too."""
    known = arguments_of_dali(python)
    for name, op in wanted().items():
        if name in known:
            cases = cases_of(op, known[name])
            tally = Tally(name, bound=bound_of(op))
            for case, theirs in zip(cases, dalis(python, name, cases, folder), strict=True):
                tally.add(case, ours(case), theirs)
            yield tally


def section(found: list[Tally]) -> str:
    """The part of docs/parity.md."""
    lines = [
        SECTION,
        "",
        f"{sum(t.cases for t in found):,} cases of {len(found)} operators: the example of its declaration, then one",
        'thing changed at a time: type, layout, each argument, each argument as an input. "DALI refuses" counts what',
        'works here alone, "refused here" what works in DALI alone. Floats within 1e-5 count as the same.',
        "",
        "| operator | cases | the same | refused by both | DALI refuses | refused here | on purpose | other |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for t in found:
        why = "; ".join(f"{n}: {text}" for text, n in t.different.items())
        counts = (t.cases, t.same, t.refused, t.wider, len(t.narrower))
        lines.append(f"| {t.name} | {' | '.join(str(n or '') for n in counts)} | {why} | {len(t.problems) or ''} |")
    return "\n".join(lines) + "\n"


SECTION = "## From the registry"


def why_different(case: Case) -> str:
    """The entry of `DIFFERENT` that a case falls under."""
    changed = case.changed.split(" ")[0] or "example"
    return DIFFERENT.get(f"{case.op}.{changed}") or DIFFERENT.get(case.op, "")


def main() -> int:
    """Replace the section of docs/parity.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="a Python with DALI 2.4")
    parser.add_argument("--page", type=Path, default=Path(__file__).parents[1] / "docs" / "parity.md")
    arguments = parser.parse_args()
    python = os.path.abspath(arguments.python) if os.sep in arguments.python else arguments.python
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # some operators write files
        found = list(tallies(python, Path(folder)))
    text = section(found)
    before, _, rest = arguments.page.read_text().partition(SECTION + "\n")
    after = rest[at:] if (at := rest.find("\n## ")) >= 0 else ""
    arguments.page.write_text(f"{before.rstrip()}\n\n{text}{after}")
    print(text)
    for t in found:
        for problem in [*t.problems[:10], *(f"refused here: {n}" for n in t.narrower[:10])]:
            print(f"{t.name}: {problem}", file=sys.stderr)
    return int(any(t.problems for t in found))


if __name__ == "__main__":
    sys.exit(main())
