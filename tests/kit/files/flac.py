"""Audio to encode as FLAC, for the tests of the decoders on the CPU and on a GPU."""

from __future__ import annotations

import io

import numpy as np


def signal(kind: str, count: int, channels: int, random: np.random.Generator) -> np.ndarray:
    """Return an audio signal with values between -1 and 1, shape (count, channels)."""
    t = np.arange(count)[:, None] / 16000
    made = {
        "noise": random.standard_normal((count, channels)) * 0.2,
        "tones": np.sin(2 * np.pi * 300 * t * (1 + np.arange(channels))) * 0.5,
        "silence": np.zeros((count, channels)),
        "walk": np.cumsum(random.standard_normal((count, channels)), axis=0) * 1e-3,
        "square": np.sign(np.sin(900 * t + np.arange(channels))) * 0.99,
        "alike": np.repeat(np.sin(2 * np.pi * 500 * t) * 0.4, channels, axis=1)
        + 1e-3 * random.standard_normal((count, channels)),
    }[kind]
    return made.clip(-1, 0.999)


def encoded(data: np.ndarray, encoding: str, level: float) -> bytes:
    """Return a FLAC file of ``data`` with a sampling rate of 16 kHz."""
    import soundfile  # not at the top: tests are skipped if it is missing

    out = io.BytesIO()
    soundfile.write(out, data, 16000, format="FLAC", subtype=encoding, compression_level=level)
    return out.getvalue()
