"""The specs of configs/: each compiles for both devices, runs on sample data, and gives what Pillow and NumPy give."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
import tfrecord
import yaml
from PIL import Image, ImageOps

from dali_run.ops.context import Context
from dali_run.ops.images.random_window import WINDOW_SALT, random_windows
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.engine.nodes.node_pass import NodePass
from dali_run.pipelines.engine.nodes.run_nodes import run_nodes
from dali_run.pipelines.graph.nodes import Edge
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.spec.build import load_spec
from dali_run.pipelines.tools.preview import check_spec
from dali_run.pipelines.tools.sample_data import CLASSES, make_sample_data

from .kit.jobs.read_back import read_by_the_field

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = sorted(p.name for p in CONFIGS.glob("*.yaml"))
MEAN = np.array([123.675, 116.28, 103.53], np.float32)
STD = np.array([58.395, 57.12, 57.375], np.float32)
LEVEL = 1.001 / STD.min()
"""One level of 255 after normalising: what resize may be off by."""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("configs") / "data"
    make_sample_data(folder, 64)
    return folder


@pytest.fixture(scope="module", params=["sample", "imagenet"])
def pictures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of class folders: the sample's training pictures, or real ones."""
    if request.param == "sample":
        folder: Path = request.getfixturevalue("sample")
        return folder / "train"
    root = tmp_path_factory.mktemp("imagenet")
    for i, path in enumerate(request.getfixturevalue("imagenet")):
        (root / str(i % 3)).mkdir(exist_ok=True)
        os.symlink(path, root / str(i % 3) / path.name)
    return root


def run(name: str, out: Path, data: Path | str, device: str = "cpu") -> Path:
    result = run_job(CONFIGS / name, {"data": str(data), "out": str(out)}, device=device)
    assert result.exit_code == 0, result.message
    read_by_the_field(CONFIGS / name, out)
    return out


def files_of(folder: Path) -> list[Path]:
    """In the order of readers.file."""
    return [p for d in sorted(folder.iterdir()) for p in sorted(d.iterdir())]


def records(folder: Path) -> Iterator[dict[str, Any]]:
    for shard in sorted(folder.glob("*.tfrecord")):
        yield from tfrecord.tfrecord_loader(str(shard), None)


# -- the reference ----------------------------------------------------------------------------------------------------


def decode(path: Path) -> np.ndarray:
    """Pillow's RGB, upright."""
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def shrink(image: np.ndarray, axis: int, size: int, scale: float) -> np.ndarray:
    """Triangular antialiasing along ``axis`` in float64: around the centre, at this scale, edges repeated."""
    extent = image.shape[axis]
    centres = extent / 2 + (np.arange(size) + 0.5 - size / 2) * scale
    support = max(scale, 1.0)
    taps = np.arange(-int(np.ceil(support)) - 1, int(np.ceil(support)) + 2)
    at = np.floor(centres)[:, None].astype(int) + taps
    weights = np.clip(1 - np.abs(at + 0.5 - centres[:, None]) / support, 0, None)
    weights /= weights.sum(axis=1, keepdims=True)
    moved = np.moveaxis(image, axis, 0).astype(np.float64)
    out = np.einsum("ot,ot...->o...", weights, moved[at.clip(0, extent - 1)])
    return np.moveaxis(out, 0, axis)


def round_half_up(x: float) -> int:
    return int(np.floor(x + 0.5))


def shorter_side(image: np.ndarray, size: int) -> np.ndarray:
    """Resize as DALI's resize_shorter; the scale is exact, the longer side rounded."""
    scale = min(image.shape[:2]) / size
    height, width = (round_half_up(d / scale) for d in image.shape[:2])
    return shrink(shrink(image, 0, height, scale), 1, width, scale)


def to_levels(image: np.ndarray) -> np.ndarray:
    return np.floor(image + 0.5).clip(0, 255).astype(np.uint8)


