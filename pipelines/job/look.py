"""Keep a few samples of a run, before and after processing, and a few rejected ones, to show them on the run's page."""

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
from ..graph.nodes import Node
from ..show.html import Reject, ReportSamples, Sample
from ..show.pictures import as_picture
from ..tools.thumbnails import thumbnail, thumbnails
from ..wording import size

MAX_SAMPLES, MAX_REJECTS = 6, 12
"""Maximum numbers of written samples and of rejects that a page shows."""
_MAX_PER_BATCH = 2
"""Maximum number of shown samples from one batch, because neighbours often look alike."""
_MAX_INPUT_BYTES = 64 << 20
"""Maximum bytes of an encoded input file that is shown."""


def _before_decoders(plan: Plan) -> list[Node]:
    """Return the plan's readers, and the nodes on the CPU that compute the encoded bytes of its decoders, such as
    `io.file.read`, in their order."""
    nodes = {n.id: n for n in plan.graph.nodes}
    pending = [n.inputs[0].node for n in nodes.values() if n.op.decodes and n.inputs]
    found = {n.id for n in nodes.values() if isinstance(n.op, Reader)}
    while pending:
        node = nodes[pending.pop()]
        if node.id not in found and node.stage == "cpu" and not node.scope:
            found.add(node.id)
            pending += [e.node for e in (*node.inputs, *node.args.values())]
    return [n for n in plan.graph.nodes if n.id in found]


@dataclass(frozen=True, slots=True)
class _Image:
    """An image for a page: a thumbnail, or the encoded image that was written."""

    data: bytes
    small: bool


@dataclass(slots=True)
class _KeptSample:
    key: str
    place: int
    after: list[tuple[str, str, _Image]]
    """For each shown field of the sample: its name, a description, and its image."""


@dataclass(slots=True)
class Look:
    """Keeps a few samples while a job's batches are written, to show them on an HTML page. Created by the command line;
    used by the job's thread."""

    kept: list[_KeptSample] = field(default_factory=list)
    rejects: list[tuple[int, RejectRow]] = field(default_factory=list)
    more_rejects: int = 0
    inputs: dict[int, bytes] = field(default_factory=dict)
    """The encoded input images as the reader returned them, by the number of the sample."""

    def add_rejects(self, rejects: Sequence[tuple[int, RejectRow]]) -> None:
        """Keep some of the rejected samples. ``rejects``: for each, its number and its row of the reject log."""
        room = MAX_REJECTS - len(self.rejects)
        self.rejects += rejects[:room]
        self.more_rejects += len(rejects[room:])

    def add_written(self, places: Sequence[int], samples: Samples, outputs: Mapping[str, Batch]) -> None:
        """Keep some samples of a batch that was written; ``places`` are the numbers of its samples."""
        for i in range(min(_MAX_PER_BATCH, len(samples), MAX_SAMPLES - len(self.kept))):
            after = []
            for name, batch in outputs.items():
                if batch.on_host and i < len(batch):
                    described = _described(np.asarray(next(islice(iter(batch), i, None))), batch.layout)
                    after += [(name, *described)] if described is not None else []
            self.kept.append(_KeptSample(samples.origin(i).key, places[i], after))

    def read_inputs(self, plan: Plan, feed: JobFeed, rng: str) -> None:
        """Read the inputs of the kept samples again, to show the images before they were processed. A sample that
        cannot be read again gets no such image."""
        nodes = _before_decoders(plan)
        for place in [*(k.place for k in self.kept), *(place for place, _ in self.rejects)]:
            env: Env = {}
            try:
                samples, per_reader = feed.samples(Request(place, 1))
                run_nodes(nodes, env, NodePass(samples, plan.seeds, rng, states=feed.states, reader_samples=per_reader))
            except (DaliRunError, OSError, ValueError):
                continue
            for batch in env.values():
                if len(batch) == 1 and batch.dtype == np.uint8 and batch.on_host:
                    data = np.asarray(next(iter(batch)))
                    if data.ndim == 1 and data.size <= _MAX_INPUT_BYTES and _format(data.tobytes()):
                        self.inputs.setdefault(place, data.tobytes())

    def seen(self) -> ReportSamples:
        """Return all kept samples as small images, for an HTML page."""
        encoded = {(-1, place): data for place, data in self.inputs.items()}
        for k, sample in enumerate(self.kept):
            encoded |= {(k, i): image.data for i, (_, _, image) in enumerate(sample.after) if not image.small}
        small = dict(zip(encoded, thumbnails(list(encoded.values())), strict=True))
        samples = []
        for k, sample in enumerate(self.kept):
            after = [(name, description, image.data if image.small else small[k, i])
                     for i, (name, description, image) in enumerate(sample.after)]  # fmt: skip
            before = small.get((-1, sample.place))
            pictures = [(name, description, image) for name, description, image in after if image]
            if before or pictures:
                samples.append(Sample(sample.key, before, pictures))
        rejects = [Reject(row.key, row.operator, row.code, row.message, small.get((-1, place)))
                   for place, row in self.rejects]  # fmt: skip
        return ReportSamples(samples, rejects, self.more_rejects)


def _format(data: bytes) -> str:
    """Return the format of an encoded image, or "video" for a video; empty for anything else."""
    if is_video(data):
        return "video"
    try:
        return recognise(memoryview(data))
    except SampleError:
        return ""


def _described(value: NDArray[Any], layout: str) -> tuple[str, _Image] | None:
    """Return a description of a value of an output, and its image. The image is None for numbers and texts."""
    if value.ndim == 1 and value.dtype == np.uint8 and (kind := _format(data := value.tobytes())):
        return f"{kind}, {size(len(data))}", _Image(data, small=False)
    picture = as_picture(value, layout)
    if picture is None:
        return None
    return f"{' x '.join(map(str, value.shape))} {value.dtype}", _Image(thumbnail(picture), small=True)
