"""Cost of a call in dynamic mode, of dali-run and of NVIDIA DALI, in microseconds per call.

    python benchmarks/operators/dynamic.py --dali-python PYTHON [--batch 1] [--pixels 8] [--only NAME] [--json FILE]
    python benchmarks/operators/dynamic.py --device gpu --dali-path SITE_PACKAGES

PYTHON has NVIDIA DALI, or this Python has it in SITE_PACKAGES. Images are tiny, so that the time is that of the call
itself. Each library has a process; they take turns of some milliseconds, so that both see the same load, and the best
turns count. Processor time (of all threads) is more reliable than wall time if others also use the machine. Results are
requested (`evaluate`), because DALI's calls only start the work. The last two rows are microseconds per image of a
training loop over 64 JPEGs of 128 x 160 pixels, in batches of at least 8: as it is, and captured.

With --operators, all operators that compute on the CPU, each as in its example with one small sample (`tests/
parity_registry.py`); the limit also applies to those with little work.

With --device gpu the images are on the GPU, JPEGs are decoded there, and a turn ends when the GPU has finished.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS, BLOCK = 15, 0.01
"""Number of turns per library, and the approximate length of a turn in seconds. The two libraries are measured in
turn."""
EPOCHS = 10
"""Number of epochs of a loop per turn: many, because a captured loop continues to work during the other library's
turn."""
LIMIT = 100.0
"""Largest cost of a call at batch 1, in microseconds."""
CHEAP = ("flip", "resize", "cast", "add", "index", "uniform", "coin_flip", "brightness", "crop_mirror_normalize")
"""Names of calls with almost no work of their own, for which `LIMIT` applies."""
NAMES = (*CHEAP, "rotate by a batch of angles", "gaussian_blur", "a chain of five", "loop", "captured loop")


def calls(ndd: Any, batch: int, pixels: int, device: str) -> dict[str, Callable[[], Any]]:
    """Return the calls to measure, by name, for either package."""
    import numpy as np

    picture = np.zeros((pixels, pixels, 3), np.uint8)
    images = ndd.batch([picture] * batch, layout="HWC")
    images = images.gpu() if device == "gpu" else images
    angle = ndd.batch([10.0] * batch)

    return {
        "flip": lambda: ndd.flip(images),
        "resize": lambda: ndd.resize(images, size=[4, 4]),
        "cast": lambda: ndd.cast(images, dtype=ndd.float32),
        "add": lambda: images + 1,
        "index": lambda: images.slice[0],
        "uniform": lambda: ndd.random.uniform(range=[0.0, 1.0], batch_size=batch),
        "coin_flip": lambda: ndd.random.coin_flip(batch_size=batch),
        "brightness": lambda: ndd.brightness(images, brightness=1.5),
        "crop_mirror_normalize": lambda: ndd.crop_mirror_normalize(images, crop=[4, 4], mean=[1.0, 2.0, 3.0]),
        "rotate by a batch of angles": lambda: ndd.rotate(images, angle=angle),
        "gaussian_blur": lambda: ndd.gaussian_blur(images, window_size=3),
        "a chain of five": lambda: (
            ndd.flip(ndd.brightness(ndd.resize(images, size=[4, 4]), brightness=1.5)) * ndd.random.uniform(
                batch_size=batch, device=device)
        ),
    }  # fmt: skip


class _Results:
    """Wrapper that holds the result of a call, whatever its type."""

    def __init__(self, found: Any) -> None:
        self._found = found if isinstance(found, (tuple, list)) else (found,)

    def evaluate(self) -> None:
        for one in self._found:
            one.evaluate()


def write_operators(file: Path) -> list[str]:
    """Write the first case of every operator to ``file``. Return their names."""
    import numpy as np

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from dali_run.ops.base import parameters
    from dali_run.pipelines.dynamic.functions import names
    from tests.parity_registry import cases_of, wanted

    arrays: dict[str, Any] = {}
    told = {}
    for name, cls in sorted(wanted().items()):
        if name in names().values() and name != "dump_image":  # it writes files
            case = cases_of(cls, list(parameters(cls)))[0]
            keys = {k: str(len(arrays) + n) for n, k in enumerate([*range(len(case.inputs)), *case.per_sample])}
            arrays |= {keys[k]: given[0] for k, given in enumerate(case.inputs)}
            arrays |= {keys[k]: given[0] for k, given in case.per_sample.items()}
            told[name] = {"arguments": case.arguments, "layouts": case.layouts,
                          "inputs": [keys[k] for k in range(len(case.inputs))],
                          "per_sample": {k: keys[k] for k in case.per_sample}}  # fmt: skip
    np.savez(file, cases=json.dumps(told), **arrays)
    return list(told)


def operators(ndd: Any, types: Any, file: str) -> dict[str, Callable[[], Any]]:
    """Return the calls of the operators in the file of `write_operators`, for either package, without operators that
    the package lacks."""
    import numpy as np

    stored = np.load(file)

    def value(v: Any) -> Any:
        if isinstance(v, list):
            return [value(x) for x in v]
        return getattr(types, v) if isinstance(v, str) and v.isupper() and hasattr(types, v) else v

    def call(name: str, case: Any) -> Callable[[], Any]:
        found = ndd
        for part in name.split("."):
            found = getattr(found, part)
        inputs = [
            ndd.batch([stored[key]], layout=layout or None)
            for key, layout in zip(case["inputs"], case["layouts"], strict=True)
        ]
        given = {k: value(v) for k, v in case["arguments"].items()}
        given |= {k: ndd.batch([stored[key]]) for k, key in case["per_sample"].items()}
        given |= {} if inputs else {"batch_size": 1}
        return lambda: _Results(found(*inputs, **given))

    made = {}
    for name, case in json.loads(str(stored["cases"])).items():
        with contextlib.suppress(Exception):  # a missing operator raises
            made[name] = call(name, case)
    return made


def loops(ndd: Any, batch: int, root: str, device: str) -> dict[str, Callable[[], Any]]:
    """Return loops to measure: one epoch over the images in ``root``, which are decoded, resized, flipped and
    normalised."""
    readers = {capture: ndd.readers.File(file_root=root) for capture in (False, True)}

    def epoch(capture: bool) -> Any:
        for encoded, _ in readers[capture].next_epoch(batch_size=batch, capture=capture):
            images = ndd.resize(ndd.decoders.image(encoded, device=device), size=[64, 64])
            angle = ndd.random.uniform(range=[-9.0, 9.0], batch_size=batch, device="cpu")
            images = ndd.rotate(images, angle=angle, keep_size=True)
            last = ndd.crop_mirror_normalize(images, crop=[56, 56], mean=[1.0, 2.0, 3.0])
            last.evaluate()
        return last

    return {"loop": lambda: epoch(False), "captured loop": lambda: epoch(True)}


def pictures(root: Path) -> int:
    """Write JPEGs of 128 x 160 pixels. Return their number."""
    import numpy as np
    from PIL import Image

    (root / "a").mkdir()
    y, x = np.mgrid[:128, :160]
    for k in range(64):
        pixels = np.stack([x + k, y * 2, (x * y // 64 + 3 * k) % 256], -1).astype(np.uint8)
        Image.fromarray(pixels).save(root / "a" / f"{k:03d}.jpg", quality=90)
    return 64


def done_on(device: str) -> Callable[[], Any]:
    """Return a function that waits until the device has finished all its work."""
    if device == "cpu":
        return lambda: None
    import cupy

    wait: Callable[[], Any] = cupy.cuda.Device().synchronize
    return wait


def serve(package: str, batch: int, pixels: int, root: str, device: str, cases: str) -> None:
    """Serve one library: for each line of input, a call's name, print its microseconds in one turn: wall time, and of
    all processors."""
    import importlib

    warnings.filterwarnings("ignore")
    module = importlib.import_module(package)
    if cases:
        table = operators(
            module, importlib.import_module(f"{package.split('.dynamic')[0].split('.experimental')[0]}.types"), cases
        )
    else:
        table = {**calls(module, batch, pixels, device), **loops(module, max(batch, 8), root, device)}
    wait = done_on(device)
    counts: dict[str, int] = {}
    for line in sys.stdin:
        name = line.strip()
        try:
            print(*one_turn(table[name], "loop" in name, counts, name, wait), flush=True)
        except Exception as e:  # the call failed in this library; the others are still measured
            print(f"{package}: {name}: {e}", file=sys.stderr, flush=True)
            print("inf inf", flush=True)


def one_turn(
    call: Callable[[], Any], loop: bool, counts: dict[str, int], name: str, wait: Callable[[], Any]
) -> list[float]:
    """Return the microseconds per call in one turn: wall time, and time of all processors. ``counts`` caches the number
    of calls per turn."""
    if name not in counts:
        for _ in range(3 if loop else 20):
            call().evaluate()
        wait()
        begin = time.perf_counter()
        call().evaluate()
        wait()
        counts[name] = max(EPOCHS if loop else 5, int(BLOCK / (time.perf_counter() - begin)))
    begin, busy = time.perf_counter(), time.process_time()
    for _ in range(counts[name]):
        call().evaluate()
    wait()
    spent = time.perf_counter() - begin, time.process_time() - busy
    return [s / counts[name] * 1e6 for s in spent]


def side(python: str, package: str, options: argparse.Namespace, root: str) -> subprocess.Popen[str]:
    """Start the process that serves one of the packages."""
    command = [python, __file__, "--serve", package, "--batch", str(options.batch), "--pixels", str(options.pixels),
               "--root", root, "--device", options.device, "--cases", str(options.cases or "")]  # fmt: skip
    paths = [os.environ.get("PYTHONPATH", "")]
    if package.startswith("nvidia") and options.dali_path:
        paths.insert(0, options.dali_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(process: subprocess.Popen[str], name: str) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    return [float(v) for v in process.stdout.readline().split()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dali-python", help="a Python with NVIDIA DALI")
    parser.add_argument("--dali-path", help="folder that `import nvidia.dali` works from")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--pixels", type=int, default=8, help="width and height of the pictures")
    parser.add_argument("--only", action="append", help="these calls only")
    parser.add_argument("--operators", action="store_true", help="all operators, with one sample")
    parser.add_argument("--cases", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--root", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.batch, options.pixels, options.root, options.device, options.cases)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if options.operators:
            options.cases = Path(folder, "cases.npz")
            options.only = options.only or write_operators(options.cases)
        return measure(options, folder, pictures(Path(folder)))


def measure(options: argparse.Namespace, folder: str, count: int) -> int:
    """Measure both libraries and print the table."""
    sides = {"dali_run": side(sys.executable, "dali_run.dynamic", options, folder)}
    if options.dali_python or options.dali_path:
        sides["nvidia.dali"] = side(
            options.dali_python or sys.executable, "nvidia.dali.experimental.dynamic", options, folder
        )
    rows: list[dict[str, Any]] = []
    print(f"{'microseconds a call':28} {'here':>8} {'DALI':>8} {'':7} processors {'DALI':>8}")
    for name in options.only or NAMES:
        best = {package: [float("inf")] * 2 for package in sides}
        for _ in range(ROUNDS // 3 if "loop" in name else ROUNDS):
            for package, process in sides.items():
                spent = [v / (count if "loop" in name else 1) for v in ask(process, name)]
                best[package] = [min(a, b) for a, b in zip(best[package], spent, strict=True)]
        ours, theirs = best["dali_run"], best.get("nvidia.dali", [0.0, 0.0])
        theirs = [0.0 if v == float("inf") else v for v in theirs]
        times = [b / a for a, b in zip(ours, theirs, strict=True)]
        if ours[0] == float("inf"):
            print(f"{name:28} failed", flush=True)
            continue
        rows.append({"call": name, "dali_run": round(ours[0], 1), "dali_run_processors": round(ours[1], 1),
                     "nvidia.dali": round(theirs[0], 1), "nvidia.dali_processors": round(theirs[1], 1),
                     "times": round(times[0], 1), "times_processors": round(times[1], 1)})  # fmt: skip
        print(f"{name:28} {ours[0]:8.1f} {theirs[0]:8.1f} {times[0]:6.1f}x {ours[1]:10.1f} {theirs[1]:8.1f} "
              f"{times[1]:6.1f}x", flush=True)  # fmt: skip
        if options.json:
            found = {"device": options.device, "batch": options.batch, "pixels": options.pixels, "calls": rows}
            options.json.write_text(json.dumps(found, indent=1))
    for process in sides.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    over = [
        str(r["call"])
        for r in rows
        if options.batch == 1 and options.device == "cpu" and r["call"] in CHEAP and r["dali_run_processors"] > LIMIT
    ]
    if over:
        print(f"over {LIMIT:g} us: {', '.join(over)}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
