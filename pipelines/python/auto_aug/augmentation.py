"""Augmentations: functions of a batch and a parameter, with a range of magnitudes that is divided into bins."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....ops.errors import SpecError
from ..control_flow.autograph import converted_callee
from ..control_flow.conditionals import Helper
from ..data_node import DataNode, apply, constant
from . import signatures

Function = Callable[..., Any]
_KEEP: Any = object()
"""An argument that was not given, where None is a value."""


class SignedBin:
    """Bins of magnitudes with a random sign each, see `signed_bin`."""

    def __init__(self, magnitude_bin: int | DataNode, random_sign: DataNode) -> None:
        self.bin = magnitude_bin
        self.random_sign = random_sign
        self.signed_magnitude_idx: Any = magnitude_bin * 2 + random_sign
        """2 x bin + sign; made here, because a branch of a conditional keeps what is made in it."""

    def __getitem__(self, index: int) -> SignedBin:
        """Of step ``index``, where bins and signs were drawn for several."""
        chosen = self.bin if isinstance(self.bin, int) else self.bin[index]
        return SignedBin(chosen, self.random_sign[index])


def signed_bin(
    magnitude_bin: int | DataNode, random_sign: DataNode | None = None, seed: int | None = None,
    shape: Sequence[int] | None = None,
) -> SignedBin:  # fmt: skip
    """A bin (one for all samples, or one each) with a sign: ``random_sign`` (1 negates), by default drawn at random.

    Drawing it once, before the batch is divided between augmentations, is cheaper than in each of them.
    """
    if not isinstance(magnitude_bin, (int, DataNode)):
        raise SpecError(f"magnitude_bin must be an integer or a DataNode of integers, got {magnitude_bin!r}")
    if random_sign is not None and (seed is not None or shape is not None):
        raise SpecError("random_sign excludes seed and shape")
    if random_sign is None:
        random_sign = drawn([0, 1], seed, shape)
    return SignedBin(magnitude_bin, random_sign)


def drawn(values: Sequence[int], seed: int | None, shape: Sequence[int] | None = None) -> Any:
    """One of ``values`` for each sample, or as many as ``shape`` says."""
    arguments: dict[str, Any] = {"values": list(values), "dtype": "INT32"}
    if seed is not None:
        arguments["seed"] = seed
    if shape is not None:
        arguments["shape"] = list(shape)
    return apply("random.uniform", [], arguments)


class Augmentation:
    """A function of (data, parameter) that is called with a bin of its magnitude instead of the parameter; made by
    `augmentation`."""

    def __init__(
        self, op: Function, mag_range: Any = None, randomly_negate: bool | None = None,
        mag_to_param: Callable[[Any], Any] | None = None, param_device: str | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        self._config = {
            "mag_range": mag_range,
            "randomly_negate": randomly_negate,
            "mag_to_param": mag_to_param,
            "param_device": param_device,
            "name": name,
        }
        self._op = op
        signatures.check(op, self.name)

    def __repr__(self) -> str:
        given = "".join(f", {k}={v!r}" for k, v in self._config.items() if v is not None)
        return f"Augmentation({self._op!r}{given})"

    @property
    def op(self) -> Function:
        """The function that it calls."""
        return self._op

    @property
    def mag_range(self) -> Any:
        """(first, last) magnitude, an array of all of them, or None where there is no magnitude."""
        return self._config["mag_range"]

    @property
    def mag_to_param(self) -> Callable[[Any], Any]:
        """The function that makes a parameter of a magnitude."""
        found: Callable[[Any], Any] = self._config["mag_to_param"] or np.array
        return found

    @property
    def randomly_negate(self) -> bool:
        """A random sign is put before the magnitude."""
        return bool(self._config["randomly_negate"])

    @property
    def param_device(self) -> str:
        """Where the parameters are: cpu, gpu, or auto for where the data are."""
        return self._config["param_device"] or "cpu"

    @property
    def name(self) -> str:
        """Its own, or that of the function."""
        return str(self._config["name"] or getattr(self._op, "__name__", self._op))

    def augmentation(
        self, mag_range: Any = _KEEP, randomly_negate: Any = _KEEP, mag_to_param: Any = _KEEP,
        param_device: Any = _KEEP, name: Any = _KEEP, augmentation_cls: type[Augmentation] | None = None,
    ) -> Augmentation:  # fmt: skip
        """The same function with other settings; those that are not given stay."""
        given = {
            "mag_range": mag_range,
            "randomly_negate": randomly_negate,
            "mag_to_param": mag_to_param,
            "param_device": param_device,
            "name": name,
        }
        changed = {k: v for k, v in given.items() if v is not _KEEP}
        return (augmentation_cls or type(self))(self._op, **{**self._config, **changed})

    def __call__(
        self, data: DataNode, *, magnitude_bin: Any = None, num_magnitude_bins: int | None = None, **kwargs: Any
    ) -> DataNode:
        """The function of ``data`` and the parameter of ``magnitude_bin`` (an integer, a DataNode, or of `signed_bin`).

        ``kwargs`` are handed on where the function takes them. Raises SpecError.
        """
        device = (getattr(data, "device", None) or "cpu") if self.param_device == "auto" else self.param_device
        parameter = self._parameter(magnitude_bin, num_magnitude_bins, device)
        more = signatures.accepted(self._op, kwargs, self.name)
        made: DataNode = converted_callee(self._op)(data, parameter, **more)
        return made

    def magnitudes(self, bins: int | None) -> Any:
        """The magnitude of each bin, or None. Raises SpecError."""
        ends = self.mag_range
        if ends is None:
            return None
        if isinstance(ends, np.ndarray):
            if bins is not None and len(ends) != bins:
                raise SpecError(f"augmentation {self.name} has {len(ends)} magnitudes, num_magnitude_bins is {bins}")
            return ends
        if bins is None:
            raise SpecError(f"augmentation {self.name}: give num_magnitude_bins, too")
        if not hasattr(ends, "__len__") or len(ends) != 2:
            raise SpecError(f"augmentation {self.name}: mag_range must be (first, last) or an array, got {ends!r}")
        first, last = ends
        return np.linspace(first, last, bins, dtype=np.float32)

    def parameters(self, magnitudes: Any) -> Any:
        """The parameters of magnitudes as one array. Raises SpecError where their shapes or types differ."""
        made = []
        for magnitude in magnitudes:
            value = self.mag_to_param(magnitude)
            if isinstance(value, DataNode) or (
                isinstance(value, (list, tuple)) and any(isinstance(v, DataNode) for v in value)
            ):
                raise SpecError(f"augmentation {self.name}: mag_to_param must give numbers, which are worked out once; "
                                "it gave a DataNode: call operators in the augmentation itself")  # fmt: skip
            made.append(np.array(value))
        if any(p.shape != made[0].shape or p.dtype != made[0].dtype for p in made):
            kinds = sorted({f"{p.dtype}{list(p.shape)}" for p in made})
            raise SpecError(f"augmentation {self.name}: mag_to_param must give one shape and type for all magnitudes, "
                            f"it gave {', '.join(kinds)}")  # fmt: skip
        return np.array(made)

    def _parameter(self, magnitude_bin: Any, bins: int | None, device: str) -> Any:
        magnitudes = self.magnitudes(bins)
        if magnitudes is None:
            return None
        if magnitude_bin is None:
            raise SpecError(f"augmentation {self.name} has magnitudes: give magnitude_bin")
        if self.randomly_negate:
            if not isinstance(magnitude_bin, SignedBin):
                warnings.warn(
                    f"augmentation {self.name} draws signs of its own; `signed_bin` draws them once for several",
                    stacklevel=3,
                )
                magnitude_bin = signed_bin(magnitude_bin)
            if isinstance(magnitude_bin.bin, int):
                magnitudes, index = magnitudes[[magnitude_bin.bin]], magnitude_bin.random_sign
            else:
                index = magnitude_bin.signed_magnitude_idx
            both = np.stack([magnitudes, -magnitudes], axis=1).reshape(-1)
            return constant(self.parameters(both), device=device)[index]
        index = magnitude_bin.bin if isinstance(magnitude_bin, SignedBin) else magnitude_bin
        if isinstance(index, int):
            return constant(self.parameters(magnitudes[[index]])[0], device=device)
        return constant(self.parameters(magnitudes), device=device)[index]


def augmentation(
    function: Function | None = None, *, mag_range: Any = None, randomly_negate: bool | None = None,
    mag_to_param: Callable[[Any], Any] | None = None, param_device: str | None = None, name: str | None = None,
    augmentation_cls: type[Augmentation] | None = None,
) -> Any:  # fmt: skip
    """Make an Augmentation of ``function(data, parameter, ...)``, which calls operators and returns one batch.

    Its magnitudes are ``mag_range``: (first, last), divided into bins, or an array of all of them; without it the
    parameter is None. ``randomly_negate`` puts a random sign before them, ``mag_to_param`` makes a parameter of one.
    ``param_device``: where the parameters are put: cpu (default), gpu, or auto for where the data are.
    """

    def decorate(decorated: Function) -> Augmentation:
        if not callable(decorated):
            raise SpecError(f"@augmentation decorates a function, got {decorated!r}")
        if isinstance(decorated, Augmentation):
            raise SpecError(f"{decorated.name} is an augmentation already: its method `augmentation` changes settings")
        made = augmentation_cls or Augmentation
        return made(decorated, mag_range, randomly_negate, mag_to_param, param_device, name)

    return decorate if function is None else decorate(function)


def select(ops: Sequence[Augmentation], selected_op_idx: Any, *args: Any, **kwargs: Any) -> Any:
    """``ops[selected_op_idx](*args, **kwargs)`` for each sample: the batch is divided between the augmentations."""

    def between(low: int, high: int) -> Any:
        if low == high:
            return ops[low](*args, **kwargs)
        middle = (low + high) // 2
        return Helper.choose(
            selected_op_idx <= middle, lambda: between(low, middle), lambda: between(middle + 1, high), 0
        )

    if not ops:
        raise SpecError("there is no augmentation to select")
    return between(0, len(ops) - 1)
