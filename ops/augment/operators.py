"""Operators auto_aug.rand_augment, auto_aug.trivial_augment_wide, auto_aug.auto_augment, and auto_aug.augment (a single
operation).

An operation code and its numbers are drawn for each image. On a GPU each step of all images is one kernel, preceded by
one more for images whose operation needs a histogram; on the CPU an image passes through its operations while it is in
the cache.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..copies.windows import image_layout, known_layout
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..streams import Streams, uniform
from ..types import DALIDataType, DALIInterpType
from . import policies, suites
from .suites import F32, MAX_BINS, OPERATIONS, WIDTH, WIDTHS, Suite

I32 = npt.NDArray[np.int32]

_kernels: Any = Kernels(".augment_cpu", __package__)
_gpu: Any = Kernels(".on_gpu", __package__)
_philox: Any = Kernels("..draws.philox_cpu", __package__)

_SKIP = 257
"""Number of random draws that are reserved for each element of a sample, as in DALI."""
_OPERATION, _SIGN, _BIN, _POLICY, _RUN = (0x9E3779B97F4A7C15 * k & 0xFFFFFFFFFFFFFFFF for k in range(1, 6))
"""Salts of random streams: numbers that give one operator separate streams, such as one for operations and one for
signs."""


class Augmenting(Operator, abstract=True):
    """Base class of the operators auto_aug.*, which apply one or more operations to each image."""

    layouts = ("FHWC", "HWC")
    bound = "1 level, if the result lies next to a tie"

    fill_value: Annotated[
        int | None, Arg("value outside of the image after it was moved; null: repeat the image's border", ge=0, le=255)
    ] = 128
    interp_type: Annotated[DALIInterpType | None, Arg("filter for moved images: NN or LINEAR; LINEAR by default")] = (
        None
    )
    shape: Annotated[
        tuple[float, ...] | None,
        Arg("(height, width, ...) to which relative translations refer", per_sample=True),
    ] = None

    def check(self) -> None:
        if self.interp_type not in (None, DALIInterpType.INTERP_NN, DALIInterpType.INTERP_LINEAR):
            raise SpecError("interp_type must be NN or LINEAR")
        if self.shape is not None and "shape" not in self.per_sample and len(self.shape) < 2:
            raise SpecError(f"shape takes (height, width), got {list(self.shape)}")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.UINT8):
            raise SpecError(f"takes uint8 images, got {data}; cast them first")
        layout = image_layout(data.layout, data.ndim, self.layouts)
        if data.shape is not None and data.shape[-1] not in (None, 1, 2, 3, 4):
            raise SpecError(f"takes images of 1 to 4 channels, got {data}")
        return Spec(data.shape, DALIDataType.UINT8, layout)

    def chosen(self, ctx: Context) -> tuple[I32, F32]:
        """Return the operations to apply to each sample, in order: codes (indices in `OPERATIONS`) [N, K], and
        parameters [N, K, WIDTH]."""
        raise NotImplementedError

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        if images.dtype != np.uint8:
            raise SampleError("bad_shape", f"takes uint8 images, got {images.dtype}; cast them first")
        images = images.replace(layout=known_layout(images, self.layouts))
        wrong = images.shapes[:, -1] > 4
        if wrong.any():
            for i in np.flatnonzero(wrong).tolist():
                ctx.reject(i, "bad_shape", f"has {images.shapes[i, -1]} channels, takes 1 to 4")
            images = images.replace(shapes=np.where(wrong[:, None], 0, images.shapes).astype(np.int32))
        codes, numbers = self.chosen(ctx)
        geometry = np.ones((len(images), 4), np.int64)
        geometry[:, 4 - images.ndim :] = images.shapes
        geometry[geometry.prod(axis=1) == 0, 0] = 0
        kinds, values = np.empty_like(codes), np.empty_like(numbers)
        if self.is_set("shape"):
            spans = ctx.arg("shape")
            if spans.shape[1] < 2:
                raise SampleError("bad_argument", f"shape takes (height, width), got {spans.shape[1]} values")
        else:
            spans = geometry[:, 1:3].astype(np.float32)
        _kernels.plan(codes, numbers, *geometry.T[1:], spans, kinds, values)
        linear = self.interp_type is not DALIInterpType.INTERP_NN
        filled, fill = self.fill_value is not None, self.fill_value or 0
        out = Batch.allocate(ctx.empty, images.shapes, np.uint8, images.layout, images.samples)
        if ctx.stage == "cpu":
            base = np.ascontiguousarray(images.offsets)
            _kernels.augment(
                images.data, base, geometry, kinds, values, linear, filled, np.float32(fill), out.data, out.offsets
            )
        else:
            _gpu.augment(ctx.device, images, geometry, kinds, values, linear, fill if filled else -1, out)
        return out

    gpu = cpu


class Augment(Augmenting, name="auto_aug.augment"):
    """Apply one operation of AutoAugment, RandAugment and TrivialAugment, with given numbers.

    brightness, contrast and color take a factor, rotate degrees (counter-clockwise), shear and translate (x, y),
    translate_relative (x, y) as fractions of ``shape``, sharpness the nine values of a 3x3 filter, posterize a mask of
    bits, solarize the smallest value that is inverted, solarize_add the number that is added to values below 128.
    """

    example = "{op: auto_aug.augment, in: images, operation: shear, parameters: [0.2, 0], out: images}"

    operation: Annotated[
        Literal[
            "identity", "brightness", "posterize", "solarize", "solarize_add", "invert", "contrast", "equalize",
            "auto_contrast", "color", "sharpness", "rotate", "shear", "translate", "translate_relative",
        ],
        Arg("operation to apply"),
    ]  # fmt: skip
    parameters: Annotated[tuple[float, ...], Arg("parameters of the operation", per_sample=True)] = ()

    def check(self) -> None:
        Augmenting.check(self)
        if "parameters" not in self.per_sample and len(self.parameters) != WIDTHS[self.operation]:
            raise SpecError(f"{self.operation} takes {WIDTHS[self.operation]} parameters, got {len(self.parameters)}")
        if self.operation == "translate_relative" and not self.is_set("shape"):
            raise SpecError("translate_relative needs shape; `translate` takes pixels")

    def chosen(self, ctx: Context) -> tuple[I32, F32]:
        n, width = len(ctx.samples), WIDTHS[self.operation]
        numbers = np.zeros((n, 1, WIDTH), np.float32)
        if width:
            given = ctx.arg("parameters")
            if given.shape[1] != width:
                raise SampleError("bad_argument", f"{self.operation} takes {width} parameters, got {given.shape[1]}")
            numbers[:, 0, :width] = given
        return np.full((n, 1), OPERATIONS.index(self.operation), np.int32), numbers


class Drawing(Augmenting, abstract=True):
    """Base class of operators that draw operations at random for each sample."""

    random = True

    max_translate_abs: Annotated[
        tuple[float, ...] | None, Arg("without shape: maximum translation in pixels, or (vertical, horizontal)", ge=0)
    ] = None
    max_translate_rel: Annotated[
        tuple[float, ...] | None,
        Arg("with shape: maximum translation as a fraction of it, or (vertical, horizontal)", ge=0),
    ] = None
    operations: Annotated[
        tuple[Any, ...] | None,
        Arg("operations to draw from, instead of the published suite: [name, whether a random sign is applied to the "
            "magnitude, numbers for each bin and sign] each"),
    ] = None  # fmt: skip

    def check(self) -> None:
        Augmenting.check(self)
        for name in ("max_translate_abs", "max_translate_rel"):
            if len(getattr(self, name) or (0,)) > 2:
                raise SpecError(f"{name} takes one number, or (down, across)")
        self.suite()

    def _translations(self) -> tuple[bool, Any, Any]:
        relative = self.is_set("shape")
        absolute, share = self.max_translate_abs, self.max_translate_rel
        return relative, _one_or_two(absolute), _one_or_two(share)

    def suite(self) -> Suite:
        """Return the set of operations from which one is drawn for each image, with their parameters."""
        raise NotImplementedError

    def draws(self, ctx: Context, salt: int, count: int, choices: int) -> I32:
        """Draw ``count`` random integers of 0 ... choices - 1 for each sample, [N, count]. ``salt`` selects the random
        stream."""
        # With DALI's random numbers, all numbers of a call come from one stream, as in DALI.
        streams = ctx.streams(0 if ctx.rng == "dali" else salt)
        chosen: I32 = (_drawn(streams, count).astype(np.uint64) * np.uint64(choices) >> np.uint64(32)).astype(np.int32)
        return chosen

    def signs(self, ctx: Context, count: int) -> I32:
        """Draw ``count`` random signs for each sample, [N, count]: 1 to negate a magnitude, else 0."""
        return self.draws(ctx, _SIGN, count, 2)


def _drawn(streams: Streams, count: int) -> npt.NDArray[np.uint32]:
    """Return the first random draw of each of ``count`` elements per sample, [N, count]."""
    n = len(streams.sequence)
    out = np.empty((n * count, 1), np.uint32)
    _philox.element_draws(streams.handle, streams.sequence, np.full(n, count), _SKIP, out)
    return out.reshape(n, count)


def _one_or_two(value: tuple[float, ...] | None) -> Any:
    return value[0] if value is not None and len(value) == 1 else value


def _without(entries: list[suites.Augmentation], excluded: tuple[str, ...]) -> list[suites.Augmentation]:
    names = [e.function.removesuffix("_no_shape") for e in entries]
    for name in excluded:
        if name not in names:
            raise SpecError(f"excluded: {name!r} is not one of {', '.join(names)}")
    kept = [e for e, name in zip(entries, names, strict=True) if name not in excluded]
    if not kept:
        raise SpecError("excluded leaves no operation to choose")
    return kept


class RandAugment(Drawing, name="auto_aug.rand_augment"):
    """RandAugment: apply ``n`` operations in a row, each drawn from 14, all with the magnitude of bin ``m``.

    With Pipeline's ``rng: dali`` and a seed, choices equal DALI's. DALI draws an operation and its sign from one
    number, so that half of the operations are never negated and the others always are. Otherwise, the two are
    independent.
    """

    example = "{op: auto_aug.rand_augment, in: images, n: 2, m: 9, out: images}"

    n: Annotated[int, Arg("number of operations", ge=0, le=1000)]
    m: Annotated[int, Arg("bin of their magnitude, counted from 0", ge=0)]
    num_magnitude_bins: Annotated[
        int, Arg("number of bins into which the range of magnitudes is divided", ge=1, le=MAX_BINS)
    ] = 31
    monotonic_mag: Annotated[
        bool, Arg("higher bins are stronger; if false, posterize, solarize and the enhancements work as in AutoAugment")
    ] = True
    excluded: Annotated[tuple[str, ...], Arg("names of operations to exclude")] = ()

    def check(self) -> None:
        if self.m >= self.num_magnitude_bins:
            raise SpecError(f"m must be below num_magnitude_bins, got {self.m} of {self.num_magnitude_bins}")
        Drawing.check(self)

    @cached_property
    def _suite(self) -> Suite:
        if self.operations is not None:
            return Suite.from_argument(self.operations, self.num_magnitude_bins)
        entries = suites.rand_augment(*self._translations(), monotonic=self.monotonic_mag)
        return Suite.of(_without(entries, self.excluded), self.num_magnitude_bins)

    def suite(self) -> Suite:
        return self._suite

    def chosen(self, ctx: Context) -> tuple[I32, F32]:
        suite = self._suite
        which = self.draws(ctx, _OPERATION, self.n, len(suite.codes))
        sign = self.signs(ctx, self.n) if suite.negated else np.zeros_like(which)
        return suite.codes[which], suite.rows[which, self.m, sign]


class TrivialAugmentWide(Drawing, name="auto_aug.trivial_augment_wide"):
    """TrivialAugment (Wide): apply one operation, drawn from 14, with the magnitude of a randomly drawn bin.

    With Pipeline's ``rng: dali`` and a seed, choices equal those of DALI, which draws operation, bin and sign from one
    number. Otherwise, the three are independent.
    """

    example = "{op: auto_aug.trivial_augment_wide, in: images, out: images}"

    num_magnitude_bins: Annotated[
        int, Arg("number of bins into which the range of magnitudes is divided", ge=1, le=MAX_BINS)
    ] = 31
    excluded: Annotated[tuple[str, ...], Arg("names of operations to exclude")] = ()

    @cached_property
    def _suite(self) -> Suite:
        if self.operations is not None:
            return Suite.from_argument(self.operations, self.num_magnitude_bins)
        entries = suites.trivial_augment_wide(*self._translations())
        return Suite.of(_without(entries, self.excluded), self.num_magnitude_bins)

    def suite(self) -> Suite:
        return self._suite

    def chosen(self, ctx: Context) -> tuple[I32, F32]:
        suite = self._suite
        which = self.draws(ctx, _OPERATION, 1, len(suite.codes))
        bins = self.draws(ctx, _BIN, 1, self.num_magnitude_bins)
        sign = self.signs(ctx, 1) if suite.negated else np.zeros_like(which)
        return suite.codes[which], suite.rows[which, bins, sign]


class AutoAugment(Drawing, name="auto_aug.auto_augment"):
    """AutoAugment: apply one sub-policy of a policy. Each of its steps is applied with a probability of its own.

    With Pipeline's ``rng: dali`` and a seed, choices equal those of DALI: one number decides the sub-policy, and
    whether its first step is applied. Otherwise, the two are independent.
    """

    example = "{op: auto_aug.auto_augment, in: images, policy_name: image_net, out: images}"

    policy_name: Annotated[
        Literal["image_net", "reduced_image_net", "svhn", "reduced_cifar10"],
        Arg("data set for which the policy was published"),
    ] = "image_net"
    sub_policies: Annotated[
        tuple[Any, ...] | None,
        Arg("with operations: custom sub-policies, lists of [index in operations, probability, bin]"),
    ] = None
    num_magnitude_bins: Annotated[int, Arg("number of bins into which magnitudes are divided", ge=1, le=MAX_BINS)] = (
        policies.BINS
    )

    def check(self) -> None:
        if (self.operations is None) != (self.sub_policies is None):
            raise SpecError("operations and sub_policies go together: give both")
        if self.operations is None and self.num_magnitude_bins != policies.BINS:
            raise SpecError(f"the published policies have {policies.BINS} bins")
        Drawing.check(self)
        if self.policy_name == "reduced_image_net" and any(
            self.is_set(name) for name in ("shape", "max_translate_abs", "max_translate_rel")
        ):
            raise SpecError("the policy reduced_image_net moves nothing: omit shape and max_translate_*")

    def suite(self) -> Suite:
        return self._tables[0]

    @cached_property
    def _tables(self) -> tuple[Suite, I32, F32, I32]:
        """Return the operations that the policy uses, and three tables [sub-policies, steps]: each step's operation
        (index in these operations), its probability (0 if there is no such step), and its bin of the magnitude."""
        if self.operations is not None:
            suite = Suite.from_argument(self.operations, self.num_magnitude_bins)
            rows: list[list[Any]] = [list(steps) for steps in self.sub_policies or ()]
        else:
            entries = policies.augmentations(self.policy_name, *self._translations())
            suite = Suite.of(list(entries.values()), self.num_magnitude_bins)
            places = {name: i for i, name in enumerate(entries)}
            rows = [[(places[s[0]], s[1], s[2]) for s in steps] for steps in policies.sub_policies(self.policy_name)]
        if not rows:
            raise SpecError("sub_policies must not be empty")
        longest = max(map(len, rows))
        which, bins = np.zeros((2, len(rows), longest), np.int32)
        share = np.zeros((len(rows), longest), np.float32)
        for i, steps in enumerate(rows):
            for k, (place, probability, strength) in enumerate(steps):
                if not 0 <= place < len(suite.codes) or not 0 <= (strength or 0) < self.num_magnitude_bins:
                    raise SpecError(f"sub_policies: step {[place, probability, strength]} names what does not exist")
                which[i, k], share[i, k], bins[i, k] = place, probability, strength or 0
        return suite, which, share, bins

    def chosen(self, ctx: Context) -> tuple[I32, F32]:
        suite, which, share, bins = self._tables
        count = which.shape[1]
        policy = self.draws(ctx, _POLICY, 1, len(which))[:, 0]
        streams = ctx.streams(0 if ctx.rng == "dali" else _RUN)
        run = uniform(_drawn(streams, count), 0.0, 1.0) < share[policy]
        sign = self.signs(ctx, count) if suite.negated else np.zeros((len(policy), count), np.int32)
        codes = np.where(run, suite.codes[which[policy]], 0).astype(np.int32)
        return codes, suite.rows[which[policy], bins[policy], sign]
