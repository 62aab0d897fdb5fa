"""Nothing that is read may run code, lead out of the output, or forge a line of a log."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image

from dali_run.ops.errors import DaliRunError
from dali_run.pipelines.bench.run import load_baseline
from dali_run.pipelines.dynamic.checkpoint import Checkpoint
from dali_run.pipelines.fleet.api import run_job as run_job_of_program
from dali_run.pipelines.graph.as_json import parse_pipeline
from dali_run.pipelines.job.convert import ConvertOptions, convert
from dali_run.pipelines.job.first_spec import look_at
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.python.checkpoints import parse_checkpoint
from dali_run.pipelines.tools.datasets import inspect_data
from dali_run.readers.coco import load_annotations
from dali_run.readers.listing import lines_of
from dali_run.readers.nemo import read_manifest
from dali_run.readers.streaming.records import read_index
from dali_run.writers.shards.journal import read_journal
from dali_run.writers.shards.left_out import parse_position
from dali_run.writers.shards.rejects import RejectRow
from dali_run.writers.shards.verify import verify

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "ops", "pipelines", "readers", "writers", "dali_run")


# -- no pickle --------------------------------------------------------------------------------------------------------


def test_no_code_unpickles_data() -> None:
    """Pickle is for callbacks between a pipeline and the workers that it starts, in one module, and for what Numba
    compiled, which is code, in another."""
    wrong = []
    never = (r"allow_pickle\s*=\s*True", r"\byaml\.(load|full_load|unsafe_load)\s*\(", r"(?<!f\")\beval\(",
             r"\bos\.system\(", r"shell\s*=\s*True", r"\bshelve\b", r"\bdill\b", r"\bjoblib\b",
             r"np\.load\((?!.*allow_pickle=False)")  # fmt: skip
    only_for_callbacks = (r"\bpickle\.(loads?|Unpickler)\b", r"\bmarshal\b")
    for path in [p for f in FOLDERS for p in (ROOT / f).rglob("*.py")]:
        code = path.name == "pickling.py" or path.parts[-3:] == ("ops", "compiled", "numba_cache.py")
        patterns = never if code else never + only_for_callbacks
        for number, line in enumerate(path.read_text().splitlines(), 1):
            wrong += [f"{path}:{number}: {line}" for pattern in patterns if re.search(pattern, line)]
    assert wrong == []


def test_json_of_users_has_one_parser() -> None:
    """`json.loads` raises RecursionError for deep nesting, which no `except ValueError` catches. The modules named here
    parse what this package wrote, or run without it."""
    own = ("ops/storage/json_text.py", "ops/compiled/", "ops/codecs/isolation/", "pipelines/bench/peers/",
           "pipelines/fleet/worker.py", "pipelines/spec/other_libraries.py")  # fmt: skip
    wrong = [
        str(path) for folder in FOLDERS[:-1] for path in (ROOT / folder).rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text()) and not str(path.relative_to(ROOT)).startswith(own)
    ]  # fmt: skip
    assert wrong == []


DEEP = '{"images": ' + "[" * 100_000


@pytest.mark.parametrize("parse", [
    read_manifest, lines_of, load_annotations, lambda path: read_index(path), lambda path: load_baseline(Path(path)),
    lambda path: parse_checkpoint(Path(path).read_bytes()), lambda path: parse_pipeline(Path(path).read_bytes()),
    lambda path: look_at(str(Path(path).parent)), lambda path: read_journal(Path(path)) or parsed(path),
    lambda path: run_job_of_program(nested(100_000)), lambda path: restored(Path(path).read_text()),
])  # fmt: skip
def test_json_that_is_nested_deeply_is_an_error_of_ours(tmp_path: Path, parse: Callable[[str], object]) -> None:
    (tmp_path / "deep.json").write_text(DEEP)
    with pytest.raises((DaliRunError, ValueError)) as caught:
        parse(str(tmp_path / "deep.json"))
    assert len(str(caught.value)) < 1000


def parsed(path: str) -> object:
    return RejectRow.parse(Path(path).read_bytes()) and parse_position(Path(path).read_bytes())


def restored(text: str) -> None:
    Checkpoint().deserialize(text)


def nested(depth: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for _ in range(depth):
        found = {"version": found}
    return found


def exploits(folder: Path) -> None:
    """Files that make a file when they are unpickled, in every dress that a reader of arrays may meet."""
    payload = b"cos\nsystem\n(S'touch " + str(folder / "executed").encode() + b"'\ntR."
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + payload
    named = array.replace(b"'|O'", b"[('a', '|O')]")
    (folder / "bad").mkdir()
    (folder / "bad" / "pickle.npy").write_bytes(payload)
    (folder / "bad" / "object.npy").write_bytes(array)
    (folder / "bad" / "named.npy").write_bytes(named)
    with tarfile.open(folder / "a.tar", "w") as tar:
        for k, data in enumerate((payload, array, named)):
            for suffix in ("npy", "jpg", "pkl"):
                info = tarfile.TarInfo(f"{k}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def test_nothing_is_executed(tmp_path: Path) -> None:
    """Under an audit hook, in a process of its own: exploits of our own, and those of the corpus where it is there."""
    exploits(tmp_path)
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        events, root, corpus = [], Path(sys.argv[1]), Path(sys.argv[2])

        def hook(event, args):
            if event == "pickle.find_class" and (args[0].startswith("numba.") or args[0] in ("copyreg", "llvmlite")
                                                 or args == ("builtins", "object")):
                return  # Numba's own cache of compiled kernels
            if event in ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "pty.spawn",
                         "socket.connect", "socket.getaddrinfo", "shutil.rmtree"):
                events.append((event, repr(args)[:200]))

        import numpy as np
        from dali_run.ops.batch import Batch, Samples
        from dali_run.ops.base import find
        from dali_run.ops.context import Context
        from dali_run.ops.errors import DaliRunError
        from dali_run.pipelines.tools.datasets import inspect_data
        from dali_run.pipelines.plugins import load_operators

        load_operators()
        files = sorted((root / "bad").iterdir())
        files += sorted(p for p in corpus.iterdir() if p.is_file()) if corpus.is_dir() else []
        sys.addaudithook(hook)
        refused = 0
        for path in files:
            data = np.frombuffer(bytearray(path.read_bytes()), np.uint8)
            samples = Samples.numbered(1)
            for name in ("decoders.numpy", "decoders.image"):
                op = find(name)()
                ctx = Context(op=op, stage="cpu", samples=samples)
                op.cpu(ctx, Batch.from_list([data], "", samples))
                refused += len(ctx.rejects)
                assert all(r.message for r in ctx.rejects)
            reader = find("readers.numpy")(files=(str(path),))
            try:
                source = reader.open()
                ctx = Context(op=reader, stage="cpu", samples=Samples.numbered(1), source=source)
                reader.cpu(ctx)
            except DaliRunError:
                refused += 1
            try:
                inspect_data(path, 3)
            except DaliRunError:
                pass
        for found in inspect_data(root / "a.tar", 9)["samples"]:
            assert found["fields"]
        assert not events, events
        print(len(files), refused)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), str(ROOT.parent / "shared/data/corpus/npy_pickle")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    files, refused = map(int, done.stdout.split())
    assert refused >= files  # as pictures none of them, as arrays not those with objects
    assert not (tmp_path / "executed").exists()


# -- no way out -------------------------------------------------------------------------------------------------------


def hostile_names() -> list[str]:
    """More than 500 names that would lead out of a folder, stop a shell, forge a line, or collide."""
    leads = ["../", "../../", "/", "//", "a/../../", "./../", "..\\", "C:\\", "\\\\server\\share\\", "a/b/../../../",
             "~/", "%2e%2e/", "..%2f", "....//", "\u2025/", "\uff0e\uff0e/", "-", ".", "..", "a//", "$HOME/", "`id`/",
             ";", "|", "&", "*", "?", "con/", "NUL.", " ", "\t", "\n", "\r\n", "\x1b[2J", "\x7f", "\u202e", "\u2028",
             "a\nb/", "{}", "%s"]  # fmt: skip
    tails = ["etc/passwd", "manifest", "journal", "rejects", ".dali-run", "x", "a.b.c", "caf\u00e9", "\u6f22\u5b57",
             "x" * 300, "x/" * 60 + "y", "small-00000-of-00001", "", "report"]  # fmt: skip
    return [lead + tail for lead in leads for tail in tails]


def snapshot(folder: Path, but: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.is_relative_to(but)}


@pytest.fixture(scope="module")
def picture() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(buffer, "JPEG")
    return buffer.getvalue()


def test_hostile_names_are_enough() -> None:
    assert len(set(hostile_names())) >= 500


def make_tar(path: Path, picture: bytes) -> int:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for k, name in enumerate(hostile_names()):
            folder, slash, base = name.rpartition("/")
            for suffix in ("jpg", "cls"):
                info = tarfile.TarInfo(f"{folder}{slash}{base.replace('.', '_')}{k}.{suffix}")
                data = picture if suffix == "jpg" else b"7"
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo("link.jpg")
            info.type, info.linkname = kind, "../../escaped"
            tar.addfile(info)
    return len(hostile_names())


def make_lmdb(path: Path, picture: bytes) -> int:
    names = {name.encode()[:500] + b"%d" % k for k, name in enumerate(hostile_names())}
    with lmdb.open(str(path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for name in sorted(names):
            txn.put(name, picture)
    return len(names)


@pytest.mark.parametrize("source", ["tar", "lmdb"])
@pytest.mark.parametrize("to", ["files", "webdataset", "lmdb"])
def test_keys_stay_inside(
    tmp_path: Path, picture: bytes, source: str, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    place = tmp_path / "deep" / "inside"
    place.mkdir(parents=True)
    path = place / f"in.{source}"
    made = (make_tar if source == "tar" else make_lmdb)(path, picture)
    out = place / "out"
    before = snapshot(tmp_path, out)
    result = convert(path, out, ConvertOptions(to))
    assert result.exit_code in (0, 3), result.message
    assert snapshot(tmp_path, out) == before
    assert not (tmp_path / "deep" / "escaped").exists()
    verdict = verify(out)
    assert verdict.sound, verdict.problems[:3]
    assert verdict.samples + verdict.rejects >= made - 40  # equal keys in a row are one sample of a tar
    for found in out.rglob("*"):
        assert found.resolve().is_relative_to(out.resolve())
        assert not found.is_symlink()
        assert found.relative_to(out).as_posix().isprintable()
    if to == "webdataset":
        for shard in out.glob("*.tar"):
            with tarfile.open(shard) as tar:
                for member in tar:
                    assert member.isfile()
                    assert not member.name.startswith("/")
                    assert ".." not in member.name.split("/")
                    assert member.name.isprintable()
    for log in (*out.glob("*.jsonl"), out / "manifest.json"):
        lines = log.read_bytes()
        assert all(byte == 10 or 32 <= byte < 127 for byte in lines)
        if log.suffix == ".jsonl":
            assert all(isinstance(json.loads(line), dict) for line in lines.splitlines())


SPEC = """\
version: 1
name: small
pipeline: {{device: cpu}}
graph:
  - {{op: readers.coco, name: Reader, file_root: "{root}/data", annotations_file: "{root}/boxes.json",
      image_ids: true, out: [jpegs, boxes, labels, ids]}}
