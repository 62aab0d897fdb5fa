"""Kernels that decode JPEG 2000 on a GPU, by the number of pictures, and the host's part of the work.

    python benchmarks/data/jpeg2000_on_gpu.py FOLDER OF PICTURES [--pictures 64,256,1024] [--coding 42] [--json JSON]
    python benchmarks/data/jpeg2000_on_gpu.py FOLDER OF PICTURES --pictures "" --mutate 1000 [--apart]

Up to 60 pictures of FOLDER, of 0.2 megapixels, as JPEG 2000, copied to as many as are wanted. Seconds of each kernel on
files that are on the GPU (the best of five turns), pictures a second of all, and how many were not taken. The host's
part, by one thread: files whose packets are read, a second.

``--mutate``: so many small files, most of them with faults. What the kernels make of those that they take must be what
OpenJPEG makes of them; ends with 1 where it is not. ``--apart``: each file is a batch of its own, and each buffer an
allocation of its own, for compute-sanitizer (benchmarks/data/sanitize.py).
"""

from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.kernels_alone import (
    arguments,
    batch_of,
    by_count,
    by_host,
    picture,
    shapes_of,
    to_time,
)
from dali_run.ops.batch import Batch
from dali_run.ops.codecs import pillow
from dali_run.ops.codecs.format import Header
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.headers import row_of
from dali_run.ops.codecs.jpeg2000 import on_gpu
from dali_run.ops.errors import SampleError
from dali_run.ops.gpu.lane import Lane

CODINGS: dict[str, dict[str, Any]] = {
    "42": {"quality_mode": "dB", "quality_layers": [42]},
    "lossless": {"mct": 1},
    "real": {"irreversible": True, "mct": 1, "quality_mode": "dB", "quality_layers": [38]},
}
"""How pictures are saved: to 42 dB as the benchmark of formats has it, without loss, and by real numbers."""
SMALL: tuple[dict[str, Any], ...] = (
    {}, {"irreversible": True}, {"quality_mode": "dB", "quality_layers": [42]}, {"no_jp2": True}, {"mct": 1},
    {"irreversible": True, "mct": 1, "quality_layers": [20, 10, 5]}, {"num_resolutions": 1, "codeblock_size": (4, 256)},
    {"tile_size": (32, 40), "tile_offset": (5, 3), "offset": (7, 9), "plt": True},
    *(
        {"progression": order, "precinct_size": (32, 32), "codeblock_size": (16, 16), "quality_layers": [40, 20, 10],
         "num_resolutions": 4, "mct": 1}
        for order in ("LRCP", "RLCP", "RPCL", "PCRL", "CPRL")
    ),
)  # fmt: skip
"""The same of small pictures."""


