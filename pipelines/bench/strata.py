"""Divide a data set into strata, its formats and kinds of JPEGs, so that each can be measured alone.

A mean over a data set hides the cost of some kinds: other formats are decoded on the CPU, large photos have other
bottlenecks than small ones, and 4:2:0 has half the blocks of 4:4:4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...ops.base import Operator
from ...ops.codecs.formats import recognise
from ...ops.errors import SampleError, SpecError
from ...ops.video.media import Clip
from ...readers.file import File
from ...readers.videos.reader import VideoReader
from ..graph.nodes import Graph

LARGE = 8_000_000
"""Smallest number of pixels of a photo in the stratum (kind of files) ``large``."""
_MAX_FILES = 20_000
"""Maximum number of files of a data set whose headers are read."""
_HEADER_BYTES = 1 << 16
"""Number of first bytes of a file that are read to find its header. A file whose first scan begins later is read
completely."""
_SAMPLING = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0", (1, 2): "4:4:0", (4, 1): "4:1:1"}
_BASELINE = (0xC0, 0xC1)
_AUDIO = ((8, b"WAVE", "wav"), (0, b"fLaC", "flac"), (0, b"OggS", "ogg"), (0, b"ID3", "mp3"), (0, b"\xff\xfb", "mp3"))
"""Signatures of audio formats: offset in the file, the bytes that are found there, and the name of the stratum."""


def strata_of(graph: Graph) -> dict[str, int]:
    """Count the files of the data set of ``graph`` in each stratum (kind of files); return the counts, the largest
    first.

    JPEGs are ``large`` (8 megapixels and more), ``progressive`` (or anything else that is not sequential Huffman),
    ``gray``, ``cmyk``, of one chroma subsampling, or ``other``; the first stratum that applies counts. Other images and
    audio files are divided by format (``png``, ``webp``, ``wav``, ...), videos by codec (``h264``, ...). Raises
    SpecError if the graph does not read files."""
    files, _ = _files(graph)
    counts: dict[str, int] = {}
    for kind in _kinds_in(graph, files):
        counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def only(graph: Graph, stratum: str) -> Graph:
    """Return ``graph`` with a reader that reads only the files of ``stratum``, a kind of files. Raises SpecError if
    there are none."""
    files, labels = _files(graph)
    selected = [i for i, kind in enumerate(_kinds_in(graph, files)) if kind == stratum]
    if not selected:
        raise SpecError(f"the data set has no files of the stratum {stratum}")
    number, reader = _reader(graph)
    names, selected_labels = tuple(files[i] for i in selected), tuple(labels[i] for i in selected)
    narrowed: Operator
    if isinstance(reader, VideoReader):
        narrowed = replace(reader, file_root="", file_list="", filenames=names, labels=selected_labels)
    else:
        narrowed = replace(reader, file_root=None, file_list=None, files=names, labels=selected_labels)
    nodes = list(graph.nodes)
    nodes[number] = replace(nodes[number], op=narrowed)
    return replace(graph, nodes=tuple(nodes))


def _reader(graph: Graph) -> tuple[int, File | VideoReader]:
    readers = [(i, node.op) for i, node in enumerate(graph.nodes) if isinstance(node.op, (File, VideoReader))]
    if len(readers) != 1:
        raise SpecError(f"strata need one readers.file, or one reader of videos, in the graph; it has {len(readers)}")
    return readers[0]


def _files(graph: Graph) -> tuple[Sequence[str], Sequence[int]]:
    """Return the paths of the first `_MAX_FILES` files of the data set, with their labels."""
    reader = _reader(graph)[1]
    if isinstance(reader, VideoReader):
        parts = reader.parts()[:_MAX_FILES]
        if any(p.start is not None for p in parts):
            raise SpecError("strata consist of whole videos; this file_list names parts of videos")
        return [p.path for p in parts], [p.label for p in parts]
    source = reader.open_records()
    try:
        count = min(len(source), _MAX_FILES)
        return [source.path(i) for i in range(count)], source.labels[:count].tolist()
    finally:
        source.close()


def _kinds_in(graph: Graph, files: Sequence[str]) -> list[str]:
    return list(map(_codec, files)) if isinstance(_reader(graph)[1], VideoReader) else _kinds(files)


def _codec(file: str) -> str:
    try:
        with Clip(file) as clip:
            return clip.codec
    except SampleError:
        return "other"


def _kinds(files: Sequence[str]) -> list[str]:
    from ...ops.codecs.jpeg.header import COMPLETE, TRUNCATED, read_headers

    kinds = []
    for file in files:
        row = None
        for max_bytes in (_HEADER_BYTES, -1):
            with Path(file).open("rb") as opened:
                data = np.frombuffer(opened.read(max_bytes), np.uint8)
            row = read_headers(data, np.zeros(1, np.int64), np.array([len(data)], np.int64))[0]
            if row["status"] != TRUNCATED:
                break
        assert row is not None
        jpeg = row["status"] in COMPLETE
        kinds.append(_kind({k: row[k] for k in row.dtype.names}) if jpeg else _format(data))
    return kinds


def _format(data: npt.NDArray[np.uint8]) -> str:
    try:
        format = recognise(data.data)
    except SampleError:
        return next((kind for at, start, kind in _AUDIO if data[at : at + len(start)].tobytes() == start), "other")
    return "other" if format == "jpeg" else format


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
