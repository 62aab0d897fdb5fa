"""Coverage-guided fuzzing with Atheris: `make fuzz`, or `python -m tests.fuzz [NAME ...] --seconds 600`.

Every target runs in a process of its own, Numba's loops as plain Python, so that their branches count as coverage and
an index outside of an array is an error. What is found is kept as a file and named; the table says how much was tried.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_RUNS = re.compile(r"(?:Done|stat::number_of_executed_units:) (\d+)")


def main() -> None:
    """Fuzz one target here, or several in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="targets; all of them by default")
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at a time")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="folder for what is found")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        fuzz(asked.names[0], asked.seconds, asked.found)
        return
    from concurrent.futures import ThreadPoolExecutor

    from .targets import TARGETS

    asked.found.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        rows = list(pool.map(lambda name: apart(name, asked.seconds, asked.found), asked.names or TARGETS))
    sys.exit(any(rows))


def apart(name: str, seconds: int, found: Path) -> bool:
    """Fuzz in a process of its own, print its line of the table; True if something was found."""
    from .targets import TARGETS

    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT)}
        if TARGETS[name].kernels:
            environment["NUMBA_DISABLE_JIT"] = "1"
        command = [sys.executable, "-m", "tests.fuzz", name, "--here", "--seconds", str(seconds), "--found", str(found)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace",
                              check=False)  # fmt: skip
    counts = _RUNS.findall(done.stderr + done.stdout)
    bad = done.returncode != 0 or not counts
    sys.stdout.write(f"| fuzz {name}, {seconds} s | {counts[-1] if counts else 0} | {int(bad)} |\n")
    sys.stdout.flush()
    if bad:
        sys.stderr.write((done.stdout + done.stderr)[-3000:] + "\n")
    return bad


def fuzz(name: str, seconds: int, found: Path) -> None:
    """Fuzz until the time is over or something is found; ends the process."""
    import atheris

    plain = os.environ.get("NUMBA_DISABLE_JIT") == "1"
    compiled = (
        [] if plain else [f"dali_run.{p.parent.name}.{p.stem}" for p in ROOT.glob("*/*.py") if "numba" in p.read_text()]
    )
    with atheris.instrument_imports(include=["dali_run"], exclude=compiled):  # Numba cannot compile what was changed
        import dali_run.pipelines.registry

        dali_run.pipelines.registry.load_operators()
        if plain:
            _plain_copies()
        from .targets import MOST_BYTES, TARGETS

        target = TARGETS[name]
        seeds = target.seeds()
        for seed in seeds:  # imports what is imported late, so that it is instrumented, too
            target.run(seed)
    corpus = Path(tempfile.mkdtemp())
    for i, seed in enumerate(seeds):
        (corpus / str(i)).write_bytes(seed)
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", "-timeout=30",
         "-rss_limit_mb=4096", f"-artifact_prefix={found.absolute()}/{name}-", "-print_final_stats=1"],
        target.run,
    )  # fmt: skip
    atheris.Fuzz()


def _plain_copies() -> None:
    """Native copies and checksums, which work by address, as plain Python with bounds."""
    from dali_run.ops import crc32c_cpu
    from dali_run.readers import extents_cpu

    from .targets import masked_crc

    def copy(source: object, offset: int, size: int, out: object, at: int) -> None:
        assert 0 <= offset <= offset + size <= len(source)  # type: ignore[arg-type]
        assert 0 <= at <= at + size <= len(out)  # type: ignore[arg-type]
        out[at : at + size] = source[offset : offset + size]  # type: ignore[index]

    def copies(source: object, offsets: list[int], sizes: list[int], out: object, at: list[int]) -> None:
        for k in range(len(offsets)):
            copy(source, offsets[k], sizes[k], out, at[k])

    extents_cpu.copy_extent, extents_cpu.copy_extents = copy, copies
    extents_cpu.will_need = lambda *_: None
    crc32c_cpu.masked_crc32c = lambda data, at, stop: masked_crc(data[at:stop].tobytes())


if __name__ == "__main__":
    main()
