"""readers.numpy against numpy.load, DALI's answers for regions, and damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy_format

from dali_run.ops.batch import Batch
from dali_run.ops.context import Context
from dali_run.ops.errors import JobError, SpecError
from dali_run.readers.npy import Numpy
from tests.kit.readers import fetch, open_reader


def save(path: Path, array: Any, version: tuple[int, int] | None = None) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as f:
        npy_format.write_array(f, np.asanyarray(array), version=version)
    return str(path)


DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ">i2", ">f4", ">u8"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_numpy(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = []
    for k in range(12):
        shape = tuple(rng.integers(0 if k == 5 else 1, 6, 3).tolist())
        array = (rng.random(shape) * 100).astype(dtype)
        if dtype == ">i2" and k % 4 == 3:
            array = array.astype("<i2")  # byte orders may be mixed
        arrays.append(np.asfortranarray(array) if k % 3 == 2 else array)
        save(tmp_path / f"{k:02d}.npy", arrays[-1], (2, 0) if k % 2 else None)
    reader = Numpy(file_root=str(tmp_path))
    source = open_reader(reader)
    for index in (range(12), [0, 1], [2, 2, 11], []):  # all, no Fortran order, some
        (batch,), rejects = fetch(reader, source, index)
        assert not rejects
        assert batch.dtype == np.dtype(dtype).newbyteorder("=")
        for sample, i in zip(batch, index, strict=True):
            np.testing.assert_array_equal(sample, arrays[i])
            assert sample.shape == arrays[i].shape


def test_which_files(tmp_path: Path) -> None:
    # DALI 2.4: files of the root, then of its folders, each sorted byte-wise; no deeper
    names = ["a", "b", "sub/c", "t", "sub.x/q", "Z/q", "a0/k", "sub/deep/er", ".h", ".hid/q", "s"]
    for i, name in enumerate(names):
        save(tmp_path / "r" / f"{name}.npy", np.array([i]))
    (tmp_path / "r" / "x.txt").write_bytes(b"q")

    def keys(**kwargs: Any) -> list[str]:
        source = Numpy(**kwargs).open()
        return [source.origin(i).key.removesuffix(".npy") for i in range(len(source))]

    expected = [".h", "a", "b", "s", "t", ".hid/q", "Z/q", "a0/k", "sub/c", "sub.x/q"]
    assert keys(file_root=str(tmp_path / "r")) == expected
    assert keys(file_root=str(tmp_path / "r"), file_filter="[ab]*") == ["a", "b"]
    (tmp_path / "r" / "list").write_text("a.npy\nsub/c.npy")
    assert keys(file_list=str(tmp_path / "r" / "list")) == ["a", "sub/c"]
    assert keys(file_list=str(tmp_path / "r" / "list"), file_root=str(tmp_path / "r")) == ["a", "sub/c"]
    assert keys(files=("b.npy",), file_root=str(tmp_path / "r")) == ["b"]


A = np.arange(12, dtype=np.int16).reshape(3, 4)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [  # answers of DALI 2.4
        ({"roi_start": (1, 1), "roi_end": (3, 3)}, [[5, 6], [9, 10]]),
        ({"roi_start": (1, 1), "roi_shape": (1, 2)}, [[5, 6]]),
        ({"roi_start": (1,), "roi_end": (3,), "roi_axes": (1,)}, [[1, 2], [5, 6], [9, 10]]),
        ({"roi_end": (2, 2)}, [[0, 1], [4, 5]]),
        ({"roi_shape": (2, 2)}, [[0, 1], [4, 5]]),
        ({"rel_roi_start": (0.5, 0.0), "rel_roi_shape": (0.5, 0.5)}, [[8, 9]]),
        ({"rel_roi_start": (0.34, 0.13), "rel_roi_end": (0.9, 0.7)}, [[5, 6], [9, 10]]),
        ({"rel_roi_start": (0.2, 0.13), "rel_roi_shape": (0.5, 0.63)}, [[5, 6]]),
        ({"roi_start": (1, 1), "rel_roi_shape": (0.5, 0.5)}, [[5, 6], [9, 10]]),
        (
            {"roi_start": (-1, 1), "roi_end": (2, 5), "out_of_bounds_policy": "pad", "fill_value": 7.0},
            [[7, 7, 7, 7], [1, 2, 3, 7], [5, 6, 7, 7]],
        ),
        (
            {"roi_start": (-1, 1), "roi_end": (2, 5), "out_of_bounds_policy": "trim_to_shape"},
            [[1, 2, 3], [5, 6, 7]],
        ),
        ({"roi_start": (1, 0), "roi_end": (2, 2), "roi_axes": (1, 0)}, [[1], [5]]),
    ],
)
def test_regions(tmp_path: Path, order: Any, arguments: dict[str, Any], expected: Any) -> None:
    path = save(tmp_path / "a.npy", np.array(A, order=order))
    reader = Numpy(files=(path, path), **arguments)
    (batch,), rejects = fetch(reader, open_reader(reader), [0, 1])
    assert not rejects
    assert [s.tolist() for s in batch] == [expected, expected]


def test_regions_outside_and_of_each_sample(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npy", A)
    reader = Numpy(files=(path, path), roi_start=(1, 1), roi_end=(5, 5))
    _, rejects = fetch(reader, open_reader(reader), [0, 1])
    assert [(r.slot, r.code) for r in rejects] == [(0, "out_of_bounds"), (1, "out_of_bounds")]
    reader = Numpy(files=(path, path), per_sample=frozenset({"roi_start"}), roi_shape=(1, 2))
    source = open_reader(reader)
    samples = source_samples(reader, source)
    start = Batch.from_dense(np.array([[0, 1], [2, 2]], np.int32), "", samples)
    ctx = Context(op=reader, stage="cpu", samples=samples, source=source, args={"roi_start": start})
    (batch,) = reader.cpu(ctx)
    assert [s.tolist() for s in batch] == [[[1, 2]], [[10, 11]]]


def source_samples(reader: Numpy, source: Any) -> Any:
    return reader.order(len(source)).samples(0, 2, source)


def test_files_that_are_refused(tmp_path: Path) -> None:
    good = save(tmp_path / "good.npy", A)
    odd = tmp_path / "odd.npy"  # a header that is not aligned
    text = b"{'descr': '<i2', 'fortran_order': False, 'shape': (3, 4), }\n"
    odd.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + A.tobytes())
    bad = {
        "float": (np.zeros((2, 2), np.float32), "unsupported"),
        "deep": (np.zeros((2, 2, 2), np.int16), "bad_shape"),
        "text": (np.array(["a", "b"]), "unsupported"),
        "complex": (np.zeros((2, 2), np.complex64), "unsupported"),
    }
    files = [good, str(odd), *(save(tmp_path / f"{n}.npy", a) for n, (a, _) in bad.items())]
    np.save(tmp_path / "object.npy", np.array([{}, []], object), allow_pickle=True)
    whole = Path(good).read_bytes()
    damaged = {
        "object.npy": ("unsupported", None),
        "short.npy": ("truncated", whole[:-1]),
        "empty.npy": ("corrupt_record", b""),
        "junk.npy": ("corrupt_record", b"junk" * 100),
        "code.npy": ("corrupt_record", whole.replace(b"(3, 4)", b"(3 ,x)")),
        "negative.npy": ("corrupt_record", whole.replace(b"(3, 4)", b"(-3,4)")),
    }
    for name, (_, data) in damaged.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        files.append(str(tmp_path / name))
    files += [str(tmp_path / "gone.npy"), good]
    reader = Numpy(files=tuple(files))
    (batch,), rejects = fetch(reader, open_reader(reader), range(len(files)))
    codes = {r.slot: r.code for r in rejects}
    expected = [*(c for _, c in bad.values()), *(c for c, _ in damaged.values()), "read_failed"]
    assert codes == dict(enumerate(expected, 2))
    for i in (0, 1, len(files) - 1):
        np.testing.assert_array_equal(batch.sample(i), A)
    with pytest.raises(JobError, match=r"no array can be read: .*junk"):
        Numpy(files=(str(tmp_path / "junk.npy"),)).open()


def test_found_files(shared_data: Path) -> None:
    for path in sorted((shared_data / "corpus" / "npy_pickle").glob("*.npy")):
        reader = Numpy(files=(str(path),))
        try:
            expected = np.load(path, allow_pickle=False)
        except ValueError:
            with pytest.raises(JobError, match="no array can be read"):
                reader.open()
            continue
        (batch,), rejects = fetch(reader, open_reader(reader), [0])
        assert not rejects
        np.testing.assert_array_equal(batch.sample(0), expected)


def test_wrong_arguments() -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"files": ()},
        {"files": ("a",), "file_list": "b"},
        {"files": ("a",), "roi_end": (1,), "roi_shape": (1,)},
        {"files": ("a",), "roi_start": (1,), "rel_roi_start": (0.5,)},
        {"files": ("a",), "roi_axes": (1,)},
    ]
    for kwargs in wrong:
        with pytest.raises(SpecError):
            Numpy(**kwargs).check()
