"""States of scans that the CPU's decoder remembers: the pixels of a whole read, and no belief in what has changed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from dali_run.ops.codecs.jpeg import anchors as jpeg_anchors
from dali_run.ops.codecs.jpeg import baseline_cpu as jpeg_baseline_cpu
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg.anchors import KNOWN, LEARN, MODE, NOTHING, PLACE, Anchors

KERNELS: Any = jpeg_baseline_cpu
HEIGHT, WIDTH = 93, 211


def encode(seed: int = 0, height: int = HEIGHT, width: int = WIDTH, **options: Any) -> bytes:
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).normal(0, 25, (height, width, 3))
    pixels = (
        np.stack([x % 256, (y * 2 + x // 3) % 256, 255 * ((x // 9 + y // 13) % 2)], -1) + noise * (x < 120)[..., None]
    )
    image, out = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), io.BytesIO()
    (image.convert("L") if options.pop("gray", False) else image).save(out, "JPEG", **options)
    return out.getvalue()


def decode(
    facts: Anchors, files: list[bytes], windows: NDArray[np.int64], index: NDArray[np.int64] | None = None
) -> tuple[list[NDArray[np.uint8]], NDArray[np.int32], list[int], list[int]]:
    """Pictures, 0 outside of their windows; statuses; modes before and after."""
    sizes = np.array([len(f) for f in files], np.int64)
    offsets = np.cumsum(sizes) - sizes
    raw = np.frombuffer(b"".join(files), np.uint8)
    headers = jpeg_header.read_headers(raw, offsets, sizes)
    index = np.arange(len(files)) if index is None else index
    shapes = [(int(h["height"]), int(h["width"]), 3) for h in headers]
    room = np.array([h * w * c for h, w, c in shapes])
    starts, out = np.cumsum(room) - room, np.zeros(int(room.sum()), np.uint8)
    status, known = np.empty(len(files), np.int32), facts.begin(index, headers, windows)
    before = known[:, MODE].copy()
    KERNELS.decode_images(
        raw, offsets, sizes, headers, windows, np.full(len(files), 3), False, out, starts,
        np.array([3 * w for _, w, _ in shapes]), status, facts.states, known,
    )  # fmt: skip
    facts.end(index, known, before)
    pictures = [out[a : a + n].reshape(s) for a, n, s in zip(starts, room, shapes, strict=True)]
    return pictures, status, before.tolist(), known[:, MODE].tolist()


def some_windows(n: int, seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    rows, columns = np.sort(rng.integers(0, HEIGHT + 1, (n, 2))), np.sort(rng.integers(0, WIDTH + 1, (n, 2)))
    return np.stack([rows[:, 0], columns[:, 0], rows[:, 1], columns[:, 1]], 1)


@pytest.mark.parametrize("options", [
    {"subsampling": 0, "quality": 95},
    {"subsampling": 1, "quality": 80, "optimize": True},
    {"subsampling": 2, "quality": 60},
    {"subsampling": 2, "quality": 100, "optimize": True},
    {"gray": True, "quality": 90},
], ids=str)  # fmt: skip
def test_any_window_is_cut_out_of_the_whole(options: dict[str, Any]) -> None:
    files = [encode(seed, **options) for seed in range(12)]
    wholes = [simplejpeg.decode_jpeg(f) for f in files]
    facts = Anchors()
    for epoch in range(6):
        windows = some_windows(len(files), epoch)
        pictures, status, before, after = decode(facts, files, windows)
        assert not status.any()
        assert before == after == [LEARN if epoch == 0 else KNOWN] * len(files)
        for made, whole, (y0, x0, y1, x1) in zip(pictures, wholes, windows, strict=True):
            np.testing.assert_array_equal(made[y0:y1, x0:x1], whole[y0:y1, x0:x1])
    assert facts.records == len(files)
    assert 8 * facts.used <= facts.nbytes < 0.2 * sum(map(len, files)) + 30_000


def test_a_file_that_has_changed_is_read_as_a_whole() -> None:
    """Each byte counts: what another picture, damage, or a byte after the picture makes of a file is told."""
    first, other = encode(0, quality=90), encode(1, quality=90)
    middle = len(first) // 2
    turned = first[:middle] + bytes([first[middle] ^ 1]) + first[middle + 1 :]
    cut = first[:middle] + b"\xff\xd9" + bytes(len(first) - middle - 2)
    window = np.array([[40, 100, 50, 120]])
    for changed in (other, turned, cut, first + b"x", first[:-2]):
        facts = Anchors()
        assert decode(facts, [first], window)[3] == [LEARN]
        (made,), status, before, after = decode(facts, [changed], window)
        (fresh,), right, *_ = decode(Anchors(), [changed], window)
        assert (before, after) == ([KNOWN], [NOTHING])
        assert status.tolist() == right.tolist()
        if status[0] == KERNELS.DONE:
            np.testing.assert_array_equal(made, fresh)
        assert (facts.wrong, facts.records) == (1, 0)
        assert decode(facts, [first], window)[2:] == ([LEARN], [LEARN])
        assert decode(facts, [first], window)[2:] == ([KNOWN], [KNOWN])


def test_every_byte_changes_the_digest() -> None:
    data = np.frombuffer(encode(3, 20, 30), np.uint8)
    found = {int(KERNELS.digest(data))}
    for k in range(len(data)):
        for bit in (0, 7):
            other = data.copy()
            other[k] ^= 1 << bit
            found.add(int(KERNELS.digest(other)))
    found |= {int(KERNELS.digest(data[:k])) for k in range(len(data))}
    assert len(found) == 1 + 3 * len(data)


def test_of_what_nothing_is_kept() -> None:
    """Scans with restart markers, which the decoder leaves, which are shown whole, or for which there is no room."""
    plain, window = encode(0), np.array([[0, 0, 10, 10]])
    marked, odd = encode(0, restart_marker_blocks=4), encode(0, progressive=True)
    damaged = plain[: len(plain) // 2] + b"\xff\xd9"
    facts = Anchors()
    for _ in range(2):
        windows = np.concatenate([window] * 3 + [[[0, 0, HEIGHT, WIDTH]]])
        _, _, before, after = decode(facts, [marked, odd, damaged, plain], windows)
        assert after == [NOTHING] * 4
    assert before == [NOTHING] * 4, "what could not be learned once is not tried again"
    assert facts.records == 0
    small = Anchors(budget=64)
    for _ in range(2):
        (made,), status, before, _ = decode(small, [plain], window)
        assert (before, status.tolist(), small.records) == ([NOTHING], [KERNELS.DONE], 0)
        np.testing.assert_array_equal(made[:10, :10], simplejpeg.decode_jpeg(plain)[:10, :10])


def test_wrong_places_do_no_harm() -> None:
    """States are used by address: whatever stands in them, nothing is read or written outside."""
    file, window = encode(0), np.array([[30, 60, 60, 180]])
    rng = np.random.default_rng(0)
    facts = Anchors()
    decode(facts, [file], window)
    for _ in range(200):
        facts.states[: facts.used] = rng.integers(0, 1 << 64, facts.used, np.uint64) >> rng.integers(
            0, 50, dtype=np.uint64
        )
        decode(facts, [file], window)
    headers = jpeg_header.read_headers(np.frombuffer(file, np.uint8), np.zeros(1, np.int64), np.array([len(file)]))
    for place in (-5, 1 << 40, len(facts.states) - 1):
        status, known = np.empty(1, np.int32), np.zeros((1, 3), np.int64)
        known[0, MODE], known[0, PLACE] = KNOWN, place
        KERNELS.decode_images(
            np.frombuffer(file, np.uint8), np.zeros(1, np.int64), np.array([len(file)]), headers, window, np.array([3]),
            False, np.empty(3 * HEIGHT * WIDTH, np.uint8), np.zeros(1, np.int64), np.array([3 * WIDTH]), status,
            facts.states, known,
        )  # fmt: skip
        assert (status[0], known[0, MODE]) == (KERNELS.DONE, NOTHING)


def test_a_data_set_that_keeps_changing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg_anchors, "MAX_WRONG", 2)
    files, window = [encode(seed) for seed in range(2)], np.array([[0, 0, 10, 10]])
    facts = Anchors()
    for k in range(6):
        decode(facts, [files[k % 2]], window)
        decode(facts, [files[k % 2]], window)
    assert facts.wrong == 3
    assert decode(facts, files[:1], window)[2] == [NOTHING]
