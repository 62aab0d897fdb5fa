"""tfrecord2idx, rec2idx, wds2idx: indexes that DALI's readers, and ours, read, byte for byte as DALI's scripts
write them (which make samples of their own of members without a dot)."""

import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run import pipeline_def
from dali_run.cli.indexes import rec2idx, tfrecord2idx, wds2idx
from dali_run.ops.storage.crc32c_cpu import masked_crc32c

RECORDS = [b"", b"a", b"x" * 1000, b"yz"]


def masked(data: bytes) -> bytes:
    return struct.pack("<I", int(masked_crc32c(np.frombuffer(data, np.uint8), 0, len(data))))


def tfrecord(path: Path) -> None:
    with path.open("wb") as out:
        for record in RECORDS:
            length = struct.pack("<Q", len(record))
            out.write(length + masked(length) + record + masked(record))


def recordio(path: Path) -> None:
    with path.open("wb") as out:
        for k, record in enumerate(RECORDS[1:]):
            body = struct.pack("<IfQQ", 0, float(k), k, 0) + record
            out.write(struct.pack("<II", 0xCED7230A, len(body)) + body + bytes(-len(body) % 4))


def archive(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in (("d/a.jpg", b"1"), ("d/a.cls.txt", b"22"), (".hidden", b"3"), ("d/b.jpg", b"4" * 600),
                           ("bare", b"5"), ("d/b.cls.txt", b"6")):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_tfrecord2idx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tfrecord(tmp_path / "a.tfrecord")
    assert tfrecord2idx([str(tmp_path / "a.tfrecord"), str(tmp_path / "a.idx")]) == 0
    assert capsys.readouterr().out.endswith("a.idx: 4 samples\n")
    rows = [[int(w) for w in line.split()] for line in (tmp_path / "a.idx").read_text().splitlines()]
    starts = [sum(len(r) + 16 for r in RECORDS[:k]) for k in range(4)]
    assert rows == [[a, len(r) + 16] for a, r in zip(starts, RECORDS, strict=True)]


def test_rec2idx(tmp_path: Path) -> None:
    recordio(tmp_path / "a.rec")
    assert rec2idx([str(tmp_path / "a.rec"), str(tmp_path / "a.idx")]) == 0
    sizes = [8 + 24 + len(r) + -len(r) % 4 for r in RECORDS[1:]]
    assert (tmp_path / "a.idx").read_text() == "".join(f"{k}\t{sum(sizes[:k])}\n" for k in range(3))


@pytest.mark.parametrize("named", [True, False])
def test_wds2idx(named: bool, tmp_path: Path) -> None:
    archive(tmp_path / "a.b.tar")
    index = tmp_path / ("given.idx" if named else "a.idx")
    assert wds2idx([str(tmp_path / "a.b.tar"), *([str(index)] if named else [])]) == 0
    assert index.read_text() == (
        "v1.2 2\njpg 512 1 d/a.jpg cls.txt 1536 2 d/a.cls.txt\njpg 3584 600 d/b.jpg cls.txt 6144 1 d/b.cls.txt\n"
    )

    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def read():
        return fn.readers.webdataset(paths=tmp_path / "a.b.tar", index_paths=index, ext=["jpg", "cls.txt"])[1]

    pipe = read()
    assert [bytes(pipe.run()[0].at(i)) for i in range(2)] == [b"22", b"6"]
    pipe.close()


@pytest.mark.parametrize(("script", "make"), [(tfrecord2idx, tfrecord), (rec2idx, recordio), (wds2idx, archive)])
def test_damaged_files_have_no_index(script, make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, index = tmp_path / "source", tmp_path / "out.idx"
    assert script([str(source), str(index)]) == 2
    assert "no such file" in capsys.readouterr().err
    make(source)
    source.write_bytes(source.read_bytes()[:1060])
    assert script([str(source), str(index)]) == 1
    assert str(source) in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [source]
    make(source)
    assert script([str(source), str(tmp_path / "none" / "out.idx")]) == 2
    assert "none: there is no such file or folder" in capsys.readouterr().err
