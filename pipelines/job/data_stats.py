"""Compute statistics of a data set, or of the outputs of a spec: sizes, formats, classes, means and standard
deviations, and damaged samples. Called by `dali-run stats`.

The engine reads, decodes and reduces whole batches; this module adds up their small results.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...ops.base import Spec as BatchSpec
from ...ops.batch import Batch
from ...ops.codecs.formats import recognise
from ...ops.errors import SampleError
from ...ops.types import DALIDataType
from ...readers.base import Reader
from ..compile.infer import infer
from ..compile.place import resolve_target
from ..compile.plan import compile_graph
from ..engine.engine import Engine
from ..engine.inputs import JobFeed, Sources
from ..engine.nodes.envs import gone
from ..engine.nodes.node_pass import left_out, rejected
from ..graph.builder import GraphBuilder
from ..graph.nodes import Edge, Graph
from ..problems import Mark, Problems
from ..spec.build import BuiltSpec, build, load_spec
from ..spec.model import spec_of
from ..spec.text import from_python
from ..tools.datasets import read_through
from .data_layout import MAX_EXAMINED, SourceLayout, find_data
from .run import Progress, options_of

MAX_CLASSES = 10_000
"""Maximum number of distinct values of an integer field that counts as a class. A field with more values counts as a
measurement."""
_KINDS = {"readers.file": "files", "readers.lmdb": "LMDB", "readers.tfrecord": "TFRecord", "readers.mxnet": "RecordIO",
          "readers.webdataset": "tar", "readers.parquet": "Parquet"}  # fmt: skip
PIXELS = "pixels"
_SOUNDS = (b"RIFF", b"fLaC", b"OggS", b"ID3", b"FORM")
_REDUCTIONS = ("mean", "mean_square", "min", "max")
Kind = Literal["bytes", "values", "arrays"]


def data_stats(
    target: Path | str,
    *,
    device: str | None = None,
    limit: int | None = None,
    columns: Sequence[str] = (),
    follow_links: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Return statistics of the data set at ``target`` (a folder, shards, a database, or a URL) as plain data.

    Images are decoded to RGB, audio files to waveforms. With ``limit``, this number of records is selected at random.
    Raises SpecError, JobError and DeviceError."""
    layout = find_data(str(target), tuple(columns), follow_links)
    content = _content_of(layout)
    spec = spec_of(from_python(_document(layout, content, device, limit), Mark(str(target), 1, 1)), {}, Problems())
    assert spec is not None
    facts_found, sums = _run(build(spec), limit, device, progress)
    fields = {name: sums[name].told() for name in layout.fields}
    if layout.step["op"] != "readers.file":  # keys of readers.file begin with the name of the class
        for facts in fields.values():
            facts.pop("names", None)
    facts_found |= {
        "target": str(target),
        "kind": _KINDS.get(layout.step["op"], layout.step["op"]),
        "fields": fields,
        "images": None,
        "sounds": None,
    }
    for name, kind in content.items():
        if kind == "picture":
            facts_found["images"] = {"field": name, **_of_images(sums[PIXELS])}
        else:
            facts_found["sounds"] = {"field": name, **_of_sounds(sums["sound"], sums["rate"])}
    return facts_found


