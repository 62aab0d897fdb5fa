"""number_from_text against int()."""

import numpy as np
import pytest

import dali_run.fn as fn
import dali_run.types as types
from dali_run import Pipeline
from dali_run.ops.errors import JobError, SpecError

GOOD = [b"0", b"7", b"-12", b"+5", b" 42\n", b"\t-9\r\n", b"007", b"123456789012345678", b"-999999999999999999", b"3\0"]
BAD = [b"", b" ", b"-", b"1 2", b"1.5", b"1e3", b"0x1", b"--1", b"1-", b"a", b"12a", b"1" * 19, b" " * 40 + b"1",
       "١".encode()]  # fmt: skip


def numbers(texts: list[bytes], **arguments: object) -> np.ndarray:
    pipe = Pipeline(len(texts), 1, None)
    with pipe:
        text = fn.external_source(lambda: [np.frombuffer(t, np.uint8) for t in texts])
        pipe.set_outputs(fn.number_from_text(text, **arguments))
    try:
        return pipe.run()[0].as_array()
    finally:
        pipe.close()


def test_numbers_are_pythons() -> None:
    found = numbers(GOOD)
    assert found.dtype == np.int64
    assert found.tolist() == [int(t.strip(b"\0")) for t in GOOD]
    drawn = [str(v).encode() for v in np.random.default_rng(1).integers(-(10**17), 10**17, 500)]
    assert numbers(drawn).tolist() == list(map(int, drawn))


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_number_costs_its_sample(text: bytes) -> None:
    with pytest.raises(JobError, match="is not an integer"):
        numbers([b"1", text])


def test_types() -> None:
    assert numbers([b"255"], dtype=types.UINT8).dtype == np.uint8
    assert numbers([b"-3"], dtype=types.FLOAT).tolist() == [-3.0]
    for text, dtype in ((b"256", types.UINT8), (b"-1", types.UINT32)):
        with pytest.raises(JobError, match=dtype.name):
            numbers([text], dtype=dtype)
    with pytest.raises(SpecError, match="BOOL"):
        numbers([b"1"], dtype=types.BOOL)
