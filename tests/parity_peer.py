"""Results of another library for images, for parity_presets.py: `python parity_peer.py LIBRARY FOLDER`.

FOLDER holds pixels.npy (flat), shapes.npy [N, 3] and sizes.npy [N, 2]; the results are written there as CASE.npy, flat.
`single FOLDER LIBRARY` makes results of single calls instead.
"""

import sys
from pathlib import Path

import numpy as np


def torchvision(images, sizes):
    import torch
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    for name, antialias in (("nearest", True), ("nearest-exact", True), ("bilinear", True), ("bilinear", False),
                            ("bicubic", True), ("bicubic", False)):  # fmt: skip
        how = {"interpolation": InterpolationMode(name), "antialias": antialias}
        yield (
            f"{name} {'antialias' if antialias else 'plain'}",
            (
                functional.resize(torch.from_numpy(a).permute(2, 0, 1), size.tolist(), **how).permute(1, 2, 0).numpy()
                for a, size in zip(images, sizes, strict=True)
            ),
        )


def validation(images, _sizes):
    """The usual transform for validation, of PIL images and of tensors."""
    import torch
    from PIL import Image
    from torchvision.transforms import v2

    usual = [v2.Resize(256), v2.CenterCrop(224)]
    finish = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    pillow = v2.Compose([*usual, v2.ToImage(), *finish])
    yield "pillow", (pillow(Image.fromarray(a)).numpy() for a in images)
    tensors = v2.Compose([*usual, *finish])
    yield "torchvision", (tensors(torch.from_numpy(a).permute(2, 0, 1)).numpy() for a in images)


def dali(images, sizes):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=len(images), num_threads=2, device_id=None)
    def pipe(interp_type, antialias):
        data = fn.external_source(source=lambda: images, layout="HWC")
        size = fn.external_source(source=lambda: list(sizes.astype(np.float32)))
        return fn.resize(data, size=size, subpixel_scale=False, interp_type=interp_type, antialias=antialias)

    for name in ("NN", "LINEAR", "CUBIC", "LANCZOS3", "GAUSSIAN"):
        for antialias in (True, False) if name != "NN" else (True,):
            built = pipe(interp_type=getattr(types, f"INTERP_{name}"), antialias=antialias)
            out = built.run()[0]
            yield f"{name} {'antialias' if antialias else 'plain'}", (np.array(out.at(i)) for i in range(len(images)))


def single(library, folder):
    """The calls of ``library`` in golden/library_calls.py, for images of any sizes: NUMBER.npz each."""
    sys.path.insert(0, str(Path(__file__).with_name("golden")))
    from library_calls import CASES, called

    with np.load(folder / "images.npz") as stored:
        images = [stored[str(i)] for i in range(len(stored.files))]
    for number, case in enumerate(CASES):
        if case.library == library:
            np.savez(folder / f"{number}.npz", **{str(i): called(case, a) for i, a in enumerate(images)})


def main():
    library, folder = sys.argv[1], Path(sys.argv[2])
    if library == "single":
        single(sys.argv[3], folder)
        return
    shapes, sizes, flat = (np.load(folder / f"{n}.npy") for n in ("shapes", "sizes", "pixels"))
    ends = np.cumsum(shapes.prod(axis=1))
    images = [flat[e - s.prod() : e].reshape(s) for e, s in zip(ends, shapes, strict=True)]
    for case, results in {"torchvision": torchvision, "validation": validation, "dali": dali}[library](images, sizes):
        np.save(
            folder / f"{library} {case}.npy", np.concatenate([np.ascontiguousarray(r).reshape(-1) for r in results])
        )


if __name__ == "__main__":
    main()
