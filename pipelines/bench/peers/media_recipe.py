"""Translate a graph into an audio or video recipe, as plain data for peers that have no graphs."""

from __future__ import annotations

from typing import Any

from ....ops.audio.decoders import Audio
from ....ops.audio.levels import ToDecibels
from ....ops.audio.mel import MelFilterBank
from ....ops.audio.spectrogram import Spectrogram
from ....ops.base import Operator, parameters
from ....ops.errors import SpecError
from ....ops.images.crop_mirror_normalize import CropMirrorNormalize
from ....ops.images.resize import Resize
from ....ops.types import DALIDataType
from ....readers.file import File
from ....readers.videos.reader import VideoReader
from ...graph.nodes import Graph, Node
from .recipe import chain, files_of, three

_WITHOUT_EFFECT = {"num_threads", "name", "initial_fill", "max_samples"}


def media_recipe_of(graph: Graph) -> dict[str, Any]:
    """Return ``graph`` as a recipe (plain data) from which scripts measure other libraries. It computes decibels of mel
    bands from audio files, or resized and normalised sequences from videos; and labels. The graph must not be fused.
    Raises SpecError with the node that a recipe cannot contain."""
    outputs, steps = [], []
    for name, edge in graph.outputs.items():
        if isinstance(graph.node(edge).op, (File, VideoReader)) and edge.output == 1:
            outputs.append("label")
        elif "data" in outputs:
            raise SpecError(f"output {name!r} is not translated: a recipe has sounds or videos, and labels")
        else:
            outputs.append("data")
            steps = chain(graph, edge, (File, VideoReader))
    if not steps:
        raise SpecError("the graph has no sounds or videos among its outputs: there is no recipe")
    reader, *rest = steps
    made = _video(reader, rest) if isinstance(reader.op, VideoReader) else _audio(reader, rest)
    return {**made, "outputs": outputs}


def _audio(reader: Node, steps: list[Node]) -> dict[str, Any]:
    ops = _these(steps, (Audio, Spectrogram, MelFilterBank, ToDecibels))
    decoder, spectrogram, mel, decibels = ops
    assert isinstance(decoder, Audio)
    assert isinstance(spectrogram, Spectrogram)
    assert isinstance(mel, MelFilterBank)
    assert isinstance(decibels, ToDecibels)
    _only(decoder, {"downmix"})
    _only(spectrogram, {"nfft", "window_length", "window_step"})
    _only(mel, {"sample_rate", "nfilter"})
    _only(decibels, {"multiplier", "reference", "cutoff_db"})
    if not decoder.downmix or decibels.reference is None:
        raise SpecError("a recipe of sounds has downmix: true, and a reference of decibels")
    files = files_of(reader)
    return {
        "kind": "audio", "files": files.files, "labels": files.labels, "shuffle": files.shuffle,
        "nfft": spectrogram.nfft or spectrogram.window_length, "window_length": spectrogram.window_length,
        "window_step": spectrogram.window_step, "rate": mel.sample_rate, "bands": mel.nfilter,
        "multiplier": decibels.multiplier, "reference": decibels.reference, "cutoff": decibels.cutoff_db,
    }  # fmt: skip


def _video(reader: Node, steps: list[Node]) -> dict[str, Any]:
    resize, normalize = _these(steps, (Resize, CropMirrorNormalize))
    assert isinstance(reader.op, VideoReader)
    assert isinstance(resize, Resize)
    assert isinstance(normalize, CropMirrorNormalize)
    _only(resize, {"resize_shorter"})
    _only(normalize, {"dtype", "mean", "std", "output_layout"})
    if normalize.dtype is not DALIDataType.FLOAT or normalize.output_layout != "FCHW" or not resize.resize_shorter:
        raise SpecError("a recipe of videos has resize_shorter, dtype: FLOAT and output_layout: FCHW")
    source = reader.op.open()
    try:
        sequences = source.sequences()
    finally:
        source.close()
    if any(-1 in numbers for _, numbers, _, _ in sequences):
        raise SpecError("a recipe of videos has no padded sequences")
    return {
        "kind": "video", "files": [path for path, _, _, _ in sequences], "labels": [s[3] for s in sequences],
        "frames": [numbers for _, numbers, _, _ in sequences], "times": [times for _, _, times, _ in sequences],
        "shuffle": reader.op.random_shuffle, "shorter": round(resize.resize_shorter), "mean": three(normalize.mean),
        "std": three(normalize.std),
    }  # fmt: skip


def _these(steps: list[Node], wanted: tuple[type[Operator], ...]) -> list[Operator]:
    if [type(n.op) for n in steps] != list(wanted) or any(n.args for n in steps):
        names = ", ".join(w.name for w in wanted)
        raise SpecError(f"a recipe of this data has {names}; this graph has {', '.join(n.op.name for n in steps)}")
    return [n.op for n in steps]


def _only(op: Operator, known: set[str]) -> None:
    for p in parameters(type(op)).values():
        if op.is_set(p.name) and p.name not in known | _WITHOUT_EFFECT:
            raise SpecError(f"{op.name}: {p.name} is not translated")
