"""Indexing of DataNodes against NumPy's."""

import io
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dali_run
import dali_run.fn as fn
from dali_run import newaxis, pipeline_def
from dali_run.ops.batch import Origin
from dali_run.ops.errors import JobError, SpecError

SAMPLES = [np.arange(5 * 4 * 3, dtype=np.int16).reshape(5, 4, 3) + 100 * k for k in range(3)]
RAGGED = [np.arange((2 + k) * 4, dtype=np.int16).reshape(2 + k, 4) for k in range(3)]


def run(index: Callable[[Any], Any], data: list[np.ndarray] = SAMPLES, layout: str = "", **options: Any) -> Any:
    @pipeline_def(batch_size=3, num_threads=1, **options)
    def pipe():
        return index(fn.external_source(lambda: data, layout=layout))

    return pipe().run()[0]


INDICES: list[Callable[[Any], Any]] = [
    lambda x: x[0], lambda x: x[-1], lambda x: x[1, 2], lambda x: x[1, -2, 0], lambda x: x[:], lambda x: x[1:],
    lambda x: x[:2], lambda x: x[1:4], lambda x: x[-3:-1], lambda x: x[10:], lambda x: x[-100:100], lambda x: x[3:1],
    lambda x: x[::2], lambda x: x[1::2, ::-1], lambda x: x[::-1], lambda x: x[3:0:-2], lambda x: x[:, 1],
    lambda x: x[:, 1:3, -1], lambda x: x[-1::-1, 0], lambda x: x[..., :], lambda x: x[2, ...], lambda x: x[:, :, 2],
    lambda x: x[::-3], lambda x: x[4:None:-1], lambda x: x[-2:0:-1, 1:, ::2],
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(INDICES)))
def test_as_numpy(number: int) -> None:
    index = INDICES[number]
    if number == 19:
        with pytest.raises(NotImplementedError):
            run(index)
        return
    got = run(index)
    for k, sample in enumerate(SAMPLES):
        expected = index(sample)
        assert got.at(k).shape == expected.shape
        assert (got.at(k) == expected).all()


def test_ragged_and_layout() -> None:
    got = run(lambda x: x[-1:, ::-1], RAGGED, "HW")
    assert all((got.at(k) == s[-1:, ::-1]).all() for k, s in enumerate(RAGGED))
    assert got.layout() == "HW"
    assert run(lambda x: x[0], RAGGED, "HW").layout() == "W"
    assert run(lambda x: x[:, 0], RAGGED, "HW").layout() == "H"


def test_new_axes() -> None:
    got = run(lambda x: x[:, newaxis], RAGGED, "HW")
    assert list(got.shape()) == [(2 + k, 1, 4) for k in range(3)]
    named = run(lambda x: x[newaxis("C"), 0, :, newaxis("X")], RAGGED, "HW")
    assert named.shape() == [(1, 4, 1)] * 3
    assert named.layout() == "CWX"
    with pytest.raises(ValueError, match="one letter"):
        dali_run.newaxis("CC")


def test_data_as_indices() -> None:
    @pipeline_def(batch_size=3, num_threads=1)
    def pipe():
        x = fn.external_source(lambda: RAGGED)
        at = fn.external_source(lambda: np.array([1, -1, 0]))
        step = fn.external_source(lambda: np.array([2, -1, -3]))
        return x[at], x[at:], x[0, at], x[:at, 1:], x[x.shape()[0] - 1], x[::step], x[at:, 3:at:step]

    out = pipe().run()
    at, step = [1, -1, 0], [2, -1, -3]
    expected: list[Callable[[Any, int], Any]] = [
        lambda s, i: s[i], lambda s, i: s[i:], lambda s, i: s[0, i], lambda s, i: s[:i, 1:], lambda s, i: s[-1],
        lambda s, i: s[:: step[at.index(i)]], lambda s, i: s[i:, 3 : i : step[at.index(i)]],
    ]  # fmt: skip
    for got, index in zip(out, expected, strict=True):
        for k, sample in enumerate(RAGGED):
            assert (got.at(k) == index(sample, at[k])).all()
            assert got.at(k).shape == index(sample, at[k]).shape

    @pipeline_def(batch_size=2, num_threads=1, on_error="skip")
    def refuses():
        return fn.external_source(lambda: RAGGED[:2])[:: fn.external_source(lambda: np.array([0, 2]))]

    assert [s.shape() for s in refuses().run()[0]] == [[2, 4]]
    with pytest.raises(JobError, match="a step must not be 0"):
        refuses(on_error="fail").run()


def test_refusals() -> None:
    with pytest.raises(JobError, match="index 2 is outside dimension 0 of 2"):
        run(lambda x: x[2], RAGGED)
    assert len(run(lambda x: x[2], RAGGED, on_error="skip")) == 2
    with pytest.raises((JobError, SpecError), match="too many indices"):
        run(lambda x: x[0, 0, 0], RAGGED)
    with pytest.raises((JobError, SpecError), match="too many indices"):
        run(lambda x: x[:, :, :, :])
    with pytest.raises(TypeError, match="step"):
        run(lambda x: x[::0])
    with pytest.raises(TypeError, match="integers"):
        run(lambda x: x["a"])
    with pytest.raises(TypeError, match="made of integers"):
        run(lambda x: x[1.5:])


def test_shape_property_source_info(tmp_path) -> None:
    files = []
    for k in range(3):
        (tmp_path / f"{k}.bin").write_bytes(bytes(k + 1))
        files.append(str(tmp_path / f"{k}.bin"))

    @pipeline_def(batch_size=3, num_threads=1)
    def pipe():
        data, _ = fn.readers.file(files=files)
        image = fn.external_source(lambda: SAMPLES, layout="HWC")
        floats = image.shape(dtype=dali_run.types.FLOAT)
        return data.shape(), data.source_info(), image.property("layout"), floats, data

    shapes, sources, layouts, floats, data = pipe().run()
    assert [t.source_info() for t in data] == files
    assert shapes.as_array().tolist() == [[1], [2], [3]]
    assert shapes.dtype == dali_run.types.INT64
    assert [bytes(sources.at(k)).decode() for k in range(3)] == files
    assert [bytes(layouts.at(k)) for k in range(3)] == [b"HWC"] * 3
    assert floats.as_array().tolist() == [[5.0, 4.0, 3.0]] * 3


def test_source_info_names_records(tmp_path) -> None:
    """As DALI's does: files below the root, containers with the place of the record."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(b"0")
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("s0.txt"), io.BytesIO())

    @pipeline_def(batch_size=1, num_threads=1)
    def pipe():
        text = fn.readers.webdataset(paths=[str(tmp_path / "x.tar")], ext=["txt"])
        return fn.readers.file(file_root=str(tmp_path))[0], text

    assert [o[0].source_info() for o in pipe().run()] == ["a/0.jpg", f"{tmp_path}/x.tar:0:s0"]
    assert Origin("k", "x.rec", 3, 36).source_info == "x.rec at index 36"
    assert Origin("k", "x.parquet", 3).source_info == "x.parquet at index 3"
