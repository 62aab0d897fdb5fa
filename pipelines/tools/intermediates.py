"""Inspect a graph at work: every intermediate of a few samples as a picture or an array, a table, a contact sheet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...ops.batch import Batch
from ...ops.codecs.formats import BY_NAME, recognise
from ...ops.codecs.isolation.processes import isolated
from ...ops.errors import SampleError
from ..compile.place import Target
from ..compile.plan import compile_graph
from ..engine.compile_ahead import clients_of, compile_ahead
from ..engine.inputs import JobFeed, Sources
from ..engine.nodes.node_pass import Env, NodePass, one_by_one
from ..engine.nodes.run_nodes import run_nodes
from ..graph.conditionals import Merge, Split
from ..graph.nodes import Edge, Node
from ..show.pictures import SPECTRA, as_picture, is_signal
from ..spec.build import load_spec
from .overlays import Pictures, overlays

Entry = tuple[str, int, Batch]
"""Name of an operator, number of its output, and what came out; host memory."""
CONTACT_SHEET = "contact-sheet.png"
_SOUNDS = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg"}
"""Suffixes of sounds by their first bytes."""
_CELL, _LABEL = 160, 14


Against = tuple[Path, Mapping[str, Any]]
"""Another spec, or the same, and its overrides."""


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """The outputs of every operator of a spec for its first samples."""

    name: str
    """Of the spec."""
    nodes: list[Node]
    entries: list[Entry]
    edges: list[Edge]
    """Of the entries."""
    samples: list[str]
    """Keys."""
    rejects: list[dict[str, str]]

    def titled(self) -> Iterator[tuple[str, Batch]]:
        """The entries by what they are called: the operator, and which output where it has several."""
        several = {name for name, output, _ in self.entries if output}
        for name, output, batch in self.entries:
            yield f"{name}[{output}]" if name in several else name, batch


def inspect_spec(
    path: Path, overrides: Mapping[str, Any] | None, n: int, folder: Path, against: Against | None = None
) -> dict[str, Any]:
    """Run the first ``n`` samples of a spec on the CPU, nothing fused, and `dump` what every operator gives.

    ``against`` is run, too; rows of operators that both have, by name, then say how far `apart` the results are.
    Raises SpecError, JobError. Nothing is written where the spec writes.
    """
    with _looked_at(path, overrides, n) as seen:
        drawn = dict(_drawn_over(seen.nodes, {e: b for e, (_, _, b) in zip(seen.edges, seen.entries, strict=True)}))
        rows = dump(seen.entries, folder, [drawn.get(edge, {}) for edge in seen.edges])
        if against is not None:
            with _looked_at(*against, n) as other:
                theirs = dict(other.titled())
                for row, (title, batch) in zip(rows, seen.titled(), strict=True):
                    row["apart"] = apart(batch, theirs[title]) if title in theirs else None
    return {"name": seen.name, "folder": str(folder), "samples": seen.samples, "intermediates": rows,
            "rejects": seen.rejects}  # fmt: skip


@contextmanager
def _looked_at(path: Path, overrides: Mapping[str, Any] | None, n: int) -> Iterator[SampleFacts]:
    """The first ``n`` samples of a spec; the data sets that batches may view are open meanwhile."""
    built = load_spec(path, overrides)
    settings = built.spec.pipeline
    plan = compile_graph(built.graph, Target("cpu"), settings.seed, fusing=False)
    env: Env = {}
    isolation = isolated(settings.isolation, settings.decode_timeout)
    with Sources(plan, n) as sources, isolation or nullcontext():
        compile_ahead(clients_of(plan))
        feed = JobFeed(sources, n)
        samples, per_reader = feed.samples(next(feed.requests(n)))
        run = NodePass(samples, plan.seeds, settings.rng, states=sources.states, reader_samples=per_reader,
                  isolation=isolation)  # fmt: skip
        run_nodes(plan.graph.nodes, env, run)
        nodes = [x for x in plan.graph.nodes if not isinstance(x.op, (Split, Merge))]
        edges = [(x.name, Edge(x.id, k)) for x in nodes for k in range(x.op.num_outputs)]
        entries = [(name, edge.output, env[edge]) for name, edge in edges]
        origins = {int(s): samples.origin(i) for i, s in enumerate(samples.slot)}
        rejects = [{"key": origins[d.slot].key, "source": origins[d.slot].source, "operator": d.node, "code": d.code,
                    "message": d.message} for d in one_by_one(run.dropped)]  # fmt: skip
        keys = [origins[int(s)].key for s in samples.slot]
        yield SampleFacts(built.spec.name, nodes, entries, [e for _, e in edges], keys, rejects)


def apart(ours: Batch, theirs: Batch) -> dict[str, Any]:
    """How far two results of the same samples are apart.

    ``samples``: those that both have at the same place; ``other_shape``: those among them whose shapes differ, which
    are not compared further; ``differ``: the share of values that are not equal; ``max`` and ``mean`` of the absolute
    differences, None where nothing was compared.
    """
    second = dict(_by_record(theirs))
    pairs = [(x, second[k]) for k, x in _by_record(ours) if k in second]
    alike = [(a.astype(np.float64), b.astype(np.float64)) for a, b in pairs if a.shape == b.shape and a.size]
    far = [np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b)) for a, b in alike]
    values = sum(f.size for f in far)
    return {
        "samples": len(pairs),
        "other_shape": sum(a.shape != b.shape for a, b in pairs),
        "differ": sum(int(np.count_nonzero(f)) for f in far) / values if values else None,
        "max": max(float(f.max()) for f in far) if values else None,
        "mean": sum(float(f.sum()) for f in far) / values if values else None,
    }


def _by_record(batch: Batch) -> Iterator[tuple[tuple[int, int], NDArray[Any]]]:
    """Samples by their place in the batch and the record that they are of."""
    who = zip(batch.samples.slot.tolist(), batch.samples.index.tolist(), strict=True)
    for key, sample in zip(who, batch, strict=True):
        yield key, np.asarray(sample)


def _drawn_over(nodes: Sequence[Node], batches: Mapping[Edge, Batch]) -> list[tuple[Edge, Pictures]]:
    """Boxes, polygons and classes over the graph's own pictures."""
    pictures: dict[Edge, Pictures] = {}
    for edge, batch in batches.items():
        slots = batch.samples.slot.tolist()
        seen = {s: as_picture(np.asarray(x), batch.layout) for s, x in zip(slots, batch, strict=True)}
        if any(seen.values()):
            pictures[edge] = {s: p for s, p in seen.items() if p is not None}
    return overlays(nodes, batches, pictures)