def spec_stats(
    path: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    limit: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Return statistics of the outputs of the spec at ``path``, before the outputs are encoded; nothing is written.
    Raises SpecError, JobError and DeviceError."""
    built = load_spec(path, overrides)
    facts_found, sums = _run(build(replace(built.spec, write=None)), limit, device, progress)
    outputs = {name: sum_.told() for name, sum_ in sums.items()}
    for facts in outputs.values():
        facts.pop("names", None)
    return {"target": str(path), "kind": "spec", "name": built.spec.name, **facts_found, "outputs": outputs}


# -- the graph --------------------------------------------------------------------------------------------------------


def _content_of(layout: SourceLayout) -> dict[str, str]:
    """Return the fields of bytes that hold media, by name: ``picture`` or ``sound``. The majority of some records from
    all over the data set decides. Fields with other content are left out."""
    names = [f for f, kind in layout.fields.items() if kind == "bytes" and f not in (*layout.text, *layout.numerals)]

    def fields(outputs: list[Any]) -> dict[str, Any]:
        return dict(zip(layout.fields, outputs, strict=True))

    votes = {name: Counter[str]() for name in names}
    if names:
        step = {k: v for k, v in layout.step.items() if k != "op"}
        for record in read_through("", layout.step["op"], step, fields, spread=MAX_EXAMINED).records:
            for name in names:
                if not record.problem and (kind := _kind_of(record.fields[name].tobytes())):
                    votes[name][kind] += 1
    kinds: dict[str, str] = {}  # the first of each kind is measured
    for name, seen in votes.items():
        if seen and (kind := seen.most_common(1)[0][0]) not in kinds.values():
            kinds[name] = kind
    return kinds


def _kind_of(data: bytes) -> str:
    try:
        recognise(memoryview(data))
    except SampleError:
        return "sound" if data.startswith(_SOUNDS) else ""
    return "picture"


def _document(
    layout: SourceLayout, content: Mapping[str, str], device: str | None, limit: int | None
) -> dict[str, Any]:
    """Return the spec, as plain data, of a graph that reads and decodes the data set."""
    variables = {f: f"field{k}" for k, f in enumerate(layout.fields)}
    reader: dict[str, Any] = {**layout.step, "name": "Reader", "out": list(variables.values())}
    if limit is not None:
        reader["shuffle"] = "full"
    graph = [reader, *({"op": "number_from_text", "in": variables[f], "out": variables[f]} for f in layout.numerals)]
    outputs = dict(variables)
    for name, kind in content.items():
        if kind == "picture":
            graph.append({"op": "decoders.image", "in": variables[name], "out": PIXELS})
            outputs[PIXELS] = PIXELS
        else:
            graph.append({"op": "decoders.audio", "in": variables[name], "out": ["sound", "rate"]})
            outputs |= {"sound": "sound", "rate": "rate"}
    return {"version": 1, "name": "stats", "pipeline": {"seed": 0, "device": device or "auto"}, "graph": graph,
            "outputs": outputs}  # fmt: skip


def _reduced(graph: Graph) -> tuple[Graph, dict[str, Kind]]:
    """Return a copy of ``graph`` whose outputs are small: in place of each array, its shape and the mean and extremes
    of each channel. Also return the kind of each output."""
    builder = GraphBuilder.of(graph.nodes)
    outputs: dict[str, Edge] = {}
    kinds: dict[str, Kind] = {}
    for name, edge in graph.outputs.items():
        spec = graph.spec(edge)
        stored = isinstance(graph.nodes[edge.node].op, Reader) and spec.ndim == 1
        if stored and spec.dtype == DALIDataType.UINT8:
            outputs[name], kinds[name] = edge, "bytes"
        elif stored or (spec.shape is not None and all(extent == 1 for extent in spec.shape)):
            outputs[name], kinds[name] = edge, "values"
        else:
            kinds[name] = "arrays"
            outputs[f"{name}:shape"] = builder.add("shapes", [edge])[0]
            axes = _all_but_channels(spec)
            for reduction in _REDUCTIONS:
                reduced = builder.add(f"reductions.{reduction}", [edge], {} if axes is None else {"axes": axes})
                outputs[f"{name}:{reduction}"] = reduced[0]
    return infer(builder.build(outputs)), kinds


def _all_but_channels(spec: BatchSpec) -> list[int] | None:
    """Return the axes of an array over which statistics are computed: all but the channels, if their number is known.
    None means all axes."""
    at = spec.layout.find("C")
    if at < 0 or spec.shape is None or spec.shape[at] is None:
        return None
    return [k for k in range(len(spec.shape)) if k != at]


# -- the run ----------------------------------------------------------------------------------------------------------


def _run(
    built: BuiltSpec, limit: int | None, device: str | None, progress: Callable[[Progress], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the graph for all samples. Return facts about the run (number of samples, rejects, speed), and the collected
    statistics of every output."""
    settings = built.spec.pipeline
    graph, kinds = _reduced(built.graph)
    plan = compile_graph(graph, resolve_target(device or settings.device), settings.seed)
    types: dict[Kind, Any] = {"bytes": _Bytes, "values": _Values, "arrays": _Arrays}
    sums = {name: types[kind]() for name, kind in kinds.items()}
    rejects: list[dict[str, Any]] = []
    omitted: Counter[str] = Counter()
    read = 0
    began = time.perf_counter()
    with Sources(plan, settings.batch_size) as sources:
        for name, origins, _ in sources.unplaced():
            omitted[name] += len(origins)
        feed = JobFeed(sources, limit)
        total = len(feed.positions)
        mixtures, names = feed.mixtures(), {n.id: n.name for n in plan.graph.nodes}
        progress(Progress(0, total, 0, began))
        with Engine(plan, feed, feed.requests(settings.batch_size), options_of(built.spec, plan.target)) as engine:
            for iteration in engine:
                batches = iteration.outputs(plan)
                for name, sum_ in sums.items():
                    sum_.add(name, batches)
                lost = gone(iteration.dropped)
                for group in left_out(iteration.dropped):
                    omitted[group.node] += len(group.slots)
                for d in rejected(iteration.dropped):
                    if not (d.kept and d.slot in lost):
                        origin = iteration.origin_of(d)
                        problem = {"operator": d.node, "code": d.code, "message": d.message, "kept": d.kept}
                        origin_facts = {"key": origin.key, "source": origin.source, "record": origin.record}
                        rejects.append(origin_facts | problem)
                read += iteration.request.n
                progress(Progress(read, total, len(rejects), began))
    seconds = time.perf_counter() - began
    facts = {
        "samples": read, "seconds": seconds, "samples_per_second": read / seconds if read else None,
        "device": plan.target.device, "chosen_at_random": limit is not None,
        "corrupt": sum(not r["kept"] for r in rejects),
        "codes": dict(Counter(r["code"] for r in rejects).most_common()), "rejects": rejects,
        "left_out": dict(omitted.most_common()), "mixtures": {names[k]: v for k, v in mixtures.items()},
    }  # fmt: skip
    return facts, sums


def spread(values: npt.NDArray[Any]) -> dict[str, float] | None:
    """Return minimum, 5 %, median, 95 %, maximum and mean of ``values``; None if there are none."""
    if not len(values):
        return None
    low, middle, high = np.percentile(values, (5, 50, 95))
    return {"min": values.min().item(), "p5": float(low), "median": float(middle), "p95": float(high),
            "max": values.max().item(), "mean": float(values.mean(dtype=np.float64))}  # fmt: skip


@dataclass(slots=True)
class _Bytes:
    """Statistics of a field of stored bytes: sizes, and formats recognised by the first bytes."""

    sizes: list[npt.NDArray[Any]] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, batches: Mapping[str, Batch]) -> None:
        batch = batches[name]
        data = memoryview(batch.data)
        sizes = batch.sizes
        self.sizes.append(sizes)
        for at, n in zip(
            batch.offsets.tolist(), sizes.tolist(), strict=True
        ):  # looks at a few bytes of each sample, which costs far less than decoding
            try:
                self.formats[recognise(data[at : at + min(n, 256)])] += 1
            except SampleError:
                self.formats["other"] += 1

    def told(self) -> dict[str, Any]:
        sizes = np.concatenate(self.sizes) if self.sizes else np.zeros(0, np.int64)
        formats = dict(self.formats.most_common())
        return {"what": "bytes", "bytes": int(sizes.sum()), "sizes": spread(sizes),
                "formats": {} if set(formats) == {"other"} else formats}  # fmt: skip


