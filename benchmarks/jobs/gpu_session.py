"""All that wants a GPU, in one go, for a machine that is there for a short time: tests, faults, soak, start-up, and the
benchmarks beside DALI, each with gigabytes of data.

    python benchmarks/jobs/gpu_session.py --images FOLDER --out RESULTS --seconds 3600 [--dali SITE_PACKAGES]
    python benchmarks/jobs/gpu_session.py --images FOLDER --out RESULTS --seconds 3600 --dry-run    # what would be run
    python benchmarks/jobs/gpu_session.py --images FOLDER --out RESULTS --seconds 600 --device cpu  # its logic, small

FOLDER holds JPEGs. Every step is a process with a limit: its share of the time that is left, so that what one step does
not need goes to those after it. A step that fails, or is ended at its limit with all that it started, does not stop
the rest. RESULTS has, after each step, its output (NAME.log), its own results (NAME.json) and `session.json` and
`session.md`, which tell of all steps so far. A session that is run again with the same RESULTS leaves
out what has succeeded. Ends with 1 where a step failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
GPU, ANY = "gpu", "any"
MOST = 1200.0
"""Seconds that a step gets at most, however much time is left."""


@dataclass(frozen=True)
class Step:
    """One process."""

    name: str
    weight: float
    """Its share of the time, beside those of the others."""
    command: tuple[str, ...]
    """``{json}`` is its file of results, ``{seconds}`` its limit."""
    gpus: int = 0
    """How many it needs."""
    dali: bool = False
    """It is of no use without DALI beside it."""


def checked(name: str, weight: float, *arguments: str, gpus: int = 1) -> Step:
    return Step(name, weight, (sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", *arguments), gpus)


def script(name: str, weight: float, file: str, *arguments: str, gpus: int = 1, dali: bool = False) -> Step:
    return Step(name, weight, (sys.executable, str(ROOT / "benchmarks" / file), *arguments), gpus, dali)


def steps(images: str, gigabytes: float, dali: str | None, dali_python: str | None, device: str) -> list[Step]:
    """All of them, in order: what is right, what is lost, how fast."""
    size = sum(p.stat().st_size for p in Path(images).iterdir() if p.is_file())
    copies = max(1, math.ceil(gigabytes * 2**30 / max(1, size)))
    beside = ("--dali-path", dali) if dali else ()
    python = ("--dali-python", dali_python) if dali_python else ()
    data, of = f"{gigabytes:g}", ("--json", "{json}")
    on = 0 if device == "cpu" else 1
    small = device == "cpu"
    engine = "tests/pipelines/engine"
    faults = (f"{engine}/test_gpu_faults.py", f"{engine}/test_gpu_lost.py", f"{engine}/test_memory_gpu.py")
    per_side = ("--ours", "auto:64:2:1", "--dali", "64:2", "--repeats", "1", "--seconds", "2") if small else ()
    return [
        Step("doctor", 0.2, (sys.executable, "-m", "dali_run.cli.main", "doctor")),
        checked("tests", 8, "-m", "gpu", "tests", *(f"--ignore={f}" for f in faults)),
        checked("faults", 5, "-m", "gpu", *faults, "--deselect", f"{faults[0]}::test_one_of_two_gpus_is_lost"),
        checked("lost", 2, "-m", "gpu", f"{faults[0]}::test_one_of_two_gpus_is_lost", gpus=2),
        checked("emulated", 1, f"{engine}/test_gpu_lost.py", "-m", "not gpu", gpus=0),
        script("soak", 6, "jobs/soak.py", "--seconds", "{seconds}", "--device", device, "--out", "{json}",
               *(("--images", "300") if small else ()), gpus=on),
        script("start-up", 3, "jobs/start_up.py", "--checkout", "--repeats", "1", *of, gpus=0),
        # augmentation and decoding
        script("augment", 6, "operators/augment.py", "--device", device, *python, *of,
               *(("--cases", "none,hsv", "--rounds", "1", "--seconds", "0.5", "--batch", "16") if small else ()),
               gpus=on, dali=True),
        script("imagenet", 5, "jobs/imagenet.py", images, "--device", device, "--copies", str(copies), "--jobs",
               "val" if small else "val,train", *beside, *per_side, *of, gpus=on),
        script("photos", 3, "jobs/imagenet.py", images, "--device", device, "--photos",
               "2" if small else str(int(gigabytes * 225)), *beside, *per_side, *of, gpus=on),
        script("containers", 4, "jobs/confirm_gpu.py", images, "--steps", "host,rates,containers", *of),
        script("progressive", 5, "jpeg/progressive.py", images, "--gigabytes", data, *beside, *of),
        script("web-mix", 6, "jobs/web_mix.py", images, "--device", device, "--gigabytes", data, *beside, *per_side,
               *of, gpus=on),
        script("encode", 3, "jpeg/gpu_jpeg_encode.py", images, *of),
        script("gather", 1, "data/gather.py", "--gigabytes", data, *of),
        # sounds
        script("audio", 5, "operators/audio.py", "--device", device, *beside, *of,
               *(("--clips", "60", "--ours", "wav:64:2:1", "--dali", "wav:64:2", "--seconds", "1", "--repeats", "1")
                 if small else ("--clips", str(max(64, int(gigabytes * 3100))))), gpus=on),
        # several GPUs, and Python beside them
        script("several", 4, "jobs/confirm_gpu.py", images, "--steps", "several", *of, gpus=2),
        script("resize", 2, "operators/imagenet_resize.py", "--images", images, "--rounds", "1",
               *(("--copies", "1") if small else ()), *of, gpus=0),
        script("transforms", 2, "operators/transforms.py", "--device", device, *of, gpus=on),
        script("dynamic", 2, "operators/dynamic.py", "--device", device, *beside, *python, *of, gpus=on, dali=True),
        script("memory", 3, "jobs/memory.py", "--seconds", "10" if small else "60", *of, gpus=0),
    ]  # fmt: skip


def why_not(step: Step, gpus: int, dali: bool) -> str:
    """Why a step is left out; empty where it is not."""
    if step.gpus > gpus:
        return f"needs {step.gpus} GPU" + "s" * (step.gpus > 1)
    return "needs DALI (--dali, --dali-python)" if step.dali and not dali else ""


def limit(step: Step, rest: Sequence[Step], left: float) -> float:
    """Seconds for a step that ``rest`` follows: by its weight, of what is left."""
    return min(MOST, left * step.weight / (step.weight + sum(s.weight for s in rest)))


def run(step: Step, seconds: float, out: Path) -> dict[str, Any]:
    """Run a step to its end or its limit; what became of it."""
    own = {"{json}": str(out / f"{step.name}.json"), "{seconds}": str(max(1, int(seconds * 0.8)))}
    command = [own.get(word, word) for word in step.command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if step.gpus:
        environment["DALI_RUN_DEMAND_GPU"] = "1"
    began = time.monotonic()
    with (out / f"{step.name}.log").open("w") as log:
        log.write(f"$ {shlex.join(command)}\n")
        log.flush()
        with subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment, start_new_session=True
        ) as process:
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):  # all that it started, and what outlived it
                    os.killpg(process.pid, signal.SIGKILL)
    state = "limit" if code is None else "ok" if code == 0 else "failed"
    return {"state": state, "code": code, "seconds": round(time.monotonic() - began, 1), "limit": round(seconds, 1),
            "command": shlex.join(command), "last": last_line(out / f"{step.name}.log")}  # fmt: skip


def last_line(path: Path) -> str:
    """The last that a step said."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def machine(gpus: int) -> dict[str, Any]:
    """The machine, and the commit that is tried."""
    names = []
    if gpus:
        import cupy

        names = [cupy.cuda.runtime.getDeviceProperties(k)["name"].decode() for k in range(gpus)]
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = ""
    with contextlib.suppress(OSError):  # no git
        commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {"date": time.strftime("%Y-%m-%d %H:%M"), "cores": len(os.sched_getaffinity(0)), "gpus": names,
            "python": platform.python_version(), "commit": commit}  # fmt: skip


