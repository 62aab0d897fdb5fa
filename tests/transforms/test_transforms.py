"""dali_run.transforms beside torchvision: its results as digests, and itself where it is installed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

import dali_run.transforms as ours
from dali_run.ops.libraries import torchvision, torchvision_cpu
from dali_run.transforms import functional as F  # noqa: N812
from dali_run.transforms.draws import Draws

from .cases import COLOURED, OF_TORCH, SEED, arrays, cases, chain, digest, pictures

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "transforms.json").read_text())
DALIS = [
    "CenterCrop", "ColorJitter", "Compose", "GaussianBlur", "Grayscale", "InterpolationMode", "Normalize", "Pad",
    "PILToTensor", "RandomApply", "RandomCrop", "RandomGrayscale", "RandomHorizontalFlip", "RandomResizedCrop",
    "RandomVerticalFlip", "Resize", "ToPILImage", "ToPureTensor",
]  # fmt: skip
"""``nvidia.dali.experimental.torchvision.__all__`` of DALI 2.4.0."""
DALIS_FUNCTIONS = [
    "center_crop", "crop", "gaussian_blur", "get_dimensions", "get_image_size", "get_size", "horizontal_flip",
    "normalize", "pad", "pil_to_tensor", "resize", "resized_crop", "rgb_to_grayscale", "to_grayscale", "to_pil_image",
    "to_tensor", "vertical_flip",
]  # fmt: skip


def test_dalis_names_are_all_there() -> None:
    assert set(DALIS) <= set(ours.__all__)
    assert set(DALIS_FUNCTIONS) <= set(F.__all__)
    assert all(hasattr(ours, name) for name in ours.__all__)
    assert all(hasattr(F, name) for name in F.__all__)


@pytest.mark.parametrize(("name", "kind"), cases())
def test_the_results_are_torchvisions_to_the_bit(name: str, kind: str) -> None:
    if kind == "pictures" and PIL.__version__.split(".")[0] != GOLDEN["pillow"].split(".")[0]:
        pytest.skip(f"the digests are those of Pillow {GOLDEN['pillow']}")
    if name in OF_TORCH:
        pytest.importorskip("torch")
    ours.manual_seed(SEED)
    assert digest(list(chain(name, ours)(pictures(kind)))) == GOLDEN["digests"][f"{name} {kind}"]


@pytest.mark.parametrize(("name", "kind"), cases())
def test_torchvision_itself_gives_the_same_and_leaves_the_same_generator(name: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    v2 = pytest.importorskip("torchvision.transforms.v2")
    inputs = [x if kind == "pictures" else torch.from_numpy(x) for x in pictures(kind)]
    theirs = chain(name, v2)
    torch.manual_seed(SEED + 1)
    wanted = [theirs(x) for x in inputs]
    state = torch.get_rng_state()
    torch.manual_seed(SEED + 1)
    got = chain(name, ours)(inputs)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(wanted, got, strict=True):
        assert type(b) in (torch.Tensor, Image.Image)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", ["train", "contrastive", "val", "jitter", "resized_crop", "apply", "rotate_expand"])
def test_a_batch_is_its_images_one_after_the_other(name: str) -> None:
    images = np.stack([a[:, :50, :50] for a in arrays("tensors")])
    made = chain(name, ours)
    ours.manual_seed(3)
    alone = [made(x) for x in images]
    ours.manual_seed(3)
    together = made(images)
    assert isinstance(together, list if name == "rotate_expand" else np.ndarray)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_draw_for_a_batch_where_that_is_asked_for() -> None:
    image = arrays("tensors")[0]
    batch = np.stack([image] * 8)
    shared = ours.Compose([ours.ColorJitter(0.5, 0.5, 0.5, 0.2)], per_sample=False)(batch)
    assert all(np.array_equal(x, shared[0]) for x in shared)
    each = ours.Compose([ours.ColorJitter(0.5, 0.5, 0.5, 0.2)])(batch)
    assert len({x.tobytes() for x in each}) == 8


def test_the_number_of_threads_changes_nothing() -> None:
    batch = np.stack([a[:, :50, :50] for a in arrays("tensors")] * 5)
    found = []
    for threads in (1, 2, 5):
        ours.manual_seed(1)
        parts = [ours.RandomResizedCrop(32), ours.RandAugment(), ours.ToDtype(np.float32, scale=True)]
        found.append(ours.Compose(parts, num_threads=threads)(batch))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_every_image_may_go_its_own_way() -> None:
    """RandomApply of a resize gives images of two sizes: each is done as if it were alone."""
    batch = np.stack([a[:, :50, :50] for a in arrays("tensors")] * 3)
    part = ours.RandomApply([ours.Resize(20), ours.RandomInvert(1.0)], p=0.5)
    ours.manual_seed(4)
    together = part(batch)
    assert {x.shape for x in together} == {(3, 50, 50), (3, 20, 20)}
    ours.manual_seed(4)
    for image, got in zip(batch, together, strict=True):
        np.testing.assert_array_equal(part(image), got)


def test_a_generator_is_numpys_and_gives_torchs_numbers() -> None:
    """The first numbers of torch.manual_seed(0): rand, randint(0, 10), randperm(4), uniform_(-1, 1)."""
    ours.manual_seed(0)
    with Draws() as draws:
        assert draws.rand() == np.float32(0.49625658988952637)
        assert draws.rand() == np.float32(0.7682217955589294)
    with Draws() as draws:
        assert draws.rand() == np.float32(0.08847743272781372)


def test_crops_at_one_place_are_views_as_torchvisions_are() -> None:
    batch = np.stack([a[:, :50, :50] for a in arrays("tensors")])
    cut = ours.CenterCrop(20)(batch)
    assert np.shares_memory(cut, batch)
    np.testing.assert_array_equal(cut, batch[:, :, 15:35, 15:35])
    images = arrays("tensors")
    ours.manual_seed(2)
    several = ours.RandomCrop(20)(images)
    assert all(np.shares_memory(a, b) for a, b in zip(several, images, strict=True))
    ours.manual_seed(3)
    together = ours.RandomCrop(20)(batch)  # at several places: one new tensor
    assert not np.shares_memory(together, batch)
    ours.manual_seed(3)
    for image, got in zip(batch, together, strict=True):
        np.testing.assert_array_equal(ours.RandomCrop(20)(image), got)
    assert not np.shares_memory(ours.CenterCrop(60)(batch), batch)  # partly outside


@pytest.mark.parametrize("size", [33, 61, 70])
@pytest.mark.parametrize("filter_", ["nearest", "bilinear", "bicubic"])
def test_crops_after_a_resize_are_parts_of_it(size: int, filter_: str) -> None:
    """Only the crop is made of the resized image; with the same bits, also where crops differ or reach outside."""
    images = arrays("tensors")
    resize = ours.Resize((size, 40), filter_)
    for crop in (ours.CenterCrop(31), ours.RandomCrop(30), ours.CenterCrop(44), ours.RandomCrop((20, 33), padding=2)):
        ours.manual_seed(8)
        together = ours.Compose([resize, crop, ours.RandomHorizontalFlip()])(images)
        ours.manual_seed(8)
        for image, got in zip(images, together, strict=True):
            np.testing.assert_array_equal(ours.RandomHorizontalFlip()(crop(resize(image))), got)


def test_images_alike_share_a_plan_and_others_do_not() -> None:
    """Neighbours whose steps are the same are planned once; each still gets its own."""
    batch = np.stack([a[:, :50, :50] for a in arrays("tensors")] * 2)
    part = ours.RandomApply([ours.RandomRotation((90, 90)), ours.RandomErasing(1.0, value=0)], p=0.5)
    ours.manual_seed(6)
    together = part(batch)
    ours.manual_seed(6)
    for image, got in zip(batch, together, strict=True):
        np.testing.assert_array_equal(part(image), got)


def test_inputs_that_are_no_images_go_through() -> None:
    image, label = arrays("tensors")[0], {"label": 3}
    out, same = ours.CenterCrop(20)((image, label))
    assert out.shape == (3, 20, 20)
    assert same is label
    out, same = ours.CenterCrop(20)(image, 7)
    assert (out.shape, same) == ((3, 20, 20), 7)
    with pytest.raises(TypeError, match="none of the inputs is an image"):
        ours.CenterCrop(20)((1, 2))
    with pytest.raises(TypeError, match="got int"):
        ours.CenterCrop(20)(3)


def test_shapes_of_all_kinds() -> None:
    image = arrays("tensors")[0]
    assert ours.Resize(20)(image[:, :40, :50]).shape == (3, 20, 25)
    assert ours.Resize(20)(np.stack([[image[:, :40, :50]] * 3] * 2)).shape == (2, 3, 3, 20, 25)
    assert [x.shape for x in ours.CenterCrop(9)(arrays("tensors"))] == [(3, 9, 9)] * 6
    assert ours.CenterCrop(9)(np.empty((0, 3, 20, 20), np.uint8)).shape[0] == 0
    picture = Image.fromarray(image.transpose(1, 2, 0))
    assert np.asarray(ours.PILToTensor()(picture)).shape == image.shape
    assert np.asarray(ours.PILToTensor()([picture] * 3)).shape == (3, *image.shape)
    np.testing.assert_array_equal(np.asarray(F.to_pil_image(image.transpose(1, 2, 0))), np.asarray(picture))
    assert F.get_dimensions(picture) == [3, *image.shape[1:]]
    assert F.get_size(image) == list(image.shape[1:])
    assert F.get_image_size(image) == [image.shape[2], image.shape[1]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: F.equalize(x.astype(np.float32)), "equalize takes uint8"),
        (lambda x: F.normalize(x, [0.5], [0.5]), "put ToDtype"),
        (lambda x: F.pad(x[:, :4, :4], 5, padding_mode="reflect"), "smaller than the image"),
        (lambda x: F.gaussian_blur(x[:, :2, :2], 9), "half is smaller than the image"),
        (lambda x: F.rotate(x, 30, fill=(1, 2)), "one per channel of the image, which has 3"),
        (lambda x: F.adjust_contrast(x[:2], 1.5), "1 or 3 channels, got 2"),
        (lambda x: ours.RandomCrop(500)(x), "larger than the image"),
        (
            lambda x: F.normalize(x.astype(np.float32), [0.5] * 2, [0.5] * 2),
            "one per channel of the image, which has 3",
        ),
        (lambda x: F.resize(x, 20, interpolation="box"), "no interpolation 'box'"),
        (lambda x: ours.Resize(20, interpolation="cubical"), "is not one of nearest"),
        (lambda x: ours.Compose([ours.Resize(20), len]), "takes transforms of dali_run.transforms"),
        (lambda x: ours.CenterCrop(5)(x[0]), r"\(C, H, W\)"),
        (lambda x: ours.RandomPosterize(9), "between 0 and 8"),
        (lambda x: F.to_pil_image(np.zeros((5, 5, 7), np.uint8)), "no images with 7 channels"),
    ],
)
def test_errors_say_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make(arrays("tensors")[0])


def test_the_input_is_never_changed() -> None:
    batch = np.stack([a[:, :50, :50] for a in arrays("tensors")])
    before = batch.copy()
    for name in ("train", "jitter", "flip", "erase_random"):
        chain(name, ours)(batch)
    np.testing.assert_array_equal(batch, before)
    assert not np.shares_memory(ours.CenterCrop(50)(batch), batch) or ours.CenterCrop(50)(batch) is not batch


def test_codes_and_loops_agree() -> None:
    """The loop's numbers of operations are those of `Step`."""
    renamed = {"ADJUST_": "", "RGB_TO_GRAYSCALE": "GRAY", "PERMUTE_CHANNELS": "PERMUTE", "GAUSSIAN_BLUR": "BLUR"}
    for step in torchvision.Step:
        name = re.sub("|".join(renamed), lambda m: renamed[m[0]], step.name.upper())
        assert getattr(torchvision_cpu, name) == int(step)


