"""Compare the parity presets with the libraries: `make parity-presets TORCH_PYTHON=... DALI_PYTHON=...`.

Pillow and OpenCV run here; torchvision, albumentations and DALI in the Pythons that are given, and are left out where
none is. Writes the tables into docs/parity.md and ends with 1 where a bound is broken. With --single it compares only
single operators other than resize.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL
from PIL import Image

from tests.kit.operators import operator
from tests.kit.ops.presets import ours as ours_of_case
from tests.kit.ops.resizing import run

from .golden.library_calls import CASES, called

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "parity.md"
HEADING = "### Measured\n"
SINGLE = "### Single operators, measured\n"
PILLOW = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
OPENCV = ("nearest", "linear", "cubic", "area", "lanczos4")

TEXT = """{heading}
{count} ImageNet files, decoded and resized twice: shorter side 256, and to 448 x 300; uint8, differences in levels.
Written by `make parity-presets`. {versions}.

| preset | filter | largest difference | mean difference | values that differ | bound |
|---|---|---:|---:|---:|---:|
{table}

The libraries among themselves (our results, the same up to the differences above), shorter side 256, their default
bilinear filters and OpenCV's area: largest / mean difference.

{matrix}
{validation}"""

SINGLE_TEXT = """{heading}
The step with the library's `parity`, and a call of the library, on {count} ImageNet files; uint8, differences in
levels. Written by `make parity-presets`. {versions}.

| library | step | largest difference | mean difference | values that differ | bound |
|---|---|---:|---:|---:|---:|
{table}
"""

VALIDATION = """
torchvision's `Resize(256)`, `CenterCrop(224)`, float32, `Normalize` and ours, `resize_shorter: 256` and
crop_mirror_normalize, joined: largest / mean difference of the normalised values.

{table}
"""


@dataclass(slots=True)
class Row:
    library: str
    case: str
    bound: float
    largest: float = 0.0
    total: float = 0.0
    differ: int = 0
    numbers: int = 0

    def compare(self, got: list[np.ndarray], want: list[np.ndarray]) -> None:
        for a, b in zip(got, want, strict=True):
            off = np.abs(a.astype(np.int32) - b.reshape(a.shape))
            self.largest = max(self.largest, float(off.max()))
            self.total += float(off.sum())
            self.differ += int(np.count_nonzero(off))
            self.numbers += off.size

    def __str__(self) -> str:
        share, mean = self.differ / self.numbers, self.total / self.numbers
        return f"| {self.library} | {self.case} | {self.largest:g} | {mean:.2g} | {share:.2%} | {self.bound:g} |"


def ours(images: list[np.ndarray], sizes: np.ndarray, **how: Any) -> list[np.ndarray]:
    found = []
    for image, size in zip(images, sizes, strict=True):
        out, ctx = run(operator("resize", size=size.tolist(), **how), [image])
        assert not ctx.rejects, ctx.rejects
        found.append(out.sample(0))
    return found


def peer(library: str, python: str, images: list[np.ndarray], sizes: np.ndarray) -> dict[str, list[np.ndarray]]:
    """The results of a library in an environment of its own, by case."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/pixels.npy", np.concatenate([a.reshape(-1) for a in images]))
        np.save(f"{folder}/shapes.npy", np.array([a.shape for a in images]))
        np.save(f"{folder}/sizes.npy", sizes)
        subprocess.run([*python.split(), Path(__file__).with_name("parity_peer.py"), library, folder], check=True)
        ends = np.cumsum(sizes.prod(axis=1) * 3)
        return {
            f.stem.removeprefix(f"{library} "): np.split(np.load(f), ends[:-1])
            for f in sorted(Path(folder).glob(f"{library} *.npy"))
        }


