"""Augmentations: functions of a batch and a parameter, whose range of magnitudes is divided into bins."""

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
"""Default of arguments that keep their value if they are not passed. None is itself a possible value."""


class SignedBin:
    """Bin of a magnitude, for all samples or one per sample, with a random sign per sample. Created by `signed_bin`."""

    def __init__(self, magnitude_bin: int | DataNode, random_sign: DataNode) -> None:
        self.bin = magnitude_bin
        self.random_sign = random_sign
        self.signed_magnitude_idx: Any = magnitude_bin * 2 + random_sign
        """Index of bin and sign together: 2 * bin + sign."""

    def __getitem__(self, index: int) -> SignedBin:
        """Return bin and sign for step ``index``, if they were drawn for several steps of augmentation."""
        chosen = self.bin if isinstance(self.bin, int) else self.bin[index]
        return SignedBin(chosen, self.random_sign[index])


def signed_bin(
    magnitude_bin: int | DataNode, random_sign: DataNode | None = None, seed: int | None = None,
    shape: Sequence[int] | None = None,
) -> SignedBin:  # fmt: skip
    """Return a bin (one for all samples, or one per sample) with a sign per sample: ``random_sign`` (1 negates), by
    default drawn at random.

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
    """Draw one of ``values`` for each sample; with ``shape``, an array of this shape with one drawn value per
    element."""
    arguments: dict[str, Any] = {"values": list(values), "dtype": "INT32"}
    if seed is not None:
        arguments["seed"] = seed
    if shape is not None:
        arguments["shape"] = list(shape)
    return apply("random.uniform", [], arguments)


class Augmentation:
    """A function of (data, parameter) that programs call with a magnitude bin instead of the parameter. Created by the
    decorator `augmentation`."""

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
        settings = "".join(f", {k}={v!r}" for k, v in self._config.items() if v is not None)
        return f"Augmentation({self._op!r}{settings})"

    @property
    def op(self) -> Function:
        """The function of (data, parameter) that this augmentation calls."""
        return self._op

    @property
    def mag_range(self) -> Any:
        """Magnitudes of the augmentation: (first, last), an array of all of them, or None if it has none."""
        return self._config["mag_range"]

    @property
    def mag_to_param(self) -> Callable[[Any], Any]:
        """The function that converts a magnitude to the parameter of the augmentation's function."""
        function: Callable[[Any], Any] = self._config["mag_to_param"] or np.array
        return function

    @property
    def randomly_negate(self) -> bool:
        """Whether the magnitude gets a random sign."""
        return bool(self._config["randomly_negate"])

    @property
    def param_device(self) -> str:
        """Device of the parameters: cpu, gpu, or auto for the device of the data."""
        return self._config["param_device"] or "cpu"

    @property
    def name(self) -> str:
        """Name of the augmentation: the given name, or the name of its function."""
        return str(self._config["name"] or getattr(self._op, "__name__", self._op))

    def augmentation(
        self, mag_range: Any = _KEEP, randomly_negate: Any = _KEEP, mag_to_param: Any = _KEEP,
        param_device: Any = _KEEP, name: Any = _KEEP, augmentation_cls: type[Augmentation] | None = None,
    ) -> Augmentation:  # fmt: skip
        """Return an Augmentation of the same function with other settings; arguments that are not given keep their
        value."""
        settings = {
            "mag_range": mag_range,
            "randomly_negate": randomly_negate,
            "mag_to_param": mag_to_param,
            "param_device": param_device,
            "name": name,
        }
        changed = {k: v for k, v in settings.items() if v is not _KEEP}
        return (augmentation_cls or type(self))(self._op, **{**self._config, **changed})

    def __call__(
        self, data: DataNode, *, magnitude_bin: Any = None, num_magnitude_bins: int | None = None, **kwargs: Any
    ) -> DataNode:
        """Call the function with ``data`` and the parameter for ``magnitude_bin`` (an integer, a DataNode, or a result
        of `signed_bin`).

        ``kwargs`` are passed on if the function accepts them. Raises SpecError.
        """
        device = (getattr(data, "device", None) or "cpu") if self.param_device == "auto" else self.param_device
        parameter = self._parameter(magnitude_bin, num_magnitude_bins, device)
        more = signatures.accepted(self._op, kwargs, self.name)
        result: DataNode = converted_callee(self._op)(data, parameter, **more)
        return result

    def magnitudes(self, bins: int | None) -> Any:
        """Return the magnitude of each of the ``bins`` bins, or None if the augmentation has no magnitudes. Raises
        SpecError."""
        ends = self.mag_range
        if ends is None:
            return None
        if isinstance(ends, np.ndarray):
            if bins is not None and len(ends) != bins:
                raise SpecError(f"augmentation {self.name} has {len(ends)} magnitudes, num_magnitude_bins is {bins}")
            return ends
        if bins is None:
            raise SpecError(f"augmentation {self.name}: num_magnitude_bins is required")
        if not hasattr(ends, "__len__") or len(ends) != 2:
            raise SpecError(f"augmentation {self.name}: mag_range must be (first, last) or an array, got {ends!r}")
        first, last = ends
        return np.linspace(first, last, bins, dtype=np.float32)

    def parameters(self, magnitudes: Any) -> Any:
        """Convert ``magnitudes`` with `mag_to_param`, and return the parameters as one array. Raises SpecError if their
        shapes or types differ."""
        values = []
        for magnitude in magnitudes:
            value = self.mag_to_param(magnitude)
            if isinstance(value, DataNode) or (
                isinstance(value, (list, tuple)) and any(isinstance(v, DataNode) for v in value)
            ):
                raise SpecError(f"augmentation {self.name}: mag_to_param must return numbers, which are computed once; "
                                "it returned a DataNode: call operators in the augmentation itself")  # fmt: skip
            values.append(np.array(value))
        if any(p.shape != values[0].shape or p.dtype != values[0].dtype for p in values):
            kinds = sorted({f"{p.dtype}{list(p.shape)}" for p in values})
            raise SpecError(f"augmentation {self.name}: mag_to_param must return one shape and type for all "
                            f"magnitudes, it returned {', '.join(kinds)}")  # fmt: skip
        return np.array(values)

    def _parameter(self, magnitude_bin: Any, bins: int | None, device: str) -> Any:
        magnitudes = self.magnitudes(bins)
        if magnitudes is None:
            return None
        if magnitude_bin is None:
            raise SpecError(f"augmentation {self.name} has magnitudes: magnitude_bin is required")
        if self.randomly_negate:
            if not isinstance(magnitude_bin, SignedBin):
                warnings.warn(
                    f"augmentation {self.name} draws its own signs; `signed_bin` draws them once for several "
                    "augmentations",
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

    ``mag_range`` sets its magnitudes: (first, last), divided into bins, or an array of all magnitudes; without it the
    function gets None as parameter. ``randomly_negate`` gives magnitudes a random sign, ``mag_to_param`` converts a
    magnitude to the parameter. ``param_device`` is the device of the parameters: cpu (default), gpu, or auto for the
    device of the data.
    """

    def decorate(decorated: Function) -> Augmentation:
        if not callable(decorated):
            raise SpecError(f"@augmentation decorates a function, got {decorated!r}")
        if isinstance(decorated, Augmentation):
            raise SpecError(f"{decorated.name} is already an augmentation: its method `augmentation` changes settings")
        cls = augmentation_cls or Augmentation
        return cls(decorated, mag_range, randomly_negate, mag_to_param, param_device, name)

    return decorate if function is None else decorate(function)


def select(ops: Sequence[Augmentation], selected_op_idx: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply ``ops[selected_op_idx](*args, **kwargs)`` to each sample, and return the results as one batch. Each
    augmentation gets the samples for which it was selected."""

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