@dataclass(slots=True)
class _Values:
    """Statistics of a field with a number, or a short list of numbers, per sample. For integers with few different
    values: how often each value occurs. For all others: their distribution."""

    counts: Counter[int] | None = field(default_factory=Counter)
    names: dict[int, str] = field(default_factory=dict)
    """For each class number: the name of the folder that one sample with this number lies in."""
    values: list[npt.NDArray[Any]] = field(default_factory=list)
    lengths: list[npt.NDArray[Any]] = field(default_factory=list)
    dtype: str = ""

    def add(self, name: str, batches: Mapping[str, Batch]) -> None:
        batch = batches[name].packed()
        if not len(batch):
            return
        start, total = int(batch.offsets[0]), int(batch.sizes.sum())
        values = np.array(batch.data[start : start + total])
        self.dtype = values.dtype.name
        self.values.append(values)
        self.lengths.append(batch.sizes)
        if values.dtype.kind == "f" and (np.abs(values) < 2**31).all() and (values == np.rint(values)).all():
            values = values.astype(np.int64)  # RecordIO's labels
        if self.counts is None or values.dtype.kind not in "iub":
            self.counts = None
            return
        found, first, often = np.unique(values, return_index=True, return_counts=True)
        for value, at, n in zip(found.tolist(), first.tolist(), often.tolist(), strict=True):
            if int(value) not in self.counts and total == len(batch):
                self.names[int(value)] = batch.samples.origin(at).key.rpartition("/")[0]
            self.counts[int(value)] += n
        if len(self.counts) > MAX_CLASSES:
            self.counts = None

    def told(self) -> dict[str, Any]:
        values = np.concatenate(self.values) if self.values else np.zeros(0)
        lengths = np.concatenate(self.lengths) if self.lengths else np.ones(1, np.int64)
        facts: dict[str, Any] = {"what": "number", "dtype": self.dtype, "spread": spread(values), "counts": None,
                                 "lengths": None if (lengths == 1).all() else spread(lengths)}  # fmt: skip
        if self.counts:
            counts = dict(sorted(self.counts.items()))
            facts |= {"classes": len(counts), "counts": counts, "fewest": min(counts.values()),
                      "most": max(counts.values()), "names": {k: self.names.get(k, "") for k in counts}}  # fmt: skip
        return facts


