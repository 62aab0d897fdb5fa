"""Augmentation beside DALI: the same definitions in both libraries, in turns, and what they make compared.

    python benchmarks/operators/augment.py [--device gpu|cpu] [--batch 256] [--size 256] [--seconds 2] [--rounds 3]
                                 [--cases NAME,...] [--dali-path SITE_PACKAGES] [--dali-python PYTHON]
                                 [--json FILE]

Pictures lie in memory (on the GPU's with --device gpu), go through a chain, and with --device gpu through
crop_mirror_normalize to float16. Two processes stand ready, one for each library; each case is run in turns, --rounds
times --seconds each, and the best rate of each counts, because other work on the machine only ever takes away; so does
the least processor time an image, whose ratio says more than the rates' on a busy machine. Then
both run the case once more without normalising, with DALI's random numbers, and the pictures are compared.

DALI is imported by --dali-python (this Python by default), from --dali-path where that is given; CuPy must be there,
too, with --device gpu. The case "none" is what feeding and normalising take alone. Ends with 1 where pictures differ by
more than the operators' bounds.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.operators.sides import Child, answer_lines, timed

SEED = 99
GOALS = {"rand_augment": 200_000, "trivial_augment": 200_000, "auto_augment": 200_000}
"""Images a second on one H200."""
TOLERATED = {"simclr": 0.02, "rand_augment": 0.01, "trivial_augment": 0.01, "auto_augment": 0.01, "shot": 0.02}
"""The part of values that may differ by more than two levels: a level at the first step may be more after others."""

PATIENCE = 600.0
"""Seconds after which a process that does not answer is ended: kernels are compiled when they are first needed."""


def definitions(fn: Any, auto_aug: Any) -> dict[str, Callable[[Any], Any]]:
    """Cases by name: what is done to a batch of pictures."""

    def between(low: float, high: float, number: int) -> Any:
        return fn.random.uniform(range=[low, high], seed=SEED + number)

    def simclr(images: Any) -> Any:
        images = fn.random_resized_crop(images, size=[224, 224], seed=SEED)
        images = fn.color_twist(images, brightness=between(0.2, 1.8, 1), contrast=between(0.2, 1.8, 2),
                                saturation=between(0.2, 1.8, 3), hue=between(-72, 72, 4))  # fmt: skip
        images = fn.gaussian_blur(images, sigma=fn.random.uniform(range=[0.1, 2.0], shape=[1], seed=SEED + 5))
        return fn.flip(images, horizontal=fn.random.coin_flip(seed=SEED + 6))

    return {
        "none": lambda images: images,
        "brightness": lambda images: fn.brightness(images, brightness=1.3),
        "hsv": lambda images: fn.hsv(images, hue=30.0, saturation=1.3),
        "color_twist": lambda images: fn.color_twist(images, hue=30.0, saturation=1.3, contrast=0.8),
        "blur": lambda images: fn.gaussian_blur(images, sigma=1.0),
        "blur_wide": lambda images: fn.gaussian_blur(images, window_size=23),
        "color_and_blur": lambda images: fn.gaussian_blur(fn.color_twist(images, hue=30.0, contrast=0.8), sigma=1.0),
        "rotate": lambda images: fn.rotate(images, angle=20.0, keep_size=True, fill_value=128),
        "warp_affine": lambda images: fn.warp_affine(images, matrix=[0.9, 0.1, 3, -0.05, 1.1, 2], fill_value=128),
        "warp_perspective": lambda images: fn.experimental.warp_perspective(
            images, matrix=[0.9, 0.1, 3, -0.05, 1.1, 2, 1e-4, -5e-5, 1], pixel_origin="center"
        ),
        "water": lambda images: fn.water(images),
        "erase": lambda images: fn.erase(
            images,
            anchor=fn.random.uniform(range=[0, 0.6], shape=[2], seed=SEED),
            shape=[0.4, 0.4],
            axis_names="HW",
            normalized=True,
            fill_value=[124, 116, 104],
        ),
        "paste": lambda images: fn.paste(images, ratio=1.5, paste_x=0.3, paste_y=0.7, fill_value=[124, 116, 104]),
        "grid_mask": lambda images: fn.grid_mask(images, tile=56, angle=0.3),
        "rand_augment": lambda images: auto_aug.rand_augment.rand_augment(images, n=2, m=9, seed=SEED),
        "trivial_augment": lambda images: auto_aug.trivial_augment.trivial_augment_wide(images, seed=SEED),
        "auto_augment": lambda images: auto_aug.auto_augment.auto_augment(images, seed=SEED),
        "simclr": simclr,
    }


# -- the process of one library ---------------------------------------------------------------------------------------


class Side:
    """One library: makes pipelines of cases and runs them."""

    def __init__(self, library: str, options: argparse.Namespace) -> None:
        self.options = options
        self.ours = library == "dali_run"
        if self.ours:
            from dali_run import auto_aug, fn, pipeline_def, types
            from dali_run.auto_aug import auto_augment, rand_augment, trivial_augment
        else:
            import nvidia.dali.auto_aug as auto_aug
            import nvidia.dali.fn as fn
            import nvidia.dali.types as types
            from nvidia.dali import pipeline_def
            from nvidia.dali.auto_aug import auto_augment, rand_augment, trivial_augment  # noqa: F401
        warnings.filterwarnings("ignore", module="nvidia")
        self.fn, self.types, self.pipeline_def = fn, types, pipeline_def
        self.cases = definitions(fn, auto_aug)
        random = np.random.default_rng(5)
        small = random.integers(0, 256, (options.batch, options.size // 8, options.size // 8, 3))
        pictures = np.repeat(np.repeat(small, 8, axis=1), 8, axis=2)
        pictures = np.clip(pictures + random.integers(-9, 10, pictures.shape), 0, 255).astype(np.uint8)
        if options.device == "gpu":
            import cupy

            pictures = cupy.asarray(pictures)
        self.pictures = pictures

    def pipeline(self, case: str, normalised: bool, batch: int, **more: Any) -> Any:
        device, fn, types = self.options.device, self.fn, self.types
        pictures = self.pictures[:batch]

        @self.pipeline_def(batch_size=batch, num_threads=self.options.threads, seed=1, enable_conditionals=True,
                           device_id=0 if device == "gpu" else None, **more)  # fmt: skip
        def pipe() -> Any:
            images = fn.external_source(source=lambda: pictures, layout="HWC", device=device, no_copy=True)
            images = self.cases[case](images)
            if normalised:
                images = fn.crop_mirror_normalize(images, dtype=types.FLOAT16, output_layout="CHW",
                                                  mean=[123.7, 116.3, 103.5], std=[58.4, 57.1, 57.4])  # fmt: skip
            return images

        made = pipe()
        made.build()
        return made

    def rate(self, case: str, seconds: float) -> dict[str, float]:
        """Images a second, and seconds of processor time (all threads) an image."""
        batch = self.options.batch
        found = timed(self.pipeline(case, self.options.device == "gpu", batch), batch, seconds, self._wait)
        return {"rate": found["rate"], "busy": found["busy"] / 1e6 / batch}

    def _wait(self, out: Any) -> None:
        if self.options.device == "gpu":
            np.asarray(out[0][0].as_cpu())

    def made(self, case: str) -> np.ndarray:
        """A few results, packed one after the other."""
        more = {"rng": "dali"} if self.ours else {}
        out = self.pipeline(case, False, min(32, self.options.batch), **more).run()[0]
        host = out.as_cpu()
        return np.concatenate([np.asarray(host[i]).reshape(-1) for i in range(len(host))])


def serve(options: argparse.Namespace) -> int:
    """Answer what is asked on standard input."""
    side = Side(options.side, options)

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "rate":
            return side.rate(asked["case"], asked["seconds"])
        return {"data": base64.b64encode(zlib.compress(side.made(asked["case"]).tobytes(), 1)).decode()}

    return answer_lines(dict, answer)


# -- both in turns ----------------------------------------------------------------------------------------------------


def compared(ours: Child, theirs: Child, case: str) -> dict[str, Any]:
    """How far the pictures are apart."""
    answers = [side.ask(do="make", case=case) for side in (ours, theirs)]
    if any("error" in a for a in answers):
        return {"compared": next(a["error"] for a in answers if "error" in a)}
    a, b = (np.frombuffer(zlib.decompress(base64.b64decode(x["data"])), np.uint8) for x in answers)
    if a.shape != b.shape:
        return {"compared": f"sizes differ: {a.size} and {b.size}"}
    off = np.abs(a.astype(np.int16) - b)
    return {"largest": int(off.max()), "differ": float(np.mean(off > 0)), "differ_by_3": float(np.mean(off > 2)),
            "compared": "differ" if np.mean(off > 2) > TOLERATED.get(case, 0.0) else "agree"}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="")
    parser.add_argument("--dali-path", help="folder that `import nvidia.dali` works from")
    parser.add_argument("--dali-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return serve(options)
    names = list(definitions(None, None))
    chosen = options.cases.split(",") if options.cases else names
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no case {', '.join(sorted(unknown))}; cases are {', '.join(names)}")
    arguments = ["--device", options.device, "--batch", str(options.batch), "--size", str(options.size),
                 "--threads", str(options.threads)]  # fmt: skip
    ours = Child(sys.executable, __file__, ["--side", "dali_run", *arguments], patience=PATIENCE)
    theirs = Child(options.dali_python, __file__, ["--side", "dali", *arguments], options.dali_path, PATIENCE)
    rows, wrong = [], False
    print(
        f"{'case':<16} {'dali_run':>10} {'DALI':>10} {'ratio':>7}   {'us busy':>8} {'DALI':>8} {'ratio':>7}   pictures"
    )
    for case in chosen:
        best: dict[str, float] = {}
        least: dict[str, float] = {}
        told = ""
        for _ in range(options.rounds):
            for name, side in (("dali_run", ours), ("dali", theirs)):
                answer = side.ask(do="rate", case=case, seconds=options.seconds)
                best[name] = max(best.get(name, 0.0), answer.get("rate", 0.0))
                least[name] = min(least.get(name, float("inf")), answer.get("busy", float("inf")))
                told = told or answer.get("error", "")
        row = {"case": case, **best, **{f"{k}_busy": v for k, v in least.items()}, **compared(ours, theirs, case)}
        if told:
            row["error"] = told
        row["goal"] = GOALS.get(case)
        rows.append(row)
        wrong |= row["compared"] not in ("agree",) or bool(told)
        ratio = best["dali_run"] / best["dali"] if best["dali"] else float("nan")
        apart = f"{row['compared']} (at most {row.get('largest', '?')}, {row.get('differ', 1):.2%} of values)"
        busy = [least[k] * 1e6 for k in ("dali_run", "dali")]
        print(
            f"{case:<16} {best['dali_run']:>10,.0f} {best['dali']:>10,.0f} {ratio:>6.1f}x   "
            f"{busy[0]:>8.1f} {busy[1]:>8.1f} {busy[1] / busy[0]:>6.1f}x   {apart} {told}",
            flush=True,
        )
    ours.close()
    theirs.close()
    if options.json:
        setting = {k: getattr(options, k) for k in ("device", "batch", "size", "threads", "seconds", "rounds")}
        options.json.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
