"""Statistics of a data set, or of what a spec makes of one: sizes, formats, classes, means and deviations, and what is
damaged. The engine reads, decodes and reduces whole batches; here their small results are added up."""

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
from ..engine.nodes.node_pass import one_by_one
from ..graph.builder import GraphBuilder
from ..graph.nodes import Edge, Graph
from ..problems import Mark, Problems
from ..spec.build import BuiltSpec, build, load_spec
from ..spec.model import spec_of
from ..spec.text import from_python
from ..tools.datasets import read_through
from .data_layout import PEEK, SourceLayout, find_data
from .run import Progress, options_of

MOST_CLASSES = 10_000
"""Distinct values of a number; with more it counts as a measure, not as a class."""
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
    """Statistics of the data set at ``target`` (a folder, shards, a database, or a URL) as plain data.

    Pictures are decoded to RGB, sounds to samples. With ``limit``, so many records chosen at random. Raises SpecError,
    JobError, DeviceError.
    """
    found = find_data(str(target), tuple(columns), follow_links)
    looks = _looks(found)
    spec = spec_of(from_python(_document(found, looks, device, limit), Mark(str(target), 1, 1)), {}, Problems())
    assert spec is not None
    told, sums = _run(build(spec), limit, device, progress)
    fields = {name: sums[name].told() for name in found.fields}
    if found.step["op"] != "readers.file":  # whose keys begin with the name of the class
        for facts in fields.values():
            facts.pop("names", None)
    told |= {
        "target": str(target),
        "kind": _KINDS.get(found.step["op"], found.step["op"]),
        "fields": fields,
        "images": None,
        "sounds": None,
    }
    for name, kind in looks.items():
        if kind == "picture":
            told["images"] = {"field": name, **_of_images(sums[PIXELS])}
        else:
            told["sounds"] = {"field": name, **_of_sounds(sums["sound"], sums["rate"])}
    return told


