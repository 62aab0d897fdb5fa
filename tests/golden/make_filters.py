"""Makes filters.npz with NVIDIA DALI 2.4 (CPU): gaussian_blur, laplacian, filter."""

from pathlib import Path

from one_step import image, make


def cases():
    for arguments in (
        {"sigma": 0.5}, {"sigma": 1.7}, {"window_size": 5}, {"window_size": [3, 9]}, {"sigma": 2.0, "window_size": 5},
        {"sigma": [0.0, 2.0], "window_size": [7, 5]},
    ):  # fmt: skip
        for dtype in ("uint8", "float32", "int16"):
            yield {"op": "gaussian_blur", "arguments": arguments, "inputs": [image(dtype)]}
        yield {"op": "gaussian_blur", "arguments": {**arguments, "dtype": "FLOAT"}, "inputs": [image()]}
        yield {"op": "gaussian_blur", "arguments": arguments, "inputs": [image(shape=(3, 8, 9), layout="CHW")]}
    for name in ("gaussian_blur", "laplacian"):
        some = {"sigma": 1.0} if name == "gaussian_blur" else {}
        yield {"op": name, "arguments": some, "inputs": [image(shape=(5, 4, 3))]}
        yield {"op": name, "arguments": some, "inputs": [image(shape=(2, 5, 6, 3), layout="FHWC")]}
        yield {"op": name, "arguments": some, "inputs": [image(shape=(2, 3, 5, 6), layout="FCHW")]}
        yield {"op": name, "arguments": some, "inputs": [image(shape=(4, 5, 6), layout="DHW")]}
        yield {"op": name, "arguments": some, "inputs": [image(shape=(4, 5, 6, 2), layout="DHWC")]}
        yield {"op": name, "arguments": some, "inputs": [image(shape=(11, 13), layout="")]}
        yield {"op": name, "arguments": some, "inputs": [image("float32", shape=(31,), layout="")]}
    yield {"op": "gaussian_blur", "arguments": {"sigma": 3.0}, "inputs": [image(shape=(5, 4, 3))]}
    yield {"op": "gaussian_blur", "arguments": {"sigma": 3.0}, "inputs": [image(shape=(1, 4, 3))]}
    yield {
        "op": "gaussian_blur",
        "arguments": {"sigma": [0.6, 1.0, 1.4]},
        "inputs": [image(shape=(6, 7, 8), layout="DHW")],
    }
    frames = image(shape=(3, 6, 7, 3), layout="FHWC")
    each = {"values": [[0.5], [1.0], [2.0]], "dtype": "float32", "layout": "FX"}
    yield {"op": "gaussian_blur", "arguments": {}, "inputs": [frames], "per_sample": {"sigma": each}}
    whole = {"values": [1.3, 0.7], "dtype": "float32"}
    yield {"op": "gaussian_blur", "arguments": {}, "inputs": [image()], "per_sample": {"sigma": whole}}
    for arguments in (
        {"window_size": 3}, {"window_size": 5}, {"window_size": 3, "smoothing_size": 1}, {"scale": 0.25},
        {"window_size": [5, 3], "smoothing_size": [3, 7], "scale": [0.1, 0.05]},
        {"window_size": 7, "normalized_kernel": True}, {"window_size": 5, "scale": [1.0, 0.5]},
    ):  # fmt: skip
        for dtype in ("uint8", "float32"):
            yield {"op": "laplacian", "arguments": arguments, "inputs": [image(dtype)]}
        yield {"op": "laplacian", "arguments": {**arguments, "dtype": "FLOAT"}, "inputs": [image()]}
    volume = image(shape=(6, 7, 8), layout="DHW")
    sizes = {"window_size": [3, 5, 3], "smoothing_size": [1, 3, 5], "scale": 0.01, "dtype": "FLOAT"}
    yield {"op": "laplacian", "arguments": sizes, "inputs": [volume]}

    def window(*shape, layout=""):
        return image("float32", shape=shape, layout=layout, low=-1, high=1)

    for border in ("reflect_101", "reflect_1001", "wrap", "clamp", "constant"):
        for shape, anchor in (((3, 5), [-1]), ((4, 2), [-1]), ((2, 3), [0, 2]), ((9, 11), [8, 0])):
            for dtype in ("uint8", "float32"):
                arguments = {"border": border, "anchor": anchor}
                yield {"op": "filter", "arguments": arguments, "inputs": [image(dtype), window(*shape)]}
    for more in ({"mode": "valid"}, {"dtype": "FLOAT"}, {"mode": "valid", "dtype": "FLOAT", "anchor": [1, 1]}):
        yield {"op": "filter", "arguments": more, "inputs": [image(), window(3, 4)]}
    yield {"op": "filter", "arguments": {}, "inputs": [image("int16"), window(3, 3)]}
    yield {"op": "filter", "arguments": {}, "inputs": [image(shape=(3, 8, 9), layout="CHW"), window(3, 3)]}
    yield {"op": "filter", "arguments": {}, "inputs": [image(shape=(8, 9), layout="HW"), window(3, 3)]}
    yield {"op": "filter", "arguments": {}, "inputs": [frames, window(3, 3)]}
    yield {"op": "filter", "arguments": {}, "inputs": [frames, window(3, 3, 3, layout="FXX")]}
    fill = image(shape=(), layout="")
    yield {"op": "filter", "arguments": {"border": "constant"}, "inputs": [image(), window(5, 3), fill]}


if __name__ == "__main__":
    make(Path(__file__).with_name("filters.npz"), cases())