def test_colours_of_one_image_as_written_down_plainly() -> None:
    """Brightness and saturation in float64: no result is further away than a value that was cut off."""
    image = arrays("tensors")[0]
    plain = np.clip(image * 1.3, 0, 255)
    assert (np.abs(F.adjust_brightness(image, 1.3) - plain) <= 1).all()
    gray = np.floor(0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2])
    plain = np.clip(1.7 * image - 0.7 * gray, 0, 255)
    assert (np.abs(F.adjust_saturation(image, 1.7) - plain) <= 1).all()
    np.testing.assert_array_equal(F.invert(image), 255 - image)
    np.testing.assert_array_equal(F.rotate(image[:, :50, :50], 90), np.rot90(image[:, :50, :50], axes=(1, 2)))


def test_floats_take_what_copies_them() -> None:
    torch = pytest.importorskip("torch")
    v2 = pytest.importorskip("torchvision.transforms.v2.functional")
    image = torch.from_numpy(arrays("tensors")[0]).to(torch.float32) / 255
    for name, given in (("horizontal_flip", ()), ("pad", ([1, 2, 3, 4],)), ("crop", (-3, 5, 40, 99)), ("invert", ()),
                        ("rgb_to_grayscale", ()), ("adjust_brightness", (1.3,))):  # fmt: skip
        assert torch.equal(getattr(v2, name)(image, *given), getattr(F, name)(image, *given)), name
    assert COLOURED