def encoded(image: Image.Image, how: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG2000", **how)
    return out.getvalue()


def small_files(paths: list[Path], count: int) -> list[bytes]:
    """JPEG 2000 of up to 70 x 70 pixels, saved in all ways: a tenth as they should be, others with bytes changed, most
    of them in what the CPU reads. All have headers of pictures that the decoder may take."""
    draw, sound, found = random.Random(7), list[bytes](), list[bytes]()
    for k, how in enumerate(SMALL * 4):
        with Image.open(paths[k % len(paths)]) as opened:
            image = opened.convert("L" if k % 3 == 2 else "RGB").resize((draw.randint(32, 70), draw.randint(32, 70)))
        sound.append(encoded(image, {n: v for n, v in how.items() if n != "mct" or image.mode == "RGB"}))
    while len(found) < count:
        data = bytearray(draw.choice(sound))
        body = data.find(b"\xff\x93")
        for _ in range(draw.choice([0, 1, 1, 1, 1, 1, 1, 2, 2, 4])):
            at = draw.choice([draw.randrange(body), body + int(draw.random() ** 3 * (len(data) - body))])
            how_far = draw.choice([1 << draw.randrange(8), draw.randrange(1, 256)])
            data[at] = draw.choice([data[at] ^ how_far, draw.randrange(9)])
        if draw.random() < 0.05:
            del data[draw.randrange(body, len(data)) :]
        if header_of(bytes(data)) is not None:
            found.append(bytes(data))
    return found


def header_of(data: bytes) -> Header | None:
    """The header of a file that the decoder may take, up to 2^16 pixels; None for others."""
    try:
        header = probe(memoryview(data))
    except SampleError:
        return None
    small = header.width * header.height <= 1 << 16
    return header if small and on_gpu.takes(np.array([row_of(header)]))[0] else None


def differences(lane: Any, files: list[bytes], each: int) -> tuple[int, list[int]]:
    """How many of ``files`` the kernels take, in batches of ``each``, and those of which OpenJPEG makes something
    else."""
    accepted, wrong = 0, []
    for begin in range(0, len(files), each):
        some = files[begin : begin + each]
        batch, headers = batch_of(some), [probe(memoryview(f)) for f in some]
        heights, widths, _ = shapes = np.array([(h.height, h.width, h.channels) for h in headers], np.int32).T
        coded, taken = on_gpu.read(batch, np.arange(len(some)), heights.astype(np.int64), widths.astype(np.int64))
        out = Batch.allocate(lane.empty, shapes.T, np.uint8, "HWC", batch.samples)
        on_gpu.decode(lane, lane.to_device(batch), [coded], out, None, False)
        pixels = lane.to_host(out)
        lane.synchronize()
        for i in np.flatnonzero(taken).tolist():
            try:
                expected = pillow.decode(memoryview(some[i]), headers[i], True, 1 << 20)
            except SampleError:
                expected = None
            accepted += 1
            if not np.array_equal(pixels.sample(i), expected) if expected is not None else True:
                wrong.append(begin + i)
    return accepted, wrong


class Timed:
    """A lane that marks when each kernel begins and ends."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.marks: list[tuple[str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    def launch(self, source: str, kernel: str, *how: Any) -> None:
        begin = self._lane.mark()
        self._lane.launch(source, kernel, *how)
        self.marks.append((kernel, begin, self._lane.mark()))

    def seconds(self) -> dict[str, float]:
        """Of each kernel, all launches together."""
        found: dict[str, float] = {}
        for kernel, begin, end in self.marks:
            found[kernel] = found.get(kernel, 0.0) + self._lane.seconds_since(begin, end)
        return found


def kernels(lane: Lane, files: list[bytes], count: int) -> dict[str, Any]:
    """Seconds of the work on ``count`` pictures that are on the GPU."""
    some = [files[k % len(files)] for k in range(count)]
    batch, headers = batch_of(some), [probe(memoryview(f)) for f in some]
    shapes = np.array([(h.height, h.width, 3) for h in headers], np.int32)
    there, out = lane.to_device(batch), Batch.allocate(lane.empty, shapes, np.uint8, "HWC", batch.samples)
    coded, taken = on_gpu.read(batch, np.arange(count), *shapes[:, :2].T.astype(np.int64))
    turns = []
    for _ in range(6):
        timed = Timed(lane)
        on_gpu.decode(timed, there, [coded], out, None, False)  # type: ignore[arg-type]
        lane.synchronize()
        turns.append(timed.seconds())
    best = min(turns[1:], key=lambda t: sum(t.values()))
    for k in range(0, min(count, len(files)), 8):
        expected = pillow.decode(memoryview(some[k]), headers[k], True, 1 << 28)
        np.testing.assert_array_equal(lane.to_host(out).sample(k), expected)
    refused = count - int(np.count_nonzero(taken))
    return {"seconds": best, "pictures_per_second": count / sum(best.values()), "refused": refused}


def main() -> None:
    args = arguments(__doc__, CODINGS, "42")
    paths = to_time(args, 60, small_files, differences)
    if not paths:
        return
    files = [encoded(picture(path), CODINGS[args.coding]) for path in paths]
    nbytes = sum(map(len, files)) / len(files)
    print(f"{nbytes:,.0f} bytes a picture", flush=True)
    results = {"bytes": nbytes} | by_count(files, args.pictures, kernels, "not taken")
    batch, which = batch_of(files), np.arange(len(files))
    heights, widths = shapes_of(files)[:, :2].T.astype(np.int64)
    results["read_per_second"] = by_host(lambda: on_gpu.read(batch, which, heights, widths), len(files))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
