"""Arguments of transforms that DALI 2.4's experimental.torchvision, or torchvision, refuses: by either's exception."""

from typing import Any

import pytest

import dali_run.transforms as tv

WINDOWS = (tv.CenterCrop, tv.RandomCrop, tv.RandomResizedCrop, tv.Resize)
REFUSED: list[tuple[Any, dict[str, Any]]] = [
    *((kind, {"size": size}) for kind in WINDOWS
      for size in ([0, 5], -2, 0, [3, -1], (5, 6, 7), [], "a", 5.5, [None, 3])),
    *((kind, {"size": None}) for kind in WINDOWS),
    *((tv.Resize, {"size": 5, "max_size": n}) for n in (3, 0, -1)),
    (tv.Resize, {"size": (5, 6), "max_size": 9}), (tv.Resize, {"size": None, "max_size": -1}),
    *((tv.Resize, {"size": 5, "interpolation": mode}) for mode in (6, -1, "abc", None, 2.5)),
    *((tv.Pad, {"padding": p}) for p in ((1, 2, 3), "a", None, 1.5, [])),
    *((tv.RandomCrop, {"size": 5, "padding": p}) for p in ((1, 2, 3), "a", 1.5, [])),
    *((tv.RandomCrop, {"size": 5, "fill": fill}) for fill in ([], "a", {})),
    *((tv.RandomCrop, {"size": 5, "pad_if_needed": flag}) for flag in (1, None, "a")),
    *((tv.Pad, {"padding": 1, "padding_mode": mode}) for mode in ("abc", None, 3)),
    *((tv.RandomResizedCrop, {"size": 5, name: pair}) for name in ("scale", "ratio")
      for pair in ((1, 0.1), (-1, 1), (1,), (1, 2, 3), 0.5, "ab", ("a", "b"), None)),
    *((kind, {"p": p}) for kind in (tv.RandomHorizontalFlip, tv.RandomGrayscale)
      for p in (-0.1, 1.1, "a", None, [0.5])),
    *((tv.Grayscale, {"num_output_channels": n}) for n in (2, 0, 4, "a", None)),
    *((tv.ColorJitter, {name: v}) for name in ("brightness", "contrast", "saturation")
      for v in (-0.5, (1.5, 0.5), (-1, 1), "a")),
    *((tv.ColorJitter, {"hue": v}) for v in (0.6, -0.1, (-0.6, 0.5), (0.5, -0.5), (0.1,), "a")),
    *((tv.GaussianBlur, {"kernel_size": k}) for k in (4, 0, -1, (3, 4), 3.5, "a", None)),
    *((tv.GaussianBlur, {"kernel_size": 3, "sigma": s}) for s in (0, -1, (2, 0.1), (0, 1), (1, 2, 3), "a", None)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "arguments"), REFUSED, ids=[f"{k.__name__}-{a}" for k, a in REFUSED])
def test_refused(kind: Any, arguments: dict[str, Any]) -> None:
    for error in (ValueError, TypeError):
        with pytest.raises(error):
            kind(**arguments)
