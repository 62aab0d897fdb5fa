"""readers.nemo_asr: read speech with its transcript, from manifests of NVIDIA NeMo: one JSON object per line."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..ops.audio.decoders import TYPES, Audio, ClipSegments
from ..ops.audio.resample import RESAMPLER, Resampler
from ..ops.base import Arg, Spec
from ..ops.batch import Batch, BatchedOrigins, Origin, concat
from ..ops.context import Context
from ..ops.errors import JobError, SpecError
from ..ops.storage.inventory import InventoryEntries
from ..ops.storage.json_text import parse_json
from ..ops.types import DALIDataType
from .base import Reader
from .fetch.parallel import spread
from .fetch.remote import local_copy
from .file import FileSet, scalars

I64 = npt.NDArray[np.int64]

_WORK = 16  # decoding a byte takes as long as copying this many


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a NeMo manifest: an audio file or a segment of it, with its text."""

    path: str
    offset: float
    duration: float
    """Seconds of audio to read, from ``offset`` on; 0 if the manifest does not say, which means up to the end."""
    text: str


def _seconds(value: Any, name: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number of seconds, got {value!r:.80}")
    return float(value)


def _entry(line: str) -> Entry:
    """Parse one line of a manifest. Raises ValueError that says what is wrong."""
    try:
        found = parse_json(line)
    except ValueError as e:
        raise ValueError(f"is not JSON: {str(e)[:200]}") from None
    if not isinstance(found, dict):
        raise ValueError(f"needs a JSON object, got {line[:80]!r}")
    path, text = found.get("audio_filepath"), found.get("text", "")
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"needs audio_filepath, the name of a file, got {path!r:.80}")
    if not isinstance(text, str):
        raise ValueError(f"text must be a text, got {text!r:.80}")
    return Entry(
        path, max(_seconds(found.get("offset"), "offset"), 0.0), _seconds(found.get("duration"), "duration"), text
    )


def read_manifest(path: str) -> list[Entry]:
    """Read the entries of a manifest. Relative paths start from the working directory; if the first one does not exist
    there, all start from the manifest's folder. Raises JobError that names a malformed line."""
    try:
        lines = Path(local_copy(path)).read_text(encoding="utf-8").split("\n")
    except OSError as e:
        raise JobError(f"{path} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise JobError(f"{path} is not UTF-8: {e.reason} at byte {e.start}") from None
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                entries.append(_entry(line))
            except ValueError as e:
                raise JobError(f"{path}:{number}: {e}") from None
    folder = os.path.dirname(path)
    relative = next((e.path for e in entries if not os.path.isabs(e.path)), None)
    if folder and relative is not None and not os.path.exists(relative):
        entries = [replace(e, path=os.path.join(folder, e.path)) for e in entries]  # absolute paths stay
    return entries


class _Speech(BatchedOrigins):
    """Data set of the reader `NemoAsr`, opened: the manifest entries within the duration limits, and their files."""

    groups: I64 | None = None

    def __init__(self, reader: NemoAsr, entries: Sequence[Entry]) -> None:
        self._reader, self._entries = reader, entries
        self._decoder = reader.decoder
        self._parts = ClipSegments(np.array([e.offset for e in entries]), np.array([e.duration for e in entries]))
        texts = [e.text.encode("utf-8", "surrogatepass") for e in entries]
        lengths = np.array([len(t) for t in texts], np.int64)
        self._texts = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
        self._lengths, self._starts = lengths, np.cumsum(lengths) - lengths
        self._files = FileSet(None, [os.fsencode(e.path) for e in entries])

    def __len__(self) -> int:
        return len(self._entries)

    def origins_of(self, index: I64) -> list[Origin]:
        return self._files.origins_of(index)

    def fingerprint(self) -> str:
        h = hashlib.sha256(self._files.fingerprint().encode() + self._texts.tobytes() + self._lengths.tobytes())
        h.update(self._parts.offset.tobytes() + self._parts.duration.tobytes())
        return h.hexdigest()

    def inventory(self) -> InventoryEntries:
        files = self._files.inventory()
        told = [hash_of((e.offset, e.duration, e.text)) for e in self._entries]
        return InventoryEntries(files.blob, {**files.state, "entry": np.array(told, np.int64)}, files.records)

    def close(self) -> None:
        self._files.close()

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        which = ctx.samples.index
        encoded = self._files.read(replace(ctx, services=replace(ctx.services, allocate_staging=None)), which)
        audio, rates = self._decoded(ctx, encoded, which)
        out = [audio]
        if self._reader.read_sample_rate:
            out.append(rates)
        if self._reader.read_text:
            shapes = self._lengths[which].astype(np.int32)[:, None]
            out.append(Batch(self._texts, self._starts[which], shapes, "", ctx.samples))
        if self._reader.read_idxs:
            out.append(scalars(which, ctx))
        return tuple(out)

    def _decoded(self, ctx: Context, encoded: Batch, which: I64) -> tuple[Batch, Batch]:
        """Decode the audio files in ``encoded`` in idle threads of the pool. Return the signals, and the sampling rates
        of the files in Hz."""
        done: dict[int, tuple[Context, Batch]] = {}
        own = np.zeros(len(which), np.float32)
        rejected = {r.slot for r in ctx.rejects}

        def decode(low: int, high: int) -> None:
            part = slice(low, high)
            ctx_ = Context(self._decoder, "cpu", ctx.samples.take(part), allocate=ctx.allocate)
            wanted = np.full(high - low, max(self._reader.sample_rate, 0.0))
            seconds = ClipSegments(self._parts.offset[which[part]], self._parts.duration[which[part]])
            signals, _, own[part] = self._decoder.decoded(ctx_, encoded.take(part), wanted, seconds)
            done[low] = ctx_, signals

        spread(ctx, len(which), len(encoded.data) * _WORK, decode)
        parts = [done[low] for low in sorted(done)]
        for ctx_, _ in parts:
            ctx.rejects += [r for r in ctx_.rejects if r.slot not in rejected]
        audio = concat([signals for _, signals in parts], ctx.samples, ctx.allocate)
        return audio, Batch.from_dense(own, "", ctx.samples)


def hash_of(value: object) -> int:
    """Return a hash of 63 bits of ``value``, which is equal in every process."""
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8], "little") >> 1