def spec_stats(
    path: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    limit: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Statistics of the outputs of the spec at ``path``, before any encoder; nothing is written. Raises SpecError,
    JobError, DeviceError."""
    built = load_spec(path, overrides)
    told, sums = _run(build(replace(built.spec, write=None)), limit, device, progress)
    outputs = {name: sum_.told() for name, sum_ in sums.items()}
    for facts in outputs.values():
        facts.pop("names", None)
    return {"target": str(path), "kind": "spec", "name": built.spec.name, **told, "outputs": outputs}


# -- the graph --------------------------------------------------------------------------------------------------------


def _looks(found: SourceLayout) -> dict[str, str]:
    """The content of the fields of bytes, as most of some records have it that are spread over the data set:
    ``picture``, ``sound``, or nothing known."""
    names = [f for f, kind in found.fields.items() if kind == "bytes" and f not in (*found.text, *found.numerals)]

    def fields(outputs: list[Any]) -> dict[str, Any]:
        return dict(zip(found.fields, outputs, strict=True))

    looks = {name: Counter[str]() for name in names}
    if names:
        step = {k: v for k, v in found.step.items() if k != "op"}
        for record in read_through("", found.step["op"], step, fields, spread=PEEK).records:
            for name in names:
                if not record.problem and (kind := _look(record.fields[name].tobytes())):
                    looks[name][kind] += 1
    kinds: dict[str, str] = {}  # the first of each kind is measured
    for name, seen in looks.items():
        if seen and (kind := seen.most_common(1)[0][0]) not in kinds.values():
            kinds[name] = kind
    return kinds


def _look(data: bytes) -> str:
    try:
        recognise(memoryview(data))
    except SampleError:
        return "sound" if data.startswith(_SOUNDS) else ""
    return "picture"


def _document(found: SourceLayout, looks: Mapping[str, str], device: str | None, limit: int | None) -> dict[str, Any]:
    """The spec that reads and decodes ``found``."""
    variables = {f: f"field{k}" for k, f in enumerate(found.fields)}
    reader: dict[str, Any] = {**found.step, "name": "Reader", "out": list(variables.values())}
    if limit is not None:
        reader["shuffle"] = "full"
    graph = [reader, *({"op": "number_from_text", "in": variables[f], "out": variables[f]} for f in found.numerals)]
    outputs = dict(variables)
    for name, kind in looks.items():
        if kind == "picture":
            graph.append({"op": "decoders.image", "in": variables[name], "out": PIXELS})
            outputs[PIXELS] = PIXELS
        else:
            graph.append({"op": "decoders.audio", "in": variables[name], "out": ["sound", "rate"]})
            outputs |= {"sound": "sound", "rate": "rate"}
    return {"version": 1, "name": "stats", "pipeline": {"seed": 0, "device": device or "auto"}, "graph": graph,
            "outputs": outputs}  # fmt: skip


def _reduced(graph: Graph) -> tuple[Graph, dict[str, Kind]]:
    """``graph`` with small outputs in place of its own: shapes, and means and extremes of every channel."""
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
                made = builder.add(f"reductions.{reduction}", [edge], {} if axes is None else {"axes": axes})
                outputs[f"{name}:{reduction}"] = made[0]
    return infer(builder.build(outputs)), kinds


def _all_but_channels(spec: BatchSpec) -> list[int] | None:
    """Axes to reduce; None for all. Channels are kept where there is a known number of them."""
    at = spec.layout.find("C")
    if at < 0 or spec.shape is None or spec.shape[at] is None:
        return None
    return [k for k in range(len(spec.shape)) if k != at]


# -- the run ----------------------------------------------------------------------------------------------------------


def _run(
    built: BuiltSpec, limit: int | None, device: str | None, progress: Callable[[Progress], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run all samples; how many there were and what was refused, and the sums of every output."""
    settings = built.spec.pipeline
    graph, kinds = _reduced(built.graph)
    plan = compile_graph(graph, resolve_target(device or settings.device), settings.seed)
    made: dict[Kind, Any] = {"bytes": _Bytes, "values": _Values, "arrays": _Arrays}
    sums = {name: made[kind]() for name, kind in kinds.items()}
    rejects: list[dict[str, Any]] = []
    read = 0
    began = time.perf_counter()
    with Sources(plan, settings.batch_size) as sources:
        feed = JobFeed(sources, limit)
        total = len(feed.positions)
        progress(Progress(0, total, 0, began))
        with Engine(plan, feed, feed.requests(settings.batch_size), options_of(built.spec, plan.target)) as engine:
            for iteration in engine:
                batches = iteration.outputs(plan)
                for name, sum_ in sums.items():
                    sum_.add(name, batches)
                lost = gone(iteration.dropped)
                for d in one_by_one(iteration.dropped):
                    if not (d.kept and d.slot in lost):
                        origin = iteration.origin_of(d)
                        what = {"operator": d.node, "code": d.code, "message": d.message, "kept": d.kept}
                        place = {"key": origin.key, "source": origin.source, "record": origin.record}
                        rejects.append(place | what)
                read += iteration.request.n
                progress(Progress(read, total, len(rejects), began))
    seconds = time.perf_counter() - began
    told = {
        "samples": read, "seconds": seconds, "samples_per_second": read / seconds if read else None,
        "device": plan.target.device, "chosen_at_random": limit is not None,
        "corrupt": sum(not r["kept"] for r in rejects),
        "codes": dict(Counter(r["code"] for r in rejects).most_common()), "rejects": rejects,
    }  # fmt: skip
    return told, sums


def spread(values: npt.NDArray[Any]) -> dict[str, float] | None:
    """Least, 5 %, median, 95 %, largest and mean of ``values``; None of none."""
    if not len(values):
        return None
    low, middle, high = np.percentile(values, (5, 50, 95))
    return {"min": values.min().item(), "p5": float(low), "median": float(middle), "p95": float(high),
            "max": values.max().item(), "mean": float(values.mean(dtype=np.float64))}  # fmt: skip


@dataclass(slots=True)
class _Bytes:
    """Fields as they are stored: their sizes, and the formats that their first bytes name."""

    sizes: list[npt.NDArray[Any]] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, batches: Mapping[str, Batch]) -> None:
        batch = batches[name]
        data = memoryview(batch.data)
        sizes = batch.sizes
        self.sizes.append(sizes)
        for at, n in zip(batch.offsets.tolist(), sizes.tolist(), strict=True):  # 32 bytes of each: far below a decoder
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
    """A number a sample, or a short list of them: how often each, where they are few integers; else how they spread."""

    counts: Counter[int] | None = field(default_factory=Counter)
    names: dict[int, str] = field(default_factory=dict)
    """For each number the folder of a sample that has it."""
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
        if len(self.counts) > MOST_CLASSES:
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
    """Arrays: their extents, and mean, deviation and extremes of each channel. Every sample counts alike, however
    large it is, as if all had been resized to one size."""

    shapes: list[npt.NDArray[Any]] = field(default_factory=list)
    sums: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    """By the number of channels: count, means, mean squares, least and largest, [5, channels]."""
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
            where = np.flatnonzero(parts[0].sizes == channels)
            mean, square, low, high = (
                p.data[p.offsets[where][:, None] + np.arange(channels)].astype(np.float64) for p in parts
            )
            fine = np.isfinite(mean).all(1) & np.isfinite(square).all(1)
            self.not_finite += int((~fine).sum())
            if not fine.any():
                continue
            new = np.stack([np.full(channels, fine.sum()), mean[fine].sum(0), square[fine].sum(0),
                            low[fine].min(0), high[fine].max(0)])  # fmt: skip
            old = self.sums.get(channels)
            if old is not None:
                new = np.stack([*(old[:3] + new[:3]), np.minimum(old[3], new[3]), np.maximum(old[4], new[4])])
            self.sums[channels] = new

    def extents(self) -> npt.NDArray[Any]:
        """The shapes of all samples, [samples, axes]."""
        return np.concatenate(self.shapes) if self.shapes else np.zeros((0, 3), np.int64)

    def told(self) -> dict[str, Any]:
        extents = self.extents()
        facts: dict[str, Any] = {"what": "arrays", "dtype": self.dtype, "not_finite": self.not_finite,
                                 "extents": [spread(extents[:, k]) for k in range(extents.shape[1])],
                                 "elements": spread(extents.prod(axis=1, dtype=np.int64))}  # fmt: skip
        if self.sums:
            count, mean, square, low, high = max(self.sums.values(), key=lambda s: s[0, 0])
            mean, square = mean / count, square / count
            facts |= {"samples": int(count[0]), "mean": mean.tolist(),
                      "std": np.sqrt(np.maximum(square - mean * mean, 0)).tolist(),
                      "min": low.tolist(), "max": high.tolist()}  # fmt: skip
        return facts


