"""Makes tensor_resize.npz with NVIDIA DALI 2.4 (CPU): sizes, scales, roundings, alignments and regions of any axes."""

from pathlib import Path

from several_inputs import make


def cases():
    image = ["HWC", "uint8", (23, 31, 3)]

    def case(layout_type_shape=image, **arguments):
        return {"op": "tensor_resize", "inputs": [layout_type_shape], "arguments": arguments}

    for sizes in ([12, 15], [40, 50], [12.6, 50.3]):
        for interp in ("INTERP_LINEAR", "INTERP_NN", "INTERP_CUBIC", "INTERP_LANCZOS3"):
            yield case(sizes=sizes, axes=[0, 1], interp_type=interp)
    flat = ["HW", "uint8", (23, 31)]  # with axes, modes change the others, too
    for mode in ("default", "stretch", "not_larger", "not_smaller"):
        yield case(flat, sizes=[12, 40], mode=mode)
        if mode != "default":  # takes the square root of the other scale there
            yield case(flat, sizes=[0, 40], mode=mode)
    for rounding in ("round", "truncate", "ceil"):
        for alignment in (0.0, 0.5, 1.0, [0.25, 0.75]):
            for scales in ([0.61, 1.43], [1.7, 0.3]):
                yield case(scales=scales, axes=[0, 1], size_rounding=rounding, alignment=alignment)
    yield case(scales=[0.61, 1.43], axes=[1, 0], subpixel_scale=False, size_rounding="ceil")
    yield case(sizes=[12.6, 50.3], axes=[1, 0], alignment=[0.0, 1.0])
    yield case(sizes=[12, 15], axis_names="WH", antialias=False)
    yield case(sizes=[12, 15], axis_names="HW", dtype="FLOAT")
    yield case(sizes=[12, 15], axis_names="HW", roi_start=[2, 3], roi_end=[20, 9])
    yield case(sizes=[12, 15], axis_names="HW", roi_start=[0.9, 0.1], roi_end=[0.2, 0.8], roi_relative=True)
    yield case(scales=[1.5, 0.5], axis_names="HW", roi_start=[2, 3], roi_end=[20, 9], alignment=0.0)
    yield case(flat, sizes=[60, 60], mode="not_smaller", max_size=70)
    yield case(sizes=[10, 20, 5])
    yield case(scales=[0.5, 2, 1])
    yield case(["", "float32", (40,)], sizes=[25], axes=[0])
    yield case(["", "float32", (40,)], scales=[1.3])
    yield case(["", "float32", (9, 40)], sizes=[25], axes=[1])
    yield case(["", "float32", (9, 40)], sizes=[25], axes=[-1])
    yield case(["", "float32", (9, 40)], sizes=[5, 25])
    yield case(["", "float32", (4, 9, 6, 5)], sizes=[7], axes=[1])
    yield case(["", "float32", (4, 9, 6, 5)], sizes=[7, 4, 9], axes=[1, 2, 3])
    yield case(["", "float32", (4, 9, 6, 5)], sizes=[7, 9], axes=[0, 2])
    yield case(["DHWC", "uint8", (4, 9, 6, 2)], sizes=[7, 4, 9], axis_names="DHW")
    yield case(["FHWC", "uint8", (2, 9, 6, 3)], sizes=[7, 4], axis_names="HW")
    yield case(["CHW", "uint8", (3, 9, 6)], sizes=[7, 4], axis_names="HW")
    for dtype in ("int16", "uint16", "float32"):
        yield case(["HWC", dtype, (9, 6, 3)], sizes=[7, 14], axis_names="HW")
    yield {"op": "tensor_resize", "inputs": [image], "arguments": {"axes": [0, 1]},
           "tensors": {"sizes": {"dtype": "float32", "values": [10, 50]}}}  # fmt: skip
    yield {"op": "tensor_resize", "inputs": [image], "arguments": {"axes": [0, 1]},
           "tensors": {"scales": {"dtype": "float32", "values": [0.33, 1.2]},
                       "alignment": {"dtype": "float32", "values": [0.0, 1.0]}}}  # fmt: skip


if __name__ == "__main__":
    make(Path(__file__).with_name("tensor_resize.npz"), cases())