class NemoAsr(Reader, name="readers.nemo_asr"):
    """Read speech with its transcript from manifests of NVIDIA NeMo: each line is a JSON object with
    ``audio_filepath``, and optionally ``text``, ``offset`` and ``duration`` (in seconds, of the segment to read).

    Outputs: the signal, as `decoders.audio` returns it; the sampling rate of the file in Hz, before resampling (FLOAT,
    a scalar); the text (uint8, UTF-8); and with ``read_idxs`` the index of the entry among the entries within
    ``min_duration`` and ``max_duration`` (INT64, shape (1,)).
    """

    aliases = ("nemo_asr_reader",)
    example = (
        "{op: readers.nemo_asr, manifest_filepaths: [./train.json], sample_rate: 16000, out: [audio, rates, text]}"
    )
    shuffles_list: ClassVar[bool] = True
    locations: ClassVar[tuple[str, ...]] = (*Reader.locations, "manifest_filepaths")

    manifest_filepaths: Annotated[tuple[str, ...], Arg("paths of the manifests")]
    read_sample_rate: Annotated[bool, Arg("also output the sampling rate of the file")] = True
    read_text: Annotated[bool, Arg("also output the text")] = True
    read_idxs: Annotated[bool, Arg("also output the index of the entry")] = False
    downmix: Annotated[bool, Arg("output the mean over channels, as a signal (n,)")] = True
    dtype: Annotated[DALIDataType, Arg("FLOAT, INT16 or INT32")] = DALIDataType.FLOAT
    sample_rate: Annotated[float, Arg("resample to this rate in Hz; 0 or less keeps the rate of the file")] = -1.0
    quality: Annotated[float, Arg("quality of resampling, 0 to 100", ge=0, le=100)] = 50.0
    parity: Annotated[Resampler, Arg(f"resampler: {RESAMPLER}")] = "dali-run"
    min_duration: Annotated[float, Arg("leave out entries of a shorter duration, seconds", ge=0)] = 0.0
    max_duration: Annotated[float, Arg("leave out entries of a longer duration, seconds; 0 keeps all", ge=0)] = 0.0
    normalize_text: Annotated[bool | None, Arg("change the text", ignored="DALI does nothing with it either")] = None

    @property
    def decoder(self) -> Audio:
        """Operator that decodes the audio files, with the reader's arguments for it."""
        rate = max(self.sample_rate, 0.0)
        return Audio(downmix=self.downmix, dtype=self.dtype, quality=self.quality, parity=self.parity, sample_rate=rate)

    @property
    def num_outputs(self) -> int:
        return 1 + self.read_sample_rate + self.read_text + self.read_idxs

    def check(self) -> None:
        super().check()
        if not self.manifest_filepaths:
            raise SpecError("manifest_filepaths is an empty list")
        if self.dtype not in TYPES:
            raise SpecError(f"dtype {self.dtype.name} is not one of {', '.join(t.name for t in TYPES)}")
        self.decoder.check()

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        out = [Spec((None,) if self.downmix else (None, None), self.dtype)]
        out += [Spec((), DALIDataType.FLOAT)] if self.read_sample_rate else []
        out += [Spec((None,), DALIDataType.UINT8)] if self.read_text else []
        return (*out, *([Spec((1,), DALIDataType.INT64)] if self.read_idxs else []))

    def open(self) -> _Speech:
        entries = [e for path in self.manifest_filepaths for e in read_manifest(path)]
        if not entries:
            raise JobError(f"{', '.join(self.manifest_filepaths)}: there are no entries")
        shortest, longest = self.min_duration or -math.inf, self.max_duration or math.inf
        within = [e for e in entries if shortest <= e.duration <= longest]
        if not within:
            raise JobError(f"none of {len(entries)} entries has a duration of {self.min_duration:g} to {longest:g} s")
        return _Speech(self, within)
