"""Pipeline: DALI's class. A graph written in Python, compiled and run by the same engine as a YAML spec."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...ops.base import parameters
from ...ops.errors import SpecError
from ..compile.plan import assign_seeds
from ..compile.prune import prune
from ..graph.as_json import dump_pipeline, parse_pipeline
from ..graph.conditionals import Split
from ..graph.nodes import KEPT
from ..settings import RunSettings
from ..spec.model import Settings as SpecSettings
from ..user_warnings import warn
from .checkpoints import check_checkpoint, dump_checkpoint, parse_checkpoint
from .data_node import DataNode
from .running import Running
from .settings import OperatorConcurrency, StreamPolicy

__all__ = ["OperatorConcurrency", "Pipeline", "StreamPolicy"]


class Pipeline(Running):
    """A data-processing graph and the engine that runs it.

    Use `pipeline_def`, or a Pipeline as context manager with `set_outputs`, or a subclass with `define_graph`.
    """

    def build(self) -> None:
        """Compile the graph, open the data sets and start worker processes; the first run does it by itself."""
        if self._plan is not None:
            return
        restored = None if self._checkpoint is None else parse_checkpoint(self._checkpoint)
        if restored is not None:
            self._run_seed = restored["seed"]
        super().build()
        if restored is not None:
            self._restore(restored)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def checkpoint(self, filename: str | os.PathLike[str] | None = None) -> bytes:
        """The state after the last batch that was handed out, as JSON: positions, of constant size. Give it to the
        constructor of an equal pipeline to go on from there; also written to ``filename``, if given."""
        return self.checkpoint_with({}, filename)

    def checkpoint_with(self, extra: Mapping[str, Any], filename: str | os.PathLike[str] | None = None) -> bytes:
        """As `checkpoint`, with plain data of an iterator's beside it."""
        plan = self.plan
        self._open()
        assert self._sources is not None
        data = dump_checkpoint(
            graph=plan.graph,
            seed=self._run_seed,
            position=self._taken,
            iteration=max(0, self._iteration - (0 if self._self_driven else self._in_flight)),
            epoch=self._epoch,
            readers={name: order for _, name, _, _, order in self._sources.readers},
            extra=extra,
        )
        if filename is not None:
            Path(filename).write_bytes(data)
        return data

    def _restore(self, state: Mapping[str, Any]) -> None:
        assert self._plan is not None
        check_checkpoint(state, self._plan.graph)
        self._taken = self._next = state["position"]
        self._iteration, self._epoch = state["iteration"], state["epoch"]
        for i in self._inputs.values():
            if i.has_source and not i.is_function:
                warn(f"{i.name}: its source is an iterable, which is read again up to the checkpoint; use a "
                     "callable that takes SampleInfo or BatchInfo")  # fmt: skip
            i.skip(self._iteration)

    @property
    def is_restored_from_checkpoint(self) -> bool:
        """The pipeline goes on from a checkpoint."""
        return self._checkpoint is not None

    @property
    def restored_extra(self) -> Mapping[str, Any]:
        """What the iterator put into the checkpoint that this pipeline was restored from."""
        if self._checkpoint is None:
            return {}
        found: Mapping[str, Any] = parse_checkpoint(self._checkpoint)["extra"]
        return found

    # -- as text ------------------------------------------------------------------------------------------------

    def serialize(self, define_graph: Any = None, filename: str | os.PathLike[str] | None = None) -> bytes:
        """The graph and the arguments of this pipeline as JSON; external_sources lose their source.

        Raises SpecError for arguments that are no plain data (Python functions).
        """
        if define_graph is not None:
            if not callable(define_graph):
                raise TypeError(
                    f"define_graph must be callable, got {define_graph!r}; serialize(filename=...) writes a file"
                )
            if self._outputs is not None:
                raise RuntimeError("define_graph must not be given where set_outputs was called")
            with self:
                result = define_graph()
            self.set_outputs(*(result if isinstance(result, (tuple, list)) else (result,)))
        data = dump_pipeline(self._builder.build(self._named_outputs()), self._arguments())
        if filename is not None:
            Path(filename).write_bytes(data)
        return data

    @classmethod
    def deserialize(
        cls, serialized_pipeline: bytes | str | None = None, filename: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Pipeline:  # fmt: skip
        """The pipeline that was serialised, built. ``kwargs`` take the place of its arguments.

        Raises ValueError where not exactly one of text and file is given.
        """
        if (serialized_pipeline is None) == (filename is None):
            raise ValueError("give either serialized_pipeline or filename")
        data = Path(filename).read_bytes() if filename is not None else serialized_pipeline
        assert data is not None
        builder, edges, arguments = parse_pipeline(data)
        made = cls(**{**arguments, **kwargs})
        made._builder = builder
        outputs = {n: e for n, e in edges.items() if not n.startswith(KEPT)}
        made._outputs = [DataNode(builder, outputs[n]) for n in sorted(outputs, key=int)]
        builder.sinks = [e for n, e in edges.items() if n.startswith(KEPT)]
        made.build()
        return made

    def deserialize_and_build(self, serialized_pipeline: bytes | str) -> None:
        """Take the graph of a serialised pipeline, and build it."""
        self._builder, edges, _ = parse_pipeline(serialized_pipeline)
        outputs = [n for n in edges if not n.startswith(KEPT)]
        self._outputs = [DataNode(self._builder, edges[n]) for n in sorted(outputs, key=int)]
        self.build()

    def to_yaml(self, names: Sequence[str] | None = None) -> str:
        """The graph and the settings as the text of a spec, with outputs called ``names`` (or as the definition's dict
        calls them). What is for Python alone is left out: ``output_dtype`` and its like, processes, checkpoints.

        Raises SpecError for Python functions.
        """
        from ..graph.conditionals import without_conditions
        from ..spec.to_yaml import to_yaml

        edges = self._named_outputs()
        keys = [n for n in edges if not n.startswith(KEPT)]
        own = names if names is not None else self._names
        called = list(own) if own is not None else [f"output{k}" for k in keys]
        if len(called) != len(keys):
            raise SpecError(f"{len(called)} names for {len(keys)} outputs")
        graph = self._builder.build({c: edges[k] for c, k in zip(called, keys, strict=True)})
        if self._seed is not None and any(isinstance(n.op, Split) for n in graph.nodes):
            # YAML writes branches down in another order, by which seeds are dealt out: they are written, too
            graph = prune(graph)
            seeds = assign_seeds(graph, self._seed)
            graph = replace(graph, nodes=tuple(replace(n, seed=seeds.get(n.id, n.seed)) for n in graph.nodes))
        sections = {"pipeline": self._section(), "on_error": {"policy": self._on_error}}
        return to_yaml(without_conditions(graph), sections=sections)

    def _section(self) -> dict[str, Any]:
        """``pipeline:`` of a spec: what is not the default there."""
        several = (self._device_id,) if isinstance(self._device_id, int) else self._device_id
        given: dict[str, Any] = {"batch_size": self._batch_size}
        if not self._auto_threads:
            given["num_threads"] = self._num_threads
        given["device"] = "cpu" if several is None else "gpu:" + ",".join(map(str, several))
        if self._seed is not None:
            given["seed"] = self._seed
        default = SpecSettings()
        if self._prefetch != default.prefetch_cpu:
            given["prefetch_queue_depth"] = self._prefetch
        return {**given, **self._run.plain()}


def _signature() -> inspect.Signature:
    """The constructor's, with every setting of a run by name."""
    given = list(inspect.signature(Pipeline.__init__).parameters.values())[1:-1]
    kind = inspect.Parameter.KEYWORD_ONLY
    rest = [inspect.Parameter(n, kind, default=p.default) for n, p in parameters(RunSettings).items()]
    return inspect.Signature([*given, *rest])


Pipeline.__signature__ = _signature()  # type: ignore[attr-defined]
