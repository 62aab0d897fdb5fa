"""Makes linear.npz with NVIDIA DALI 2.4 (CPU): brightness, contrast, hsv, color_twist and their kin."""

from pathlib import Path

from one_step import image, make


def cases():
    scaling = {
        "brightness": ({"brightness": 1.3}, {"brightness": 0.4, "brightness_shift": 0.1}),
        "contrast": ({"contrast": 1.7}, {"contrast": 0.4, "contrast_center": 100.0}),
        "brightness_contrast": (
            {"brightness": 1.2, "contrast": 0.7, "brightness_shift": -0.05},
            {"contrast": -1.0, "contrast_center": 30.0, "brightness": 0.9},
        ),
    }
    twists = {
        "hsv": ({"hue": 40.0}, {"hue": -100.0, "saturation": 1.6, "value": 0.8}),
        "hue": ({"hue": 200.0}, {"hue": -13.0}),
        "saturation": ({"saturation": 0.0}, {"saturation": 1.9}),
        "color_twist": (
            {"hue": 30.0, "saturation": 1.3, "contrast": 0.8, "brightness": 1.1},
            {"hue": 361.0, "contrast": 1.8},
        ),
    }
    for op, settings in (scaling | twists).items():
        for arguments in settings:
            for dtype in ("uint8", "float32", "int16"):
                yield {"op": op, "arguments": arguments, "inputs": [image(dtype)]}
            for dtype in ("FLOAT", "INT16"):
                yield {"op": op, "arguments": {**arguments, "dtype": dtype}, "inputs": [image()]}
        name = next(iter(settings[0]))
        frames = image(shape=(3, 5, 6, 3), layout="FHWC")
        yield {"op": op, "arguments": {}, "inputs": [frames], "per_sample": {name: {"values": 1.4, "dtype": "float32"}}}
        each = {"values": [0.5, 1.0, 1.5], "dtype": "float32", "layout": "F"}
        yield {"op": op, "arguments": {}, "inputs": [frames], "per_sample": {name: each}}
        yield {"op": op, "arguments": settings[0], "inputs": [image(shape=(2, 4, 5, 3), layout="DHWC")]}
        yield {"op": op, "arguments": settings[0], "inputs": [image(layout="")]}
    for shape in ((7, 9, 1), (7, 9, 5)):
        yield {"op": "brightness_contrast", "arguments": {"contrast": 1.4}, "inputs": [image(shape=shape)]}


if __name__ == "__main__":
    make(Path(__file__).with_name("linear.npz"), cases())
