"""Makes torchvision.npz with torchvision (CPU): resize of tensors, its sizes, center_crop's corners, and gray."""

import json
from pathlib import Path

import numpy as np
import torch
import torchvision
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F  # noqa: N812

FILTERS = [("nearest", True), ("nearest-exact", True), ("bilinear", True), ("bilinear", False), ("bicubic", True),
           ("bicubic", False)]  # fmt: skip
SIZES = [(12, 17), (40, 61), (47, 20), (11, 60), (33, 25)]


def main() -> None:
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for channels in (3, 1):
        image = rng.integers(0, 256, (33, 47, channels)).astype(np.uint8)
        found[f"image{channels}"] = image
        tensor = torch.from_numpy(image).permute(2, 0, 1).contiguous()
        for size in SIZES:
            for name, antialias in FILTERS:
                how = {"interpolation": InterpolationMode(name), "antialias": antialias}
                key = f"{channels},{size[0]},{size[1]},{name},{int(antialias)}"
                found[key] = F.resize(tensor, list(size), **how).permute(1, 2, 0).numpy()
    tensor = torch.from_numpy(found["image1"][..., 0]).float()[None]
    for name, antialias in FILTERS:
        how = {"interpolation": InterpolationMode(name), "antialias": antialias}
        found[f"float,40,20,{name},{int(antialias)}"] = F.resize(tensor, [40, 20], **how).permute(1, 2, 0).numpy()
    sizes, corners = [], []
    for _ in range(300):
        h, w, size, limit = (int(v) for v in rng.integers(1, 700, 4))
        limit = max(limit, size + 1)
        for top in (None, limit):
            out = F.resize(torch.empty(1, h, w, dtype=torch.uint8), [size], InterpolationMode.NEAREST, max_size=top)
            sizes.append((h, w, size, top or 0, *out.shape[1:]))
    for h in range(4, 12):
        for size in range(1, h + 1):
            corners.append((h, size, int(F.center_crop(torch.arange(h * h).reshape(1, h, h), [size])[0, 0, 0]) // h))
    found["sizes"], found["corners"] = np.array(sizes, np.int32), np.array(corners, np.int32)
    found["gray"] = F.rgb_to_grayscale(torch.from_numpy(found["image3"]).permute(2, 0, 1)).permute(1, 2, 0).numpy()
    found["versions"] = np.array(json.dumps({"torch": torch.__version__, "torchvision": torchvision.__version__}))
    np.savez_compressed(Path(__file__).with_name("torchvision.npz"), **found)


if __name__ == "__main__":
    main()
