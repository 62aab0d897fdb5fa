"""Put compiled code into a wheel: packs of CPU loops for levels of x86-64, and packs of CUDA images.

    python -m docs.compiled_wheel IN.whl OUT_FOLDER [--levels x86-64-v3,x86-64-v2]
        [--nvrtc libnvrtc.so.13 ...] [--architectures 80,90] [--work FOLDER]

Called by `make wheel`. No GPU is needed. The code is for the Python and Numba versions that run this script; the wheel
is tagged with that Python, and with another Numba it compiles at run time. Work found in FOLDER is reused.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dali_run.ops.compiled import binaries, store, target
from dali_run.ops.compiled.ahead import Answer, compile_all
from dali_run.ops.compiled.listed import loops
from dali_run.ops.compiled.signatures import Loop
from dali_run.pipelines.cores import usable_cores
from dali_run.pipelines.tools.cuda_images import CompileError, compile_pack

_PLACE = "dali_run/ops/compiled/packs/"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="compiled_wheel", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--levels", default=",".join(target.LEVELS))
    parser.add_argument("--nvrtc", type=Path, nargs="*", default=[])
    parser.add_argument("--architectures", default=",".join(map(str, binaries.ARCHITECTURES)))
    parser.add_argument("--work", type=Path, default=Path("build/compiled"))
    options = parser.parse_args(arguments)
    files: dict[str, bytes] = {}
    for level in filter(None, options.levels.split(",")):
        pack = options.work / store.pack_name(level)
        count = loops_for(level, pack, options.work / level)
        _say(f"{pack.name}: {count} of {len(loops())} loops, {pack.stat().st_size:,} bytes")
        files[_PLACE + pack.name] = pack.read_bytes()
    for library in options.nvrtc:
        version = int(library.name.rpartition(".so.")[2].split(".")[0])
        pack = options.work / binaries.pack_name(version)
        architectures = [int(a) for a in options.architectures.split(",")]
        try:
            for done, total in compile_pack(pack, str(library), architectures, usable_cores()):
                if done % 50 == 0 or done == total:
                    _say(f"compiled {done} of {total} CUDA images")
        except CompileError as e:
            raise SystemExit(str(e)) from None
        _say(f"{pack.name}: {pack.stat().st_size:,} bytes")
        files[_PLACE + pack.name] = pack.read_bytes()
    _say(f"wrote {add_to_wheel(options.wheel, options.out, files)}")
    return 0


def loops_for(level: str, pack: Path, folder: Path, selected: Sequence[Loop] | None = None) -> int:
    """Compile CPU loops (all that wheels contain, or only ``selected``) for a level of x86-64, and store them in the
    file ``pack``. Return the number of loops in it. Raises SystemExit, which names every loop that could not be
    compiled or stored."""
    todo = sorted(loops() if selected is None else selected, key=lambda loop: -loop.seconds)
    entries: dict[str, tuple[str, bytes]] = {}
    cache_folder = folder.absolute() / "dali-run"
    began = said = time.perf_counter()
    done_count = 0
    failed: list[str] = []

    def done(loop: Loop, answer: Answer) -> None:
        nonlocal said, done_count
        done_count += 1
        if not answer.get("kept"):
            failed.append(
                f"{loop.module}.{loop.function}({', '.join(loop.types)}): {answer.get('error', 'not cache_folder')}"
            )
            _say(f"{level}: {failed[-1]}")
            return
        entries[answer["key"]] = answer["stamp"], store.content(cache_folder / answer["file"])
        if (now := time.perf_counter()) - said > 10:
            said = now
            _say(f"{level}: compiled {done_count} of {len(todo)} loops, {now - began:.0f} s")

    compile_all(todo, usable_cores(), done, environment_for(level, folder))
    if len(entries) != len(todo):
        raise SystemExit(f"{level}: {len(todo) - len(entries)} of {len(todo)} loops are missing:\n" + "\n".join(failed))
    pack.parent.mkdir(parents=True, exist_ok=True)
    store.write_pack(pack, entries)
    return len(entries)


def environment_for(level: str, folder: Path) -> Mapping[str, str]:
    """Return the environment variables with which a process compiles CPU loops for ``level`` (a level of x86-64) into
    ``folder``."""
    return {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(folder.absolute())}


def add_to_wheel(wheel: Path, out: Path, files: Mapping[str, bytes]) -> Path:
    """Add ``files`` to a copy of the wheel file ``wheel`` in the folder ``out``. The copy is tagged for this Python on
    Linux x86-64; return its path."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = "-".join([*wheel.name.split("-")[:2], python, "none", "manylinux2014_x86_64.whl"])
    out.mkdir(parents=True, exist_ok=True)
    temporary = out / f".{name}"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as new:
        rows = []
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith(".dist-info/RECORD"):
                record = item.filename
                continue
            if item.filename.endswith(".dist-info/WHEEL"):
                lines = [line for line in content.decode().splitlines() if not line.startswith("Tag:")]
                content = "\n".join([*filter(None, lines), f"Tag: {python}-none-manylinux2014_x86_64", ""]).encode()
                content = content.replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
            rows.append(_row(item.filename, content))
            new.writestr(item, content, zipfile.ZIP_DEFLATED)
        for path, content in files.items():
            rows.append(_row(path, content))
            new.writestr(path, content, zipfile.ZIP_STORED)
        new.writestr(record, "".join(rows) + f"{record},,\n")
    os.replace(temporary, out / name)
    return out / name


def _row(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
