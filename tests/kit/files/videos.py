"""Small videos whose frames can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np


def make_video(
    path: Path, count: int, codec: str = "libx264", size: tuple[int, int] = (48, 64), gop: int = 6,
    times: Sequence[int] | None = None, pixels: str = "yuv420p", options: dict[str, str] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """Write a video of ``count`` frames at 25 frames/s, or at ``times`` (milliseconds), with the container's
    ``options``. Return its frames, decoded one after the other."""
    import av

    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width, stream.pix_fmt, stream.gop_size = *size, pixels, gop
        if times is not None:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(count):
            picture = np.zeros((*size, 3), np.uint8)
            picture[:, :, 0] = i * 9 % 256
            picture[:, :, 1] = np.arange(size[1]) * 3 % 256
            picture[:, :, 2] = np.arange(size[0])[:, None] * 4 % 256
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[i], Fraction(1, 1000)
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
