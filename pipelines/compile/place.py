"""Decide where every node runs (cpu, mixed or gpu), by DALI's rules; with ``auto``, on the GPU if possible. Called by
`compile_graph`.

A node with a GPU input is a GPU node. Argument inputs are computed on the CPU. The engine uploads host data that a GPU
node needs. Data of a GPU node never flow back, except into encoders and writers, and if a node itself has ``device:
cpu`` (DALI's exec_dynamic).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ...ops.base import Stage
from ...ops.errors import DeviceError, SpecError
from ...ops.gpu.lane import gpu_count
from ..graph.nodes import Edge, Graph, Node


@dataclass(frozen=True, slots=True)
class Target:
    """The devices for which a graph is compiled. Created by `resolve_target`."""

    device: Literal["cpu", "gpu", "null"] = "cpu"
    """Kind of device. ``null`` places nodes as for a GPU but runs their CPU kernels, so that the whole engine runs
    without a GPU."""
    indices: tuple[int, ...] = (0,)
    """Indices of the GPUs; batches are assigned to them in turn."""
    auto_mixed: bool = True
    """Whether decoders for which the user sets no ``device`` become ``mixed`` on a GPU. True for YAML specs; DALI's
    Python API leaves such decoders on the CPU."""

    @property
    def index(self) -> int:
        """Index of the first GPU, for code that needs only one."""
        return self.indices[0]


def resolve_target(device: str, *, auto_mixed: bool = True) -> Target:
    """Return the target that ``device`` (``auto | cpu | gpu | gpu:N | gpu:N,N | gpu:all | null``) means on this
    machine.

    Raises DeviceError if a requested GPU is missing, SpecError for any other text."""
    name, _, numbers = device.partition(":")
    if device == "auto":
        return Target("gpu" if gpu_count() else "cpu", auto_mixed=auto_mixed)
    if device in ("cpu", "null"):
        return Target("cpu" if device == "cpu" else "null", auto_mixed=auto_mixed)
    each = ["0"] if device == "gpu" else numbers.split(",")
    if device == "gpu:all" or (name == "gpu" and all(n.isdecimal() for n in each)):
        gpus = gpu_count()
        gpu_indices = tuple(range(gpus)) if numbers == "all" else tuple(map(int, each))
        if len(set(gpu_indices)) < len(gpu_indices):
            raise SpecError(f"device names a GPU twice: {device!r}; name each once")
        if not gpu_indices or max(gpu_indices) >= gpus:
            raise DeviceError(
                f"device is {device}, but this machine has {gpus} usable GPUs; `dali-run doctor` shows why, "
                "`--device cpu` runs without a GPU"
            )
        return Target("gpu", gpu_indices, auto_mixed)
    raise SpecError(f"device must be auto, cpu, gpu, gpu:N, gpu:N,N, gpu:all or null, got {device!r}")


def place(graph: Graph, target: Target) -> Graph:
    """Return the graph with the ``stage`` (cpu, mixed or gpu) of every node filled in. Raises SpecError for the first
    node that cannot be placed, with its place in the spec."""
    stages, problems = _stages(graph, target)
    for node, text in problems:
        raise SpecError(f"{node.where}: {text}")
    return replace(graph, nodes=tuple(replace(n, stage=s) for n, s in zip(graph.nodes, stages, strict=True)))


def impossible(graph: Graph, target: Target) -> list[tuple[Node, str]]:
    """Return the nodes that cannot run on ``target``, each with the reason."""
    return _stages(graph, target)[1]


def _stages(graph: Graph, target: Target) -> tuple[list[Stage], list[tuple[Node, str]]]:
    stages: list[Stage] = []
    problems: list[tuple[Node, str]] = []

    def on_device(edge: Edge) -> bool:
        node = graph.node(edge)
        if node.reads_to_gpu:
            return target.device != "cpu"
        return stages[edge.node] != "cpu" and not node.op.output_after_sync

    bound_to_host = set() if target.device == "cpu" else _bound_to_host(graph)
    for node in graph.nodes:
        from_device = any(map(on_device, node.inputs))
        try:
            on_cpu = target.device == "cpu" or node.reads_to_gpu
            stage = _on_cpu(node) if on_cpu else _stage(node, from_device, node.id in bound_to_host, target)
        except SpecError as e:
            problems.append((node, str(e)))
            stage = "gpu" if from_device else "cpu"  # the following nodes are checked with this assumption
        for name, edge in node.args.items():
            if on_device(edge):
                problems.append((node, f"argument {name!r} comes from the GPU ({graph.node(edge).name}); arguments are "
                                       "computed on the CPU"))  # fmt: skip
        stages.append(stage)
    return stages, problems


def is_late(node: Node) -> bool:
    """Return whether the node runs on the GPU but returns its outputs in host memory, which exist only after the GPU
    has finished."""
    return node.op.output_after_sync and node.stage != "cpu"


def _on_cpu(node: Node) -> Stage:
    if "cpu" not in node.op.stages:
        raise SpecError(f"{node.op.name} runs only on {', '.join(node.op.stages)}, and there is no GPU")
    return "cpu"


def _accepts_gpu(node: Node) -> bool:
    return node.op.accepts_gpu or node.device == "cpu"


def _bound_to_host(graph: Graph) -> set[int]:
    """Return the ids of the nodes that must stay on the host, unless the user sets their device: a node that runs only
    on the CPU, or an argument, needs their output."""
    bound: set[int] = set()
    pending: list[Edge] = []
    for node in graph.nodes:
        if not {"mixed", "gpu"} & set(node.op.runs_in()) and not _accepts_gpu(node):
            pending += node.inputs
        pending += node.args.values()
    while pending:
        node = graph.node(pending.pop())
        if node.id not in bound:
            bound.add(node.id)
            pending += node.inputs
    return bound


def _stage(node: Node, on_device: bool, bound_to_host: bool, target: Target) -> Stage:
    stages = node.op.runs_in()
    if node.device in ("mixed", "gpu"):
        if node.device not in stages:
            raise SpecError(f"with these arguments, {node.op.name} runs only on {', '.join(stages)}")
        if node.device == "mixed" and on_device:
            raise SpecError("mixed operators take CPU input; this input is on the GPU")
        return node.device
    if node.device == "cpu" or (bound_to_host and not on_device):
        return _on_cpu(node)
    if on_device:
        if "gpu" in stages:
            return "gpu"
        if _accepts_gpu(node):
            return "cpu"
        raise SpecError(
            f"{node.op.name} has no GPU kernel (it runs on {', '.join(stages)}), but its input is on the "
            "GPU; move it before the decoder, or set `device: cpu` for it"
        )
    if "mixed" in stages and target.auto_mixed:
        return "mixed"
    if "cpu" in stages:
        return "cpu"
    return stages[0]
