"""Inspection of a running graph: every intermediate of a few samples as an image or an array, with a table and a
contact sheet."""

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
from ...ops.context import KernelServices
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
"""One output of an operator to inspect: (name of the operator, index of the output, its batch in host memory)."""
CONTACT_SHEET = "contact-sheet.png"
_SOUNDS = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg"}
"""File name suffixes for audio data, by its first bytes."""
_CELL, _LABEL = 160, 14


Against = tuple[Path, Mapping[str, Any]]
"""A spec to compare with: its path, and overrides of its values."""


@dataclass(frozen=True, slots=True)
class InspectedSamples:
    """The outputs of every operator of a spec for its first samples."""

    name: str
    """Name of the inspected spec."""
    nodes: list[Node]
    entries: list[Entry]
    edges: list[Edge]
    """For each of ``entries``, the edge of the graph (output of an operator) whose batch the entry holds."""
    samples: list[str]
    """Keys of the inspected samples."""
    rejects: list[dict[str, str]]

    def titled(self) -> Iterator[tuple[str, Batch]]:
        """Yield (title, batch) of each entry. The title is the operator's name, with the index if there are several
        outputs."""
        several = {name for name, output, _ in self.entries if output}
        for name, output, batch in self.entries:
            yield f"{name}[{output}]" if name in several else name, batch


def inspect_spec(
    path: Path, overrides: Mapping[str, Any] | None, n: int, folder: Path, against: Against | None = None
) -> dict[str, Any]:
    """Run the first ``n`` samples of a spec on the CPU, without fusion, and `dump` the outputs of every operator.

    The spec in ``against`` is run too, and results of operators with the same name are compared, see `apart`. Nothing
    is written to the spec's output. Raises SpecError, JobError.
    """
    with _looked_at(path, overrides, n) as inspected:
        drawn = dict(
            _drawn_over(
                inspected.nodes, {e: b for e, (_, _, b) in zip(inspected.edges, inspected.entries, strict=True)}
            )
        )
        rows = dump(inspected.entries, folder, [drawn.get(edge, {}) for edge in inspected.edges])
        if against is not None:
            with _looked_at(*against, n) as other:
                other_batches = dict(other.titled())
                for row, (title, batch) in zip(rows, inspected.titled(), strict=True):
                    row["apart"] = apart(batch, other_batches[title]) if title in other_batches else None
    return {"name": inspected.name, "folder": str(folder), "samples": inspected.samples, "intermediates": rows,
            "rejects": inspected.rejects}  # fmt: skip


@contextmanager
def _looked_at(path: Path, overrides: Mapping[str, Any] | None, n: int) -> Iterator[InspectedSamples]:
    """Context manager that yields the outputs of a spec's operators for its first ``n`` samples. The outputs are valid
    only in its body, because batches may be views of open data sets."""
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
                  services=KernelServices(isolation=isolation))  # fmt: skip
        run_nodes(plan.graph.nodes, env, run)
        nodes = [x for x in plan.graph.nodes if not isinstance(x.op, (Split, Merge))]
        edges = [(x.name, Edge(x.id, k)) for x in nodes for k in range(x.op.num_outputs)]
        entries = [(name, edge.output, env[edge]) for name, edge in edges]
        origins = {int(s): samples.origin(i) for i, s in enumerate(samples.slot)}
        rejects = [{"key": origins[d.slot].key, "source": origins[d.slot].source, "operator": d.node, "code": d.code,
                    "message": d.message} for d in one_by_one(run.dropped)]  # fmt: skip
        keys = [origins[int(s)].key for s in samples.slot]
        yield InspectedSamples(built.spec.name, nodes, entries, [e for _, e in edges], keys, rejects)


def apart(batch: Batch, other: Batch) -> dict[str, Any]:
    """Return the differences between two results for the same samples. ``samples``: number of samples that both results
    have at the same index. ``other_shape``: number of these with different shapes, whose values are not compared.
    ``differ``: share of unequal values. ``max`` and ``mean``: of the absolute differences, None if nothing was
    compared."""
    second = dict(_by_record(other))
    pairs = [(x, second[k]) for k, x in _by_record(batch) if k in second]
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
    """Yield ((index in the batch, number of the record), array) for each sample. The pair identifies a sample in two
    results that are compared."""
    who = zip(batch.samples.slot.tolist(), batch.samples.index.tolist(), strict=True)
    for key, sample in zip(who, batch, strict=True):
        yield key, np.asarray(sample)


def _drawn_over(nodes: Sequence[Node], batches: Mapping[Edge, Batch]) -> list[tuple[Edge, Pictures]]:
    """Return the drawable outputs of operators (boxes, polygons, class masks), each drawn over images of the graph."""
    pictures: dict[Edge, Pictures] = {}
    for edge, batch in batches.items():
        slots = batch.samples.slot.tolist()
        seen = {s: as_picture(np.asarray(x), batch.layout) for s, x in zip(slots, batch, strict=True)}
        if any(seen.values()):
            pictures[edge] = {s: p for s, p in seen.items() if p is not None}
    return overlays(nodes, batches, pictures)


def dump(entries: Sequence[Entry], folder: Path, drawn: Sequence[Pictures] | None = None) -> list[dict[str, Any]]:
    """Write every sample of ``entries`` below ``folder``. Return one row per entry: name, shapes, dtype, range, files.

    Images (uint8, float or other numbers, HWC or CHW with 1 or 3 channels) become PNG files, stretched to 0..255 unless
    they are uint8. Encoded images keep their bytes. Other samples become .npy files. ``drawn`` has, for each entry such
    as boxes, images over which it is drawn. All images are on the contact sheet, one row per entry.
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
        files, shown = [], []
        for i, sample in enumerate(batch):
            path, picture = _write(np.asarray(sample), batch.layout, folder / f"{stem}-{i}")
            files.append(path.name)
            shown += [picture] if picture else []
        if shown:
            pictures.append((title, shown))
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
    """Return shapes, dtype, layout, and the range of the values of a batch."""
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
    """Write one sample to a file. Return the path and, for samples that can be displayed, an image."""
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
    if is_signal(sample, layout) or layout in SPECTRA:  # the image is only a drawing, so the numbers are also written
        np.save(stem.with_name(stem.name + ".npy"), sample, allow_pickle=False)
    return path, picture


def save_pictures(rows: Sequence[tuple[str, Sequence[Image.Image]]], folder: Path) -> None:
    """Write images and a contact sheet of them below ``folder``. ``rows`` are pairs of name and images."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pictures in rows:
        for i, picture in enumerate(pictures):
            picture.save(folder / f"{safe_name(name)}-{i}.png")
    contact_sheet(rows).save(folder / CONTACT_SHEET)


def safe_name(text: str) -> str:
    """Return ``text`` without characters that are not allowed in a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.") or "unnamed"


def contact_sheet(rows: Sequence[tuple[str, Sequence[Image.Image]]]) -> Image.Image:
    """Return a grid of thumbnails: a titled row per entry, a column per sample."""
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