outputs: {{image: jpegs, id: ids}}
write: {{writer: files, path: "{root}/out", fields: {{image: {{encode: keep}}, id: {{}}}}}}
on_error: {{policy: skip}}
"""


def test_file_names_of_annotations_stay_inside(tmp_path: Path, picture: bytes) -> None:
    """None of the names is opened outside of file_root; what is refused is a line that says why."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "good.jpg").write_bytes(picture)
    (tmp_path / "secret.jpg").write_bytes(picture)
    names = ["good.jpg", "../secret.jpg", str(tmp_path / "secret.jpg"), "nul\0.jpg", *hostile_names()]
    images = [{"id": k, "file_name": n, "width": 10, "height": 10} for k, n in enumerate(names)]
    document = {"images": images, "categories": [{"id": 1, "name": "x"}], "annotations": []}
    (tmp_path / "boxes.json").write_text(json.dumps(document))
    (tmp_path / "spec.yaml").write_text(SPEC.format(root=tmp_path))
    result = run_job(tmp_path / "spec.yaml")
    assert result.exit_code == 3, result.message
    rows = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    assert len(rows) == len(names) - 1
    assert all(r["message"] and r["code"] for r in rows)
    outside = [r for r in rows if "is outside of file_root" in r["message"]]
    assert len(outside) >= 100
    assert verify(tmp_path / "out").samples == 1


def test_archives_of_the_corpus_stay_inside(shared_data: Path, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "inside"
    place.mkdir(parents=True)
    archives = sorted((shared_data / "corpus" / "webdataset").glob("*"))
    assert archives
    for k, path in enumerate(archives):
        out = place / f"out-{k}"
        with contextlib.suppress(DaliRunError):
            inspect_data(path, 3)
            convert(path, out, ConvertOptions("files"))
        assert {p.name for p in place.iterdir()} <= {f"out-{i}" for i in range(k + 1)}
        assert [p.name for p in (tmp_path / "deep").iterdir()] == ["inside"]