# -- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_opens_with_a_comment_and_compiles_for_both_devices(name: str) -> None:
    assert (CONFIGS / name).read_text().startswith("# yaml-language-server: $schema=./spec.schema.json\n# Shows ")
    result = check_spec(CONFIGS / name)
    assert result["problems"] == []
    built = load_spec(CONFIGS / name)
    on_gpu = compile_graph(built.graph, Target("null"))
    decodes = [n for n in on_gpu.graph.nodes if n.op.name.startswith("decoders.")]
    assert all(n.stage == "mixed" for n in decodes)
    reads_plainly = "_to_" in name or name in (
        "librispeech_logmel.yaml",
        "video_clips.yaml",
        "video_cuts.yaml",
        "video_frames.yaml",
    )  # whose readers decode
    assert bool(decodes) == (not reads_plainly)


def test_the_readme_shows_the_first_spec_as_it_is() -> None:
    readme = (CONFIGS.parent / "README.md").read_text()
    block = yaml.safe_load(readme.split("```yaml\n")[1].split("```")[0])
    config = yaml.safe_load((CONFIGS / "imagenet_resize.yaml").read_text())
    assert block["graph"] == config["graph"]


def test_the_page_of_the_spec_lists_every_config() -> None:
    page = (CONFIGS.parent / "docs" / "spec.md").read_text()
    for name in NAMES:
        assert f"configs/{name}" in page


# -- sounds -----------------------------------------------------------------------------------------------------------


def tensors(folder: Path, name: str) -> list[np.ndarray]:
    """The float32 tensors of a field, with their shapes."""
    return [np.frombuffer(r[name], np.float32).reshape(r[f"{name}/shape"]) for r in records(folder)]


def test_whisper_logmel(sample: Path, tmp_path: Path) -> None:
    out = run("whisper_logmel.yaml", tmp_path / "out", sample / "audio")
    features = tensors(out, "features")
    assert len(features) == 16
    for one in features:
        assert one.shape == (80, 3000)
        assert one.max() - one.min() == pytest.approx(2, abs=1e-5)  # eight decades, by four
    silence = [one[:, -100:] for one in features]  # after the clip, which is three seconds long at most
    assert all(np.ptp(s) == 0 for s in silence)


