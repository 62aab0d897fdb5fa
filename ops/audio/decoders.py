"""Operator decoders.audio: decode audio files to signals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import I32, I64, Batch, Samples
from ..codecs.decoders import check_encoded
from ..context import Context
from ..errors import Reject, SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType, to_numpy
from .by_ffmpeg import open_memory as open_ffmpeg
from .flac import open_memory as open_flac
from .flac_gpu import MEMORY as ON_GPU
from .flac_gpu import decode as decode_on_gpu
from .flac_gpu import plain as plain_flac
from .resample import (
    MAX_RATIO,
    RESAMPLER,
    Rates,
    Resampler,
    check_resampler,
    needs_soxr,
    output_lengths,
    resample_into,
    unusable,
)

_wav: Any = Kernels(".wav_cpu", __package__)
_files: Any = Kernels(".libsndfile", __package__)

MAX_SAMPLES = (1 << 29) - 1
"""Default limit on the samples of an audio file, counted over all channels: three hours of stereo at 24 kHz, or 2 GiB
as float32."""
TYPES = (DALIDataType.FLOAT, DALIDataType.INT16, DALIDataType.INT32)


@dataclass(slots=True)
class Clips:
    """Open audio files of a batch, with their headers. Files with errors are already rejected, and have 0 frames."""

    rows: I64
    """Header fields of each file, such as its sampling rate, int64[N, FIELDS]; columns as in `wav_cpu.walk`. KIND is
    OTHER for files that are not plain WAV."""
    open_files: dict[int, Any]
    """Open files that are not plain WAV, by index in the batch. Each is a `flac.Flac`, `libsndfile.AudioFile` or
    `by_ffmpeg.Decoded`."""
    flac: I64 | None = None
    """Parameters of the FLAC files that the GPU decodes, as `flac_gpu.plain` returns them, one row per file of the
    batch. None without a GPU."""

    @property
    def frames(self) -> I64:
        """Number of frames (samples per channel) of each file, [N]."""
        return self.rows[:, _wav.FRAMES]

    @property
    def channels(self) -> I64:
        """Number of channels of each file, [N]."""
        return self.rows[:, _wav.CHANNELS]

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """Sampling rate of each file in Hz, [N]; 0 for files with errors."""
        return self.rows[:, _wav.RATE].astype(np.float64)

    def drop(self, i: int) -> None:
        """Mark file ``i`` as invalid (0 frames), and close it."""
        self.rows[i] = 0
        sound = self.open_files.pop(i, None)
        if sound is not None:
            sound.close()

    def close(self) -> None:
        """Close all open files."""
        for i in list(self.open_files):
            self.open_files.pop(i).close()


@dataclass(frozen=True, slots=True)
class ClipSegments:
    """Time range to decode in each of N audio files, in seconds."""

    offset: npt.NDArray[np.float64]
    duration: npt.NDArray[np.float64]
    """Length of each range in seconds, float64[N]; 0 or less for a range to the end of the file."""


def open_clips(
    ctx: Context, encoded: Batch, max_samples: int, ranges: ClipSegments | None = None, flac_on_gpu: bool = False
) -> Clips:
    """Read the headers of all files. Reject files that are not audio or too long. ``flac_on_gpu``: whether the GPU
    decodes the FLAC files that it supports."""
    encoded_base = np.ascontiguousarray(encoded.offsets)
    clips = Clips(np.empty((len(encoded), _wav.FIELDS), np.int64), {})
    _wav.walk(encoded.data, encoded_base, encoded.sizes, clips.rows)
    other = clips.rows[:, _wav.KIND] == _wav.OTHER
    if flac_on_gpu and other.any():
        clips.flac = plain_flac(encoded, clips.rows)
        other &= clips.frames == 0
    for i in np.flatnonzero(other).tolist():
        start, size = int(encoded.offsets[i]), int(encoded.shapes[i, 0])
        data = encoded.data[start : start + size]
        try:
            sound = open_flac(data) or _files.open_memory(data)
        except SampleError as e:
            sound = open_ffmpeg(data, max_samples)
            if sound is None:
                ctx.reject(i, e.code, str(e))
                continue
        clips.open_files[i] = sound
        clips.rows[i, _wav.FRAMES], clips.rows[i, _wav.CHANNELS] = sound.frames, sound.channels
        clips.rows[i, _wav.RATE] = sound.rate
    if ranges is not None:
        _cut(ctx, clips, ranges)
    for i in np.flatnonzero(clips.frames.astype(np.float64) * clips.channels > max_samples).tolist():
        ctx.reject(i, "too_large", f"the clip has {int(clips.frames[i])} frames of {int(clips.channels[i])} channels, "
                   f"more than max_samples ({max_samples}) allows")  # fmt: skip
        clips.drop(i)
    return clips


def _cut(ctx: Context, clips: Clips, ranges: ClipSegments) -> None:
    """Limit each file in ``clips`` to its time range: skip offset x rate frames, and keep duration x rate frames, both
    rounded down."""
    first = (ranges.offset * clips.rates).astype(np.int64)
    wanted = np.where(ranges.duration > 0, (ranges.duration * clips.rates).astype(np.int64), np.iinfo(np.int64).max)
    for i in np.flatnonzero((first > clips.frames) & (clips.frames > 0)).tolist():
        seconds = clips.frames[i] / clips.rates[i]
        ctx.reject(i, "out_of_bounds", f"the part begins at {ranges.offset[i]:g} s of a clip of {seconds:g} s")
        clips.drop(i)
    first = np.minimum(np.maximum(first, 0), clips.frames)
    frames = np.minimum(wanted, clips.frames - first)
    for i in list(clips.open_files):
        if first[i] or frames[i] < clips.frames[i]:
            try:
                clips.open_files[i].cut(int(first[i]), int(frames[i]))
            except SampleError as e:
                ctx.reject(i, e.code, str(e))
                clips.drop(i)
                frames[i] = 0
    width = np.array(_wav.WIDTHS, np.int64)[clips.rows[:, _wav.KIND]]
    clips.rows[:, _wav.START] += first * clips.channels * width
    clips.rows[:, _wav.FRAMES] = frames


@dataclass(slots=True)
class Opened:
    """Batch of audio files whose decoding on the host has started. CPU threads may still be decoding some files."""

    slot: I32
    clips: Clips
    file_rates: npt.NDArray[np.float64]
    """Sampling rates of the files in Hz, [N]."""
    signal_rates: npt.NDArray[np.float64]
    """Sampling rates of the output signals in Hz, [N]."""
    resamples: npt.NDArray[np.bool_]
    shapes: I32
    """Shapes of the output signals, int32[N, ndim]."""
    out: Batch | None
    """Output batch if the CPU computes the signals; None if a GPU decodes or converts them."""
    rejects: list[Reject]
    indices: list[int] = field(default_factory=list)
    """Indices in the batch of the files that are not plain WAV, in the order of ``problems``."""
    problems: Iterable[SampleError | None] = ()
    """Result for each file in ``indices``: the error of decoding it, or None. Iterating waits for threads that
    decode."""
    rows: I64 = field(default_factory=lambda: np.empty((0, 0), np.int64))
    """Position and type of each file's decoded samples in ``data``, one row per file, with the columns of
    `wav_cpu.walk`."""
    data: Batch | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the decoded samples in ``data`` occupy."""
        return 0 if self.data is None else len(self.data.data)

    def fits(self, batch: Batch) -> bool:
        """Return whether decoding was started for exactly the samples of ``batch``."""
        return np.array_equal(self.slot, batch.samples.slot)


