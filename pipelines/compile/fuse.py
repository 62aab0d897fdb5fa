"""Join chains of nodes into one kernel if the result is the same within the operators' stated bounds. Called by
`compile_graph`.

colour operators                           uint8 pixels pass through all of them, rounded in between, in one kernel
resize, crop_mirror_normalize              only the window that remains is resampled, directly into its final form
decoder, resize [, crop_mirror_normalize]  on a GPU, the decoder's planes are resampled without an image in between; on
                                           a CPU, blocks that the result does not show are not transformed
spectrogram, mel_filter_bank [, to_decibels]   on a GPU, spectra stay within the thread blocks that compute them
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from ...ops.base import Operator
from ...ops.fused import colors as fused_colors
from ...ops.fused import decode_resize as fused_decode
from ...ops.fused import log_mel as fused_mel
from ...ops.fused import resize_normalize as fused
from ...ops.fused.colors import JoinedColors
from ...ops.fused.decode_resize import DecodeResize, can_decode_into, decoder_arguments, shows_a_part
from ...ops.fused.log_mel import LogMel
from ...ops.fused.resize_normalize import ResizeCropMirrorNormalize, can_join, joined_arguments
from ..graph.nodes import Edge, Graph, Node
from ..graph.renumber import renumber
from .place import Target

Joined = tuple[Operator, dict[str, Edge]]
"""Result of joining nodes: one operator that replaces a chain of nodes, and the edges (node outputs) of its argument
inputs, by argument name."""
Rule = tuple[Callable[[Node, Node], Joined | None], str, str]
"""A rule for joining two nodes: a function that returns the joined operator, or None if it cannot join them; and the
two prefixes that the arguments of the first and second node get in the joined operator."""


def fuse(graph: Graph, target: Target, separate: Container[str] = ()) -> tuple[Graph, tuple[str, ...], dict[int, int]]:
    """Return the graph with chains of nodes joined (fused); descriptions of the chains for users; and, for each new
    node, the id of the old node whose seed it has. Nodes whose names are in ``separate`` are not joined: a joined
    decoder rounds less often, so that a pixel may differ by one."""
    rules: tuple[Rule, ...] = (_COLORS, _RESIZE_AND_NORMALIZE)
    if target.device != "null":
        rules = (*rules, _DECODE_AND_RESIZE, _MEL, _DECIBELS)
    nodes = {n.id: n for n in graph.nodes}
    seeds = {n.id: n.id for n in graph.nodes}
    for join, first, second in rules:
        for node in list(nodes.values()):
            before = _only_input(node, nodes, graph)
            if before is None or before.name in separate or node.name in separate:
                continue
            joined = join(before, node)
            if joined is None:
                continue
            op, args = joined
            name = f"{before.name}+{node.name}"
            parts = {first + k: v for k, v in before.parts.items()} or {first: before.name}
            parts |= {second + k: v for k, v in node.parts.items()} or {second: node.name}
            nodes[node.id] = replace(
                node, op=op, args=args, inputs=before.inputs, stage=before.stage, name=name, parts=parts
            )
            seeds[node.id] = seeds[before.id] if before.op.random else seeds[node.id]
            del nodes[before.id]
    remaining = [nodes[i] for i in sorted(nodes)]
    groups = tuple(n.name for n in remaining if n.op.name.startswith("_fused."))
    return renumber(remaining, graph.outputs), groups, {new: seeds[n.id] for new, n in enumerate(remaining)}


def _only_input(node: Node, nodes: dict[int, Node], graph: Graph) -> Node | None:
    """Return the node that computes the only input of ``node``. Return None if another node also reads that input, or
    if the two nodes run on different devices or in different branches."""
    if len(node.inputs) != 1 or node.inputs[0].node not in nodes:
        return None
    before = nodes[node.inputs[0].node]
    readers = sum(e.node == before.id for n in nodes.values() for e in n.reads)
    leaves = any(e.node == before.id for e in graph.outputs.values())
    same_place = before.stage == node.stage or (before.stage == "mixed" and node.stage == "gpu")
    same = before.scope == node.scope and same_place and len(before.specs) == 1
    return before if same and readers == 1 and not leaves else None


def _resize_and_normalize(before: Node, node: Node) -> Joined | None:
    if not can_join(before.op, node.op, before.specs[0]):
        return None
    args = joined_arguments(before.args, node.args)
    return ResizeCropMirrorNormalize(resize=before.op, normalize=node.op, per_sample=frozenset(args)), args


def _decode_and_resize(before: Node, node: Node) -> Joined | None:
    if before.stage == "gpu" or not can_decode_into(before.op, node.op):
        return None
    if before.stage == "cpu" and not shows_a_part(node.op):
        return None
    args = decoder_arguments(before.args, node.args)
    return DecodeResize(decode=before.op, resize=node.op, per_sample=frozenset(args)), args


def _mel(before: Node, node: Node) -> Joined | None:
    return None if isinstance(before.op, LogMel) else _decibels(before, node)


def _decibels(before: Node, node: Node) -> Joined | None:
    if node.stage != "gpu" or not fused_mel.can_join(before.op, node.op):
        return None
    return fused_mel.joined(before.op, node.op), {}


def _colors(before: Node, node: Node) -> Joined | None:
    if not node.specs or not fused_colors.can_join(before.op, node.op, before.specs[0], node.specs[0]):
        return None
    args = fused_colors.joined_arguments(before.args, node.args)
    return JoinedColors(first=before.op, second=node.op, per_sample=frozenset(args)), args


_MEL = (_mel, fused_mel.SPECTROGRAM, fused_mel.MEL)
_DECIBELS = (_decibels, "", fused_mel.DECIBELS)
_COLORS = (_colors, fused_colors.FIRST, fused_colors.SECOND)
_RESIZE_AND_NORMALIZE = (_resize_and_normalize, fused.RESIZE, fused.NORMALIZE)
_DECODE_AND_RESIZE = (_decode_and_resize, fused_decode.DECODE, fused_decode.RESIZE)