def test_rnnt_logmel(sample: Path, tmp_path: Path) -> None:
    out = run("rnnt_logmel.yaml", tmp_path / "out", sample / "audio")
    for one in tensors(out, "features"):
        assert one.shape[1] == 80
        assert 100 <= one.shape[0] <= 302
        np.testing.assert_allclose(one.mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(one.std(axis=0), 1, atol=1e-3)


def test_librispeech_logmel(sample: Path, tmp_path: Path) -> None:
    import json

    manifest, out = sample / "audio" / "manifest.json", tmp_path / "out"
    result = run_job(CONFIGS / "librispeech_logmel.yaml", {"manifest": str(manifest), "out": str(out)}, device="cpu")
    assert result.exit_code == 0, result.message
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert [r["text"].decode() for r in records(out)] == [line["text"] for line in lines]
    for one, line in zip(tensors(out, "features"), lines, strict=True):
        assert one.shape[0] == 64
        assert abs(one.shape[1] - (line["duration"] * 100 + 1)) <= 1


def test_video_clips(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from tests.kit.files.videos import make_video

    for label in range(2):
        (tmp_path / "in" / str(label)).mkdir(parents=True)
        make_video(tmp_path / "in" / str(label) / "v.mp4", 70, size=(120, 160))
    out = run("video_clips.yaml", tmp_path / "out", tmp_path / "in")
    found = list(records(out))
    assert [int(r["label"][0]) for r in found] == [0, 0, 1, 1]
    assert all(r["clip/shape"].tolist() == [16, 112, 112, 3] for r in found)


def test_video_frames(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from tests.kit.files.videos import make_video

    (tmp_path / "in" / "0").mkdir(parents=True)
    frames = make_video(tmp_path / "in" / "0" / "v.mp4", 23, size=(256, 320))
    out = run("video_frames.yaml", tmp_path / "out", tmp_path / "in")
    with tarfile.open(next(iter(out.glob("*.tar")))) as tar:
        held = {m.name: tar.extractfile(m) for m in tar.getmembers()}
        pictures = {
            n: np.asarray(Image.open(io.BytesIO(f.read()))) for n, f in held.items() if f and n.endswith(".jpg")
        }
        times = [np.load(io.BytesIO(f.read())) for n, f in held.items() if f and n.endswith(".npy")]
    assert len({n.split(".")[0] for n in held}) == 5
    for picture, want in zip(pictures.values(), frames[::5], strict=True):
        assert np.abs(picture.astype(int) - want).mean() < 4
    np.testing.assert_allclose(np.concatenate(times), np.arange(0, 23, 5) / 25, atol=1e-6)


# -- one by one -------------------------------------------------------------------------------------------------------


def test_quickstart(sample: Path, tmp_path: Path) -> None:
    out = run("quickstart.yaml", tmp_path / "out", sample / "train")
    found = list(records(out))
    assert len(found) == 48
    assert len(list(out.glob("*.tfrecord"))) == 2
    labels = np.bincount([int(r["label"][0]) for r in found])
    assert labels.tolist() == [12] * len(CLASSES)
    for record in found:
        with Image.open(io.BytesIO(bytes(record["image"]))) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (224, 224), "RGB")


def test_imagenet_val(pictures: Path, tmp_path: Path) -> None:
    out = run("imagenet_val.yaml", tmp_path / "out", pictures)
    files = files_of(pictures)
    found = list(records(out))
    assert len(found) == len(files)
    classes = sorted(d.name for d in pictures.iterdir())
    for path, record in zip(files, found, strict=True):
        assert record["label"][0] == classes.index(path.parent.name)
        assert bytes(record["image/dtype"]) == b"float32"
        assert list(record["image/shape"]) == [3, 224, 224]
        image = np.frombuffer(bytes(record["image"]), np.float32).reshape(3, 224, 224)
        resized = shorter_side(decode(path), 256)
        top, left = (round_half_up((d - 224) / 2) for d in resized.shape[:2])
        levels = to_levels(resized)[top : top + 224, left : left + 224].astype(np.float32)
        expected = ((levels - MEAN) / STD).transpose(2, 0, 1)
        assert np.abs(image - expected).max() <= LEVEL, path
        assert np.abs(image - expected).mean() <= 0.05 * LEVEL, path


def test_imagenet_resize(pictures: Path, tmp_path: Path) -> None:
    out = run("imagenet_resize.yaml", tmp_path / "out", pictures)
    files = files_of(pictures)
    (shard,) = out.glob("*.tar")
    with tarfile.open(shard) as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    jpegs = [v for k, v in members.items() if k.endswith(".jpg")]
    labels = [int(v) for k, v in members.items() if k.endswith(".cls")]
    classes = sorted(d.name for d in pictures.iterdir())
    assert labels == [classes.index(p.parent.name) for p in files]
    for path, data in zip(files, jpegs, strict=True):
        expected = to_levels(shorter_side(decode(path), 256))
        reference = io.BytesIO()
        Image.fromarray(expected).save(reference, "JPEG", quality=90, subsampling="4:2:0")
        with Image.open(io.BytesIO(data)) as ours, Image.open(reference) as theirs:
            assert min(ours.size) == 256
            difference = np.abs(np.asarray(ours, np.int16) - np.asarray(theirs, np.int16))
            assert ours.quantization == theirs.quantization  # type: ignore[attr-defined]
        assert difference.mean() < 0.25, path
        assert difference.max() <= 40, path


def drawn(name: str, data: Path) -> tuple[Plan, list[int], np.ndarray, np.ndarray, list[Path]]:
    """The order, mirror flags and window streams that a config draws, and its files."""
    built = load_spec(CONFIGS / name, {"data": str(data)})
    plan = compile_graph(built.graph, Target("cpu"), built.spec.pipeline.seed, fusing=False)
    with Sources(plan, built.spec.pipeline.batch_size) as sources:
        feed = JobFeed(sources)
        (request,) = list(feed.requests(1 << 20))
        samples, per_reader = feed.samples(request)
        run = NodePass(samples, plan.seeds, states=sources.states, reader_samples=per_reader)
        env: dict[Any, Any] = {}
        flip = next(n for n in plan.graph.nodes if n.op.name == "random.coin_flip")
        run_nodes([flip], env, run)
        mirror = np.asarray([int(x.reshape(-1)[0]) for x in next(iter(env.values()))])
        crop = next(n for n in plan.graph.nodes if n.op.name == "decoders.image_random_crop")
        paths = [Path(samples.origin(i).source) for i in range(len(samples))]
        sizes = np.array([decode(p).shape[:2] for p in paths], np.int64)
        ctx = Context(op=crop.op, stage="cpu", samples=samples, seed=plan.seeds[crop.id])
        anchors, shapes = random_windows(ctx.streams(WINDOW_SALT), sizes[:, 0], sizes[:, 1])
    return plan, mirror.tolist(), anchors, shapes, paths


def test_imagenet_train(pictures: Path, tmp_path: Path) -> None:
    out = run("imagenet_train.yaml", tmp_path / "out", pictures)
    (images,) = [np.load(p, mmap_mode="r") for p in out.glob("*.image.npy")]
    (labels,) = [np.load(p) for p in out.glob("*.label.npy")]
    _, mirror, anchors, shapes, paths = drawn("imagenet_train.yaml", pictures)
    assert images.shape == (len(paths), 3, 224, 224)
    assert images.dtype == np.float16
    assert sorted(paths) == sorted(files_of(pictures))
    assert paths != files_of(pictures)
    assert 0.25 < np.mean(mirror) < 0.75
    classes = sorted(d.name for d in pictures.iterdir())
    assert labels.reshape(-1).tolist() == [classes.index(p.parent.name) for p in paths]
    for i, path in enumerate(paths):
        (y, x), (h, w) = anchors[i], shapes[i]
        window = decode(path)[y : y + h, x : x + w]
        resized = to_levels(shrink(shrink(window, 0, 224, h / 224), 1, 224, w / 224)).astype(np.float32)
        if mirror[i]:
            resized = resized[:, ::-1]
        expected = ((resized - MEAN) / STD).transpose(2, 0, 1)
        difference = np.abs(images[i].astype(np.float32) - expected)
        assert difference.max() <= LEVEL + 0.002, path  # and half a unit of float16
        assert difference.mean() <= 0.1 * LEVEL, path


def test_ssd_train(sample: Path, tmp_path: Path) -> None:
    """Every box that was left in the window is there again, once the anchors' offsets are undone, and is mirrored with
    its picture; the other anchors have no class."""
    from dali_run.ops.boxes.box_encoder import ssd300

    out = run("ssd_train.yaml", tmp_path / "out", sample / "coco")
    (images,), (targets,), (classes,) = (
        [np.load(p) for p in out.glob(f"*.{n}.npy")] for n in ("image", "box", "label")
    )
    assert images.shape[1:] == (3, 300, 300)
    assert images.dtype == np.float16
    built = load_spec(CONFIGS / "ssd_train.yaml", {"data": str(sample / "coco")})
    plan = compile_graph(built.graph, Target("cpu"), built.spec.pipeline.seed, fusing=False)
    with Sources(plan, 100) as sources:
        feed = JobFeed(sources)
        (request,) = list(feed.requests(1 << 20))
        samples, per_reader = feed.samples(request)
        env: dict[Any, Any] = {}
        run_nodes(
            plan.graph.nodes, env, NodePass(samples, plan.seeds, states=sources.states, reader_samples=per_reader)
        )
    at = {n.op.name: n.id for n in plan.graph.nodes}
    boxes, labels = env[Edge(at["bb_flip"])], env[Edge(at["random_bbox_crop"], 3)]
    anchors = np.array(ssd300()).reshape(-1, 4)
    centre, extent = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:] - anchors[:, :2]
    assert len(anchors) == 8732
    assert len(images) == len(boxes) > 8
    for i in range(len(images)):
        matched = classes[i] > 0
        middle = targets[i, :, :2] * 0.1 * extent + centre
        size = np.exp(targets[i, :, 2:] * 0.2) * extent
        found = np.concatenate([middle - size / 2, middle + size / 2], axis=1)[matched]
        apart = np.abs(found[:, None] - boxes.sample(i)[None]).max(axis=2)
        assert apart.min(axis=1).max() < 1e-4
        assert (apart.min(axis=0) < 1e-4).all()
        np.testing.assert_array_equal(classes[i][matched], labels.sample(i)[apart.argmin(axis=1)])
        assert (targets[i][~matched] == 0).all()


def test_segmentation_train(sample: Path, tmp_path: Path) -> None:
    """Objects are of one colour each: so are the pictures where the masks say that there is an object."""
    out = run("segmentation_train.yaml", tmp_path / "out", sample / "coco")
    (shard,) = out.glob("*.tar")
    with tarfile.open(shard) as tar:
        files = {m.name: np.asarray(Image.open(tar.extractfile(m))) for m in tar if m.isfile()}  # type: ignore[arg-type]
    flat = regions = 0
    for name in sorted(n for n in files if n.endswith(".mask.png")):
        mask, image = files[name], files[name.replace(".mask.png", ".image.jpg")]
        assert mask.shape == image.shape[:2] == (256, 256)
        assert mask.max() <= 3
        for label in range(1, 4):
            _, parts = cv2.connectedComponents(cv2.erode((mask == label).astype(np.uint8), np.ones((9, 9), np.uint8)))
            for k in range(1, parts.max() + 1):
                pixels = image[parts == k].astype(np.float64)
                if len(pixels) > 100:
                    regions += 1
                    flat += bool(np.abs(pixels - np.median(pixels, axis=0)).mean() < 6)
    assert regions > 20
    assert flat > 0.7 * regions  # objects of a class may cover each other


def test_containers_are_changed_without_touching_the_pictures(sample: Path, tmp_path: Path) -> None:
    originals = [p.read_bytes() for p in files_of(sample / "train")]
    labels = [CLASSES.index(p.parent.name) for p in files_of(sample / "train")]
    there = run("lmdb_to_tfrecord.yaml", tmp_path / "there", sample / "lmdb")
    found = list(records(there))
    assert [bytes(r["image/encoded"]) for r in found] == originals
    assert [int(r["image/class/label"][0]) for r in found] == labels
    back = run("tfrecord_to_lmdb.yaml", tmp_path / "back", there / "*.tfrecord")
    (database,) = back.glob("*.lmdb")
    with lmdb.open(str(database), readonly=True, lock=False) as env, env.begin() as txn:
        values = [bytes(v) for _, v in txn.cursor()]
    assert len(values) == len(originals)
    for value, original in zip(values, originals, strict=True):
        assert original in value
    again = run("tfrecord_to_lmdb.yaml", tmp_path / "direct", sample / "tfrecord" / "*.tfrecord")
    (other,) = again.glob("*.lmdb")
    assert (other / "data.mdb").read_bytes() == (database / "data.mdb").read_bytes()


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["null", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_a_gpu_writes_what_the_cpu_writes(device: str, pictures: Path, tmp_path: Path) -> None:
    """The same samples in the same order; pixels as near as decoders that need not agree to the bit come."""
    for name in ("imagenet_val.yaml", "quickstart.yaml"):
        here, there = (list(records(run(name, tmp_path / d / name, pictures, d))) for d in ("cpu", device))
        assert [r["label"][0] for r in here] == [r["label"][0] for r in there]
        for a, b in zip(here, there, strict=True):
            if name == "imagenet_val.yaml":
                x, y = (np.frombuffer(bytes(r["image"]), np.float32) for r in (a, b))
                assert np.abs(x - y).mean() <= 0.5 * LEVEL
                assert np.quantile(np.abs(x - y), 0.999) <= 6 * LEVEL
            else:
                x, y = (np.asarray(Image.open(io.BytesIO(bytes(r["image"]))), np.float32) for r in (a, b))
                assert np.abs(x - y).mean() <= 2


@pytest.mark.parametrize("device", ["null", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_a_gpu_trains_on_the_same_windows(device: str, pictures: Path, tmp_path: Path) -> None:
    for d in ("cpu", device):
        run("imagenet_train.yaml", tmp_path / d, pictures, d)
    here, there = (np.load(next((tmp_path / d).glob("*.image.npy"))).astype(np.float32) for d in ("cpu", device))
    assert here.shape == there.shape
    for a, b in zip(here, there, strict=True):
        assert np.abs(a - b).mean() <= 0.5 * LEVEL