class Audio(Operator, name="decoders.audio"):
    """Decode audio files: WAV, FLAC, Ogg Vorbis and Opus, MP3, AIFF and all other formats that libsndfile reads.

    Outputs are the signal, (n, channels), or (n,) with ``downmix``, and its sampling rate (FLOAT, a scalar). FLOAT
    signals lie in [-1, 1]: integers are divided by 2 to the power of their bits minus one. INT16 and INT32 outputs hold
    the high bits of integers unchanged; signals that were resampled or mixed down are scaled by 32767 (2147483647) and
    rounded.

    A file that ends early is rejected if its format declares its length (for WAV files, the data that exists counts, as
    in DALI). FLAC is decoded by dali-run's own decoder, which checks every frame, and by libsndfile if that decoder
    does not support a file. On a GPU, uncompressed WAV files and FLAC files are uploaded as they are and decoded there.
    CPU threads decode all other files, and files in which the GPU finds anything unusual. A few files that libsndfile
    does not support (MP3 and Ogg files with unusual beginnings, FLAC in Ogg, FLAC of 32 bits) are decoded by FFmpeg if
    the package av is installed.
    """

    aliases = ("audio_decoder",)
    bound = "exact; resampled: 1e-5 of the largest sample"
    example = "{op: decoders.audio, in: files, downmix: true, out: [audio, rates]}"

    downmix: Annotated[bool, Arg("output the mean over channels, as a signal (n,)")] = False
    dtype: Annotated[DALIDataType, Arg("data type of the signal: FLOAT, INT16 or INT32")] = DALIDataType.FLOAT
    quality: Annotated[float, Arg("quality of resampling, 0 to 100", ge=0, le=100)] = 50.0
    sample_rate: Annotated[
        float, Arg("resample to this rate in Hz; 0 keeps each clip's own rate", ge=0, per_sample=True)
    ] = 0.0
    parity: Annotated[Resampler, Arg(f"library whose resampling is reproduced: {RESAMPLER}")] = "dali-run"
    max_samples: Annotated[int, Arg("reject clips of more samples, counted over all channels", ge=1)] = MAX_SAMPLES

    @property
    def num_outputs(self) -> int:
        return 2

    def check(self) -> None:
        if self.dtype not in TYPES:
            raise SpecError(f"dtype {self.dtype.name} is not one of {', '.join(t.name for t in TYPES)}")
        if self.is_set("sample_rate"):
            check_resampler(self.parity)
        _files.require()

    def runs_in(self) -> tuple[Stage, ...]:
        return ("cpu",) if self.is_set("sample_rate") and needs_soxr(self.parity) else self.stages

    def same_on_gpu(self) -> Audio | None:
        return None if self.is_set("sample_rate") else self

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        check_encoded(specs[0])
        return Spec((None,) if self.downmix else (None, None), self.dtype, ""), Spec((), DALIDataType.FLOAT, "")

    def estimate_memory(self, stage: Stage, *inputs: Batch) -> tuple[I64, I64]:
        found, base = np.empty((len(inputs[0]), _wav.FIELDS), np.int64), np.ascontiguousarray(inputs[0].offsets)
        _wav.walk(inputs[0].data, base, inputs[0].sizes, found)
        other = found[:, _wav.KIND] == _wav.OTHER
        _wav.foreseen(inputs[0].data, base, inputs[0].sizes, found)
        decoded = found[:, _wav.FRAMES] * found[:, _wav.CHANNELS]
        decoded = np.where(decoded > self.max_samples, 0, decoded)  # they will be rejected
        elements = decoded // np.maximum(found[:, _wav.CHANNELS], 1) if self.downmix else decoded
        besides = np.where(other, (ON_GPU if stage == "mixed" else 4) * decoded, 0)
        if self.is_set("sample_rate"):
            besides += 4 * elements
            rate = self.sample_rate if "sample_rate" not in self.per_sample else 48000.0
            if rate:
                own = np.maximum(found[:, _wav.RATE], 1)
                elements = np.minimum(elements * (rate / own), self.max_samples).astype(np.int64) + 1
        return elements, besides

    def cpu(self, ctx: Context, encoded: Batch) -> tuple[Batch, Batch]:
        signals, rates, _ = self.decoded(ctx, encoded, self._rates(ctx))
        return signals, rates

    def start_early(self, ctx: Context, *inputs: Batch) -> Opened | None:
        found = np.empty((len(inputs[0]), _wav.FIELDS), np.int64)
        _wav.walk(inputs[0].data, np.ascontiguousarray(inputs[0].offsets), inputs[0].sizes, found)
        if (found[:, _wav.KIND] == _wav.OTHER).any():
            plain_flac(inputs[0], found)
        if found[:, _wav.FRAMES].all():
            return None
        return self._opened_by_threads(replace(ctx, rejects=[]), inputs[0])

    def mixed(self, ctx: Context, encoded: Batch) -> tuple[Batch, Batch]:
        ready: Opened | None = ctx.started if not ctx.attempt else None
        if ready is None or not ready.fits(encoded):
            ready = self._opened_by_threads(ctx, encoded)
        else:
            known = {r.slot for r in ctx.rejects}
            ctx.rejects.extend(r for r in ready.rejects if r.slot not in known)
        signals, rates = self._finished(ctx, encoded, ready)
        return signals, ctx.device.to_device(rates)

    def _opened_by_threads(self, ctx: Context, encoded: Batch) -> Opened:
        from ..codecs.threaded_decode import threads

        return self._opened(ctx, encoded, self._rates(ctx), threads().map, flac_on_gpu=not ctx.attempt)

    def _rates(self, ctx: Context) -> npt.NDArray[np.float64]:
        """Return the requested sampling rate of each file in Hz; 0 for the file's own rate."""
        wanted = ctx.arg("sample_rate").astype(np.float64)
        for i in np.flatnonzero(~(np.isfinite(wanted) & (wanted >= 0))).tolist():
            ctx.reject(i, "bad_argument", f"sample_rate must be a positive number, or 0, got {wanted[i]}")
            wanted[i] = 0
        return wanted

    def decoded(
        self, ctx: Context, encoded: Batch, target_rates: npt.NDArray[np.float64], ranges: ClipSegments | None = None
    ) -> tuple[Batch, Batch, npt.NDArray[np.float64]]:
        """Decode ``encoded`` files on the CPU. Return the signals at ``target_rates`` (0: the files' own rates), the
        signals' sampling rates, and those of the files."""
        ready = self._opened(ctx, encoded, target_rates, map, ranges)
        own = ready.file_rates
        return *self._finished(ctx, encoded, ready), own

    def _opened(
        self, ctx: Context, encoded: Batch, target_rates: npt.NDArray[np.float64], run: Callable[..., Iterable[Any]],
        ranges: ClipSegments | None = None, flac_on_gpu: bool = False,
    ) -> Opened:  # fmt: skip
        """Read all headers, and start decoding the files that are not plain WAV. ``run``: function like `map`, for
        example of a pool of threads, that decodes the files. In the cpu stage, samples that need no conversion are
        decoded directly into the output."""
        clips = open_clips(ctx, encoded, self.max_samples, ranges, flac_on_gpu)
        own = clips.rates
        resamples = (target_rates > 0) & (target_rates != own) & (clips.frames > 0)
        for i in np.flatnonzero(resamples & unusable(own, target_rates)).tolist():
            ctx.reject(i, "bad_argument", f"sample_rate {target_rates[i]:g} is too far from the file's {own[i]:g} Hz: "
                       f"at most {MAX_RATIO:,} times")  # fmt: skip
            resamples[i] = False
            clips.drop(i)
        after = np.where(resamples, target_rates, own)
        lengths = np.where(resamples, output_lengths(clips.frames, own, after), clips.frames)
        channels = np.ones_like(lengths) if self.downmix else clips.channels
        for i in np.flatnonzero(lengths.astype(np.float64) * channels > self.max_samples).tolist():
            ctx.reject(i, "too_large", f"{int(lengths[i])} samples would result at {after[i]:g} Hz, more than "
                       f"max_samples ({self.max_samples}) allows")  # fmt: skip
            lengths[i] = 0
            clips.drop(i)
        shapes = self._shapes(lengths, channels)
        out = None
        if ctx.stage == "cpu":
            out = Batch.allocate(ctx.empty, shapes, to_numpy(self.dtype), "", encoded.samples)
        opened = Opened(encoded.samples.slot, clips, own, after, resamples, shapes, out, ctx.rejects)
        self._read(opened, run)
        return opened

    def _shapes(self, frames: I64, channels: I64) -> I32:
        return (frames[:, None] if self.downmix else np.stack([frames, channels], axis=1)).astype(np.int32)

    def _read(self, opened: Opened, run: Callable[..., Iterable[Any]]) -> None:
        """Start decoding the files that are not plain WAV. Record in ``opened`` where their decoded samples will be."""
        open_files, out, n = opened.clips.open_files, opened.out, len(opened.file_rates)
        opened.rows = np.zeros_like(opened.clips.rows)
        opened.indices = places = list(open_files)
        if not places:
            return
        kinds = {np.dtype(np.float32): _wav.F32, np.dtype(np.int16): _wav.S16, np.dtype(np.int32): _wav.S32}
        sizes, straight = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        dtypes: list[np.dtype[Any]] = []
        for i in places:
            sound = open_files[i]
            mixes = (self.downmix and sound.channels > 1) or opened.resamples[i]
            if sound.narrow and out is None and self.dtype is not DALIDataType.INT32:
                dtypes.append(np.dtype(np.int16))  # half the bytes to upload, without loss
            else:
                dtypes.append(np.dtype(np.float32) if mixes or not sound.integers else np.dtype(to_numpy(self.dtype)))
            straight[i] = out is not None and not mixes and dtypes[-1] == out.dtype
            if not straight[i]:
                opened.rows[i] = opened.clips.rows[i]
                opened.rows[i, _wav.START], opened.rows[i, _wav.KIND] = 0, kinds[dtypes[-1]]
                sizes[i] = sound.frames * sound.channels * dtypes[-1].itemsize
        room = (sizes + 15) // 16 * 16
        starts, total = np.cumsum(room) - room, int(room.sum())
        from ..gpu.lane import pinned_empty

        data = np.empty(total, np.uint8) if out is not None else pinned_empty(total)
        opened.data = Batch(data, starts, sizes.astype(np.int32)[:, None], "", Samples.numbered(n))

        def read(k: int) -> SampleError | None:
            i = places[k]
            into = data[starts[i] : starts[i] + sizes[i]].view(dtypes[k])
            try:
                open_files[i].read_into(out.sample(i).reshape(-1) if out is not None and straight[i] else into)
            except SampleError as e:
                return e.bare()
            finally:
                open_files[i].close()
            return None

        opened.problems = run(read, range(len(places)))

    def _finished(self, ctx: Context, encoded: Batch, opened: Opened) -> tuple[Batch, Batch]:
        """Wait until all files are decoded. Return the signals and their sampling rates, in the memory of ``ctx``'s
        stage (host or device)."""
        clips, after, found, on_cpu = opened.clips, opened.signal_rates, opened.rows, opened.out is not None
        for i, problem in zip(opened.indices, list(opened.problems), strict=True):
            if problem is not None:
                ctx.reject(i, problem.code, str(problem))
                clips.drop(i)
                found[i] = 0
        resamples = opened.resamples & (clips.frames > 0)
        out = opened.out
        if out is None:
            out = Batch.allocate(ctx.empty, opened.shapes, to_numpy(self.dtype), "", encoded.samples)
        parts = _stored(ctx, encoded, clips, on_cpu)
        if opened.data is not None:
            parts.append((opened.data if on_cpu else ctx.device.to_device(opened.data), found))
        floats = out
        if resamples.any():
            shapes = self._shapes(np.where(resamples, clips.frames, 0), np.maximum(clips.channels, 1))
            floats = Batch.allocate(ctx.empty, shapes, np.float32, "", encoded.samples)
        for data, rows in parts:
            self._convert(ctx, data, _only(rows, ~resamples), out)
            if resamples.any():
                self._convert(ctx, data, _only(rows, resamples), floats)
        if resamples.any():
            where = np.flatnonzero(resamples)
            rates = Rates(clips.rates[where], after[where])
            resample_into(ctx, floats.take(where), rates, self.quality, self.parity, out.take(where))
        return out, Batch.from_dense(after.astype(np.float32), "", encoded.samples)

    def _convert(self, ctx: Context, source: Batch, found: I64, out: Batch) -> None:
        """Convert the decoded audio samples of ``source`` to signals in ``out``. ``found``: positions and types of the
        samples, in the columns of `wav_cpu.walk`."""
        most = int((found[:, _wav.FRAMES] * (found[:, _wav.KIND] != _wav.OTHER)).max(initial=0))
        if not most:
            return
        full = 0 if out.dtype.kind == "f" else int(np.iinfo(out.dtype).max)
        if ctx.stage == "cpu":
            base, to = np.ascontiguousarray(source.offsets), np.ascontiguousarray(out.offsets)
            if full:
                _wav.to_integers(source.data, base, found, self.downmix, full, out.data, to)
            else:
                _wav.to_floats(source.data, base, found, self.downmix, out.data, to)
            return
        lane = ctx.device
        base, rows, to = lane.upload(source.offsets, found, out.offsets)
        kind = {"float32": "float", "int16": "short", "int32": "int"}[out.dtype.name]
        lane.launch("audio/wav.cu", f"convert<{kind}>", (-(-most // 256), len(source)), 256, source.data, base, rows,
                    np.int32(self.downmix), np.float64(full), out.data, to)  # fmt: skip


def _stored(ctx: Context, encoded: Batch, clips: Clips, on_cpu: bool) -> list[tuple[Batch, I64]]:
    """Return the data of clips whose samples are stored in their files, or were decoded from FLAC on the GPU, each with
    the rows that say where its samples are."""
    plain = clips.rows[:, _wav.KIND] != _wav.OTHER
    flac = None if clips.flac is None else _only(clips.flac, clips.frames > 0)
    if flac is not None and not flac.any():
        flac = None
    if flac is None and not plain.any():
        return []
    there = encoded if on_cpu else ctx.device.to_device(encoded)
    parts = [(there, _only(clips.rows, plain))]
    if flac is not None:
        parts.append(decode_on_gpu(ctx, there, flac))
    return parts


def _only(rows: I64, selected: npt.NDArray[np.bool_]) -> I64:
    """Return a copy of ``rows`` with zeros for files that the mask ``selected`` excludes."""
    return np.where(selected[:, None], rows, 0)