@dataclass(slots=True)
class _Arrays:
    """Statistics of a field of arrays: their shapes, and mean, standard deviation and extremes of each channel. Every
    sample has the same weight, whatever its size."""

    shapes: list[npt.NDArray[Any]] = field(default_factory=list)
    sums: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    """Sums over all samples, by their number of channels. Each is an array [5, channels] with the rows count, means,
    mean squares, minimum and maximum."""
    dtype: str = ""
    not_finite: int = 0

    def add(self, name: str, batches: Mapping[str, Batch]) -> None:
        shapes = batches[f"{name}:shape"]
        if not len(shapes):
            return
        self.shapes.append(np.asarray(shapes.dense()).copy())
        parts = [batches[f"{name}:{r}"] for r in _REDUCTIONS]
        self.dtype = parts[2].dtype.name
        for channels in np.unique(parts[0].sizes).tolist():
            indices = np.flatnonzero(parts[0].sizes == channels)
            mean, square, low, high = (
                p.data[p.offsets[indices][:, None] + np.arange(channels)].astype(np.float64) for p in parts
            )
            finite = np.isfinite(mean).all(1) & np.isfinite(square).all(1)
            self.not_finite += int((~finite).sum())
            if not finite.any():
                continue
            new = np.stack([np.full(channels, finite.sum()), mean[finite].sum(0), square[finite].sum(0),
                            low[finite].min(0), high[finite].max(0)])  # fmt: skip
            old = self.sums.get(channels)
            if old is not None:
                new = np.stack([*(old[:3] + new[:3]), np.minimum(old[3], new[3]), np.maximum(old[4], new[4])])
            self.sums[channels] = new

    def lengths(self) -> npt.NDArray[Any]:
        """Return the shapes of all samples, as an array [samples, axes]."""
        return np.concatenate(self.shapes) if self.shapes else np.zeros((0, 3), np.int64)

    def told(self) -> dict[str, Any]:
        lengths = self.lengths()
        facts: dict[str, Any] = {"what": "arrays", "dtype": self.dtype, "not_finite": self.not_finite,
                                 "extents": [spread(lengths[:, k]) for k in range(lengths.shape[1])],
                                 "elements": spread(lengths.prod(axis=1, dtype=np.int64))}  # fmt: skip
        if self.sums:
            count, mean, square, low, high = max(self.sums.values(), key=lambda s: s[0, 0])
            mean, square = mean / count, square / count
            facts |= {"samples": int(count[0]), "mean": mean.tolist(),
                      "std": np.sqrt(np.maximum(square - mean * mean, 0)).tolist(),
                      "min": low.tolist(), "max": high.tolist()}  # fmt: skip
        return facts


def _of_images(pixels: _Arrays) -> dict[str, Any]:
    """Return the statistics of 8-bit images (HWC). Mean and standard deviation are scaled to [0, 1], as libraries
    expect them."""
    lengths, facts = pixels.lengths(), pixels.told()
    sides = lengths[:, :2]
    return {"height": spread(sides[:, 0]), "width": spread(sides[:, 1]), "shorter": spread(sides.min(axis=1)),
            "longer": spread(sides.max(axis=1)), "pixels": spread(sides.prod(axis=1, dtype=np.int64)),
            "mean": [v / 255 for v in facts.get("mean", ())],
            "std": [v / 255 for v in facts.get("std", ())]}  # fmt: skip


def _of_sounds(sound: _Arrays, rate: _Values) -> dict[str, Any]:
    """Return the statistics of audio clips, which are arrays [time, channels]: sample rates, lengths in seconds, and
    mean and standard deviation of the waveforms."""
    lengths, facts = sound.lengths(), sound.told()
    rates = np.concatenate(rate.values) if rate.values else np.zeros(0)
    seconds = lengths[:, 0] / rates if len(rates) else rates
    often = Counter(rates.tolist())
    channels = lengths[:, 1] if lengths.shape[1] > 1 else np.ones(len(lengths), np.int64)
    return {"seconds": spread(seconds), "total_seconds": float(seconds.sum()),
            "sample_rates": {f"{r:g}": n for r, n in often.most_common()},
            "channels": {int(c): n for c, n in Counter(channels.tolist()).most_common()},
            "mean": facts.get("mean", []), "std": facts.get("std", [])}  # fmt: skip
