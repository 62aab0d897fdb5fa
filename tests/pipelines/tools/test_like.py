"""`dali-run ops --like`: every answer is a graph that compiles, and names are found as people write them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dali_run.cli.main import app
from dali_run.ops.errors import SpecError
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.spec import slips
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
  - {op: constant, fdata: [0.5, 0.5], shape: [1, 2], out: points}
  - {op: constant, idata: [7], shape: [1, 1, 1], dtype: UINT8, layout: HWC, out: gray}
  - {op: constant, idata: [7], shape: [16, 1, 1, 3], dtype: UINT8, layout: FHWC, out: frames}
  - {op: constant, idata: [7], shape: [1, 1, 1, 3], dtype: UINT8, layout: DHWC, out: volumes}
  - {op: constant, fdata: [0.0], shape: [1, 1], out: map_x}
  - {op: constant, fdata: [0.0], shape: [1, 1], out: map_y}
"""


@pytest.mark.parametrize("name", table())
def test_every_answer_compiles(name: str, tmp_path: Path) -> None:
    (found,) = operators_like(name)
    assert name.partition(".")[0] in LIBRARIES
    if not found["steps"]:  # there is nothing like it, and the note says why, or what to do
        assert len(found["note"]) > 20
        return
    last = re.findall(r"\bout: \[?([\w ,]+)", found["steps"][-1])[-1].split(",")[-1].strip()
    spec = tmp_path / "spec.yaml"
    steps = "".join(f"  - {step}\n" for step in found["steps"])
    spec.write_text(f"{GIVEN}{steps}outputs: {{x: {last}}}\n")
    graph = load_spec(spec).graph
    for target in ("cpu", "null"):
        compile_graph(graph, Target(target))  # type: ignore[arg-type]
    assert found["operators"]


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


