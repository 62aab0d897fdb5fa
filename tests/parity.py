"""Compare with an installed NVIDIA DALI: `make parity DALI_PYTHON=/path/to/python`, a Python that has DALI 2.4.

Every tests/golden/make_*.py is run anew by that Python. Results of operators are compared with ours, number by number;
everything else must come out as it is committed, and the tests that read it must pass. Prints a table, writes it to
docs/parity.md, and ends with 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.kit.ops.comparing import difference

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
PAGE = ROOT / "docs" / "parity.md"

BOUNDS = {
    "crop_mirror_normalize": 1e-5, "normalize": 1e-5, "resize": 1.0, "resize_crop_mirror": 1.0,
    "fast_resize_crop_mirror": 1.0, "color_space_conversion": 1.0,
}  # fmt: skip
"""Largest differences allowed: levels of integers, parts of the larger of 1 and the value of floats; else 0."""


@dataclass(slots=True)
class Row:
    """The findings for one operator, or for one set of other results."""

    name: str
    cases: int = 0
    refused: int = 0
    """Cases that both refuse."""
    numbers: int = 0
    largest: float = 0.0
    total: float = 0.0
    bound: float = 0.0
    problems: list[str] = field(default_factory=list)
    good: str = ""
    """The verdict where there are no problems; by the largest difference if empty."""

    def compare(self, got: list[np.ndarray], want: list[np.ndarray], case: Any) -> None:
        """Add one case: the samples that came out, and DALI's."""
        self.cases += 1
        for a, b in zip(got, want, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                self.problems.append(f"{case}: {a.dtype}{list(a.shape)}, DALI {b.dtype}{list(b.shape)}")
                continue
            off = difference(a, b)
            self.numbers += off.size
            self.total += float(off.sum())
            largest = float(off.max(initial=0))
            self.largest = max(self.largest, largest)
            if largest > self.bound:
                self.problems.append(f"{case}: differs by {largest:g}")

    @property
    def verdict(self) -> str:
        return "differs" if self.problems else self.good or ("equal" if self.largest == 0 else "within the bound")


def leaves(value: Any) -> int:
    """How many numbers and texts a JSON value holds."""
    if isinstance(value, dict):
        return sum(map(leaves, value.values()))
    return sum(map(leaves, value)) if isinstance(value, list) else 1


def regenerate(python: Path, folder: Path) -> dict[str, str]:
    """Run every generator in ``folder``; what went wrong by the generator's name."""
    shutil.copytree(GOLDEN, folder, ignore=shutil.ignore_patterns("*.npz", "*.json", "__pycache__"))

    # Those of parity_presets.py, and those that have nothing of DALI's.
    others = ("make_torchvision", "make_library_presets", "make_outputs_v1", "make_transforms")
    scripts = sorted(p for p in folder.glob("make_*.py") if p.stem not in others)

    def run(script: Path) -> tuple[str, str]:
        full = ["--full"] if script.stem == "make_strided" else []
        done = subprocess.run([python, script, *full], cwd=folder, capture_output=True, text=True, check=False)
        return script.stem.removeprefix("make_"), done.stderr[-2000:] if done.returncode else ""

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(run, scripts))


def strided(folder: Path) -> Iterator[Row]:
    """Crop, slice, flip, normalise, pad, join, reshape, cast."""
    from dali_run.ops.errors import SpecError
    from tests.kit.ops.strided import run, wider

    stored = np.load(folder / "strided.npz")
    at = dict.fromkeys(stored.files, 0)
    rows: dict[str, Row] = {}
    for number, case in enumerate(json.loads(str(stored["cases"]))):
        row = rows.setdefault(case["op"], Row(case["op"], bound=BOUNDS.get(case["op"], 0.0)))
        said = {k: case[k] for k in ("arguments", "layout", "dtype", "per_sample") if case[k]}
        want = []
        for shape in case.get("out_shapes", ()):
            kind = case["out_dtype"]
            size = int(np.prod(shape))
            want.append(stored[kind][at[kind] : at[kind] + size].reshape(shape))
            at[kind] += size
        try:
            out, _, rejects = run(number, case)
        except (SpecError, ValueError) as e:
            out, rejects = None, [str(e)]
        if "refused" in case:
            row.refused += bool(rejects)
            if not rejects and not wider(case):
                row.problems.append(f"{said}: DALI refuses, we do not")
        elif rejects or out is None:
            row.problems.append(f"{said}: refused: {rejects[0]}")
        else:
            row.compare(list(out), want, said)
    yield from rows.values()