def compare(images: list[np.ndarray], sizes: np.ndarray, rows: dict[str, Row], torch: str, dali: str) -> None:
    def add(library: str, case: str, bound: float, want: list[np.ndarray], **how: Any) -> None:
        row = rows.setdefault(f"{library} {case}", Row(library, case, bound))
        row.compare(ours(images, sizes, parity=library, **how), want)

    both = list(zip(images, sizes.tolist(), strict=True))
    for name in PILLOW:
        method = Image.Resampling[name.upper()]
        add("pillow", name, 0, [np.asarray(Image.fromarray(a).resize((w, h), method)) for a, (h, w) in both],
            interpolation=name)  # fmt: skip
    for name in (*OPENCV, "cubic without IPP"):
        kind, _, without = name.partition(" ")
        cv2.ipp.setUseIPP(not without)  # the wheels' INTER_CUBIC is Intel's, and rounds in other ways
        flag = getattr(cv2, f"INTER_{kind.upper()}")
        want = [cv2.resize(a, (w, h), interpolation=flag) for a, (h, w) in both]
        add("opencv", name, int(kind in ("cubic", "area", "lanczos4")), want, interpolation=kind)
    cv2.ipp.setUseIPP(True)
    if torch:
        for case, want in peer("torchvision", torch, images, sizes).items():
            name, kind = case.split()
            add("torchvision", case, 0, want, interpolation=name, antialias=kind == "antialias")
    if dali:
        for case, want in peer("dali", dali, images, sizes).items():
            name, kind = case.split()
            add("dali", case, 1, want, interp_type=name, antialias=kind == "antialias", subpixel_scale=False)


def validation(images: list[np.ndarray], torch: str) -> str:
    """torchvision's transform for validation and ours under every preset: a table of differences."""
    from dali_run import fn, pipeline_def

    @pipeline_def(batch_size=len(images), num_threads=2, device_id=None)
    def ours() -> Any:
        resized = fn.resize(fn.external_source(source=lambda: images, layout="HWC"), resize_shorter=256)
        return fn.crop_mirror_normalize(resized, crop=[224, 224], mean=[0.485 * 255, 0.456 * 255, 0.406 * 255],
                                        std=[0.229 * 255, 0.224 * 255, 0.225 * 255])  # fmt: skip

    theirs = peer("validation", torch, images, np.full((len(images), 2), 224))
    lines = ["| preset | torchvision of PIL images | torchvision of tensors |", "|---|---:|---:|"]
    for library in ("dali", "torchvision", "opencv", "pillow"):
        got = np.asarray(ours(parity=library).run()[0].as_tensor()).reshape(-1)
        off = [np.abs(got - np.concatenate(theirs[kind])) for kind in ("pillow", "torchvision")]
        lines.append(f"| {library} | " + " | ".join(f"{d.max():.2g} / {d.mean():.2g}" for d in off) + " |")
    return "\n".join(lines)


