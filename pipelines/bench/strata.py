"""Strata: the formats and kinds of JPEGs in a data set, so that each can be measured by itself.

A mean over a data set hides what some kinds cost: other formats are decoded on the CPU, large photos are bound by other
things than small ones, and 4:2:0 has half the blocks of 4:4:4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...ops.codecs.formats import recognise
from ...ops.errors import SampleError, SpecError
from ...readers.file import File
from ..graph.nodes import Graph

LARGE = 8_000_000
"""Pixels from which a photo is large."""
_LOOKED_AT = 20_000
"""Files whose headers are read."""
_HEAD = 1 << 16
"""Bytes of a file in which its header is looked for; one with more before its first scan is read whole."""
_SAMPLING = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0", (1, 2): "4:4:0", (4, 1): "4:1:1"}
_BASELINE = (0xC0, 0xC1)


def strata_of(graph: Graph) -> dict[str, int]:
    """How many files of each stratum ``graph``'s data set has, the largest first.

    Strata: the formats other than JPEG (``png``, ``webp``, ...), and of JPEGs ``large`` (8 megapixels and more),
    ``progressive`` (or anything else that is not sequential Huffman), ``gray``, ``cmyk``, one for each chroma
    subsampling, ``other``; a file is in the first that holds for it. Raises SpecError where the graph does not read
    files.
    """
    files, _ = _files(graph)
    found: dict[str, int] = {}
    for kind in _kinds(files):
        found[kind] = found.get(kind, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def only(graph: Graph, stratum: str) -> Graph:
    """``graph`` over the files of ``stratum`` alone. Raises SpecError where there is none."""
    files, labels = _files(graph)
    chosen = [i for i, kind in enumerate(_kinds(files)) if kind == stratum]
    if not chosen:
        raise SpecError(f"the data set has no files of the stratum {stratum}")
    number, reader = _reader(graph)
    narrowed = replace(reader, file_root=None, file_list=None, files=tuple(files[i] for i in chosen),
                       labels=tuple(labels[i] for i in chosen))  # fmt: skip
    nodes = list(graph.nodes)
    nodes[number] = replace(nodes[number], op=narrowed)
    return replace(graph, nodes=tuple(nodes))


def _reader(graph: Graph) -> tuple[int, File]:
    found = [(i, node.op) for i, node in enumerate(graph.nodes) if isinstance(node.op, File)]
    if len(found) != 1:
        raise SpecError(f"strata need one readers.file in the graph, it has {len(found)}")
    return found[0]


def _files(graph: Graph) -> tuple[Sequence[str], Sequence[int]]:
    """The first files of the data set, with their labels."""
    source = _reader(graph)[1].open()
    try:
        count = min(len(source), _LOOKED_AT)
        return [source.path(i) for i in range(count)], source.labels[:count].tolist()
    finally:
        source.close()


def _kinds(files: Sequence[str]) -> list[str]:
    from ...ops.codecs.jpeg.header import OK, TRUNCATED, UNSUPPORTED, read_headers

    kinds = []
    for file in files:
        row = None
        for most in (_HEAD, -1):
            with Path(file).open("rb") as opened:
                data = np.frombuffer(opened.read(most), np.uint8)
            row = read_headers(data, np.zeros(1, np.int64), np.array([len(data)], np.int64))[0]
            if row["status"] != TRUNCATED:
                break
        assert row is not None
        jpeg = row["status"] in (OK, UNSUPPORTED)
        kinds.append(_kind({k: row[k] for k in row.dtype.names}) if jpeg else _format(data))
    return kinds


def _format(data: npt.NDArray[np.uint8]) -> str:
    try:
        found = recognise(data.data)
    except SampleError:
        return "other"
    return "other" if found == "jpeg" else found


def _kind(header: Mapping[str, np.ndarray]) -> str:
    if int(header["width"]) * int(header["height"]) >= LARGE:
        return "large"
    if header["sof"] not in _BASELINE:
        return "progressive"
    if header["components"] == 1:
        return "gray"
    if header["components"] == 4:
        return "cmyk"
    h, v = header["h"], header["v"]
    if header["components"] == 3 and h[1] == h[2] == v[1] == v[2] == 1:
        return _SAMPLING.get((int(h[0]), int(v[0])), "other")
    return "other"
