"""Geometry, regions, sequences and reductions in pipelines, on the host and in the place of a GPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run import fn, pipeline_def, types

N = 4
IMAGES = [np.random.default_rng(k).integers(0, 256, (16 + k, 20, 3)).astype(np.uint8) for k in range(N)]
VIDEOS = [np.random.default_rng(k).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8) for k in range(N)]


def run(make: Any, data: list[np.ndarray], layout: str, device_id: int | None) -> list[list[np.ndarray]]:
    @pipeline_def(batch_size=N, num_threads=2, device_id=device_id, seed=3)
    def pipeline() -> Any:
        batch = fn.external_source(source=lambda: data, layout=layout)
        made = make(batch if device_id is None else batch.gpu())
        return tuple(made) if isinstance(made, (list, tuple)) else made

    p = pipeline()
    return [[np.asarray((t.as_cpu() if hasattr(t, "as_cpu") else t).at(i)) for i in range(N)] for t in p.run()]


@pytest.mark.filterwarnings("ignore:.*GPU.*")
@pytest.mark.parametrize("device_id", [None, 0], ids=["cpu", "in a GPU's place"])
def test_images(device_id: int | None) -> None:
    def make(images: Any) -> Any:
        turn = fn.transforms.rotation(angle=90.0, center=[10.0, 8.0])
        matrix = fn.transforms.combine(turn, fn.transforms.translation(offset=[1.0, 2.0]))
        order = fn.batch_permutation()
        mean = fn.reductions.mean(images, axis_names="HW")
        return (
            fn.warp_affine(images, matrix=matrix, fill_value=0, inverse_map=False),
            fn.erase(images, anchor=fn.random.uniform(range=[0, 0.5], shape=2), shape=[0.2, 0.2], normalized=True),
            fn.paste(images, ratio=2.0, paste_x=0, paste_y=0, fill_value=7),
            fn.multi_paste(images, in_ids=order, output_size=[40, 40]),
            fn.grid_mask(images, tile=8),
            mean,
            fn.reductions.std_dev(images, mean, axis_names="HW"),
            fn.experimental.warp_perspective(images, matrix=[1, 0, 3, 0, 1, 0, 0, 0, 1]),
            fn.water(images, mask=fn.random.coin_flip()),
            order,
        )

    turned, erased, pasted, several, masked, mean, deviation, moved, water, order = run(make, IMAGES, "HWC", device_id)
    order = [int(o) for o in order]
    assert sorted(order) == list(range(N))
    for k, image in enumerate(IMAGES):
        assert turned[k].shape == image.shape
        assert turned[k].any()
        assert 0 < np.count_nonzero(erased[k] != image) <= image.size * 0.1
        np.testing.assert_array_equal(pasted[k][: image.shape[0], : image.shape[1]], image)
        source = IMAGES[order[k]]
        np.testing.assert_array_equal(several[k][: source.shape[0], : source.shape[1]], source)
        assert 0.1 < np.mean((masked[k] == 0) & (image > 0)) < 0.4
        np.testing.assert_allclose(mean[k], image.mean(axis=(0, 1)), rtol=1e-5)
        np.testing.assert_allclose(deviation[k], image.std(axis=(0, 1)), rtol=1e-5)
        np.testing.assert_array_equal(moved[k][:, :-3], image[:, 3:])
        assert water[k].shape == image.shape


@pytest.mark.filterwarnings("ignore:.*GPU.*")
@pytest.mark.parametrize("device_id", [None, 0], ids=["cpu", "in a GPU's place"])
def test_videos(device_id: int | None) -> None:
    angles = np.array([0, 90, 180], np.float32)

    def make(videos: Any) -> Any:
        turns = fn.per_frame(types.Constant(angles))
        first, last = fn.element_extract(videos, element_map=[0, 2])
        back = fn.sequence_rearrange(videos, new_order=[2, 1, 0])
        return fn.rotate(videos, angle=turns, keep_size=True), first, last, back

    turned, first, last, back = run(make, VIDEOS, "FHWC", device_id)
    for k, video in enumerate(VIDEOS):
        np.testing.assert_array_equal(turned[k], np.stack([np.rot90(frame, j) for j, frame in enumerate(video)]))
        np.testing.assert_array_equal(first[k], video[0])
        np.testing.assert_array_equal(last[k], video[2])
        np.testing.assert_array_equal(back[k], video[::-1])


def test_points() -> None:
    points = [np.random.default_rng(k).random((5, 2)).astype(np.float32) for k in range(N)]

    def make(data: Any) -> Any:
        matrix = fn.transforms.scale(scale=fn.random.uniform(range=[1, 2], shape=2), center=[0.5, 0.5])
        flipped = fn.coord_flip(data, flip_x=1, center_x=0.5)
        return fn.coord_transform(data, MT=matrix), flipped, matrix

    scaled, flipped, matrices = run(make, points, "", None)
    for k, p in enumerate(points):
        np.testing.assert_allclose(scaled[k], p @ matrices[k][:, :2].T + matrices[k][:, 2], rtol=1e-5)
        np.testing.assert_allclose(flipped[k], p * [-1, 1] + [1, 0], rtol=1e-6)