def write(out: Path, found: Mapping[str, Mapping[str, Any]], machine: Mapping[str, Any]) -> None:
    """The results so far; never half a file."""
    rows = [f"| {name} | {r['state']} | {r.get('seconds', '')} | {r.get('limit', '')} | {r['last'].replace('|', '/')} |"
            for name, r in found.items()]  # fmt: skip
    table = ["| step | state | seconds | limit | the last that it said |", "|---|---|---:|---:|---|", *rows]
    told = {"session.json": json.dumps({"machine": machine, "steps": found}, indent=2), "session.md": "\n".join(table)}
    for name, text in told.items():
        (out / f".{name}").write_text(text + "\n")
        (out / f".{name}").replace(out / name)


def session(
    chosen: Sequence[Step], out: Path, seconds: float, gpus: int, dali: bool, machine: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Run the steps within ``seconds``; what became of each."""
    ends = time.monotonic() + seconds
    before: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(OSError, ValueError):
        before = json.loads((out / "session.json").read_text())["steps"]
    done = {name for name, row in before.items() if row["state"] == "ok"}
    found: dict[str, dict[str, Any]] = {}
    for k, step in enumerate(chosen):
        reason, left = why_not(step, gpus, dali), ends - time.monotonic()
        rest = [s for s in chosen[k + 1 :] if not why_not(s, gpus, dali) and s.name not in done]
        if step.name in done:
            found[step.name] = before[step.name]
        elif reason or left < 1:
            found[step.name] = {"state": "left out", "last": reason or "no time was left"}
        else:
            found[step.name] = run(step, limit(step, rest, left), out)
        sys.stderr.write(f"{step.name}: {found[step.name]['state']}: {found[step.name]['last']}\n")
        write(out, found, machine)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="a folder of JPEGs")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--seconds", type=float, required=True, help="for all steps together")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of data for each benchmark")
    parser.add_argument("--dali", help="folder that `import nvidia.dali` works from")
    parser.add_argument("--dali-python", help="a Python with NVIDIA DALI and CuPy")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: small, to try the session")
    parser.add_argument("--steps", help="these only, by name, with commas")
    parser.add_argument("--dry-run", action="store_true", help="print what would be run, with limits")
    parser.add_argument("--gpus", type=int, help="as if there were so many, for --dry-run")
    given = parser.parse_args(arguments)
    from dali_run.ops.gpu.lane import gpu_count

    gigabytes = given.gigabytes if given.device == "gpu" else min(given.gigabytes, 0.02)
    chosen = steps(given.images, gigabytes, given.dali, given.dali_python, given.device)
    if given.steps:
        wanted = given.steps.split(",")
        if unknown := sorted(set(wanted) - {s.name for s in chosen}):
            parser.error(f"there is no step {unknown[0]!r}; there are {', '.join(s.name for s in chosen)}")
        chosen = [s for s in chosen if s.name in wanted]
    if given.gpus is not None and not given.dry_run:
        parser.error("--gpus goes with --dry-run")
    gpus, dali = gpu_count() if given.device == "gpu" else 0, bool(given.dali or given.dali_python)
    if given.dry_run:
        gpus = gpus if given.gpus is None else given.gpus
        possible = [s for s in chosen if not why_not(s, gpus, dali)]
        for step in chosen:
            reason = why_not(step, gpus, dali)
            share = limit(step, [s for s in possible if s is not step], given.seconds)
            sys.stdout.write(f"{step.name:12s} {reason or f'{share:.0f} s'}: {shlex.join(step.command)}\n")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    found = session(chosen, given.out, given.seconds, gpus, dali, machine(gpus))
    return 1 if any(r["state"] in ("failed", "limit") for r in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
