"""The part of `make torture` about decoders in processes of their own: they are killed, crash and hang, by command of
the files (`faulty_decoder`), at chosen images, and with the whole job."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.kit import faulty_decoder

ROOT = Path(__file__).parents[1]
CORPUS = ROOT.parent / "shared" / "data" / "corpus" / "jp2"
FORMATS = ("PNG", "WEBP", "JPEG2000", "TIFF", "BMP", "GIF", "PPM", "JPEG")
FAULTS = ("SIGKILL", "SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "exit", "spin", "sleep")
TIMEOUT = 0.1

SPEC = """\
version: 1
name: small
pipeline: {{batch_size: 8, num_threads: 2, device: cpu, seed: 3, decode_timeout: {timeout}}}
graph:
  - {{op: readers.file, file_root: "{data}", file_filters: "*", random_shuffle: true, out: [files, labels]}}
  - {{op: decoders.image, in: files, out: images}}
  - {{op: random.coin_flip, out: mirror}}
  - {{op: flip, in: images, horizontal: $mirror, out: images}}
outputs: {{image: images, label: labels}}
write: {{writer: tfrecord, path: ./out, shard: {{samples: 9}}, fields: {{image: {{encode: raw}}, label: {{}}}}}}
on_error: {{policy: skip}}
"""


@dataclass
class Row:
    """One line of the table that `make torture` prints."""

    what: str
    tried: int
    bad: list[str]

    def __str__(self) -> str:
        return f"| {self.what} | {self.tried} | {len(self.bad)} |"


def picture(k: int, format: str | None = None) -> tuple[bytes, str]:
    """A small image file, and its suffix."""
    format = format or FORMATS[k % len(FORMATS)]
    pixels = np.random.default_rng(k).integers(0, 256, (12 + k % 5, 15 + k % 7, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format)
    return out.getvalue(), {"JPEG2000": "jp2"}.get(format, format.lower())


def pictures(folder: Path, n: int) -> None:
    """``n`` good files of all formats, in two classes."""
    for k in range(n):
        (folder / f"class{k % 2}").mkdir(parents=True, exist_ok=True)
        data, suffix = picture(k)
        (folder / f"class{k % 2}" / f"good-{k:03d}.{suffix}").write_bytes(data)


def run(spec: Path, out: Path, **settings: Any) -> tuple[dict[str, bytes], dict[str, Any]]:
    """A job into ``out``: its files, and its report."""
    from dali_run.pipelines.job.run import run_job

    changes = {"write.path": str(out), **{f"pipeline.{k}": v for k, v in settings.items()}}
    result = run_job(spec, changes)
    if result.exit_code not in (0, 3):
        raise AssertionError(result.message)
    files = {p.name: p.read_bytes() for p in sorted(out.iterdir()) if p.name != "report.json"}
    return files, dict(result.report)


def records(files: dict[str, bytes]) -> list[bytes]:
    """The payloads of all TFRecords, in order."""
    found = []
    for name in sorted(n for n in files if n.endswith(".tfrecord")):
        data, at = files[name], 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            found.append(data[at + 12 : at + 12 + size])
            at += 16 + size
    return found


def rejects(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in files["rejects.jsonl"].splitlines()]


def make_spec(work: Path, data: Path, timeout: float = TIMEOUT) -> Path:
    spec = work / "isolation.yaml"
    spec.write_text(SPEC.format(data=data, timeout=timeout))
    return spec


def killed_workers(work: Path, points: int) -> Iterator[Row]:
    """A worker dies or hangs at the k-th image that is decoded, as by a hand from outside: no file was the cause, so
    nothing may differ from the undisturbed run."""
    pictures(work / "data", 24)
    spec = make_spec(work, work / "data")
    expected, _ = run(spec, work / "undisturbed")
    scratch, bad = work / "calls", []
    with pytest.MonkeyPatch.context() as patch:
        faulty_decoder.install(patch)
        faulty_decoder.at_calls(patch, scratch, {})
        run(spec, work / "counted")
        calls = faulty_decoder.calls(scratch)
        for k, (call, fault) in enumerate(
            zip(itertools.cycle(range(1, calls + 1)), itertools.cycle(FAULTS), strict=False)
        ):
            if k == points:
                break
            faulty_decoder.at_calls(patch, scratch, {call: fault})
            files, report = run(spec, work / f"point-{k}", batch_size=(8, 1, 64)[k % 3], num_threads=1 + k % 2)
            replaced = sum(n for why, n in report["fallbacks"].items() if "decoder process replaced" in why)
            if files != expected:
                bad.append(f"{fault} at image {call}: the output differs")
            elif replaced != 1 and call > 2:  # the first two are the warm-up's, before the report begins
                bad.append(f"{fault} at image {call}: {replaced} workers were replaced")
    yield Row(
        "a decoder's process killed, crashed or hung at the k-th image: the same bytes, no rejects", points, bad
    )  # fmt: skip


def culprits(work: Path, batches: Sequence[int]) -> Iterator[Row]:
    """Files that crash or hang their decoders among good ones: each is named once, the others are untouched."""
    data = work / "data"
    pictures(data, 24)
    without, _ = run(make_spec(work, data), work / "without")
    wanted = {}
    for k, (fault, format) in enumerate(itertools.product(FAULTS, ("PNG", "JPEG2000"))):
        bytes_, suffix = picture(k, format)
        name = f"class{k % 2}/bad-{k:03d}-{fault}.{suffix}"
        (data / name).write_bytes(faulty_decoder.faulty(bytes_, fault))
        wanted[name] = "decoder_timeout" if fault in ("spin", "sleep") else "decoder_crashed"
    bad: list[str] = []
    seen: list[list[dict[str, Any]]] = []
    with pytest.MonkeyPatch.context() as patch:
        faulty_decoder.install(patch)
        for batch, mode in itertools.product(batches, ("auto", "all")):
            name = f"batch {batch}, isolation {mode}"
            files, _ = run(make_spec(work, data), work / f"with-{batch}-{mode}", batch_size=batch, isolation=mode)
            found = rejects(files)
            named = {Path(r["source"]).parent.name + "/" + Path(r["source"]).name: r["code"] for r in found}
            if named != wanted or len(found) != len(wanted):
                bad.append(f"{name}: rejected {named}")
            # another number of files is another shuffle: records are compared as a set of what they hold
            if sorted(map(_image, records(files))) != sorted(map(_image, records(without))):
                bad.append(f"{name}: other records differ")
            for r in found:
                fault = Path(r["source"]).stem.rpartition("-")[2]
                if fault.startswith("SIG") and fault not in r["message"]:
                    bad.append(f"{name}: {r['message']}")
            # which limit a decoder meets first, of CPU time or by the clock, is up to how busy the machine is
            seen.append([{**r, "message": ""} if r["code"] == "decoder_timeout" else r for r in found])
    if any(s != seen[0] for s in seen):
        bad.append("the reject logs differ")
    yield Row("files that crash or hang their decoder among good ones, batches and modes", len(wanted) * len(seen), bad)


def _image(record: bytes) -> int:
    """The number that tells records apart, whether flipped or not: the sorted bytes."""
    return hash(bytes(sorted(record)))


def corpus(work: Path, batches: Sequence[int]) -> Iterator[Row]:
    """The JPEG 2000 files that were found in the world, with good ones, in every mode: one outcome."""
    if not CORPUS.is_dir():
        yield Row("JPEG 2000 files of the world (skipped: needs ../shared/data)", 0, [])
        return
    data = work / "data"
    found = sorted(CORPUS.iterdir())
    pictures(data, len(found))
    for k, path in enumerate(found):
        (data / f"class{k % 2}" / f"jp2-{path.name}").write_bytes(path.read_bytes())
    spec = make_spec(work, data, timeout=30)
    expected: dict[str, bytes] = {}
    bad = []
    settings = list(itertools.product(batches, ("none", "auto", "all")))
    for batch, mode in settings:
        files, report = run(spec, work / f"corpus-{batch}-{mode}", batch_size=batch, isolation=mode)
        expected = expected or files
        if files != expected or len(records(files)) + len(rejects(files)) != 2 * len(found) or report["fallbacks"]:
            bad.append(f"batch {batch}, isolation {mode}")
    yield Row(f"{len(found)} JPEG 2000 files of the world and as many good ones, batches x modes: the same bytes",
              len(settings), bad)  # fmt: skip


def ended_jobs(work: Path, times: int) -> Iterator[Row]:
    """`dali-run run` ended while decoders sleep: no process and no memory is left."""
    pictures(work / "data", 6)
    for k in range(4):
        data, _ = picture(k, "PNG")
        (work / "data" / "class0" / f"bad-{k}.png").write_bytes(faulty_decoder.faulty(data, "sleep"))
    spec = make_spec(work, work / "data", timeout=1000)
    program = (
        "import signal, sys, types; from tests.kit import faulty_decoder; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # which shells turn off for what they run behind
        "faulty_decoder.install(types.SimpleNamespace(setattr=setattr)); "
        f"sys.argv = ['dali-run', 'run', {str(spec)!r}, '--quiet', '--fresh', '--set', 'write.path={work}/out']; "
        "from dali_run.cli.main import main; sys.exit(main())"
    )
    for kind in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        bad: list[str] = []
        for k in range(times):
            with subprocess.Popen(
                [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            ) as job:  # fmt: skip
                end = time.monotonic() + 60
                while len(faulty_decoder.descendants(job.pid)) < 2 and job.poll() is None and time.monotonic() < end:
                    time.sleep(0.02)  # the fork server, and a worker
                processes = faulty_decoder.descendants(job.pid)
                time.sleep(0.1 * k)
                named = [f for p in (job.pid, *processes) for f in faulty_decoder.files_in_shared_memory(p)]
                job.send_signal(kind)
                stopping = time.monotonic()
                code = job.wait()
            took = time.monotonic() - stopping
            end = time.monotonic() + 5
            while any(map(faulty_decoder.alive, processes)) and time.monotonic() < end:
                time.sleep(0.02)
            if len(processes) < 2 or code not in (-kind, 130):
                bad.append(f"{kind.name}: exit code {code}, {len(processes)} processes")
            elif any(map(faulty_decoder.alive, processes)):
                bad.append(f"{kind.name}: processes are left")
            elif took > 10:
                bad.append(f"{kind.name}: it took {took:.0f} s to stop")
            elif named:
                bad.append(f"{kind.name}: files in /dev/shm would be left: {named}")
        yield Row(f"{kind.name} while decoders hang: processes and files in /dev/shm that are left", times, bad)


def damaged_databases(work: Path, times: int) -> Iterator[Row]:
    """LMDB files with bytes changed, cut before they are opened or between opening and reading: records or rejects."""
    import lmdb

    from dali_run.ops.batch import Samples
    from dali_run.ops.context import Context
    from dali_run.ops.errors import JobError
    from dali_run.readers.lmdb import LMDB

    rng = np.random.default_rng(7)
    good = work / "good.mdb"
    with lmdb.open(str(good), map_size=1 << 20, subdir=False, lock=False) as env, env.begin(write=True) as txn:
        for k in range(60):
            txn.put(b"%03d" % k, rng.bytes(int(rng.integers(1, 9000))))
    whole, bad, seen = good.read_bytes(), [], 0
    for k in range(times):
        raw = bytearray(whole)
        if k % 3 == 2:
            del raw[int(rng.integers(len(raw))) :]
        else:
            for place in rng.integers(0, len(raw), int(rng.integers(1, 60))).tolist():
                raw[place] = int(rng.integers(256))
        path = work / f"{k}.mdb"
        path.write_bytes(raw)
        reader = LMDB(path=str(path))
        try:
            source = reader.open()
            if k % 2 and raw:
                os.truncate(path, int(rng.integers(len(raw))))
            n = len(source)
            index = np.arange(n, dtype=np.int64)
            samples = Samples(np.arange(n, dtype=np.int32), index, np.zeros(n, np.int64), index, source)
            ctx = Context(op=reader, stage="cpu", samples=samples, source=source)
            (values,) = reader.cpu(ctx)
            if k % 4 == 3:
                os.truncate(path, 0)  # what was read is a view of the file
            seen += sum(len(v.tobytes()) for v in values)
            source.close()
        except JobError:
            pass
        except Exception as e:
            bad.append(f"file {k}: {e!r}")
        path.unlink()
    if not seen:
        bad.append("nothing was ever read")
    yield Row(
        "LMDB files changed and cut, before and while they are read: records and rejects, no traceback", times, bad
    )


def rows(work: Path, quick: bool) -> Iterator[Row]:
    """All of them."""
    for name, make in {
        "killed": lambda w: killed_workers(w, 8 if quick else 104),
        "culprits": lambda w: culprits(w, (8,) if quick else (1, 8, 64)),
        "corpus": lambda w: corpus(w, (8,) if quick else (1, 8, 64)),
        "databases": lambda w: damaged_databases(w, 100 if quick else 2000),
        "ended": lambda w: ended_jobs(w, 1 if quick else 10),
    }.items():
        (work / name).mkdir()
        yield from make(work / name)
