"""One file must never end a job: whatever header code raises for a sample costs that sample."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.codecs import headers, host_decode
from dali_run.ops.codecs.format import Header
from dali_run.ops.codecs.formats import probe
from dali_run.ops.errors import SampleError
from dali_run.pipelines.job.run import run_job
from tests.fuzz.jobs import CHAINS, SPEC, check

POISON = b"poison"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "class"
    folder.mkdir(parents=True)
    for k in range(12):
        image = Image.fromarray(np.full((8 + k, 9, 3), 20 * k, np.uint8))
        image.save(folder / f"{k:02d}.gif")
    for k in (0, 5, 6, 11):
        path = folder / f"{k:02d}.gif"
        path.write_bytes(path.read_bytes() + POISON)
    return tmp_path


PROBLEMS = (OverflowError, ValueError, RecursionError, KeyError)


# Which exceptions are caught depends on the place, and not on the batch; how a batch goes on without a sample depends
# on the batch and the device, and not on the exception.
@pytest.mark.parametrize("where", ["foresight", "everywhere"])
@pytest.mark.parametrize(
    ("problem", "device", "batch"),
    [*((problem, "cpu", 5) for problem in PROBLEMS), (OverflowError, "cpu", 1), (OverflowError, "null", 64)],
)
def test_what_header_code_raises_costs_its_sample(
    place: Path, problem: type[Exception], where: str, device: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = threading.local()

    def stumbles(data: memoryview, *name: str) -> Header:
        if bytes(data).endswith(POISON) and not getattr(reading, "now", False):
            raise problem("stumbled")
        return probe(data, *name)

    monkeypatch.setattr(headers, "probe", stumbles)
    if where == "foresight":
        seen = host_decode.read_headers

        def sound(*arguments: object) -> object:
            reading.now = True
            try:
                return seen(*arguments)  # type: ignore[arg-type]
            finally:
                reading.now = False

        monkeypatch.setattr(host_decode, "read_headers", sound)
    spec, out = place / "spec.yaml", place / "out"
    spec.write_text(
        SPEC.format(batch=batch, device=device, chain=CHAINS["decoders.image"], data=place / "data", out=out)
    )
    result = run_job(spec)
    assert result.exit_code == 3, result.message
    rows = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    assert [r["key"] for r in rows] == [f"class/{k:02d}.gif" for k in (0, 5, 6, 11)]
    assert all(r["code"] == "internal" and "stumbled" in r["message"] for r in rows)
    assert len(list(out.rglob("*.npy"))) == 8


def test_a_policy_of_failing_fails_with_the_reason(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbles(data: memoryview, *name: str) -> Header:
        raise OverflowError("stumbled")

    monkeypatch.setattr(headers, "probe", stumbles)
    text = SPEC.format(batch=4, device="cpu", chain=CHAINS["decoders.image"], data=place / "data", out=place / "out")
    (place / "spec.yaml").write_text(text.replace("policy: skip", "policy: fail"))
    result = run_job(place / "spec.yaml")
    assert result.exit_code == 1
    assert "stumbled" in result.message


@pytest.mark.parametrize("format", ["jpeg", "png", "tiff", "tiff-big", "webp", "all"])
def test_mutated_files_cost_themselves(format: str) -> None:
    """A little of `python -m tests.fuzz.jobs`."""
    try:
        assert check(format, 1) > 0
        assert check(format, 2, "null", "decoders.image_random_crop") > 0
    except SampleError as e:  # for the message
        raise AssertionError(str(e)) from e
