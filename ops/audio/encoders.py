"""Operator encoders.audio: encode signals as FLAC or WAV files, for writers."""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..conversion import saturate
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType

_files: Any = Kernels(".libsndfile", __package__)

CHANNELS = {"flac": 8, "wav": 65535}
"""Maximum number of audio channels, by file format."""
RATES = {"flac": 655350, "wav": 2**32 - 1}
_LONGEST_WAV = 2**32 - 1 - 44


class EncodeAudio(Operator, name="encoders.audio"):
    """Encode signals, (n,) or (n, channels), FLOAT in [-1, 1] or INT16, as files.

    The output is one 1-D uint8 tensor per sample: the bytes of the file. FLOAT is scaled by 2^(bits - 1), rounded and
    clipped to the range, so that decoded 16-bit audio is encoded without change. Signals on a GPU are downloaded and
    encoded on the CPU.
    """

    accepts_gpu = True
    example = "{op: encoders.audio, in: audio, format: flac, sample_rate: 16000, out: encoded}"

    format: Annotated[Literal["flac", "wav"], Arg("file format")] = "flac"
    sample_rate: Annotated[float, Arg("sampling rate of the signal in Hz", ge=1, per_sample=True, required=True)] = (
        16000.0
    )
    bits: Annotated[Literal[16, 24, 32], Arg("bits per sample; 32 are floats (only wav)")] = 16

    def check(self) -> None:
        if self.format == "flac":
            if self.bits == 32:
                raise SpecError("flac takes 16 or 24 bits; wav takes 32, as floats")
            _files.require()

    def infer(self, *specs: Spec) -> Spec:
        audio = specs[0]
        if audio.dtype not in (None, DALIDataType.FLOAT, DALIDataType.INT16):
            raise SpecError(f"encodes signals of FLOAT or INT16, got {audio}; cast it first")
        if audio.shape is not None and len(audio.shape) not in (1, 2):
            raise SpecError(f"encodes signals (n,) or (n, channels), got {audio}")
        return Spec((None,), DALIDataType.UINT8, "")

    def cpu(self, ctx: Context, audio: Batch) -> Batch:
        rates = ctx.arg("sample_rate", np.float64)
        encoded: list[bytes] = []
        for i in range(len(audio)):
            try:
                encoded.append(self._encoded(audio.sample(i), float(rates[i])))
            except SampleError as e:
                ctx.reject(i, e.code, str(e))
                encoded.append(b"")
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        data = np.frombuffer(bytearray(b"".join(encoded)), np.uint8)
        return Batch(data, np.cumsum(sizes) - sizes, sizes.astype(np.int32)[:, None], "", audio.samples)

    def _encoded(self, signal: npt.NDArray[Any], rate: float) -> bytes:
        channels = signal.shape[1] if signal.ndim == 2 else 1
        if not 1 <= channels <= CHANNELS[self.format]:
            raise SampleError("encode_failed", f"{self.format} takes 1 to {CHANNELS[self.format]} channels, the signal "
                              f"has {channels}")  # fmt: skip
        if not 1 <= rate <= RATES[self.format] or rate != int(rate):
            raise SampleError("encode_failed", f"{self.format} takes whole rates of 1 to {RATES[self.format]} Hz, got "
                              f"{rate:g}")  # fmt: skip
        if not signal.size:
            raise SampleError("encode_failed", "the signal is empty")
        numbers = self._numbers(signal)
        if self.format == "wav":
            return _wav(numbers, channels, int(rate), self.bits)
        # libsndfile expects 24-bit samples in the high bits of 32
        left = np.left_shift(numbers, 8 if self.bits == 24 else 0)
        data: bytes = _files.encode(left, int(rate), "FLAC", f"PCM_{self.bits}")
        return data

    def _numbers(self, signal: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the audio samples of ``signal`` as stored in the file: int16, float32, or 24 bits in int32."""
        if self.bits == 32:
            return signal if signal.dtype == np.float32 else signal * np.float32(1 / 32768)
        if signal.dtype == np.int16:
            return signal if self.bits == 16 else signal.astype(np.int32) << 8
        scaled = signal.astype(np.float64) * (1 << self.bits - 1)
        if self.bits == 16:
            return saturate(scaled, np.int16)
        held: npt.NDArray[Any] = np.clip(saturate(scaled, np.int32), -(1 << 23), (1 << 23) - 1)
        return held


def _wav(numbers: npt.NDArray[Any], channels: int, rate: int, bits: int) -> bytes:
    """Return a WAV file with the audio samples ``numbers``, in one format chunk and one data chunk."""
    if bits == 24:
        data = numbers.astype("<i4").reshape(-1).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    else:
        data = numbers.astype("<f4" if bits == 32 else "<i2").tobytes()
    if len(data) > _LONGEST_WAV:
        raise SampleError("encode_failed", "wav holds up to 4 GiB")
    block = channels * bits // 8
    pad = b"\0" * (len(data) % 2)
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data) + len(pad), b"WAVE", b"fmt ", 16, 3 if bits == 32 else 1,
        channels, rate, rate * block & 0xFFFFFFFF, block, bits, b"data", len(data),
    )  # fmt: skip
    return head + data + pad
