"""port: programs for DALI are read, not run; what is missing or differs is named, imports are rewritten."""

import json
from pathlib import Path

import pytest

from dali_run.cli.main import main
from dali_run.pipelines.tools.port import examine, rewrite

PROGRAM = """\
import nvidia.dali
import nvidia.dali as dali, os
import nvidia.dali.fn as fn
from nvidia import dali as other
from nvidia.dali import pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, NoSuchIterator
from nvidia.dali.sysconfig import get_lib_dir
# nvidia.dali in a comment
raise SystemExit("this must not run")
@pipeline_def(batch_size=3, max_streams=2, foo=1, enable_conditionals=True)
def p():
    y, z = fn.readers.file(file_root="nvidia.dali", lazy_init=True, read_ahead=True, nope=3)
    w = fn.random.uniform(range=[0, 1], name="ü")
    q = dali.ops.Resize(size=[1, 2], bad=2)
    e = fn.external_source(source=p, batch=False, wrong=1)
    r = nvidia.dali.fn.flip(y, horizontal=1)
    s = other.math.sqrt(r)
    return fn.nosuch(types.FLOAT, types.NOSUCH), fn.optical_flow(r)
p().serialize()
"""


def program(tmp_path: Path, text: str = PROGRAM) -> Path:
    path = tmp_path / "train.py"
    path.write_bytes(text.encode())
    return path


def test_what_is_missing_differs_or_has_no_effect(tmp_path: Path) -> None:
    report = examine(program(tmp_path))
    assert not report.runs
    found = {(f.line, f.kind, f.text.split(": ", 1)[0] + "|" + f.text.rsplit(": ", 1)[-1]) for f in report.findings}
    expected = {
        (6, "missing", "nvidia.dali.plugin.pytorch.NoSuchIterator|dali-run has none"),
        (7, "missing", "nvidia.dali.sysconfig.get_lib_dir|dali-run has none"),
        (10, "missing", "pipeline_def|has no argument 'foo'"),
        (10, "no effect", "pipeline_def|argument 'max_streams' has no effect"),
        (12, "missing", "fn.readers.file|has no argument 'nope'"),
        (12, "no effect", "fn.readers.file|extents are read whole anyway"),
        (13, "differs", "|".join(["random numbers are not DALI's, unless the pipeline has rng='dali'"] * 2)),
        (14, "missing", "ops.Resize|has no argument 'bad'"),
        (15, "missing", "fn.external_source|has no argument 'wrong'"),
        (18, "missing", "nvidia.dali.fn.nosuch|neither DALI nor dali-run has it"),
        (18, "missing", "nvidia.dali.types.NOSUCH|dali-run has none"),
        (19, "differs", "|".join(["Pipeline.serialize gives JSON, not DALI's protobuf"] * 2)),
    }  # fmt: skip
    assert expected <= found
    assert {line for line, _, _ in found} == {line for line, _, _ in expected}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_imports_are_rewritten_and_nothing_else(end: str, tmp_path: Path) -> None:
    path = program(tmp_path, PROGRAM.replace("\n", end))
    assert rewrite(examine(path))
    before, after = PROGRAM.splitlines(), path.read_bytes().decode().split(end)[:-1]
    changed = {a: b for a, b in zip(before, after, strict=True) if a != b}
    assert list(changed.values()) == [
        "import dali_run",
        "import dali_run as dali, os",
        "import dali_run.fn as fn",
        "import dali_run as other",
        "from dali_run import pipeline_def, types",
        "from dali_run.plugin.pytorch import DALIGenericIterator, NoSuchIterator",
        "from dali_run.sysconfig import get_lib_dir",
        "    r = dali_run.fn.flip(y, horizontal=1)",
    ]
    assert not rewrite(examine(path))


