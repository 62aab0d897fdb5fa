"""Sample audio: WAV files in class folders, and a manifest that lists them."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

SOUNDS = ("chirp", "noise", "speech", "tone")
"""Names of the class folders of audio files, in the order of their labels."""
_RATES = (16000, 44100, 8000)
_Array = NDArray[Any]


def write_sounds(root: Path, count: int, seed: int) -> int:
    """Write ``count`` recordings of one to three seconds, ``root/<class>/*.wav``, and ``root/manifest.json`` in NVIDIA
    NeMo's format, with a text for each recording. Return the number of recordings."""
    lines = []
    for number in range(count):
        kind, rate = SOUNDS[number % len(SOUNDS)], _RATES[number // len(SOUNDS) % len(_RATES)]
        signal = sound(kind, rate, np.random.default_rng((seed, 3, number)))
        path = root / kind / f"{kind}_{number:05d}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1 + (number % 7 == 3))
            out.setsampwidth(2)
            out.setframerate(rate)
            both = np.repeat(signal[:, None], out.getnchannels(), axis=1)
            out.writeframes((both * 32767).round().astype("<i2").tobytes())
        name = f"{kind}/{path.name}"
        lines.append({"audio_filepath": name, "duration": round(len(signal) / rate, 4), "text": f"{kind} {number}"})
    (root / "manifest.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return count


def sound(kind: str, rate: int, rng: Generator) -> _Array:
    """Return a generated recording of the class ``kind``, one to three seconds long, with values within [-0.9, 0.9]."""
    t = np.arange(int(rate * rng.uniform(1, 3))) / rate
    pitch = float(rng.uniform(100, 400))
    if kind == "tone":
        signal = np.sin(2 * np.pi * pitch * t) + 0.3 * np.sin(6 * np.pi * pitch * t)
    elif kind == "chirp":
        signal = np.sin(2 * np.pi * (pitch * t + 300 * t**2))
    elif kind == "noise":
        signal = rng.standard_normal(len(t))
    else:  # a buzz whose pitch and loudness change like those of syllables
        phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.15 * np.sin(2 * np.pi * 1.7 * t))) / rate
        signal = sum((np.sin(k * phase) / k for k in range(1, 12)), np.zeros(len(t)))
        signal *= np.clip(np.sin(2 * np.pi * 3 * t), 0.02, 1)
    signal = signal + 0.003 * rng.standard_normal(len(t))
    return np.asarray(0.9 * signal / np.abs(signal).max())
