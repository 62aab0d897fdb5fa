"""on_damage: what becomes of images whose decoder tells of damage, but goes on."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.pipelines.job.retry import retry_failed
from dali_run.pipelines.job.run import run_job
from dali_run.writers.shards.verify import verify
from tests.kit.files.bombs import chunk

SPEC = """\
version: 1
name: damage
pipeline: {{batch_size: {batch}, num_threads: 2, device: {device}, seed: 1, isolation: {isolation}}}
graph:
  - {{op: readers.file, name: Reader, file_root: "{data}", file_filters: ["*"], out: [encoded, label]}}
  - {{op: decoders.image, in: encoded, out: image, on_damage: {on_damage}}}
  - {{op: resize, in: image, size: [16, 16], out: image}}
outputs: {{image: image}}
write: {{writer: files, path: "{out}", fields: {{image: {{encode: npy}}}}}}
"""


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)  # type: ignore[arg-type]
    return file.getvalue()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "class"
    folder.mkdir()
    noise = np.random.default_rng(1).integers(0, 256, (60, 80, 3)).astype(np.uint8)
    picture = Image.fromarray(noise)
    jpeg = saved(picture, "JPEG", quality=90)
    fax = saved(Image.fromarray(noise[..., 0] > 128), "TIFF", compression="group4")
    header = b"\x89PNG\r\n\x1a\n"
    png = saved(picture, "PNG")
    files = {
        "a-good.jpg": jpeg,
        "b-cut.jpg": jpeg[: len(jpeg) // 2],
        "c-bits.jpg": jpeg[: len(jpeg) // 2] + b"\0" * 40 + jpeg[len(jpeg) // 2 + 40 :],
        "d-good.png": png,
        "e-checksum.png": header + flipped(png[8:], png.find(b"IEND") - 4 - 8 - 1),
        "f-fax.tif": flipped(flipped(fax, len(fax) // 3), len(fax) // 2),
        "g-nothing.png": header + chunk(b"IHDR", bytes(13)),
        "h-text.txt": b"no picture",
        "i-good.tif": fax,
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder.parent


DAMAGED = ["class/b-cut.jpg", "class/c-bits.jpg", "class/e-checksum.png", "class/f-fax.tif"]
HOPELESS = ["class/g-nothing.png", "class/h-text.txt"]
GOOD = ["class/a-good.jpg", "class/d-good.png", "class/i-good.tif"]


@pytest.mark.parametrize("on_damage", ["reject", "keep", "flag"])
@pytest.mark.parametrize(
    ("device", "isolation", "batch"), [("cpu", "auto", 4), ("null", "none", 64), ("cpu", "all", 1)]
)
def test_damage_is_refused_kept_or_noted(
    data: Path, tmp_path: Path, on_damage: str, device: str, isolation: str, batch: int
) -> None:
    out = tmp_path / "out"
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        SPEC.format(data=data, out=out, on_damage=on_damage, device=device, isolation=isolation, batch=batch)
    )
    result = run_job(spec)
    assert result.exit_code == 3, result.message
    rows = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    written = {json.loads(line)["key"] for path in out.glob("damage-*.jsonl") for line in path.read_text().splitlines()}
    refused = [r["key"] for r in rows if not r.get("kept")]
    noted = [r["key"] for r in rows if r.get("kept")]
    assert refused == (sorted(DAMAGED + HOPELESS) if on_damage == "reject" else HOPELESS)
    assert noted == (DAMAGED if on_damage == "flag" else [])
    assert written == {*GOOD, *(DAMAGED if on_damage != "reject" else ())}
    assert {r["code"] for r in rows if r["key"] in DAMAGED} <= {"corrupt_data", "truncated"}
    verdict = verify(out)
    assert verdict.sound, verdict.problems
    assert result.report["fallbacks"].get("damaged images that were kept", 0) == (
        len(DAMAGED) if on_damage != "reject" else 0
    )
    retried = retry_failed(out)  # what is there already is not tried again
    assert retried.report["samples"]["read"] == len(refused)
    assert verify(out).sound


def test_what_is_noted_and_then_refused_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = SPEC.format(data=data, out=out, on_damage="flag", device="cpu", isolation="auto", batch=64)
    crop = "  - {op: crop, in: image, crop: [1000, 1000], out: image}\noutputs"
    (tmp_path / "spec.yaml").write_text(
        text.replace("  - {op: resize, in: image, size: [16, 16], out: image}\noutputs", crop)
    )
    result = run_job(tmp_path / "spec.yaml")
    rows = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    assert result.exit_code == 3, result.message
    assert len(rows) == 9
    assert not any(r.get("kept") for r in rows)


def test_policies_see_only_what_is_lost(data: Path, tmp_path: Path) -> None:
    for name in HOPELESS:
        assert (data / name).exists()
    out = tmp_path / "out"
    text = SPEC.format(data=data, out=out, on_damage="flag", device="cpu", isolation="auto", batch=64)
    (tmp_path / "spec.yaml").write_text(text + "on_error: {policy: replace}\n")
    result = run_job(tmp_path / "spec.yaml")
    assert result.exit_code == 3, result.message
    rows = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    assert [r["key"] for r in rows if r.get("replaced")] == HOPELESS
    assert [r["key"] for r in rows if r.get("kept")] == DAMAGED
    assert verify(out).sound
    assert verify(out).samples == 9
