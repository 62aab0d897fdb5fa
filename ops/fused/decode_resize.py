"""Fused decoding and resizing: on a GPU, colour planes are resampled directly, without an intermediate image; on a CPU,
pixels that the result does not show are not computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage, outputs_of
from ..batch import I32, I64, Batch
from ..codecs.decoders import Image, ImageCrop, ImageDecoder, ImageRandomCrop
from ..codecs.headers import Headers, cut, read_headers
from ..codecs.host_decode import decode as decode_on_host
from ..context import Context
from ..errors import Reject
from ..gpu.lane import places_on_device
from ..images.random_resized_crop import RandomResizedCrop
from ..images.resampling.resample import ResamplePlan
from ..images.resize import Resampling, Resize, ResizeCropMirror
from ..interfaces import StartedWork
from ..kernels import Kernels
from ..types import DALIDataType, DALIImageType, to_numpy
from .resize_normalize import ResizeCropMirrorNormalize, Sampling, part, sampled, sampling

_plans: Any = Kernels("..images.resampling.plan_cpu", __package__)
_cuda: Any = Kernels("..codecs.jpeg.on_gpu", __package__)
_gpu: Any = Kernels("..codecs.gpu_decode", __package__)
_threads: Any = Kernels("..codecs.threaded_decode", __package__)
_jpeg: Any = Kernels("..codecs.jpeg.cuda", __package__)

if TYPE_CHECKING:
    from ..codecs.jpeg.cuda import DecodePlan, Output

Mask = npt.NDArray[np.bool_]
T = TypeVar("T")
DECODE, RESIZE = "decode.", "then."
"""Prefixes of argument names in the fused operator, for its parts: ``decode.crop``, ``then.resize.size``."""


def decoder_arguments(decode: Mapping[str, T], then: Mapping[str, T]) -> dict[str, T]:
    """Join the argument inputs of a decoder and of the operator after it to one dict, with the prefixes of the fused
    operator."""
    return {DECODE + k: v for k, v in decode.items()} | {RESIZE + k: v for k, v in then.items()}


def can_decode_into(decode: Operator, then: Operator) -> bool:
    """Return whether `DecodeResize` can replace the decoder ``decode`` and the operator ``then`` after it."""
    if not isinstance(decode, (Image, ImageRandomCrop, ImageCrop)) or not decode.for_cuda:
        return False
    if isinstance(then, ResizeCropMirrorNormalize):
        normalize = then.normalize
        fixed = not {"mean", "std"} & normalize.per_sample
        return fixed and normalize.dtype in (DALIDataType.FLOAT, DALIDataType.FLOAT16, DALIDataType.UINT8)
    plain = isinstance(then, (Resize, ResizeCropMirror, RandomResizedCrop)) and then.dtype is None
    return plain and not (isinstance(then, Resize) and then.save_attrs) and not (then.random and decode.random)


def shows_a_part(then: Operator) -> bool:
    """Return whether the operator ``then`` may use only a part of the image, such as a crop."""
    return not isinstance(then, Resize) or then.is_set("roi_start")


class DecodeResize(Operator, name="_fused.decode_resize"):
    """A decoder, a resampling operator and optionally crop_mirror_normalize, in one operator. Results equal those of
    separate operators, on a GPU up to one level. The inverse DCT is computed only for blocks that the result shows."""

    bound = Resampling.bound

    decode: Annotated[Any, Arg("the decoder operator")]
    resize: Annotated[Any, Arg("the resampling operator, or one fused with crop_mirror_normalize")]

    @property
    def who_decodes(self) -> str:
        """Names of the decoders that the operator uses on a GPU, as text for reports."""
        return str(self.decode.who_decodes)

    @property
    def loop_client(self) -> str:
        normalizes = isinstance(self.resize, ResizeCropMirrorNormalize)
        return f"{self.name}.normalize" if normalizes else self.name

    @property
    def needs_header_only(self) -> bool:
        return bool(self.decode.needs_header_only)

    def infer(self, *specs: Spec) -> Spec:
        result: Spec = self.resize.infer(self.decode.infer(*specs))
        return result

    def estimate_memory(self, stage: Stage, *inputs: Batch) -> tuple[I64, I64] | None:
        elements, besides = self.decode.estimate_memory(stage, *inputs)
        return elements, besides + elements if stage == "cpu" else besides  # on a GPU there is no intermediate image

    def cpu(self, ctx: Context, encoded: Batch) -> Batch:
        decode: ImageDecoder = self.decode
        first, second = part(ctx, decode, DECODE), part(ctx, self.resize, RESIZE)
        second.rejects = []
        planned: list[Sampling] = []

        def needed(shapes: I32) -> I64:
            images = shapes.astype(np.int64)
            planned.append(sampling(second, self.resize, images[:, :2], images[:, 2], np.dtype(np.uint8)))
            return source_windows(planned[0].plan, images[:, :2])

        decoded = decode_on_host(first, encoded, decode.rules, decode.cuts(first), needed, ctx)
        if not planned:
            needed(decoded.shapes)
        for reject in second.rejects:  # errors of the image itself are reported first
            if all(r.slot != reject.slot for r in ctx.rejects):
                ctx.rejects.append(reject)
        return sampled(second, decoded, planned[0])

    def start_early(self, ctx: Context, *inputs: Batch) -> StartedWork | None:
        """Plan decoding and resizing of the batch, and let CPU threads start with images that the CUDA decoder does not
        support. The engine calls this in threads that read files, to unburden the one thread that launches kernels."""
        if self.decode.on_damage != "reject":
            return None
        return self._begun(ctx, inputs[0])

    def _begun(self, ctx: Context, encoded: Batch) -> StartedWork | None:
        rules = self.decode.rules
        ctx = replace(ctx, rejects=[])
        aside = part(ctx, self.decode, DECODE)
        headers = read_headers(aside, encoded, rules)
        which, others = self._takes(headers), None
        if headers.unusual:
            # all images that the CUDA decoder does not take, so that such a batch is started as a whole
            left = np.flatnonzero(~which)
            if headers.good[left].any():
                some = replace(_some(aside, left), rejects=[])
                others = _gpu.start_early(some, encoded.take(left), rules, self.decode.cuts(some))
        if not which.any():
            return cast("StartedWork | None", others)
        return self._plan(ctx, encoded, headers, which, places_on_device(encoded), ctx.staging, others)

    def _takes(self, headers: Headers) -> Mask:
        """Return a mask of the images that dali-run's CUDA decoder decodes."""
        if not headers.unusual:
            return headers.good
        return cast("Mask", _cuda.takes(headers, self.decode.rules) & headers.good)

    def mixed(self, ctx: Context, encoded: Batch) -> Batch:
        planned, wants = ctx.started, self.decode.on_damage == "reject" and not ctx.attempt
        if wants and isinstance(planned, Planned) and planned.is_of(ctx, encoded):
            ctx.rejects += planned.rejects
            ctx.started = planned.on_threads
            files = ctx.device.to_device(encoded)
        else:
            if isinstance(planned, Planned):
                ctx.started = planned.on_threads
            headers = read_headers(part(ctx, self.decode, DECODE), encoded, self.decode.rules)
            which = self._takes(headers)
            if not wants or (headers.unusual and not which.any()):
                return self._apart(ctx, encoded)()
            files = ctx.device.to_device(encoded)  # first of all: the copy runs while the remaining work is planned
            lane: Any = ctx.device
            planned = self._plan(ctx, encoded, headers, which, files.offsets, lane.pinned, ctx.started)
        decoder, wanted = _cuda.cuda_decoder(ctx.device), planned.sampling
        out = wanted.allocate(ctx, encoded.samples)
        left = planned.headers.undecoded(planned.decode.status)
        apart = [
            (some, self._apart(_some(ctx, some), encoded.take(some), files.take(some))) for some in _begun(ctx, left)
        ]
        decoder.run(ctx, files, planned.decode, planned.output, out.data)
        ctx.device.keep(planned)  # the copies to the device are enqueued
        for some, finish in apart:
            _threads.scatter(ctx.device, finish(), out, some)
        return out

    def _plan(
        self, ctx: Context, encoded: Batch, headers: Headers, selected: Mask, offsets: I64,
        stage: Callable[[int], Any], on_threads: Any,
    ) -> Planned:  # fmt: skip
        """Plan decoding and resizing of the images ``selected``. ``offsets``: where their files begin in an array on
        the device."""
        decode: ImageDecoder = self.decode
        first, second = part(ctx, decode, DECODE), part(ctx, self.resize, RESIZE)
        extents, domain = headers.extents, None
        windows = decode.cuts(first)
        if windows is not None:
            corners, extents = cut(first, headers, windows)
        wanted = sampling(second, self.resize, extents, self._channels, np.dtype(np.uint8))
        if windows is not None:
            domain = np.empty((len(encoded), 2, 2), np.int64)
            _plans.into_image(corners, extents, wanted.plan.lo, wanted.plan.hi, domain)
        if headers.bad:
            selected = selected & headers.good
        planned = _cuda.plan(ctx, headers, encoded, selected, offsets, stage, limited=False)
        output = _jpeg.resize_output(planned, wanted.plan, domain=domain, **self._finish)
        _jpeg.limit(planned, output.windows)
        return Planned(encoded, ctx.args, headers, wanted, planned, output, ctx.rejects, on_threads)

    @cached_property
    def _channels(self) -> I64:
        """Number of channels of all images that a GPU decodes, as an array of one number."""
        return np.array([1 if self.decode.output_type is DALIImageType.GRAY else 3], np.int64)

    @cached_property
    def _finish(self) -> dict[str, Any]:
        """Keyword arguments for the CUDA decoder: the output type, and the normalisation after resizing."""
        found = {"output_type": _cuda.OUTPUT_TYPES[self.decode.output_type]}
        if not isinstance(self.resize, ResizeCropMirrorNormalize):
            return found | {"dtype": _jpeg.UINT8, "layout": "HWC"}
        n = self.resize.normalize
        return found | {
            "dtype": _jpeg.DTYPES.index(to_numpy(n.dtype)), "layout": n.output_layout,
            "mean": n.mean, "std": n.std, "scale": n.scale, "shift": n.shift,
        }  # fmt: skip

    def _apart(self, ctx: Context, encoded: Batch, files: Batch | None = None) -> Callable[[], Batch]:
        """Decode and resize, as two separate operators, the images that the CUDA decoder does not support. Return a
        function that finishes the started work and returns the result. ``files``: the encoded images in GPU memory, if
        they are there already."""
        decode, first = self.decode, part(ctx, self.decode, DECODE)
        windows = decode.cuts(first)
        decoded = _gpu.start(first, encoded, decode.rules, windows, files)

        def finish() -> Batch:
            second = replace(part(ctx, self.resize, RESIZE), stage="gpu")
            (result,) = outputs_of(self.resize.gpu(second, decoded()))
            return result

        return finish


