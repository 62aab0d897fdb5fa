"""Policy: a set of sub-policies of augmentations, from which one is drawn for each sample."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ....ops.errors import SpecError
from .augmentation import Augmentation

Step = tuple[Augmentation, float, int | None]


class Policy:
    """Sub-policies: sequences of steps (augmentation, probability, magnitude bin or None).

    For each sample one sub-policy is drawn, and its steps are applied one after the other, each with its probability.
    Raises SpecError for invalid policies.
    """

    def __init__(self, name: str, num_magnitude_bins: int, sub_policies: Sequence[Sequence[Step]]) -> None:
        self.name = name
        self.num_magnitude_bins = num_magnitude_bins
        if not isinstance(num_magnitude_bins, int) or num_magnitude_bins < 1:
            raise SpecError(f"num_magnitude_bins must be a positive integer, got {num_magnitude_bins!r}")
        if not isinstance(sub_policies, (list, tuple)):
            raise SpecError(f"sub_policies must be a list of lists, got {type(sub_policies).__name__}")
        for steps in sub_policies:
            if not isinstance(steps, (list, tuple)):
                raise SpecError(f"a sub-policy must be a list of steps, got {steps!r}")
            for step in steps:
                self._check(step)
        self.sub_policies = _with_names(sub_policies)

    def _check(self, step: Any) -> None:
        if not isinstance(step, (list, tuple)) or len(step) != 3:
            raise SpecError(f"a step must be (augmentation, probability, bin), got {step!r}")
        augmentation, probability, strength = step
        if not isinstance(augmentation, Augmentation):
            raise SpecError(f"a step begins with an augmentation, got {augmentation!r}; decorate it with @augmentation")
        label = f"policy {self.name}, augmentation {augmentation.name}"
        if not isinstance(probability, (int, float)) or not 0 <= probability <= 1:
            raise SpecError(f"{label}: the probability must be between 0 and 1, got {probability!r}")
        if probability == 0:
            warnings.warn(f"{label}: the probability is 0: the step is never applied", stacklevel=3)
        if strength is None:
            if augmentation.mag_range is not None:
                raise SpecError(f"{label}: it has magnitudes: use a bin instead of None")
            return
        if augmentation.mag_range is None:
            warnings.warn(f"{label}: it has no magnitudes, so bin {strength!r} has no effect; use None", stacklevel=3)
        if not isinstance(strength, int) or not 0 <= strength < self.num_magnitude_bins:
            raise SpecError(f"{label}: the bin must be 0 to {self.num_magnitude_bins - 1}, got {strength!r}")

    @property
    def augmentations(self) -> dict[str, Augmentation]:
        """The policy's augmentations by name, sorted."""
        by_name = {a.name: a for steps in self.sub_policies for a, _, _ in steps}
        return dict(sorted(by_name.items()))

    def __repr__(self) -> str:
        rows = ",\n\t".join(repr([(a.name, p, strength) for a, p, strength in steps]) for steps in self.sub_policies)
        used = ",\n\t".join(f"{name!r}: {a!r}" for name, a in self.augmentations.items())
        return (f"Policy(name={self.name!r}, num_magnitude_bins={self.num_magnitude_bins}, "
                f"sub_policies=[\n\t{rows}], augmentations={{\n\t{used}}})")  # fmt: skip


def _with_names(sub_policies: Sequence[Sequence[Step]]) -> tuple[tuple[Step, ...], ...]:
    """Return the sub-policies. If different augmentations have the same name, all augmentations get a number in their
    names, in the order of first use."""
    used = list(dict.fromkeys(a for steps in sub_policies for a, _, _ in steps))
    if len({a.name for a in used}) == len(used):
        return tuple(tuple((a, p, strength) for a, p, strength in steps) for steps in sub_policies)
    digits = len(str(len(used) - 1))
    named = {a: a.augmentation(name=f"{i:0{digits}}__{a.name}") for i, a in enumerate(used)}
    return tuple(tuple((named[a], p, strength) for a, p, strength in steps) for steps in sub_policies)
