"""Compose, RandomApply, RandomChoice, RandomOrder: transforms that contain other transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import ArgumentError, RandomTransform, Transform, follow
from .draws import Draws
from .steps import Done, Shape


class _Holding(Transform):
    def _hold(self, transforms: Sequence[Any]) -> None:
        if not isinstance(transforms, Sequence) or not transforms:
            raise ArgumentError(f"{type(self).__name__} takes a list of transforms, got {transforms!r}")
        for part in transforms:
            if not isinstance(part, Transform):
                raise ArgumentError(
                    f"{type(self).__name__} takes transforms of dali_run.transforms, got {part!r}; call other "
                    "transforms before or after it"
                )
        self.transforms = list(transforms)
        if any(part.device == "gpu" for part in self.transforms):
            self.device = "gpu"


class Compose(_Holding):
    """Apply transforms one after the other.

    With ``per_sample=False`` the images of a batch of tensors share the same random numbers, as in torchvision.
    ``num_threads`` is the number of threads for batches, by default one per core. ``batch_size`` is an argument of DALI
    and has no effect: batches may have any size.
    """

    def __init__(
        self, transforms: Sequence[Any], batch_size: int | None = None, num_threads: int | None = None,
        per_sample: bool = True, **pipeline_arguments: Any,
    ) -> None:  # fmt: skip
        del batch_size, pipeline_arguments  # arguments of DALI, without effect here
        self._hold(transforms)
        self.per_sample, self.num_threads = per_sample, num_threads

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return follow(self.transforms, draws, shape)

    def __repr__(self) -> str:
        return "Compose([\n" + "".join(f"    {t!r},\n" for t in self.transforms) + "])"


class RandomApply(_Holding):
    """Apply a list of transforms with probability ``p``."""

    def __init__(self, transforms: Any, p: float = 0.5) -> None:
        self._hold([transforms] if isinstance(transforms, Transform) else transforms)
        self.p = RandomTransform(p).p

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [] if draws.rand() >= self.p else follow(self.transforms, draws, shape)


class RandomChoice(_Holding):
    """Apply one transform of a list, chosen at random with the weights ``p``."""

    def __init__(self, transforms: Sequence[Any], p: Sequence[float] | None = None) -> None:
        self._hold(transforms)
        weights = [1.0] * len(self.transforms) if p is None else [float(v) for v in p]
        if len(weights) != len(self.transforms):
            raise ArgumentError(f"p takes one number per transform, {len(self.transforms)} in all, got {len(weights)}")
        self.p = [v / sum(weights) for v in weights]

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return follow([self.transforms[draws.choice(self.p)]], draws, shape)


class RandomOrder(_Holding):
    """Apply all transforms of a list in a random order."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        self._hold(transforms)

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return follow([self.transforms[k] for k in draws.permutation(len(self.transforms))], draws, shape)
