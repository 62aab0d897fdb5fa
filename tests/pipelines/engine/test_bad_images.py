"""A whole job over good and bad images mixed: the bad ones cost a line of rejects.jsonl each, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dali_run.pipelines.job.run import REJECTS, run_job

FOLDERS = ("jpeg_bad", "jpeg_odd", "png", "tiff", "webp", "bmp", "pnm", "jp2", "gif")


def run(folder: Path, files: list[str], batch: int) -> tuple[int, dict[str, bytes], list[dict[str, Any]]]:
    """Exit code, the records by the file they come from, and the reject log."""
    out = folder / f"out-{len(files)}-{batch}"
    spec = {
        "version": 1,
        "pipeline": {"batch_size": batch, "num_threads": 2, "device": "cpu", "seed": 1},
        "graph": [
            {"op": "readers.file", "files": files, "out": ["jpegs", "number"]},
            {"op": "decoders.image", "in": "jpegs", "out": "images", "max_pixels": 20_000_000},
            {"op": "resize", "in": "images", "size": [24, 24], "out": "images"},
        ],
        "outputs": {"image": "images", "number": "number"},
        "write": {"writer": "numpy", "path": str(out), "shard": {"samples": 100000},
                  "fields": {"image": {}, "number": {}}},
        "on_error": {"policy": "skip", "max_errors": "100%"},
    }  # fmt: skip
    path = folder / f"spec-{len(files)}-{batch}.yaml"
    path.write_text(yaml.safe_dump(spec))
    result = run_job(path)
    rejects = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    (images,), (numbers,) = (sorted(out.glob(f"*{field}.npy")) for field in ("image", "number"))
    made = zip(np.load(images), np.load(numbers).reshape(-1), strict=True)
    return result.exit_code, {files[number]: image.tobytes() for image, number in made}, rejects


@pytest.mark.parametrize("folder", ["jpeg_odd", "tiff"])
def test_odd_images_out_of_a_container_are_those_of_files(shared_data: Path, folder: str, tmp_path: Path) -> None:
    files = [str(p) for p in sorted((shared_data / "corpus" / folder).iterdir())]
    spec = {
        "version": 1,
        "pipeline": {"num_threads": 2, "device": "cpu"},
        "graph": [{"op": "readers.file", "files": files, "out": ["image", "number"]}],
        "outputs": {"image": "image", "number": "number"},
        "write": {"writer": "tfrecord", "path": str(tmp_path / "packed"),
                  "fields": {"image": {"encode": "keep"}, "number": {}}},
    }  # fmt: skip
    (tmp_path / "pack.yaml").write_text(yaml.safe_dump(spec))
    assert run_job(tmp_path / "pack.yaml").exit_code == 0
    _, expected, rejects = run(tmp_path, files, 64)
    spec["graph"] = [
        {"op": "readers.tfrecord", "path": str(tmp_path / "packed" / "*.tfrecord"), "out": ["image", "number"],
         "features": {"image": "string", "number": "int64"}},
        {"op": "decoders.image", "in": "image", "out": "image", "max_pixels": 20_000_000},
        {"op": "resize", "in": "image", "size": [24, 24], "out": "image"},
    ]  # fmt: skip
    spec["write"] = {"writer": "numpy", "path": str(tmp_path / "out"), "fields": {"image": {}, "number": {}}}
    spec["on_error"] = {"policy": "skip", "max_errors": "100%"}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    assert run_job(tmp_path / "spec.yaml").exit_code == (REJECTS if rejects else 0)
    (images,), (numbers,) = (sorted((tmp_path / "out").glob(f"*{field}.npy")) for field in ("image", "number"))
    made = zip(np.load(images), np.load(numbers).reshape(-1), strict=True)
    assert {files[number]: image.tobytes() for image, number in made} == expected
    again = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [(r["code"], r["message"]) for r in again] == [(r["code"], r["message"]) for r in rejects]


def test_good_images_are_untouched_by_bad_ones(
    shared_data: Path, imagenet: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = [str(p) for folder in FOLDERS for p in sorted((shared_data / "corpus" / folder).iterdir())]
    good = []
    for i in range(len(odd)):
        good.append(str(tmp_path / f"good-{i:03d}.jpg"))
        Path(good[-1]).symlink_to(imagenet[i % len(imagenet)])
    code, expected, rejects = run(tmp_path, good, 32)
    assert code == 0
    assert not rejects
    assert len(expected) == len(good)
    mixed = [path for pair in zip(good, odd, strict=True) for path in pair]
    outcomes = []
    for batch in (1, 8, 64):
        code, made, rejects = run(tmp_path, mixed, batch)
        assert code == REJECTS
        assert {path: made[path] for path in good} == expected
        refused = [r["source"] for r in rejects]
        assert len(set(refused)) == len(refused)
        assert {*made, *refused} == {*mixed}
        assert len(made) + len(refused) == len(mixed)
        assert all(r["code"] and len(r["message"]) > 15 for r in rejects)
        outcomes.append((made, [(r["source"], r["code"], r["message"]) for r in rejects]))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len(refused) > 100
    assert "Traceback" not in capfd.readouterr().err