def matrix(images: list[np.ndarray], sizes: np.ndarray) -> str:
    kinds: dict[str, dict[str, Any]] = {
        "dali": {"subpixel_scale": False}, "torchvision": {}, "torchvision, plain": {"antialias": False},
        "opencv": {}, "opencv, area": {"interpolation": "area"}, "pillow": {},
    }  # fmt: skip
    results = {k: ours(images, sizes, parity=k.split(",")[0], **how) for k, how in kinds.items()}
    lines = ["| | " + " | ".join(kinds) + " |", "|---|" + "---:|" * len(kinds)]
    for a in kinds:
        cells = []
        for b in kinds:
            row = Row(a, b, 0)
            row.compare(results[a], results[b])
            cells.append("" if a == b else f"{row.largest:g} / {row.total / row.numbers:.2f}")
        lines.append(f"| {a} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def single(images: list[np.ndarray], pythons: dict[str, str]) -> list[Row]:
    """A row for each of `CASES` whose library runs here, or in one of ``pythons``."""
    theirs = {library: asked(library, python, images) for library, python in pythons.items() if python}
    rows = []
    for number, case in enumerate(CASES):
        if case.library in ("pillow", "opencv"):
            want = [called(case, image) for image in images]
        elif case.library in theirs:
            want = theirs[case.library][number]
        else:
            continue
        row = Row(case.library, f"`{case.step}`", 0)
        row.compare(ours_of_case(case, images), want)
        rows.append(row)
    return rows


def asked(library: str, python: str, images: list[np.ndarray]) -> dict[int, list[np.ndarray]]:
    """The results of a library in an environment of its own, by the number of the case."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/images.npz", **{str(i): a for i, a in enumerate(images)})
        script = Path(__file__).with_name("parity_peer.py")
        subprocess.run([*python.split(), script, "single", folder, library], check=True)
        found = {}
        for number, case in enumerate(CASES):
            if case.library == library:
                with np.load(f"{folder}/{number}.npz") as stored:
                    found[number] = [stored[str(i)] for i in range(len(images))]
        return found


def put(page: Path, heading: str, text: str) -> None:
    """Replace the part of ``page`` from ``heading`` to the next heading of its level or above, or add it."""
    before, _, after = (page.read_text() if page.exists() else "").partition(heading)
    ends = [at for mark in ("\n## ", "\n### ") if (at := after.find(mark)) >= 0]
    rest = after[min(ends) :] if ends else ""
    page.write_text(f"{before.rstrip()}\n\n{text.rstrip()}\n{rest}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--albumentations", default=os.environ.get("ALBUMENTATIONS_PYTHON", ""),
                        help="a Python with albumentations")  # fmt: skip
    parser.add_argument("--single", action="store_true", help="only single operators other than resize")
    parser.add_argument("--torch", default=os.environ.get("TORCH_PYTHON", ""), help="a Python with torchvision")
    parser.add_argument("--dali", default=os.environ.get("DALI_PYTHON", ""), help="a Python with DALI")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "imagenet_sample")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page whose section is rewritten")
    arguments = parser.parse_args()
    files = sorted(p for p in arguments.data.rglob("*") if p.suffix.lower() in (".jpeg", ".jpg"))
    if not files:
        parser.error(f"no JPEG files in {arguments.data}; say where some are with --data")
    images = [np.asarray(Image.open(f).convert("RGB")) for f in files]
    alone = single(images[::_EVERY], {"torchvision": arguments.torch, "albumentations": arguments.albumentations})
    versions = {"torchvision": arguments.torch, "albumentations": arguments.albumentations}
    put(arguments.page, SINGLE, SINGLE_TEXT.format(heading=SINGLE, count=len(images[::_EVERY]),
        versions=installed(versions), table="\n".join(map(str, alone))))  # fmt: skip
    print("\n".join(map(str, alone)))
    broken = any(r.largest > r.bound for r in alone)
    if arguments.single:
        return int(broken)
    shapes = np.array([a.shape[:2] for a in images])
    shorter = shapes * 256 // shapes.min(axis=1, keepdims=True)
    rows: dict[str, Row] = {}
    for sizes in (shorter, np.tile([300, 448], (len(images), 1))):
        compare(images, sizes, rows, arguments.torch, arguments.dali)
    checked = VALIDATION.format(table=validation(images, arguments.torch)) if arguments.torch else ""
    versions = {"torchvision": arguments.torch, "DALI": arguments.dali}
    text = TEXT.format(
        heading=HEADING, count=len(images), versions=installed(versions),
        table="\n".join(map(str, rows.values())), matrix=matrix(images, shorter), validation=checked,
    )  # fmt: skip
    put(arguments.page, HEADING, text)
    print(text)
    return int(broken or any(r.largest > r.bound for r in rows.values()))


_EVERY = 5
"""Of the files, for single operators."""


def installed(pythons: dict[str, str]) -> str:
    """The versions of the libraries here and in ``pythons``."""
    found = [f"Pillow {PIL.__version__}, OpenCV {cv2.__version__}"]
    for name, python in pythons.items():
        if python:
            module = {"DALI": "nvidia.dali"}.get(name, name)
            ask = [*python.split(), "-c", f"import {module} as m; print(m.__version__)"]
            said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
            found.append(f"{name} {said}")
    return ", ".join(found)


if __name__ == "__main__":
    sys.exit(main())