def test_programs_that_need_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine = program(tmp_path, "from nvidia.dali import fn\nfn.flip(fn.readers.file(file_root='x')[0])\n")
    assert main(["port", str(fine)]) == 0
    assert "no differences found" in capsys.readouterr().err
    assert main(["port", str(fine), "--write", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["runs"], report["rewritten"], report["findings"]) == (True, True, [])
    assert fine.read_text().startswith("from dali_run import fn\n")
    assert main(["port", str(program(tmp_path, "import nvidia.dali.fn as fn\nfn.nosuch()"))]) == 1
    assert "train.py:2:1: missing: nvidia.dali.fn.nosuch" in capsys.readouterr().out
    other = program(
        tmp_path, "import os\nfn = os\nfn.nosuch()\nclass A:\n    def serialize(self): ...\nA().serialize()\n"
    )
    assert examine(other).findings == []


@pytest.mark.parametrize("raw", [
    b"def f(:\n", b"\0", b"print 'x'", b"import nvidia.dali as d\nd.Pipeline(async=True)\n", b"# coding: none\n",
    b"# coding: ascii\n'\xe9'", b"'\xe9'", b"x = " + b"(" * 9000 + b")" * 9000,
])  # fmt: skip
def test_files_that_are_not_python_hide_no_others(
    raw: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd, folder, good = tmp_path / "odd.py", tmp_path / "folder.py", tmp_path / "good.py"
    odd.write_bytes(raw)
    folder.mkdir()
    good.write_text("import nvidia.dali.fn as fn\nfn.nosuch()")
    assert main(["port", *map(str, (odd, folder, good)), "--write"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1:3] for line in out[:1]] == [["unreadable", "is not Python that this version reads"]]
    assert "unreadable: cannot be read" in out[1]
    assert out[2].startswith(f"{good}:2:1: missing: nvidia.dali.fn.nosuch")
    assert odd.read_bytes() == raw
    assert good.read_text().startswith("import dali_run.fn as fn")


@pytest.mark.parametrize(("cookie", "encoding"), [
    ("# -*- coding: latin-1 -*-", "latin-1"), ("# vim: set fileencoding=cp1252 :", "cp1252"), ("#", "utf-8-sig"),
])  # fmt: skip
def test_encodings_stay(cookie: str, encoding: str, tmp_path: Path) -> None:
    text = f"{cookie}\nx = 'é'; import nvidia.dali.fn as fn\ny = 'ü'; fn.flip(1)\n"
    path = tmp_path / "train.py"
    path.write_bytes(text.encode(encoding))
    report = examine(path)
    assert report.runs
    assert rewrite(report)
    assert path.read_bytes() == text.replace("nvidia.dali", "dali_run").encode(encoding)


def test_what_is_common_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import nvidia.dali.fn as fn\nfn.random.uniform()\nfn.random.coin_flip()\nfn.random.uniform()\nfn.nosuch()\n"
    paths = [tmp_path / name for name in ("a.py", "b.py")]
    for path in paths:
        path.write_text(text)
    assert main(["port", *map(str, paths)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{paths[0]}:2:1: differs: random numbers are not DALI's, unless the pipeline has rng='dali' "
        "(6 places in 2 files)",
        f"{paths[0]}:5:1: missing: nvidia.dali.fn.nosuch: neither DALI nor dali-run has it (2 places in 2 files)",
    ]
    assert [len(examine(path).findings) for path in paths] == [4, 4]


REFUSED = """\
import nvidia.dali.fn as fn, nvidia.dali.ops as ops, nvidia.dali.types as types
import numpy as np
fn.normalize(x, mean=[1, 2, 3], stddev=np.ones((1, 1, 3)))
ops.COCOReader(file_root=root, annotations_file=file, save_preprocessed_annotations=True)
fn.readers.coco(annotations_file=file, meta_files_path="a", image_ids=flag)
fn.resize(x, size=[1, 2], resize_x=3, interp_type=types.INTERP_LINEAR)
fn.crop_mirror_normalize(x, mean=[1.0, 2.0], std=deviation, dtype=types.FLOAT)
fn.readers.file(file_root=root, shard_id=3, num_shards=2)
fn.readers.file(shard_id=k, num_shards=2)
pipe._prefetch(); pipe._run_once(); pipe._share_outputs()
pipe._names_and_devices
"""


def test_constants_that_are_refused(tmp_path: Path) -> None:
    report = examine(program(tmp_path, REFUSED))
    assert not report.runs
    assert [(f.line, f.kind) for f in report.findings] == [
        (3, "refused"), (4, "refused"), (5, "refused"), (6, "refused"), (8, "refused"), (11, "missing"),
    ]  # fmt: skip
    assert "argument 'mean': needs a number" in report.findings[0].text
    assert "DALI's own format" in report.findings[1].text


DYNAMIC = """\
import nvidia.dali.experimental.dynamic as ndd
import nvidia.dali.experimental.dynamic
from nvidia.dali.experimental import dynamic as same
from nvidia.dali.experimental.dynamic.readers import File
reader = File(file_root="x", random_shuffle=True, nope=1)
for data, labels in reader.next_epoch(batch_size=2, capture=True):
    x = ndd.resize(ndd.decoders.image(data, device="gpu"), size=3, sise=4)
    y = nvidia.dali.experimental.dynamic.flip(x) + ndd.random.uniform(batch_size=2, rng=ndd.random.RNG(seed=1))
    z = same.nothing(y), ndd.batch([1], dtype=ndd.uint8), ndd.random.normal(seed=3)
"""


def test_the_dynamic_mode(tmp_path: Path) -> None:
    path = program(tmp_path, DYNAMIC)
    report = examine(path)
    assert [(f.line, f.kind, f.text) for f in report.findings] == [
        (5, "missing", "experimental.dynamic.readers.File: has no argument 'nope'"),
        (7, "missing", "experimental.dynamic.resize: has no argument 'sise'"),
        (9, "missing", "nvidia.dali.experimental.dynamic.nothing: dali-run has none"),
        (9, "missing", "experimental.dynamic.random.normal: has no argument 'seed'"),
    ]
    assert rewrite(report)
    wanted = DYNAMIC.replace("nvidia.dali.experimental.dynamic", "dali_run.dynamic")
    assert path.read_text() == wanted.replace("from nvidia.dali.experimental import", "from dali_run import")
