"""Look: a few samples of a run, before and after, and a few of those that were refused, for its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.batch import Batch, Samples
from ...ops.codecs.formats import recognise
from ...ops.errors import DaliRunError, SampleError
from ...ops.video.glimpse import is_video
from ...readers.base import Reader
from ...writers.shards.rejects import RejectRow
from ..compile.plan import Plan
from ..engine.engine import Request
from ..engine.inputs import JobFeed
from ..engine.nodes.node_pass import Env, NodePass
from ..engine.nodes.run_nodes import run_nodes
from ..show.html import Reject, ReportSamples, Sample
from ..show.pictures import as_picture
from ..tools.thumbnails import thumbnail, thumbnails
from ..wording import size

MOST_SAMPLES, MOST_REJECTS = 6, 12
_OF_A_BATCH = 2
"""Samples of one batch: neighbours often look alike."""
_LARGEST = 64 << 20
"""Bytes of an input that is looked at."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A picture: a thumbnail, or encoded as it is written."""

    data: bytes
    small: bool


@dataclass(slots=True)
class _Kept:
    key: str
    place: int
    after: list[tuple[str, str, _Shown]]
    """Field, what it is, and its picture."""


@dataclass(slots=True)
class Look:
    """Takes samples as batches are written; `seen` gives them as small pictures."""

    kept: list[_Kept] = field(default_factory=list)
    rejects: list[tuple[int, RejectRow]] = field(default_factory=list)
    more_rejects: int = 0
    inputs: dict[int, bytes] = field(default_factory=dict)
    """Encoded pictures as they were read, by their places."""

    def refused(self, rejects: Sequence[tuple[int, RejectRow]]) -> None:
        """Look at samples that were refused, by their places."""
        room = MOST_REJECTS - len(self.rejects)
        self.rejects += rejects[:room]
        self.more_rejects += len(rejects[room:])

    def written(self, places: Sequence[int], samples: Samples, outputs: Mapping[str, Batch]) -> None:
        """Look at a batch that was written."""
        for i in range(min(_OF_A_BATCH, len(samples), MOST_SAMPLES - len(self.kept))):
            after = []
            for name, batch in outputs.items():
                if batch.on_host and i < len(batch):
                    shown = _shown(np.asarray(next(islice(iter(batch), i, None))), batch.layout)
                    after += [(name, *shown)] if shown is not None else []
            self.kept.append(_Kept(samples.origin(i).key, places[i], after))

    def read_inputs(self, plan: Plan, feed: JobFeed, rng: str) -> None:
        """Read the chosen samples once more. What cannot be read again has no picture."""
        readers = [n for n in plan.graph.nodes if isinstance(n.op, Reader)]
        for place in [*(k.place for k in self.kept), *(place for place, _ in self.rejects)]:
            env: Env = {}
            try:
                samples, per_reader = feed.samples(Request(place, 1))
                run_nodes(
                    readers, env, NodePass(samples, plan.seeds, rng, states=feed.states, reader_samples=per_reader)
                )
            except (DaliRunError, OSError, ValueError):
                continue
            for batch in env.values():
                if len(batch) == 1 and batch.dtype == np.uint8 and batch.on_host:
                    data = np.asarray(next(iter(batch)))
                    if data.ndim == 1 and data.size <= _LARGEST and _format(data.tobytes()):
                        self.inputs.setdefault(place, data.tobytes())

    def seen(self) -> ReportSamples:
        """All of it for a page."""
        encoded = {(-1, place): data for place, data in self.inputs.items()}
        for k, one in enumerate(self.kept):
            encoded |= {(k, i): made.data for i, (_, _, made) in enumerate(one.after) if not made.small}
        small = dict(zip(encoded, thumbnails(list(encoded.values())), strict=True))
        samples = []
        for k, one in enumerate(self.kept):
            after = [(name, what, made.data if made.small else small[k, i])
                     for i, (name, what, made) in enumerate(one.after)]  # fmt: skip
            before = small.get((-1, one.place))
            pictures = [(name, what, made) for name, what, made in after if made]
            if before or pictures:
                samples.append(Sample(one.key, before, pictures))
        rejects = [Reject(row.key, row.operator, row.code, row.message, small.get((-1, place)))
                   for place, row in self.rejects]  # fmt: skip
        return ReportSamples(samples, rejects, self.more_rejects)


def _format(data: bytes) -> str:
    """The format of an encoded picture, or "video"; nothing for anything else."""
    if is_video(data):
        return "video"
    try:
        return recognise(memoryview(data))
    except SampleError:
        return ""


def _shown(value: NDArray[Any], layout: str) -> tuple[str, _Shown] | None:
    """A word for a value's kind, and the way to show it: None for numbers and texts."""
    if value.ndim == 1 and value.dtype == np.uint8 and (kind := _format(data := value.tobytes())):
        return f"{kind}, {size(len(data))}", _Shown(data, small=False)
    picture = as_picture(value, layout)
    if picture is None:
        return None
    return f"{' x '.join(map(str, value.shape))} {value.dtype}", _Shown(thumbnail(picture), small=True)
