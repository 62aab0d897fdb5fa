"""Coverage-guided fuzzing with Atheris: `make fuzz`, or `python -m tests.fuzz [NAME ...] --seconds 600`.

Every target runs in a process of its own, Numba's loops as plain Python, so that their branches count as coverage and
an index outside of an array is an error. What is found is kept as a file and named; the table says how much was tried.

With ``--compiled`` the loops behind the readers (loops.py) run by themselves, compiled as in jobs but with their bounds
checked, on mutations that no coverage guides: a hundred times as many. It needs no Atheris.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
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
    parser.add_argument("--compiled", action="store_true", help="compiled loops, bounds checked, without coverage")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        (repeat if asked.compiled else fuzz)(asked.names[0], asked.seconds, asked.found)
        return
    from concurrent.futures import ThreadPoolExecutor

    from .loops import LOOPS
    from .targets import TARGETS

    there = [name for name, target in TARGETS.items() if not target.needs or find_spec(target.needs)]
    names = asked.names or (LOOPS if asked.compiled else there)
    asked.found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as compiled, ThreadPoolExecutor(asked.jobs) as pool:
        where = compiled if asked.compiled else ""
        rows = list(pool.map(lambda name: apart(name, asked.seconds, asked.found, where), names))
    sys.exit(any(rows))


def apart(name: str, seconds: int, found: Path, compiled: str) -> bool:
    """Fuzz in a process of its own, print its line of the table; True if something was found. ``compiled``: where
    compiled loops are kept, if they are to be run."""
    from .targets import TARGETS

    command = [sys.executable, "-m", "tests.fuzz", name, "--here", "--seconds", str(seconds), "--found", str(found)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT)}
        if compiled:
            environment |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": compiled}
            command.append("--compiled")
        elif TARGETS[name].kernels:
            environment["NUMBA_DISABLE_JIT"] = "1"
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace",
                              check=False)  # fmt: skip
    counts = _RUNS.findall(done.stderr + done.stdout)
    bad = done.returncode != 0 or not counts
    how = ", compiled" * bool(compiled)
    sys.stdout.write(f"| fuzz {name}{how}, {seconds} s | {counts[-1] if counts else 0} | {int(bad)} |\n")
    sys.stdout.flush()
    if bad:
        sys.stderr.write((done.stdout + done.stderr)[-3000:] + "\n")
    return bad


def _compiled_modules() -> list[str]:
    """The modules of the package that import Numba."""
    folders = ("ops", "pipelines", "readers", "writers")
    paths = [p.relative_to(ROOT) for f in folders for p in (ROOT / f).rglob("*.py") if "numba" in p.read_text()]
    return [".".join(("dali_run", *p.with_suffix("").parts)) for p in paths]


def fuzz(name: str, seconds: int, found: Path) -> None:
    """Fuzz until the time is over or something is found; ends the process."""
    import atheris

    plain = os.environ.get("NUMBA_DISABLE_JIT") == "1"
    compiled = [] if plain else _compiled_modules()
    with atheris.instrument_imports(include=["dali_run"], exclude=compiled):  # Numba cannot compile what was changed
        import dali_run.pipelines.plugins

        dali_run.pipelines.plugins.load_operators()
        if plain:
            _plain_copies()
        from .targets import MOST_BYTES, TARGETS, small_blocks

        small_blocks()
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


def repeat(name: str, seconds: int, found: Path) -> None:
    """Run mutations until the time is over or something is found."""
    from .loops import LOOPS

    target, draw, tried = LOOPS[name], random.Random(0), 0
    seeds = target.seeds()
    for seed in seeds:  # compiles the loops
        target.run(seed)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = target.damage(draw.choice(seeds), draw)
        try:
            target.run(data)
        except BaseException:
            (found.absolute() / f"{name}-{tried}").write_bytes(data)
            raise
        tried += 1
    sys.stdout.write(f"Done {tried}\n")


def _plain_copies() -> None:
    """Native copies and checksums, which work by address, as plain Python with bounds."""
    from dali_run.ops.storage import crc32c_cpu
    from dali_run.readers.fetch import extents_cpu

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
