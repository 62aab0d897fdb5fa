"""port: programs for DALI are read, not run; what is missing or differs is named, imports are rewritten."""

import json
from pathlib import Path

import pytest

from dali_run.cli.main import main
from dali_run.ops.errors import SpecError
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
        (13, "differs", "fn.random.uniform|draws other numbers than DALI, unless the pipeline has rng='dali'"),
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
    assert "nothing is missing" in capsys.readouterr().err
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


@pytest.mark.parametrize("text", ["def f(:\n", "\0", "print 'x'"])
def test_what_is_no_python(text: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"train.py.*is no Python"):
        examine(program(tmp_path, text))
    with pytest.raises(SpecError, match="cannot be read"):
        examine(tmp_path / "none.py")


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
