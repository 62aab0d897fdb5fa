"""COCO data sets that the writer coco makes, read by readers.coco and by pycocotools."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.errors import JobError
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.problems import SpecErrors
from dali_run.pipelines.tools.sample_data import make_sample_data
from dali_run.readers.coco import Coco
from dali_run.writers.bytes import files_io
from dali_run.writers.formats.coco import _not_rows
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.faults import Failing
from tests.kit.readers import content, fetch, open_reader
from tests.kit.writers import digest


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco") / "data"
    make_sample_data(folder, 8, 0)
    return folder / "coco"


def spec(data: Path, out: Path, batch: int, **write: Any) -> Path:
    reader = {
        "op": "readers.coco", "name": "Reader", "file_root": str(data / "images"), "polygon_masks": True,
        "annotations_file": str(data / "instances.json"), "ratio": True, "ltrb": True,
        "out": ["jpegs", "boxes", "labels", "polygons", "vertices"],
    }  # fmt: skip
    said = {
        "version": 1, "name": "val", "pipeline": {"batch_size": batch, "device": "cpu"}, "graph": [reader],
        "outputs": {n: n for n in reader["out"]} | {"image": "jpegs"},
        "write": {"writer": "coco", "path": str(out), "relative": True, "box_format": "xyxy",
                  "fields": {"image": {"encode": "keep"}, **{n: {} for n in reader["out"][1:]}}, **write},
    }  # fmt: skip
    path = out.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(said))
    return path


def read(root: Path, annotations: Path) -> tuple[list[bytes], list[list[Any]], Any]:
    reader = Coco(file_root=str(root), annotations_file=str(annotations), polygon_masks=True)
    source = open_reader(reader)
    (images, *rest), rejects = fetch(reader, source, range(len(source)))
    assert not rejects
    return content(images), [[np.asarray(v) for v in b] for b in rest], source


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools
def test_annotations_come_back(data: Path, tmp_path: Path) -> None:
    result = run_job(spec(data, tmp_path / "a", 3, categories=["one", "two", "three", "four"]))
    assert result.exit_code == 0, result.message
    run_job(spec(data, tmp_path / "b", 2, categories=["one", "two", "three", "four"]))
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert verify(tmp_path / "a").sound
    made = tmp_path / "a/val-00000-of-00001.json"
    before, after = read(data / "images", data / "instances.json"), read(tmp_path / "a", made)
    assert before[0] == after[0]
    for one, other in zip(before[1], after[1], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-3)
    coco = pytest.importorskip("pycocotools.coco").COCO(str(made))
    assert len(coco.getImgIds()) == len(before[0])
    assert [c["name"] for c in coco.loadCats(coco.getCatIds())] == ["one", "two", "three", "four"]
    for one in coco.loadAnns(coco.getAnnIds()):
        assert coco.annToMask(one).sum() == pytest.approx(one["area"], rel=0.2, abs=30)


@pytest.mark.parametrize("at", [9, 16, 23])
def test_an_interrupted_job_goes_on_to_the_same_bytes(data: Path, tmp_path: Path, at: int) -> None:
    run_job(spec(data, tmp_path / "a", 3, shard={"samples": 1}))
    files_io.set_hook(Failing(at, errno.EIO, True))
    try:
        assert run_job(spec(data, tmp_path / "b", 2, shard={"samples": 1})).exit_code == 1
    except JobError:  # before the first sample
        assert at < 16
    finally:
        files_io.set_hook(None)
    assert run_job(spec(data, tmp_path / "b", 2, shard={"samples": 1})).exit_code == 0
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


def test_shards_texts_and_what_is_no_image(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in/x"
    folder.mkdir(parents=True)
    for k, path in enumerate(sorted((data.parent / "train").rglob("*.jpg"))[:3]):
        (folder / f"{k}.jpg").write_bytes(path.read_bytes())
    (folder / "3.jpg").write_bytes(b"no image")
    (tmp_path / "t.csv").write_text("file,text\n0,nül\n1,one\n2,two\n3,three\n")
    graph = {"op": "readers.file", "name": "Reader", "file_root": str(tmp_path / "in"), "out": ["image", "n", "text"],
             "join": {"file": str(tmp_path / "t.csv"), "key": "file", "match": "stem", "fields": ["text"]}}  # fmt: skip
    said = {
        "version": 1, "name": "x", "graph": [graph], "outputs": {"image": "image", "caption": "text", "n": "n"},
        "write": {"writer": "coco", "path": str(tmp_path / "out"), "shard": {"samples": 2},
                  "fields": {"image": {"encode": "keep"}, "caption": {"encode": "text"}, "n": {}}},
        "on_error": {"policy": "skip", "max_errors": 1},
    }  # fmt: skip
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(said))
    assert run_job(tmp_path / "s.yaml").exit_code == 3
    told = [json.loads(p.read_text()) for p in sorted((tmp_path / "out").glob("x-*.json"))]
    images = [image for shard in told for image in shard["images"]]
    assert [(i["id"], i["file_name"], i["caption"], i["n"]) for i in images] == [
        (k + 1, f"x/{k}.jpg", text, 0) for k, text in enumerate(("nül", "one", "two"))
    ]
    assert all(i["width"] and i["height"] for i in images)
    assert verify(tmp_path / "out").sound
    path = tmp_path / "out/x-00000-of-00002.json"
    path.write_text(path.read_text().replace("x/1.jpg", "x/9.jpg"))
    assert any("names x/9.jpg, which was not written" in p.message for p in verify(tmp_path / "out").problems)
    said["write"]["fields"]["caption"] = {"encode": "keep"}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(said))
    with pytest.raises(SpecErrors, match="takes one field of encoded images, got caption, image; texts have encode"):
        run_job(tmp_path / "s.yaml", fresh=True)


def test_annotations_that_are_no_rows_of_numbers_cost_their_samples() -> None:
    boxes = [np.float32([[0, 0, 1, 1]]), np.float32([[0, 0, 1, 1, 1]]), np.float32([[0, 0, np.nan, 1]])]
    found = dict(_not_rows(Batch.from_list(boxes, "", Samples.numbered(3)), 4))
    assert sorted(found) == [1, 2]
    assert "rows of 4" in found[1]
    assert "NaN" in found[2]
