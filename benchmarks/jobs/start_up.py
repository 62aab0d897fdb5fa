"""Time that a new user waits: the first and the second job of 100 images, from a wheel and from a checkout.

    python benchmarks/jobs/start_up.py [--wheel build/wheel/*.whl] [--checkout] [--install] [--limits] [--json FILE]

`--install` is a clone installed by `pip install .` into an environment of its own. `--limits` runs the first job of a
clone without network, without a home that can be written to, and without any other program (no C compiler).

Each first job has a HOME of its own, no variable that names a cache, and (for the wheel) an environment of its own; the
clock starts after pip's end. Prints the wall time to the first sample that is written and to the job's end, and the
processor time, including children's: on a busy machine processor time is more reliable.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


def timed(
    command: list[str], folder: Path, home: Path, output: Path | None = None, **more: str
) -> dict[str, object]:  # fmt: skip
    """Run a command as a user whose home is ``home``. Return its seconds, those to the first bytes of a shard in the
    new folder ``output``, and whether it printed that it compiles."""
    home.mkdir(parents=True, exist_ok=True)
    path = os.environ["PATH"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    first = None
    with tempfile.TemporaryFile("w+") as printed:
        done = subprocess.Popen(command, cwd=folder, stdout=printed, stderr=printed,
                                env={"HOME": str(home), "PATH": path, **more})  # fmt: skip
        while done.poll() is None:
            if output is not None and first is None and has_samples(output):
                first = round(time.perf_counter() - began, 2)
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        printed.seek(0)
        said = printed.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{said}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    first = round(seconds, 2) if first is None else first  # it came with the end
    return {"first": first, "wall": round(seconds, 2), "processor": round(processor, 2), "said": "compil" in said}


def has_samples(output: Path) -> bool:
    """Whether a shard below the folder ``output``, finished or not, has any bytes."""
    with suppress(OSError):  # files are renamed meanwhile
        return any(path.stat().st_size > 0 for path in output.rglob("*.tfrecord*"))
    return False


def jobs(command: list[str], folder: Path, repeats: int, **more: str) -> list[dict[str, object]]:
    """Run the first job of a new user, and ``repeats`` more."""
    spec = ROOT / "configs" / "quickstart.yaml"
    found: list[dict[str, object]] = []
    for k in range(repeats + 1):
        output = folder / f"out{k}"
        places = ["--set", f"data={folder / 'data/train'}", "--set", f"out={output}"]
        run = [*command, "run", str(spec), "--device", "cpu", *places]
        found.append({"job": "first" if k == 0 else "warm", **timed(run, folder, folder / "home", output, **more)})
    return found


def of_wheel(wheel: Path, folder: Path, repeats: int) -> list[dict[str, object]]:
    """Measure the wheel in a new environment, and compare site-packages before and after."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    subprocess.run([python, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], check=True)
    command = [str(python), "-m", "dali_run.cli.main"]
    timed([*command, "sample-data", "data", "--count", "100"], folder, folder / "home-of-data")
    shutil.rmtree(folder / "home-of-data")
    before = sorted(p for p in folder.joinpath("venv").rglob("*") if p.suffix != ".pyc" and p.name != "__pycache__")
    found = jobs(command, folder, repeats)
    after = sorted(p for p in folder.joinpath("venv").rglob("*") if p.suffix != ".pyc" and p.name != "__pycache__")
    assert before == after, f"written into site-packages: {sorted(set(after) - set(before))}"
    return found


def of_checkout(folder: Path, repeats: int) -> list[dict[str, object]]:
    """Measure a clone of the committed files, with this Python and its packages."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder / "clone"], check=True)
    command, path = [sys.executable, "-m", "dali_run.cli.main"], str(folder / "clone")
    timed([*command, "sample-data", "data", "--count", "100"], folder, folder / "home", PYTHONPATH=path)
    return jobs(command, folder, repeats, PYTHONPATH=path)


def of_install(folder: Path, repeats: int) -> list[dict[str, object]]:
    """Measure a clone of the committed files, installed by pip into a new environment."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder / "clone"], check=True)
    return of_wheel(folder / "clone", folder, repeats)


LIMITS: dict[str, tuple[list[str], dict[str, str]]] = {
    "no network": (["unshare", "--map-root-user", "--net"], {}),
    "no home": ([], {"HOME": "/proc/no-home"}),  # where nobody can make a folder
    "no programs": ([], {"PATH": "/nonexistent"}),
}
"""For each resource that a machine may lack: the command that takes it away, and environment variables."""


def of_limits(folder: Path, repeats: int) -> list[dict[str, object]]:
    """Measure the first job of a new clone on each machine that lacks something, as in `LIMITS`."""
    found = []
    for k, (limit, (before, variables)) in enumerate(LIMITS.items()):
        clone = folder / str(k)
        subprocess.run(["git", "clone", "--quiet", ROOT, clone / "clone"], check=True)
        command = [*before, sys.executable, "-m", "dali_run.cli.main"]
        more = {"PYTHONPATH": str(clone / "clone"), **variables}
        timed([*command, "sample-data", "data", "--count", "100"], clone, clone / "home", **more)
        found += [{**row, "job": f"{limit}, {row['job']}"} for row in jobs(command, clone, repeats, **more)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path)
    for name in ("--checkout", "--install", "--limits"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    measured = {"checkout": of_checkout, "install": of_install, "limits": of_limits}
    names = [name for name in ("wheel", *measured) if getattr(args, name)] or ["wheel", "checkout"]
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="start-up-") as scratch:
            if name == "wheel":
                (wheel,) = [args.wheel] if args.wheel else ROOT.glob("build/wheel/*.whl")
                found[name] = of_wheel(wheel.absolute(), Path(scratch), args.repeats)
            else:
                found[name] = measured[name](Path(scratch), args.repeats)
    print(f"{'from':10}{'job':20}{'sample s':>10}{'wall s':>8}{'processor s':>13}  said that it compiles")
    for name, rows in found.items():
        for row in rows:
            said = "yes" if row["said"] else "no"
            print(f"{name:10}{row['job']:20}{row['first']:10.2f}{row['wall']:8.2f}{row['processor']:13.2f}  {said}")
    if args.json:
        args.json.write_text(json.dumps({"cores": len(os.sched_getaffinity(0)), "found": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