MEANT = [
    ("T.Resize", {"size": 224}, "{op: resize, in: images, resize_shorter: 224, out: images}"),
    ("torchvision.transforms.Resize", {"size": [224]}, "resize_shorter: 224,"),
    ("torchvision.Resize", {"size": [200, 300]}, "size: [200, 300],"),
    ("torchvision.CenterCrop", {"size": 192}, "crop: [192, 192],"),
    ("torchvision.RandomCrop", {"size": [96, 128]}, "crop: [96, 128],"),
    ("torchvision.RandomResizedCrop", {"size": 160}, "size: [160, 160],"),
    ("A.Resize", {"height": 200, "width": 300}, "size: [200, 300],"),
    ("A.CenterCrop", {"width": 300, "height": 200}, "crop: [200, 300],"),
    ("A.SmallestMaxSize", {"max_size": 320}, "resize_shorter: 320,"),
    ("A.LongestMaxSize", {"max_size": 320}, "resize_longer: 320,"),
    ("torchvision.Normalize", {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]},
     "mean: [127.5, 127.5, 127.5], std: [51.0, 51.0, 51.0],"),
    ("A.Normalize", {"mean": [127.5, 127, 127]}, "mean: [127.5, 127, 127],"),
    ("torchvision.RandomHorizontalFlip", {"p": 0.25}, "probability: 0.25,"),
    ("A.HorizontalFlip", {"p": 1}, "probability: 1,"),
    ("torchvision.Resize", {"size": "${side}"}, "resize_shorter: 256,"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arguments", "words"), MEANT)
def test_a_slip_is_answered_with_the_values_as_they_were_meant(op: str, arguments: dict[str, Any], words: str) -> None:
    assert words in slips.operator(op, arguments)


SAID = [
    # one number or two, and their order
    ("torchvision.Resize", "resize_shorter: 256", "Resize((h, w)) is size: [h, w]"),
    ("torchvision.RandomResize", "resize_shorter: $side", ""),
    ("albumentations.Resize", "size: [224, 224]", "[height, width]"),
    ("albumentations.Crop", "axis_names: HW", "start and shape are [y, x] here"),
    ("torchvision.GaussianBlur", "sigma: $sigma", "kernel_size is (x, y), window_size is [y, x]"),
    ("torchvision.Pad", "start: [-10, -10]", "torchvision's order is left, top, right, bottom"),
    ("imgaug.ScaleX", "fdata: [1.0, 0.0]", "[x, y]"),
    ("imgaug.ScaleY", "fdata: [0.0, 1.0]", "[x, y]"),
    ("imgaug.ShearY", "fdata: [0.0, 1.0]", "[x, y]"),
    ("imgaug.TranslateX", "fdata: [1.0, 0.0]", "[x, y]"),
    # 0 to 1 and 0 to 255
    ("torchvision.Normalize", "mean: [123.675, 116.28, 103.53]", "255 times torchvision's. The output is CHW"),
    ("albumentations.Normalize", "output_layout: HWC", "255"),
    ("torchvision.ToTensor", "scale: 0.00392157", "0 to 1"),
    ("torchvision.ToDtype", "scale: 0.00392157", "Without it the type alone changes"),
    ("torchvision.PILToTensor", "perm: [2, 0, 1]", "Values stay 0 to 255"),
    ("torchvision.ToImage", "perm: [2, 0, 1]", "Values stay 0 to 255"),
    ("albumentations.ToTensorV2", "perm: [2, 0, 1]", "Values stay 0 to 255"),
    ("albumentations.ToFloat", "scale: 0.00392157", ""),
    ("albumentations.GaussNoise", "stddev: 10.0", "255 times albumentations' std_range"),
    ("torchvision.GaussianNoise", "stddev: 10.0", "255 times torchvision's sigma"),
    ("albumentations.Solarize", "images < 128", "128 is albumentations' threshold 0.5"),
    # degrees, radians, turns; factors, sums, percents
    ("torchvision.ColorJitter", "[-18.0, 18.0]", "hue in degrees (torchvision's 0.05 is 18)"),
    ("albumentations.HueSaturationValue", "[-20.0, 20.0]", "half degrees there"),
    ("imgaug.AddToHue", "[-20.0, 20.0]", "255 are a full turn"),
    ("albumentations.GridDropout", "angle: $angle", "radians"),
    ("torchvision.RandomAffine", "[-20.0, 20.0]", "pixels [x, y] (parts of the size in the library)"),
    ("albumentations.RandomBrightnessContrast", "[0.8, 1.2]", "albumentations adds the brightness"),
    ("albumentations.RandomGamma", "** 0.8", "in percent"),
    ("imgaug.Add", "[-0.1, 0.1]", "parts of the type's range"),
    ("albumentations.RandomScale", "resize_shorter", "a factor"),
    ("albumentations.RandomSizedCrop", "random_area", "part of the area"),
    # probabilities
    ("torchvision.RandomGrayscale", "probability: 0.1", ""),
    ("torchvision.RandomErasing", "erase", "half of them there (p)"),
    ("albumentations.CLAHE", "clahe", "half of them there (p)"),
]


@pytest.mark.parametrize(("name", "step", "note"), SAID)
def test_units_orders_and_probabilities_are_those_of_here(name: str, step: str, note: str) -> None:
    (found,) = operators_like(name)
    assert step in " ".join(found["steps"])
    assert note in found["note"]


def test_what_is_applied_to_a_part_of_the_pictures_says_so() -> None:
    """torchvision's Random... and albumentations' transforms that are not for every picture draw, or tell of it."""
    for name, entry in table().items():
        if not entry["steps"]:
            continue
        library, _, transform = name.partition(".")
        drawn = any("random." in step or "auto_aug" in step or "random_" in step for step in entry["steps"])
        if library == "torchvision" and transform.startswith("Random"):
            assert drawn or "(p)" in entry.get("note", "") or "Permutation" in name, name


TORCHVISION = """AugMix AutoAugment CenterCrop ClampBoundingBoxes ClampKeyPoints ColorJitter Compose
ConvertBoundingBoxFormat ConvertImageDtype CutMix ElasticTransform FiveCrop GaussianBlur GaussianNoise Grayscale
Identity JPEG Lambda LinearTransformation MixUp Normalize PILToTensor Pad RGB RandAugment RandomAdjustSharpness
RandomAffine RandomApply RandomAutocontrast RandomChannelPermutation RandomChoice RandomCrop RandomEqualize
RandomErasing RandomGrayscale RandomHorizontalFlip RandomInvert RandomIoUCrop RandomOrder RandomPerspective
RandomPhotometricDistort RandomPosterize RandomResize RandomResizedCrop RandomRotation RandomShortestSize
RandomSolarize RandomVerticalFlip RandomZoomOut Resize SanitizeBoundingBoxes SanitizeKeyPoints ScaleJitter
SetClampingMode TenCrop ToDtype ToImage ToPILImage ToPureTensor ToTensor TrivialAugmentWide UniformTemporalSubsample"""
"""The transforms of torchvision.transforms.v2 0.29."""
ALBUMENTATIONS = """AdditiveNoise AdvancedBlur Affine AtLeastOneBBoxRandomCrop AutoContrast BBoxSafeRandomCrop Blur
CLAHE CenterCrop CenterCrop3D ChannelDropout ChannelShuffle ChromaticAberration CoarseDropout CoarseDropout3D
ColorJitter ConstrainedCoarseDropout Crop CropAndPad CropNonEmptyMaskIfExists CubicSymmetry D4 Defocus Downscale
ElasticTransform Emboss Equalize Erasing FDA FancyPCA FrequencyMasking FromFloat GaussNoise GaussianBlur GlassBlur
GridDistortion GridDropout GridElasticDeform HEStain HistogramMatching HorizontalFlip HueSaturationValue ISONoise
Illumination ImageCompression InvertImg Lambda LongestMaxSize MaskDropout MedianBlur Morphological Mosaic MotionBlur
MultiplicativeNoise NoOp Normalize OpticalDistortion OverlayElements Pad Pad3D PadIfNeeded PadIfNeeded3D Perspective
PiecewiseAffine PixelDistributionAdaptation PixelDropout PlanckianJitter PlasmaBrightnessContrast PlasmaShadow
Posterize RGBShift RandomBrightnessContrast RandomCrop RandomCrop3D RandomCropFromBorders RandomCropNearBBox RandomFog
RandomGamma RandomGravel RandomGridShuffle RandomRain RandomResizedCrop RandomRotate90 RandomScale RandomShadow
RandomSizedBBoxSafeCrop RandomSizedCrop RandomSnow RandomSunFlare RandomToneCurve Resize RingingOvershoot Rotate
SafeRotate SaltAndPepper Sharpen ShiftScaleRotate ShotNoise SmallestMaxSize Solarize Spatter SquareSymmetry
Superpixels TextImage ThinPlateSpline TimeMasking TimeReverse ToFloat ToGray ToRGB ToSepia Transpose UnsharpMask
VerticalFlip XYMasking ZoomBlur"""
"""The transforms of albumentations 2.0.8."""


def test_every_transform_of_torchvision_and_albumentations_has_an_answer() -> None:
    wanted = {f"torchvision.{n}" for n in TORCHVISION.split()} | {f"albumentations.{n}" for n in ALBUMENTATIONS.split()}
    assert not wanted - table().keys()
