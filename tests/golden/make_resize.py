"""Makes resize.npz with NVIDIA DALI 2.4 (CPU): images through resize and resize_crop_mirror over a grid of arguments.

Each case is an operator, its arguments (JSON, filters by name), a layout and the seed and shape of its input.
"""

from pathlib import Path

from single_input import make

FILTERS = ["INTERP_NN", "INTERP_LINEAR", "INTERP_CUBIC", "INTERP_LANCZOS3", "INTERP_TRIANGULAR", "INTERP_GAUSSIAN"]


def cases():
    hwc = ("HWC", "uint8", (17, 23, 1))
    for name in FILTERS:
        for antialias in (True, False):
            for size in ([8, 9], [29, 37], [29, 9]):
                yield ("resize", {"size": size, "interp_type": name, "antialias": antialias}, *hwc)
        yield ("resize", {"size": [9, 13], "interp_type": name, "dtype": "FLOAT"}, *hwc)
        yield ("resize", {"size": [8, 34], "min_filter": name, "mag_filter": "INTERP_CUBIC"}, *hwc)
        yield ("resize", {"size": [8, 34], "mag_filter": name}, *hwc)
        yield ("resize", {"size": [8, 34], "interp_type": name, "min_filter": "INTERP_LINEAR"}, *hwc)
    shapes = [
        (24, 32, 1),
        (32, 24, 1),
        (37, 50, 1),
        (11, 16, 1),
        (11, 17, 4),
        (1, 9, 3),
        (9, 1, 3),
        (1, 1, 2),
        (60, 30, 1),
    ]
    sizes = [
        {"resize_shorter": 13}, {"resize_longer": 13}, {"resize_x": 13}, {"resize_y": 13.4}, {"size": [11, 0]},
        {"size": [11, 0], "mode": "stretch"}, {"size": [11, 13], "mode": "not_smaller"},
        {"size": [11, 13], "mode": "not_larger"}, {"resize_shorter": 13, "max_size": 15}, {"size": [7.5, 12.3]},
        {"size": [7.5, 12.3], "subpixel_scale": False}, {"size": [-7.5, 12.3]}, {"size": [13, -22]},
        {"size": [20, 20], "mode": "not_smaller", "max_size": [17, 35]}, {"resize_x": 11, "resize_y": -13},
        {"size": 20, "max_size": [10, 0]}, {"resize_x": -15, "mode": "not_larger"}, {"size": [0.4, 0.2]},
        {"resize_shorter": -13}, {"size": [0, 0]},
    ]  # fmt: skip
    for shape in shapes:
        for size in sizes:
            yield ("resize", size, "HWC", "uint8", shape)
    for region in (
        {"roi_start": [3, 4], "roi_end": [13, 19]}, {"roi_start": [3.3, 4.8], "roi_end": [13.1, 19.9]},
        {"roi_start": [13, 4], "roi_end": [3, 19]},
        {"roi_start": [0.1, 0.9], "roi_end": [0.8, 0.2], "roi_relative": True},
        {"roi_start": [-6, -4], "roi_end": [21, 26]}, {"roi_start": [4, 4], "roi_end": [4, 4]},
    ):  # fmt: skip
        for size in ([6, 7], [25, 24], [10.4, -16.7]):
            for name in ("INTERP_NN", "INTERP_LINEAR", "INTERP_CUBIC"):
                if name == "INTERP_NN" and region["roi_start"][0] < 0:
                    continue  # DALI reads memory beside the image here
                yield ("resize", {"size": size, "interp_type": name, **region}, *hwc)
        yield ("resize", {"resize_shorter": 9, **region}, *hwc)
    for dtype in ("int16", "uint16", "float32"):
        for name in ("INTERP_NN", "INTERP_LINEAR", "INTERP_CUBIC"):
            for size in ([8, 9], [29, 37]):
                yield ("resize", {"size": size, "interp_type": name}, "HWC", dtype, (17, 23, 1))
        yield ("resize", {"size": [20, 20], "dtype": "FLOAT"}, "HWC", dtype, (17, 23, 1))
    for layout, shape in (
        ("CHW", (3, 11, 14)), ("FHWC", (2, 11, 14, 3)), ("FCHW", (2, 3, 11, 14)), ("CFHW", (3, 2, 11, 14)),
        ("DHWC", (9, 11, 12, 2)), ("CDHW", (2, 9, 11, 12)), ("FDHWC", (2, 5, 7, 8, 2)), ("CFDHW", (2, 2, 5, 7, 8)),
    ):  # fmt: skip
        depth = {"resize_z": 4} if "D" in layout else {}
        yield ("resize", {"resize_x": 8, "resize_y": 7, **depth}, layout, "uint8", shape)
        yield ("resize", {"resize_shorter": 8}, layout, "uint8", shape)
        yield ("resize", {"resize_longer": 10, "interp_type": "INTERP_CUBIC"}, layout, "uint8", shape)
    for crop in (
        {"crop": [8, 9]}, {"crop": [8, 9], "mirror": 1}, {"crop": [9, 9], "mirror": 3, "crop_pos_x": 0.2},
        {"crop": [15, 26]}, {"crop": [0, 6], "mirror": 2}, {"crop_h": 6, "crop_w": 5.7, "crop_pos_y": 0.9},
        {"crop": [7, 7], "crop_pos_x": 0.77, "rounding": "truncate"}, {"mirror": 1},
    ):  # fmt: skip
        for size in ({"resize_shorter": 12}, {"size": [20, 35]}, {"size": [12.5, -15.2]}):
            for name in ("INTERP_LINEAR", "INTERP_CUBIC"):
                yield ("resize_crop_mirror", {"interp_type": name, **size, **crop}, *hwc)
    volume = {"size": [6, 9, 10], "crop": [4, 5, 6], "mirror": 7}
    yield ("resize_crop_mirror", volume, "DHWC", "uint8", (9, 11, 12, 2))
    yield ("fast_resize_crop_mirror", {"resize_shorter": 12, "crop": [8, 9], "mirror": 1}, *hwc)


RANGES = {"uint8": (0, 256), "int16": (-32768, 32768), "uint16": (0, 65536), "float32": (-1000, 1000)}

if __name__ == "__main__":
    make(Path(__file__).with_name("resize.npz"), cases(), RANGES)