@dataclass(slots=True)
class Planned:
    """Plan of decoding and resizing one batch, made by a thread that reads files; result of
    `DecodeResize.start_early`."""

    batch: Batch
    """Batch of the encoded images."""
    args: Mapping[str, Batch]
    headers: Headers
    sampling: Sampling
    decode: DecodePlan
    output: Output
    rejects: list[Reject]
    on_threads: Any
    """Images that CPU threads have started to decode (`gpu_decode.Prepared`); None if there are none."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the plan occupies."""
        begun = 0 if self.on_threads is None else int(self.on_threads.nbytes)
        return begun + self.decode.sheet.nbytes + self.headers.jpeg.nbytes

    def is_of(self, ctx: Context, batch: Batch) -> bool:
        """Return whether this plan was made for exactly the samples and arguments of ``batch``."""
        return batch is self.batch and all(ctx.args[name] is given for name, given in self.args.items())


def source_windows(plan: ResamplePlan, extents: I64) -> I64:
    """Return the pixels from which the outputs of ``plan`` are computed, with a small margin, as y0, x0, y1, x1:
    int64[N, 4]. ``extents`` [N, 2]: height and width of the images."""
    windows = np.empty((len(extents), 4), np.int64)
    if plan.domain is not None:
        windows[:, :2], windows[:, 2:] = 0, np.where((plan.shape > 0).all(axis=1, keepdims=True), extents, 0)
        return windows
    _plans.source_windows(plan.lo, plan.hi, plan.size, plan.anchor, plan.shape, plan.support, extents, windows)
    return windows


def _begun(ctx: Context, remaining: I64) -> list[I64]:
    """Divide the samples ``remaining``, which the CUDA decoder does not decode, into those that CPU threads are already
    decoding, and the others. Empty groups are left out."""
    if not len(remaining):
        return []
    slots = ctx.samples.slot
    ahead = np.flatnonzero(np.isin(slots, ctx.started.batch.samples.slot)) if ctx.started is not None else remaining[:0]
    return [some for some in (ahead, np.setdiff1d(remaining, ahead)) if len(some)]


def _some(ctx: Context, indices: I64) -> Context:
    """Return a context for the samples ``indices`` of ``ctx``, with the same lists of rejects and checks."""
    return replace(ctx, samples=ctx.samples.take(indices), args={k: b.take(indices) for k, b in ctx.args.items()})
