"""Decode images on the CPU: read the headers of all images first, then decode each image directly into the output."""

from __future__ import annotations

import time

import numpy as np

from ..batch import I64, Batch
from ..context import Context
from ..gpu.readable_by_gpu import show
from ..types import DALIImageType
from .decoder_table import DecodeJob, Mask, Needed, Outcome, Target, deal, host_rows, run
from .format import FORMAT
from .formats import FORMATS
from .headers import Headers, Rules, Windows, cut, output_shapes, read_headers
from .library import SIZES_DIFFER, decode_first, window
from .pixels import Pixels

_EXACT = [f.code for f in FORMATS if f.exact_size]
"""Codes of the formats whose decoders always return the size in the header (`Format.exact_size`)."""


def decode(
    ctx: Context, batch: Batch, rules: Rules, windows: Windows | None = None, needed: Needed | None = None,
    joined: Context | None = None,
) -> Batch:  # fmt: skip
    """Decode the images of ``batch`` (1-D uint8) on the host, as HWC. ``windows``: function that chooses the window
    of each image to decode. ``needed``: function that returns the pixels that later operators use; others may stay
    undecoded, but damage is detected everywhere. ``joined``: Context of the fused operator that contains this
    decoder."""
    show(batch)
    headers, rows = read_headers(ctx, batch, rules), host_rows()
    job = DecodeJob(ctx, batch, headers, rules, facts=joined, needed=needed)
    dealt = deal(job, np.flatnonzero(headers.good) if headers.bad else np.arange(len(batch)), rows)
    images, seconds = dict[int, Pixels](), 0.0
    if len(dealt[-1]):
        began = time.perf_counter()
        certain = _has_certain_size(headers, rules, dealt[-1])
        images = decode_first(job, dealt[-1][~certain].tolist())
        dealt[-1], seconds = dealt[-1][certain], time.perf_counter() - began
    heights, widths = headers.height, headers.width
    if windows is not None:
        job.anchors, sizes = cut(ctx, headers, windows)
        heights, widths = sizes[:, 0], sizes[:, 1]
    job.shapes = output_shapes(headers, rules, heights, widths)
    out = Batch.allocate(ctx.empty, job.shapes, rules.dtype, "HWC", batch.samples)
    if headers.bad:
        dealt = [some[headers.good[some]] for some in dealt]
    outcome = run(job, dealt, Target(out), rows)
    if images:
        began = time.perf_counter()
        for i, pixels in images.items():
            if headers.good[i]:
                out.sample(i)[...] = window(job, i, pixels, out.shapes[i])
        ctx.decoded_by("other formats", len(images), seconds + time.perf_counter() - began)
    for name, (count, taken) in outcome.decoded.items():
        ctx.decoded_by(name, count, taken)
    if outcome.errors or outcome.reshaped or headers.damaged:
        _settle(job, outcome)
    return out


def _has_certain_size(headers: Headers, rules: Rules, indices: I64) -> Mask:
    """Return for each of the images ``indices`` whether its header surely tells the decoded shape."""
    if rules.output_type is DALIImageType.ANY_DATA or rules.on_damage != "reject":
        return np.zeros(len(indices), np.bool_)
    found: Mask = np.isin(headers.rows[indices, FORMAT], _EXACT)
    return found


def _settle(job: DecodeJob, outcome: Outcome) -> None:
    """Reject the images that could not be decoded. Count damaged images that are kept, and note them in the reject log
    if the operator's arguments require it."""
    headers, ctx = job.headers, job.ctx
    for i in outcome.reshaped:
        outcome.errors[i] = SIZES_DIFFER
    for i, problem in outcome.errors.items():
        headers.drop(i)
        ctx.reject(i, problem.code, str(problem))
    for i, problem in headers.damaged.items():
        if headers.good[i]:
            ctx.fell_back("damaged images that were kept", 1)
            if job.rules.on_damage == "flag":
                ctx.flag(i, problem.code, str(problem))
