"""Samples as images: images unchanged or stretched to the displayable range, signals and spectrograms as drawings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_WIDTH, _HEIGHT = 640, 120
SIGNAL = 1000
"""Smallest number of values for which an array is drawn as a waveform."""
ACROSS, FRAMES, FRAME_SIDE = 4, 8, 160
"""For contact sheets of videos: frames per row, largest number of frames, and longer side of a frame in pixels."""
SPECTRA = ("ft", "tf")
"""Layouts of arrays that are drawn as spectrograms: f (frequency) and t (time), in either order."""


def is_signal(sample: NDArray[Any], layout: str) -> bool:
    """Return whether the sample is a long row of numbers with at most 8 channels, like audio, so that it is drawn as a
    waveform."""
    channels = sample.shape[1] if sample.ndim == 2 else 1
    return layout == "" and sample.ndim in (1, 2) and channels <= 8 and len(sample) >= SIGNAL and sample.dtype in (
        np.float32, np.int16)  # fmt: skip


def draw_signal(sample: NDArray[Any]) -> Image.Image:
    """Draw a waveform. Each column shows the range of its values; each channel has its own band."""
    bands = []
    for signal in np.nan_to_num(sample.astype(np.float64).reshape(len(sample), -1)).T:
        width = min(_WIDTH, len(signal))
        starts = np.arange(width) * len(signal) // width
        top = max(float(np.abs(signal).max()), 1e-12)
        high, low = (f.reduceat(signal, starts) / top for f in (np.maximum, np.minimum))
        rows = np.linspace(1, -1, _HEIGHT)[:, None]
        step = 1 / _HEIGHT
        inside = (rows <= high + step) & (rows >= low - step)
        bands.append(np.where(inside, 40, np.where(np.abs(rows) < step, 200, 255)).astype(np.uint8))
    return Image.fromarray(np.concatenate(bands))


def draw_spectrum(sample: NDArray[Any], layout: str) -> Image.Image:
    """Draw a spectrogram: time to the right, frequency upwards; brightness is the logarithm of the power, over eight
    decades."""
    values = np.nan_to_num((sample if layout == "ft" else sample.T).astype(np.float64))[::-1]
    if values.min() >= 0 and values.max() > 0:
        values = np.log10(np.maximum(values / values.max(), 1e-8))
    low, high = float(values.min()), float(values.max())
    return Image.fromarray(((values - low) * (255 / ((high - low) or 1))).round().astype(np.uint8))


def contact_sheet(frames: Sequence[NDArray[np.uint8]]) -> Image.Image:
    """Return frames of one size (HWC, RGB) in rows of four, separated by thin lines."""
    height, width = frames[0].shape[:2]
    across = min(len(frames), ACROSS)
    rows = -(-len(frames) // across)
    sheet = np.full((rows * (height + 1) - 1, across * (width + 1) - 1, 3), 255, np.uint8)
    for k, frame in enumerate(frames):
        y, x = k // across * (height + 1), k % across * (width + 1)
        sheet[y : y + height, x : x + width] = frame
    return Image.fromarray(sheet)


def _sequence(sample: NDArray[Any], layout: str) -> Image.Image | None:
    """Return a contact sheet of evenly spaced frames of a sequence; None if the frames are not images."""
    frames = sample if layout == "FHWC" else sample.transpose(0, 2, 3, 1)
    selected = frames[np.unique(np.linspace(0, len(frames) - 1, FRAMES).round().astype(int))]
    scale = -(-max(selected.shape[1:3]) // FRAME_SIDE)
    drawn = as_picture(np.concatenate(selected[:, ::scale, ::scale]), "HWC")
    if drawn is None:
        return None
    pixels = np.asarray(drawn.convert("RGB"))
    return contact_sheet(np.split(pixels, len(selected)))


def as_picture(sample: NDArray[Any], layout: str) -> Image.Image | None:
    """Return an image of a sample, or None if it cannot be displayed. Images have the layout HWC or CHW with 1 or 3
    channels, or are H x W. Signals and spectrograms are drawn. A sequence becomes a contact sheet of some frames."""
    if sample.size == 0 or sample.dtype.kind not in "uifb":
        return None
    if is_signal(sample, layout):
        return draw_signal(sample)
    if layout in SPECTRA and sample.ndim == 2:
        return draw_spectrum(sample, layout)
    if layout in ("FHWC", "FCHW") and sample.ndim == 4:
        return _sequence(sample, layout)
    if layout in ("HWC", "CHW") and sample.ndim == 3:
        pixels = sample if layout == "HWC" else sample.transpose(1, 2, 0)
    elif layout == "HW" and sample.ndim == 2:
        pixels = sample[:, :, None]
    else:
        return None
    if pixels.shape[2] not in (1, 3):
        return None
    if pixels.dtype != np.uint8:
        values = pixels.astype(np.float64)
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        pixels = ((np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low) * (255 / ((high - low) or 1))).round()
        pixels = pixels.astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