def dump(entries: Sequence[Entry], folder: Path, drawn: Sequence[Pictures] | None = None) -> list[dict[str, Any]]:
    """Write every sample of ``entries`` below ``folder``; one row for each entry: name, shapes, dtype, range, files.

    Images (uint8, float or other numbers, HWC or CHW with 1 or 3 channels) become PNG files, stretched to 0..255 unless
    they are uint8; encoded images keep their bytes; the rest becomes .npy. ``drawn`` holds, for each entry, pictures
    with it drawn over them, or none. All pictures are on the contact sheet, a row for each entry.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    pictures: list[tuple[str, list[Image.Image]]] = []
    outputs: dict[str, int] = {}
    for name, output, _ in entries:
        outputs[name] = max(outputs.get(name, 0), output)
    for number, (name, output, batch) in enumerate(entries):
        title = name if outputs[name] == 0 else f"{name}[{output}]"
        stem = f"{number:02d}-{safe_name(title)}"
        files, seen = [], []
        for i, sample in enumerate(batch):
            path, picture = _write(np.asarray(sample), batch.layout, folder / f"{stem}-{i}")
            files.append(path.name)
            seen += [picture] if picture else []
        if seen:
            pictures.append((title, seen))
        over = [drawn[number][s] for s in batch.samples.slot.tolist() if s in drawn[number]] if drawn else []
        for i, picture in enumerate(over):
            files.append(f"{stem}-{i}-drawn.png")
            picture.save(folder / files[-1])
        if over:
            pictures.append((f"{title}, drawn", over))
        rows.append({"name": title, **facts(batch), "files": files})
    if pictures:
        contact_sheet(pictures).save(folder / CONTACT_SHEET)
    return rows


def facts(batch: Batch) -> dict[str, Any]:
    """Shapes, dtype, layout, and the range of the values."""
    shapes = sorted({tuple(map(int, s)) for s in batch.shapes})
    values = [np.asarray(s) for s in batch if np.asarray(s).size]
    result: dict[str, Any] = {
        "samples": len(batch),
        "shapes": [list(s) for s in shapes],
        "dtype": str(batch.dtype),
        "layout": batch.layout,
        "min": None,
        "max": None,
        "mean": None,
    }
    if values:
        wide = [v.astype(np.float64) for v in values]
        count = sum(v.size for v in wide)
        result |= {"min": min(float(v.min()) for v in wide), "max": max(float(v.max()) for v in wide),
                   "mean": sum(float(v.sum()) for v in wide) / count}  # fmt: skip
    return result


def _write(sample: NDArray[Any], layout: str, stem: Path) -> tuple[Path, Image.Image | None]:
    """The file of one sample, and its picture where it has one."""
    if sample.ndim == 1 and sample.dtype == np.uint8 and sample.size:
        sound = _SOUNDS.get(sample[:4].tobytes())
        if sound is not None and sample[8:12].tobytes() != b"WEBP":
            path = stem.with_name(stem.name + sound)
            path.write_bytes(sample.tobytes())
            return path, None
        try:
            kind = recognise(memoryview(sample.tobytes()))
        except SampleError:
            pass
        else:
            path = stem.with_name(stem.name + BY_NAME[kind].suffixes[0])
            path.write_bytes(sample.tobytes())
            return path, None
    picture = as_picture(sample, layout)
    if picture is None:
        path = stem.with_name(stem.name + ".npy")
        np.save(path, sample, allow_pickle=False)
        return path, None
    path = stem.with_name(stem.name + ".png")
    picture.save(path)
    if is_signal(sample, layout) or layout in SPECTRA:  # a drawing: the numbers are beside it
        np.save(stem.with_name(stem.name + ".npy"), sample, allow_pickle=False)
    return path, picture


def save_pictures(rows: Sequence[tuple[str, Sequence[Image.Image]]], folder: Path) -> None:
    """Write named pictures and their contact sheet below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pictures in rows:
        for i, picture in enumerate(pictures):
            picture.save(folder / f"{safe_name(name)}-{i}.png")
    contact_sheet(rows).save(folder / CONTACT_SHEET)


def safe_name(text: str) -> str:
    """``text`` as part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.") or "unnamed"


def contact_sheet(rows: Sequence[tuple[str, Sequence[Image.Image]]]) -> Image.Image:
    """A grid of thumbnails: a titled row for each entry, a column for each sample."""
    columns = max(len(pictures) for _, pictures in rows)
    step = _CELL + 8
    sheet = Image.new("RGB", (columns * step + 8, len(rows) * (step + _LABEL) + 8), "white")
    canvas = ImageDraw.Draw(sheet)
    for r, (title, pictures) in enumerate(rows):
        top = 8 + r * (step + _LABEL)
        canvas.text((8, top), f"{title}  {pictures[0].width} x {pictures[0].height}", fill="black")
        for c, picture in enumerate(pictures):
            small = picture.convert("RGB")
            small.thumbnail((_CELL, _CELL))
            sheet.paste(small, (8 + c * step, top + _LABEL))
    return sheet
