"""Time that a new user waits: the first and the second job of 100 images, from a wheel and from a checkout.

    python benchmarks/jobs/start_up.py [--wheel build/wheel/*.whl] [--checkout] [--repeats 3] [--json FILE]

Each first job has a HOME of its own, no variable that names a cache, and (for the wheel) an environment of its own; the
clock starts after pip's end. Prints wall time and processor time, including children's: on a busy machine processor
time is more reliable.
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
from pathlib import Path

ROOT = Path(__file__).parents[2]


def timed(command: list[str], folder: Path, home: Path, **more: str) -> dict[str, object]:
    """Run a command as a user whose home is ``home``. Return its seconds, and whether it printed that it compiles."""
    home.mkdir(parents=True, exist_ok=True)
    path = os.environ["PATH"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                          env={"HOME": str(home), "PATH": path, **more})  # fmt: skip
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": round(seconds, 2), "processor": round(processor, 2), "said": "compil" in done.stderr + done.stdout}


def jobs(command: list[str], folder: Path, repeats: int, **more: str) -> list[dict[str, object]]:
    """Run the first job of a new user, and ``repeats`` more."""
    spec = ROOT / "configs" / "quickstart.yaml"
    places = ["--set", f"data={folder / 'data/train'}", "--set", f"out={folder / 'out'}"]
    run = [*command, "run", str(spec), "--fresh", "--device", "cpu", *places]
    found: list[dict[str, object]] = []
    for k in range(repeats + 1):
        found.append({"job": "first" if k == 0 else "warm", **timed(run, folder, folder / "home", **more)})
    return found


def of_wheel(wheel: Path, folder: Path, repeats: int) -> list[dict[str, object]]:
    """Measure in a new environment, and compare site-packages before and after."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--checkout", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    found = {}
    for name in ("wheel", "checkout"):
        if getattr(told, name) or not (told.wheel or told.checkout):
            with tempfile.TemporaryDirectory(prefix="start-up-") as scratch:
                folder = Path(scratch)
                if name == "wheel":
                    (wheel,) = [told.wheel] if told.wheel else ROOT.glob("build/wheel/*.whl")
                    found[name] = of_wheel(wheel.absolute(), folder, told.repeats)
                else:
                    found[name] = of_checkout(folder, told.repeats)
    print(f"{'from':10}{'job':8}{'wall s':>8}{'processor s':>13}  said that it compiles")
    for name, rows in found.items():
        for row in rows:
            said = "yes" if row["said"] else "no"
            print(f"{name:10}{row['job']:8}{row['wall']:8.2f}{row['processor']:13.2f}  {said}")
    if told.json:
        told.json.write_text(json.dumps({"cores": len(os.sched_getaffinity(0)), "found": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