def resize(folder: Path) -> Iterator[Row]:
    """The resizing operators."""
    from tests.kit.operators import operator
    from tests.kit.ops.resizing import run, source

    stored = np.load(folder / "resize.npz")
    at = dict.fromkeys(stored.files, 0)
    rows: dict[str, Row] = {}
    for number, case in enumerate(json.loads(str(stored["cases"]))):
        row = rows.setdefault(case["op"], Row(case["op"], bound=BOUNDS[case["op"]]))
        kind, size = case["out_dtype"], int(np.prod(case["out_shape"]))
        want = stored[kind][at[kind] : at[kind] + size].reshape(case["out_shape"])
        at[kind] += size
        out, ctx = run(
            operator(case["op"], **case["arguments"]), [source(number, case["dtype"], case["shape"])], case["layout"]
        )
        said = {k: case[k] for k in ("arguments", "layout", "dtype", "shape")}
        if ctx.rejects:
            row.problems.append(f"{said}: {ctx.rejects[0].message}")
        else:
            row.compare([out.sample(0)], [want], said)
    yield from rows.values()


def color(folder: Path) -> Iterator[Row]:
    """Colour spaces, every pair."""
    from tests.kit.ops.colors import PAIRS, convert, source

    stored = np.load(folder / "color.npz")
    row = Row("color_space_conversion", bound=BOUNDS["color_space_conversion"])
    for a, b in PAIRS:
        out, _ = convert(a, b, [source(a)])
        row.compare([out.sample(0)], [stored[f"{a.name}_{b.name}"]], f"{a.name} to {b.name}")
    yield row


def steps(name: str) -> Callable[[Path], Iterator[Row]]:
    """The operators of ``<name>.npz``, as tests/golden/one_step.py writes it."""

    def compare(folder: Path) -> Iterator[Row]:
        from .kit.dali_cases import cases, ours

        rows: dict[str, Row] = {}
        for case, inputs, wanted in cases(name, folder):
            levels = 1.0 if all(out["dtype"] not in ("float32", "float16") for out in case["outputs"]) else 1e-4
            kind = case["op"] if levels == 1 else case["op"] + " (floats)"
            row = rows.setdefault(kind, Row(kind, bound=STEPS.get(name, {}).get(kind, levels)))
            got, rejects = ours(case, inputs)
            if rejects:
                row.problems.append(f"{case}: refused: {rejects[0].message}")
            else:
                row.compare(got, wanted, {k: case[k] for k in ("arguments", "inputs")})
        yield from rows.values()

    return compare


STEPS: dict[str, dict[str, float]] = {
    "linear": {},
    "filters": {},
    "noise": {},
    "tables": {},
    "camera": {"debayer": 0.0, "clahe": 2.0},
    "jpeg_distortion": {"jpeg_compression_distortion": 0.0},
}
"""Results of `steps`, and the bounds that are not a level, or 1e-4 of floats."""
NUMERIC = {"strided": strided, "resize": resize, "color": color} | {name: steps(name) for name in STEPS}


def written_by(name: str) -> list[Path]:
    """The committed files that make_``name``.py makes: those that it names."""
    text = (GOLDEN / f"make_{name}.py").read_text()
    named = dict.fromkeys(re.findall(r'"(\w+\.(?:npz|json))"', text))
    return [GOLDEN / file for file in named if (GOLDEN / file).exists()]


def as_committed(committed: Path, folder: Path) -> Row:
    """Results that tests compare in their own ways: DALI must give what is committed, and those tests must pass."""
    row = Row(committed.stem.replace("_", " "), good="tests pass")
    fresh = folder / committed.name
    if committed.suffix == ".npz":
        a, b = np.load(committed), np.load(fresh)
        row.cases = len(a.files)
        for key in a.files:
            if key.startswith("file ") or key.endswith("/file"):
                continue  # an input, in which the time or a path stands
            row.numbers += a[key].size
            if key not in b.files or a[key].tobytes() != b[key].tobytes():
                row.problems.append(f"{key}: DALI gives something else than {committed.name} holds")
    else:
        known = json.loads(committed.read_text())
        row.cases = len(known.get("cases", known) if isinstance(known, dict) else known)
        row.numbers = leaves(known)
        if known != json.loads(fresh.read_text()):
            row.problems.append(f"DALI gives something else than {committed.name} holds")
    names = (committed.name, f'"{committed.stem}"')
    tests = [p for p in sorted(ROOT.glob("tests/*/**/test_*.py")) if any(n in p.read_text() for n in names)]
    if not tests:
        row.problems.append(f"no test reads {committed.name}")
        return row
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *map(str, tests)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        row.problems.append(f"the tests of {committed.name} fail: {done.stdout[-300:]}")
    return row


