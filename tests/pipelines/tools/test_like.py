"""`dali-run ops --like`: every answer is a graph that compiles, and names are found as people write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dali_run.cli.main import app
from dali_run.ops.errors import SpecError
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.spec.build import load_spec
from dali_run.pipelines.spec.other_libraries import LIBRARIES, table
from dali_run.pipelines.tools.like import operators_like

GIVEN = """\
version: 1
name: like
graph:
  - {op: readers.coco, file_root: a, annotations_file: b.json, pixelwise_masks: true, ratio: true, ltrb: true,
     out: [jpegs, boxes, labels, masks]}
  - {op: decoders.image, in: jpegs, output_type: RGB, out: images}
  - {op: constant, fdata: [1.0, 0, 0, 0, 0, 0, 0, 0, 0], shape: [3, 3], out: kernel}
  - {op: batch_permutation, out: order}
  - {op: constant, fdata: [0.0], shape: [1, 1], out: map_x}
  - {op: constant, fdata: [0.0], shape: [1, 1], out: map_y}
"""


@pytest.mark.parametrize("name", table())
def test_every_answer_compiles(name: str, tmp_path: Path) -> None:
    (found,) = operators_like(name)
    last = found["steps"][-1].rpartition("out: ")[2].rstrip("}").split(",")[-1].strip(" []")
    spec = tmp_path / "spec.yaml"
    steps = "".join(f"  - {step}\n" for step in found["steps"])
    spec.write_text(f"{GIVEN}{steps}outputs: {{x: {last}}}\n")
    graph = load_spec(spec).graph
    for target in ("cpu", "null"):
        compile_graph(graph, Target(target))  # type: ignore[arg-type]
    assert found["operators"]
    assert name.partition(".")[0] in LIBRARIES


@pytest.mark.parametrize(
    ("asked", "first", "operator"),
    [
        ("albumentations.HorizontalFlip", "albumentations.HorizontalFlip", "flip"),
        ("A.horizontal_flip", "albumentations.HorizontalFlip", "flip"),
        ("torchvision.transforms.v2.RandomResizedCrop", "torchvision.RandomResizedCrop", "random_resized_crop"),
        ("v2.ColorJitter()", "torchvision.ColorJitter", "color_twist"),
        ("iaa.Fliplr", "imgaug.Fliplr", "flip"),
        ("imgaug.augmenters.Grayscale", "imgaug.Grayscale", "color_space_conversion"),
        ("fn.image_decoder", "DALI's fn.image_decoder", "decoders.image"),
        ("nvidia.dali.ops.FileReader", "DALI's nvidia.dali.ops.FileReader", "readers.file"),
        ("CoinFlip", "DALI's CoinFlip", "random.coin_flip"),
    ],
)
def test_names_as_people_write_them(asked: str, first: str, operator: str) -> None:
    found = operators_like(asked)
    assert found[0]["name"] == first
    assert operator in found[0]["operators"]


def test_a_name_without_a_library_gives_all_that_have_it() -> None:
    names = [found["name"] for found in operators_like("CenterCrop")]
    assert names == ["albumentations.CenterCrop", "torchvision.CenterCrop"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("albumentations.HorizontlFlip", "HorizontalFlip"),
        ("RandomResizeCrop", "RandomResizedCrop"),
        ("zzzz", "dali-run ops"),
    ],
)
def test_near_misses(asked: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        operators_like(asked)


def test_the_command() -> None:
    shown = CliRunner().invoke(app, ["ops", "--like", "albumentations.HorizontalFlip"])
    assert shown.exit_code == 0
    assert "{op: flip, in: images, horizontal: $mirror, out: images}" in shown.output
    data = json.loads(CliRunner().invoke(app, ["ops", "--like", "A.VerticalFlip", "--json"]).output)
    assert data[0]["operators"] == ["flip", "random.coin_flip"]
    refused = CliRunner().invoke(app, ["ops", "--like", "A.VerticalFlop"])
    assert isinstance(refused.exception, SpecError)