def _of_images(pixels: _Arrays) -> dict[str, Any]:
    """Of 8-bit pictures (HWC): mean and deviation in [0, 1], as libraries take them."""
    extents, told = pixels.extents(), pixels.told()
    sides = extents[:, :2]
    return {"height": spread(sides[:, 0]), "width": spread(sides[:, 1]), "shorter": spread(sides.min(axis=1)),
            "longer": spread(sides.max(axis=1)), "pixels": spread(sides.prod(axis=1, dtype=np.int64)),
            "mean": [v / 255 for v in told.get("mean", ())], "std": [v / 255 for v in told.get("std", ())]}  # fmt: skip


def _of_sounds(sound: _Arrays, rate: _Values) -> dict[str, Any]:
    """Of sounds (samples x channels): rates, lengths in seconds, and the samples' mean and deviation."""
    extents, told = sound.extents(), sound.told()
    rates = np.concatenate(rate.values) if rate.values else np.zeros(0)
    seconds = extents[:, 0] / rates if len(rates) else rates
    often = Counter(rates.tolist())
    channels = extents[:, 1] if extents.shape[1] > 1 else np.ones(len(extents), np.int64)
    return {"seconds": spread(seconds), "total_seconds": float(seconds.sum()),
            "sample_rates": {f"{r:g}": n for r, n in often.most_common()},
            "channels": {int(c): n for c, n in Counter(channels.tolist()).most_common()},
            "mean": told.get("mean", []), "std": told.get("std", [])}  # fmt: skip
