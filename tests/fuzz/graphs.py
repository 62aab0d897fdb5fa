"""Random graphs as whole jobs: what comes out must not depend on how it is computed.

A graph is a chain of operators with random numbers and conditionals; the same job is run with several sizes of batches
and numbers of threads, and once in two parts. The shards must be the same to the byte.
`python -m tests.fuzz.graphs --seconds 600`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from dali_run.pipelines.job.run import run_job

from .jobs import IMAGES, mutated

SETTINGS = ((1, 1, "none"), (7, 3, "none"), (64, 1, "none"), (64, 3, "parts"), (5, 2, "memory"))
"""Samples of a batch, threads, and what else is unusual: two parts, or little memory."""
FILES = 40


def _draw(rng: random.Random, steps: list[dict[str, Any]], low: float, high: float, count: int = 0) -> str:
    """The name of a random number, or of ``count`` of them, for an argument of another step."""
    name = f"r{len(steps)}"
    step: dict[str, Any] = {"op": "random.uniform", "range": [low, high], "out": name}
    if count:
        step["shape"] = [count]
    elif rng.random() < 0.3:
        step = {"op": "random.normal", "mean": (low + high) / 2, "stddev": (high - low) / 8, "out": name}
    steps.append(step)
    return f"${name}"


def _flip(steps: list[dict[str, Any]]) -> str:
    name = f"c{len(steps)}"
    steps.append({"op": "random.coin_flip", "out": name})
    return f"${name}"


def operation(rng: random.Random, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """A step that takes uint8 images HWC of three channels and gives such images; what it draws goes into ``steps``."""
    size = [rng.randint(1, 40), rng.randint(1, 40)]
    filters = ["NN", "LINEAR", "CUBIC", "TRIANGULAR", "LANCZOS3", "GAUSSIAN"]
    choices: list[dict[str, Any]] = [
        {"op": "resize", "size": size, "interp_type": rng.choice(filters), "antialias": rng.random() < 0.5},
        {"op": "resize", "resize_shorter": _draw(rng, steps, 5, 40), "interp_type": rng.choice(filters)},
        {"op": "resize", "size": size, "mode": "not_larger"},
        {"op": "random_resized_crop", "size": size},
        {"op": "crop", "crop": size, "crop_pos_x": _draw(rng, steps, 0, 0.99), "out_of_bounds_policy": "pad"},
        {"op": "slice", "rel_start": _draw(rng, steps, 0, 0.4, 2), "rel_shape": [0.5, 0.5], "axis_names": "HW"},
        {"op": "flip", "horizontal": _flip(steps), "vertical": _flip(steps)},
        {"op": "brightness_contrast", "brightness": _draw(rng, steps, 0.5, 2), "contrast": _draw(rng, steps, 0.5, 2)},
        {"op": "hsv", "hue": _draw(rng, steps, -90, 90), "saturation": _draw(rng, steps, 0, 2)},
        {"op": "color_twist", "hue": _draw(rng, steps, -9, 9), "contrast": _draw(rng, steps, 0.5, 2)},
        {"op": "rotate", "angle": _draw(rng, steps, -180, 180), "keep_size": rng.random() < 0.5, "fill_value": 3},
        {"op": "warp_affine", "matrix": [1, 0.2, 1, -0.1, 0.9, 2]},
        {"op": "gaussian_blur", "sigma": _draw(rng, steps, 0.5, 3)},
        {"op": "gaussian_blur", "window_size": 2 * rng.randint(1, 5) + 1},
        {"op": "median_blur", "window_size": [3, 3]},
        {"op": "noise.gaussian", "stddev": _draw(rng, steps, 1, 30)},
        {"op": "noise.salt_and_pepper", "prob": 0.1},
        {"op": "noise.shot", "factor": 5.0},
        {"op": "jpeg_compression_distortion", "quality": rng.randint(1, 99)},
        {"op": "erase", "anchor": _draw(rng, steps, 0, 0.7, 2), "shape": [0.3, 0.2], "normalized": True,
         "axis_names": "HW"},
        {"op": "paste", "ratio": _draw(rng, steps, 1, 2), "paste_x": 0.3, "fill_value": [1, 2, 3]},
        {"op": "pad", "axes": [0, 1], "shape": [rng.randint(70, 90), rng.randint(70, 90)]},
        {"op": "color_space_conversion", "image_type": "RGB", "output_type": rng.choice(["BGR", "YCbCr"])},
        {"op": "water"}, {"op": "sphere"}, {"op": "jitter"}, {"op": "equalize"}, {"op": "copy"},
        {"op": "grid_mask", "tile": rng.randint(2, 20), "ratio": 0.4, "angle": _draw(rng, steps, 0, 1)},
        {"op": "auto_aug.rand_augment", "n": 2, "m": rng.randint(0, 30)},
        {"op": "auto_aug.trivial_augment_wide"}, {"op": "auto_aug.auto_augment"},
        {"op": "experimental.dilate", "mask_size": [3, 5]}, {"op": "experimental.erode", "mask_size": [2, 2]},
    ]  # fmt: skip
    return rng.choice(choices)


def graph(rng: random.Random, folder: Path) -> list[dict[str, Any]]:
    """The steps of a random graph."""
    steps: list[dict[str, Any]] = [
        {"op": "readers.file", "file_root": str(folder), "file_filters": ["*"], "out": ["x", "label"],
         "random_shuffle": rng.random() < 0.7},
    ]  # fmt: skip
    decoder: dict[str, Any] = {"op": rng.choice(["decoders.image", "decoders.image_random_crop"])}
    steps.append({**decoder, "in": "x", "out": "x"})
    for _ in range(rng.randint(1, 5)):
        step = operation(rng, steps)
        if rng.random() < 0.2:
            other = operation(rng, steps)
            steps.append(
                {"if": _flip(steps), "then": [{**step, "in": "x", "out": "x"}],
                 "else": [{**other, "in": "x", "out": "x"}] if rng.random() < 0.5 else []}
            )  # fmt: skip
        else:
            steps.append({**step, "in": "x", "out": "x"})
    if rng.random() < 0.4:
        steps.append({"op": "crop_mirror_normalize", "in": "x", "mirror": _flip(steps), "mean": [9.0, 99.0, 120.0],
                      "std": [50.0, 40.0, 60.0], "out": "x"})  # fmt: skip
    used = json.dumps(steps)
    return [s for s in steps if not str(s.get("op", "")).startswith("random.") or f'"${s["out"]}"' in used]


def written(folder: Path, steps: list[dict[str, Any]], setting: tuple[int, int, str], number: int) -> Any:
    """The shards and rejects of a job; what it said where it failed."""
    batch, threads, unusual = setting
    out = folder / f"out-{number}"
    pipeline: dict[str, Any] = {"batch_size": batch, "num_threads": threads, "device": "cpu", "seed": 5}
    if unusual == "memory":
        pipeline["memory"] = {"host": "64MiB"}
    spec = folder / "spec.yaml"
    text = {
        "version": 1, "name": "g", "pipeline": pipeline, "graph": steps, "outputs": {"x": "x", "label": "label"},
        "write": {"writer": "tfrecord", "path": str(out), "shard": {"samples": 11},
                  "fields": {"x": {"encode": "raw"}, "label": {}}},
        "on_error": {"policy": "skip"},
    }  # fmt: skip
    spec.write_text(yaml.safe_dump(text))
    for part in [(0, 2), (1, 2)] if unusual == "parts" else [None]:
        result = run_job(spec, part=part)
        if result.exit_code not in (0, 3):
            return result.message.replace(str(out), "OUT")
    rejects = out / "rejects.jsonl"
    said = sorted(
        json.dumps({k: row[k] for k in ("key", "operator", "code", "message")})
        for row in map(json.loads, rejects.read_text().splitlines() if rejects.exists() else [])
    )
    return {p.name: p.read_bytes() for p in sorted(out.glob("g-*"))}, said


def _kept(result: Any) -> Any:
    """The shards, and which files were rejected for whatever reason."""
    return result if isinstance(result, str) else (result[0], [json.loads(row)["key"] for row in result[1]])


def check(seed: int) -> tuple[list[dict[str, Any]], Any]:
    """Run the graph of ``seed`` in all settings. Raises AssertionError where they differ."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as there:
        folder, makes = Path(there), list(IMAGES.items())
        (folder / "data" / "a").mkdir(parents=True)
        for i in range(FILES):
            name, how = makes[rng.randrange(len(makes))]
            data = how(rng)
            (folder / "data" / "a" / f"{i:02d}-{name}").write_bytes(mutated(data, rng) if i % 9 == 4 else data)
        steps = graph(rng, folder / "data")
        results = [written(folder, steps, setting, k) for k, setting in enumerate(SETTINGS)]
        for setting, result in zip(SETTINGS[1:], results[1:], strict=True):
            # with little memory a bad file may be refused for the size that its header promises
            same = _kept(result) == _kept(results[0]) if setting[2] == "memory" else result == results[0]
            assert same, (seed, setting, steps)
        return steps, results[0]


def main() -> int:
    """Fuzz for a while; a line of a table at the end, and 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    asked = parser.parse_args()
    end, seed, found, failed = time.monotonic() + asked.seconds, asked.first, 0, 0
    while time.monotonic() < end:
        try:
            _, result = check(seed)
            if isinstance(result, str):  # the same failure in all settings: the graph asks for what cannot be
                failed += 1
                sys.stderr.write(f"{seed}: {result}\n")
        except AssertionError as e:
            found += 1
            sys.stderr.write(f"FOUND {e}\n")
        seed += 1
    jobs = (seed - asked.first) * len(SETTINGS)
    sys.stdout.write(f"| random graphs, each in {len(SETTINGS)} ways: {failed} of them refused | {jobs} | {found} |\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