def table(rows: list[Row]) -> str:
    lines = [
        "| results | cases | refused by both | numbers | largest difference | mean difference | bound | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for r in rows:
        mean = r.total / r.numbers if r.numbers else 0.0
        lines.append(
            f"| {r.name} | {r.cases} | {r.refused or ''} | {r.numbers:,} | "
            + (" | | " if r.good else f"{r.largest:.2g} | {mean:.2g} | {r.bound:g}")
            + f" | {r.verdict} |"
        )
    return "\n".join(lines)


TEXT = """# Parity with DALI {version}

Written by `make parity DALI_PYTHON=...`: {cases:,} cases were run by an installed DALI {version} (CPU) and by
dali-run, over grids of arguments, types, layouts, ragged and odd sizes. Differences are levels for integers, and parts
of the larger of 1 and the value for floats (one float16 step is not counted: ties go to even here, away from zero in
DALI). The same results are committed under `tests/golden`, so that `make test` checks them without DALI; GPU kernels
are compared with those of the CPU by `tests/ops/test_gpu_equals_cpu.py` and the other tests marked `gpu`.
"Tests pass": DALI gave the committed results again, and the tests that compare ours with them (orders, shards, random
numbers and windows exactly; each within the bound that it states) passed.

{table}

Where dali-run is different, on purpose but for the last three:

- crop and slice to an integer `dtype` round halves away from zero and saturate, as cast does; DALI cuts fractions off.
- Fill values round and saturate; DALI cuts fractions off, and -2 becomes 254 in uint8.
- crop_mirror_normalize with several fill values and one mean: DALI writes zeros into all channels but the first.
- cast: NaN becomes 0 in every integer type (DALI: the least value, in 32 bits and more); float16 ties go to even.
- normalize of constant samples gives `shift`; DALI divides its own rounding errors there.
- squeeze takes negative axes; DALI ignores them.
- crop takes five-dimensional layouts, flip and pad every type; DALI's CPU backend was not compiled for all.
- rotate and warp_affine compute each pixel's place in float64; DALI's CPU backend adds up float32 steps along a row.
- GRAY of colours next to a tie may be one level off (0.1 % of random colours).
- resize with INTERP_NN and a region in fractions of pixels: where the middle of an output falls on the border of two
  pixels, DALI's sums of float32 steps may take the other one (14 of 2,667 axes; none without a region).
- resize with INTERP_NN along one axis, another filter along the other and a region: DALI's CPU backend counts the
  region's corner twice, so that it shows another part of the image, and reads beyond rows; here it is the region.
- resize_crop_mirror: the ends of the window's region may differ from DALI's by the last bit of a float32. INTERP_NN
  then takes the neighbour at ties (137 of 5,000 axes, a row or column or two of each), and enlarging with
  INTERP_GAUSSIAN has one pixel more or less under the filter's rim: up to 5 levels in single rows or columns (3 of
  about 65 cases).
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=os.environ.get("DALI_PYTHON"), help="a Python with DALI 2.4")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table is written")
    arguments = parser.parse_args()
    if not arguments.python:
        parser.error(
            "say which Python has DALI: make parity DALI_PYTHON=/path/to/python (pip install nvidia-dali-cuda130)"
        )
    ask = "import nvidia.dali as d; print(d.__version__)"
    version = subprocess.run([arguments.python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "golden"
        for name, wrong in regenerate(Path(arguments.python), folder).items():
            if wrong:
                rows.append(Row(name, problems=[f"make_{name}.py failed: {wrong}"]))
            elif name in NUMERIC:
                rows.extend(NUMERIC[name](folder))
            else:
                rows.extend(as_committed(file, folder) for file in written_by(name))
    rows.sort(key=lambda r: r.name)
    text = TEXT.format(version=version, cases=sum(r.cases for r in rows), table=table(rows))
    presets = arguments.page.read_text().partition("## Presets\n") if arguments.page.exists() else ("", "", "")
    arguments.page.write_text(text + ("\n" if presets[1] else "") + "".join(presets[1:]))
    print(text)
    for r in rows:
        for problem in r.problems[:10]:
            print(f"{r.name}: {problem}", file=sys.stderr)
    return int(any(r.problems for r in rows))


if __name__ == "__main__":
    sys.exit(main())
