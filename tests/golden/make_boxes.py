"""Makes boxes.npz with NVIDIA DALI 2.4 (CPU): the operators on boxes over their arguments, several iterations each."""

from pathlib import Path

import numpy as np
from ragged_cases import Recorder

F = np.float32
COUNTS = (1, 2, 3, 5, 0, 4, 8)


def boxes(counts, seed, ndim=2):
    random = np.random.default_rng(seed)
    out = []
    for n in counts:
        lo = random.random((n, ndim)) * 0.6
        out.append(np.concatenate([lo, lo + random.random((n, ndim)) * 0.35 + 0.05], 1).astype(F))
    return out


def as_extents(lists):
    return [
        np.concatenate([b[:, : b.shape[1] // 2], b[:, b.shape[1] // 2 :] - b[:, : b.shape[1] // 2]], 1) for b in lists
    ]


def labels(counts, dtype=np.int32, shape=()):
    return [np.arange(n * int(np.prod(shape, dtype=int))).reshape(n, *shape).astype(dtype) + 1 for n in counts]


def windows(r):
    some = [n for n in COUNTS if n]
    ssd = {"thresholds": [0.0, 0.1, 0.3, 0.5, 0.7, 0.9], "aspect_ratio": [0.5, 2.0], "scaling": [0.3, 1.0]}
    settings = [
        {},
        {**ssd, "num_attempts": 1, "total_num_attempts": 200},
        {**ssd, "num_attempts": 50},
        {**ssd, "num_attempts": 10, "allow_no_crop": False, "total_num_attempts": 100},
        {"thresholds": [0.1, 0.5], "aspect_ratio": [0.5, 2.0], "scaling": [0.3, 1.0], "num_attempts": 50,
         "threshold_type": "overlap", "all_boxes_above_threshold": False, "total_num_attempts": 100},
        {"thresholds": [0.3], "scaling": [0.3, 0.6], "aspect_ratio": [0.5, 2.0], "bbox_prune_threshold": 0.4,
         "allow_no_crop": False, "num_attempts": 20, "total_num_attempts": 60},
        {"scaling": [0.3, 0.6], "aspect_ratio": [0.5, 2.0], "bbox_prune_threshold": 0.0, "allow_no_crop": False,
         "total_num_attempts": 60},
        {"crop_shape": [200, 100], "input_shape": [640, 480], "num_attempts": 10, "total_num_attempts": 60},
        {"crop_shape": [200, 100], "input_shape": [640, 480], "shape_layout": "HW", "total_num_attempts": 60},
        {"crop_shape": [200, 480], "input_shape": [100, 480], "total_num_attempts": 20},
        {**ssd, "input_shape": [640, 480], "num_attempts": 10, "total_num_attempts": 60},
        {**ssd, "input_shape": [300, 480], "shape_layout": "HW", "num_attempts": 10, "total_num_attempts": 60},
        {"scaling": [0.2, 0.4], "aspect_ratio": [1.5, 1.5], "input_shape": [300, 480], "num_attempts": 10,
         "total_num_attempts": 60, "allow_no_crop": False},
    ]  # fmt: skip
    for ratio in (0.7, 1.0, 2.0, 3.1):
        settings.append({"thresholds": [0.0, 0.1], "aspect_ratio": [ratio, ratio], "scaling": [0.3, 1.0],
                         "num_attempts": 5, "allow_no_crop": False, "total_num_attempts": 60})  # fmt: skip
    for k, how in enumerate(settings):
        ends = how.get("total_num_attempts", -1) >= 0 or how.get("allow_no_crop", True)
        counts = COUNTS if ends else some
        r.add("random_bbox_crop", {"output_bbox_indices": True, **how}, [boxes(counts, k)], iterations=3, seed=k + 1)
    for shape in ((), (1,), (2,)):
        r.add("random_bbox_crop", settings[2], [boxes(COUNTS, 90), labels(COUNTS, shape=shape)], iterations=2)
    r.add("random_bbox_crop", {**settings[2], "bbox_layout": "xyWH"}, [as_extents(boxes(COUNTS, 91))], iterations=2)
    r.add("random_bbox_crop", {**settings[2], "ltrb": False}, [as_extents(boxes(COUNTS, 91))], iterations=2)
    r.add("random_bbox_crop", {**settings[2], "bbox_layout": "YXyx"},
          [[b[:, ::-1].copy() for b in boxes(COUNTS, 92)]], iterations=2)  # fmt: skip
    volume = {"scaling": [0.3, 1.0], "num_attempts": 10, "total_num_attempts": 60}
    for k, ratio in enumerate(([0.5, 2.0], [0.8, 1.2, 0.5, 2.0, 0.3, 3.0], [0.8, 0.8, 0.5, 2.0, 0.3, 3.0],
                               [0.5, 2.0, 0.5, 2.0, 1.3, 1.3], [1.2, 1.2, 0.3, 3.0, 0.8, 0.8],
                               [1.0, 1.0])):  # fmt: skip
        r.add("random_bbox_crop", {**volume, "aspect_ratio": ratio, "allow_no_crop": False},
              [boxes(COUNTS, 95 + k, 3)], iterations=3)  # fmt: skip
    r.add("random_bbox_crop", {"crop_shape": [20, 30, 10], "input_shape": [50, 30, 70], "total_num_attempts": 60},
          [boxes(COUNTS, 99, 3)], iterations=2)  # fmt: skip
    sizes = [np.array([30 + 10 * i, 20 + 7 * i], np.int32) for i in range(len(COUNTS))]
    r.add("random_bbox_crop", {"total_num_attempts": 60}, [boxes(COUNTS, 93)],
          {"crop_shape": [s // 2 for s in sizes], "input_shape": sizes}, iterations=2)  # fmt: skip


def ssd(r):
    random = np.random.default_rng(3)
    some = [n for n in COUNTS if n]
    for k, attempts in enumerate((1, 7, 1, 7)):
        images = [random.integers(0, 256, (17 + 3 * i, 31 - i, 3)).astype(np.uint8) for i in range(len(some))]
        r.add("ssd_random_crop", {"num_attempts": attempts}, [images, boxes(some, 50 + k), labels(some)],
              layouts=["HWC"], iterations=3, seed=40 + k)  # fmt: skip


def plain(r):
    every = boxes(COUNTS, 20)
    for how in ({}, {"ltrb": True}, {"vertical": 1}, {"horizontal": 0, "vertical": 1, "ltrb": True}):
        r.add("bb_flip", how, [every])
    r.add("bb_flip", {"ltrb": True}, [every], {"horizontal": [np.array(i % 2, np.int32) for i in range(len(COUNTS))]})
    r.add("bb_flip", {}, [[np.arange(24, dtype=F).reshape(3, 2, 4) / 24, np.ones((1, 1, 4), F)]])
    random = np.random.default_rng(5)
    for k in range(16):
        lo = random.random((int(random.integers(3, 120)), 2)) * 0.7
        anchors = np.concatenate([lo, lo + random.random(lo.shape) * 0.3 + 0.02], 1).astype(F)
        if k % 3 == 0:
            anchors = np.concatenate([anchors, anchors[: len(anchors) // 2]])  # equal ones
        given = boxes(COUNTS, 200 + k)
        given[3][2] = given[3][0]
        how = {
            "criteria": float(random.choice([0.1, 0.3, 0.5])),
            "offset": bool(k % 2),
            "scale": 300.0 if k % 4 == 1 else 1.0,
        }
        if k % 2:
            how |= {"means": [0.1, 0.0, 0.0, 0.2], "stds": [0.1, 0.1, 0.2, 0.2]}
        r.add("box_encoder", {"anchors": [float(v) for v in anchors.ravel()], **how}, [given, labels(COUNTS)])
    for k in range(40):
        shape = [int(v) for v in random.integers(20, 90, 2)]
        how = {"angle": float(random.uniform(-180, 180)), "input_shape": shape, "keep_size": bool(k % 2),
               "mode": ("expand", "fixed", "halfway")[k % 3],
               "remove_threshold": (0.0, 0.1, 0.5, 0.9)[k % 4]}  # fmt: skip
        given = boxes(COUNTS, 300 + k)
        if k % 5 == 1:
            given, how["bbox_layout"] = as_extents(given), "xyWH"
        if k % 5 == 2:
            how["shape_layout"] = "WH"
        if k % 5 == 3:
            how["bbox_normalized"] = False
            given = [(b * np.array([shape[1], shape[0]] * 2)).astype(F) for b in given]
        if k % 6 == 4:
            how |= {"keep_size": False, "size": [float(random.integers(20, 90)), float(random.integers(20, 90))]}
        r.add("bbox_rotate", how, [given, labels(COUNTS, shape=((), (1,))[k % 2])])
    turned = {"angle": [np.array(10.0 * i, F) for i in range(len(COUNTS))],
              "input_shape": [np.array([30 + i, 50 - i], np.int32) for i in range(len(COUNTS))]}  # fmt: skip
    r.add("bbox_rotate", {}, [every], turned)
    r.add("bbox_rotate", {"angle": 30.0, "input_shape": [40, 50, 3], "shape_layout": "HWC"}, [every])


def masks(r):
    random = np.random.default_rng(1)
    known = []
    for i in range(6):
        mask = np.zeros((20 + i, 30 - i), np.uint8)
        for _ in range(12):
            y, x = random.integers(0, 18), random.integers(0, 24)
            mask[y : y + random.integers(1, 6), x : x + random.integers(1, 7)] = random.integers(1, 5)
        known.append(mask)
    known[4][:] = 0
    settings = [{}, {"foreground_prob": 0.6}, {"classes": [1, 3]}, {"classes": [1, 3], "class_weights": [0.2, 0.8]},
                {"class_weights": [1.0, 2.0, 0.0, 5.0]}, {"k_largest": 2}, {"threshold": [4, 5]}, {"threshold": 3},
                {"background": 2}, {"classes": [0, 1]},
                {"background": 2, "class_weights": [1.0, 1.0, 3.0]}]  # fmt: skip
    for k, how in enumerate(settings):
        for form in ("anchor_shape", "start_end", "box"):
            r.add("segmentation.random_object_bbox", {"format": form, "output_class": True, **how}, [known],
                  iterations=4, seed=k + 3)  # fmt: skip
    for how in ({}, {"k_largest": 3}, {"threshold": [3, 2]}, {"background": 1}):
        r.add("segmentation.random_object_bbox", {"ignore_class": True, **how}, [known], iterations=4)
    for dtype in (np.int16, np.int32):
        r.add("segmentation.random_object_bbox", {"output_class": True}, [[m.astype(dtype) for m in known]])
    volumes = [np.stack([m[:15, :20], m[2:17, 2:22], m[3:18, 3:23]]) for m in known]
    r.add("segmentation.random_object_bbox", {"output_class": True}, [volumes], iterations=3)
    r.add("segmentation.random_object_bbox", {"output_class": True}, [[m[3] for m in known]], iterations=3)
    per_sample = {"classes": [np.array(c, np.int32) for c in ([1, 2], [2], [3, 4, 1], [1], [2, 3], [4])],
                  "foreground_prob": [np.array(0.2 * i, F) for i in range(6)]}  # fmt: skip
    r.add("segmentation.random_object_bbox", {"output_class": True}, [known], per_sample, iterations=4)
    for dtype in (np.uint8, np.int32, F):
        given = [m.astype(dtype) for m in known]
        for how in ({}, {"foreground": 1}, {"foreground": 1, "threshold": 1.5}):
            r.add("segmentation.random_mask_pixel", how, [given], iterations=2)
        if dtype is not F:
            r.add("segmentation.random_mask_pixel", {"foreground": 1, "value": 3}, [given], iterations=2)
    r.add("segmentation.random_mask_pixel", {"foreground": 1}, [volumes], iterations=2)
    r.add("segmentation.random_mask_pixel", {}, [known],
          {"foreground": [np.array(i % 2, np.int32) for i in range(6)],
           "threshold": [np.array(i, F) for i in range(6)]}, iterations=2)  # fmt: skip
    polygons = [np.array([[0, 0, 3], [1, 3, 7], [2, 7, 10]], np.int32), np.array([[5, 0, 4], [2, 5, 8]], np.int32)]
    for width, dtype in ((2, F), (3, F), (2, np.int16), (2, np.float64), (2, np.uint8)):
        vertices = [
            np.arange(10 * width).reshape(10, width).astype(dtype),
            np.arange(8 * width).reshape(8, width).astype(dtype),
        ]
        for ids in ([[1], [2]], [[2, 0], [2, 5]], [[0, 1, 2], [5]], [[], [5, 2]]):
            for again in (False, True):
                r.add("segmentation.select_masks", {"reindex_masks": again},
                      [[np.array(x, np.int32) for x in ids], polygons, vertices])  # fmt: skip


def regions(r):
    cases = (([5, 6], [15, 40], [8, 8], [50, 60]), ([5, 6], [9, 9], [20, 20], [50, 60]), ([5, 6], [9, 9], [4, 3], None),
             ([0, 0], [9, 9], [20, 3], None), ([40, 50], [49, 59], [20, 5], [50, 60]), ([3], [7], [4], [9]),
             ([1, 2, 3], [4, 9, 4], [3, 3, 3], [8, 9, 10]))  # fmt: skip
    for k, (start, end, crop, whole) in enumerate(cases):
        how = {"crop_shape": crop, "roi_start": start} | ({} if whole is None else {"in_shape": whole})
        r.add("roi_random_crop", {**how, "roi_end": end}, [], iterations=3, batch=5, seed=k + 1)
        extent = [b - a for a, b in zip(start, end, strict=True)]
        r.add("roi_random_crop", {**how, "roi_shape": extent}, [], iterations=3, batch=5, seed=k + 1)
    data = [np.zeros((20 + i, 30, 3), np.uint8) for i in range(5)]
    for layout in ("HWC", ""):
        r.add(
            "roi_random_crop", {"crop_shape": [8, 9], "roi_start": [2, 2], "roi_end": [15, 6]}, [data], layouts=[layout]
        )
    r.add("roi_random_crop", {"roi_start": [1, 1], "roi_end": [9, 9]}, [],
          {"crop_shape": [np.array([4 + 2 * i, 5], np.int32) for i in range(5)]}, iterations=2)  # fmt: skip


if __name__ == "__main__":
    recorder = Recorder()
    plain(recorder)
    masks(recorder)
    regions(recorder)
    windows(recorder)
    ssd(recorder)
    recorder.save(Path(__file__).with_name("boxes.npz"))
