"""Building a graph from a spec. All mistakes of the spec are found before an error is raised.

After a mistake in a step, the names of its outputs stand for unknown batches, so that later steps are still checked,
and no mistake is reported twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...ops.base import Arg, Operator, nearest, parameters, type_name
from ...ops.base import Spec as BatchSpec
from ...ops.errors import SpecError
from ...ops.formulas import expression
from ...ops.sequences.split_samples import SplitSamples
from ...readers.base import Reader
from ...readers.external_source import ProgramInput
from ...writers.base import FieldConfig, Writer, make_writer, options_of
from ...writers.formats.columns import is_encoded
from ..compile.infer import check_numbers, infer_node
from ..compile.place import Target, impossible
from ..compile.prune import prune
from ..graph.arguments import check_argument, no_argument
from ..graph.builder import GraphBuilder, parity_defaults
from ..graph.conditionals import Merge, Split
from ..graph.nodes import Edge, Graph
from ..plugins import NotRunError, find_operator, known_writer, load_installed_plugins, load_plugin
from ..problems import Mark, Problem, Problems, show
from . import slips
from .expressions import EXPRESSIONS, Expression, without_indices
from .model import Condition, Ref, Spec, Step, WriteField, parse_spec
from .text import Value

ENCODERS = {"jpeg": "encoders.image", "png": "encoders.image", "webp": "encoders.image", "avif": "encoders.image",
            "flac": "encoders.audio", "wav": "encoders.audio"}  # fmt: skip
"""Name of the operator that encodes an output field, by the encoding that ``write:`` requests."""
_REF = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class BuiltSpec:
    """A spec with the graph that was built from it."""

    spec: Spec
    graph: Graph
    """The graph that was built. Its outputs are the encoded fields to write or, without `write:`, the spec's
    ``outputs``."""
    writer: Writer | None = None
    fields: Mapping[str, FieldConfig] | None = None
    """For each output of the graph, the form in which the writer stores it; None without `write:`."""
    notes: tuple[Problem, ...] = ()
    """Remarks for the user that are not mistakes: arguments that are deprecated or have no effect."""


def load_spec(path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> BuiltSpec:
    """Read, check and build the spec in the file ``path`` (YAML or JSON).

    ``overrides`` set variables and values (``{"data": "/mnt", "pipeline.batch_size": 32}``). Raises SpecErrors with all
    mistakes, each with its position in the text.
    """
    problems = Problems()
    spec = parse_spec(path, overrides or {}, problems)
    if spec is None:
        problems.raise_any()
        raise AssertionError("a spec that cannot be read has a problem")
    return build(spec, problems)


def build(spec: Spec, problems: Problems | None = None) -> BuiltSpec:
    """Build the graph of ``spec``. ``problems`` holds the mistakes that parsing the spec found. Raises SpecErrors."""
    problems = Problems() if problems is None else problems
    not_run: list[NotRunError] = []
    plugins_ran = _load_plugins(spec, problems, not_run)
    builder = _Build(spec, problems, all_known=plugins_ran)
    built = builder.run()
    problems.raise_any()
    if builder.unknown and not_run:
        raise not_run[0]
    _check_stages(spec, built.graph, problems)
    problems.raise_any()
    return built


def _load_plugins(spec: Spec, problems: Problems, not_run: list[NotRunError]) -> bool:
    """Run the spec's plugins (Python files that define operators), unless the spec already has mistakes. Return whether
    all plugins ran, so that all operators are known. Plugins that were not allowed to run are added to ``not_run``."""
    if spec.plugins and problems:
        return False
    for plugin in spec.plugins:
        try:
            load_plugin(plugin.name)
        except NotRunError as e:
            not_run.append(e)
        except SpecError as e:
            problems.add(plugin.mark, e)
    return not (problems or not_run) or not spec.plugins


def _check_stages(spec: Spec, graph: Graph, problems: Problems) -> None:
    """Report operators that cannot run on the device that the spec requests. A spec for any device must work on a
    GPU."""
    target = Target("cpu") if spec.pipeline.device == "cpu" else Target("null")
    for node, text in impossible(prune(graph), target):
        problems.add(node.mark, f"{node.mark.label if node.mark else node.name}: {text}")


def _find(name: str) -> tuple[type[Operator] | None, str]:
    """Return the class of the operator ``name`` and an empty text, or None and the reason for which there is no such
    operator. Specs cannot use internal operators (``_...``)."""
    if name.startswith("_"):
        return None, f"there is no operator {name!r}"
    try:
        return find_operator(name), ""
    except SpecError as e:
        return None, str(e)


# -- names ------------------------------------------------------------------------------------------------------------


def _takes(cls: type[Operator], argument: str, value: Any) -> bool:
    """Return whether ``value`` is valid for ``argument`` of operator ``cls``."""
    try:
        check_argument(cls, argument, value)
    except SpecError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Partial:
    """Marker of a batch name that only one branch of a conditional defines, so that it has no value after the
    conditional."""

    branch: str
    label: str


Known = Edge | _Partial | None
"""The meaning of a batch name: an edge of the graph (an operator's output), or `_Partial`. None after a mistake in the
step that outputs it."""


class _Build:
    def __init__(self, spec: Spec, problems: Problems, *, all_known: bool) -> None:
        self.spec = spec
        self.problems = problems
        self.all_known = all_known
        """Whether all operators are registered, so that an unknown operator name is a mistake."""
        self.graph = GraphBuilder(defaults=parity_defaults(spec.pipeline.parity))
        self.inferred = 0
        """Number of nodes at the start of the graph whose output types are already inferred."""
        self.names: dict[str, Known] = {}
        self.notes = Problems()
        self.missing: set[str] = set()
        """Batch names that were used without being defined; each is reported only once."""
        self.unknown: list[str] = []
        """Names of unknown operators. A plugin that was not run may define them."""

    def run(self) -> BuiltSpec:
        self.steps(self.spec.graph)
        outputs: dict[str, Edge | None] = {}
        for name, ref in self.spec.outputs:
            outputs[name] = self.look_up(ref, f"outputs: {name}")
        writer: Writer | None = None
        configs: dict[str, FieldConfig] | None = None
        if self.spec.write is not None:
            writer = self.writer()
            outputs, configs = self.fields(outputs)
            self.check_writer(writer, outputs, configs)
        known = {name: edge for name, edge in outputs.items() if edge is not None}
        try:
            graph = self.graph.build(known)
        except SpecError as e:
            if not self.unknown:
                self.problems.add(None, e)
            graph = Graph((), {})
        return BuiltSpec(self.spec, graph, writer, configs, tuple(self.notes))

    def look_up(self, ref: Ref, label: str) -> Edge | None:
        """Return the edge of the graph for the batch name ``ref``; None if there is no such batch. A missing name is
        reported once."""
        if ref.name in self.missing and ref.name not in self.names:
            return None
        if not self.spec.graph:
            return None  # the missing steps were reported
        if ref.name not in self.names:
            hint = nearest(ref.name, self.names) or slips.dollar(f"${ref.name}", self.spec.vars)
            if not hint:
                hint = f"; known here: {', '.join(self.names)}" if self.names else "; no step before defines one"
            self.problems.add(ref.mark, f"{label}: there is no batch {ref.name!r}{hint}")
            self.missing.add(ref.name)
            return None
        edge = self.names[ref.name]
        if isinstance(edge, _Partial):
            other = "else" if edge.branch == "then" else "then"
            self.problems.add(
                ref.mark,
                f"{label}: {ref.name!r} is defined only in the `{edge.branch}` branch of {edge.label}; "
                f"define it also in `{other}`, or before the conditional",
            )
            self.names[ref.name] = None
            return None
        return edge

    # -- steps --------------------------------------------------------------------------------------------------

    def steps(self, steps: Sequence[Step | Condition]) -> None:
        for step in steps:
            if isinstance(step, Condition):
                self.condition(step)
            else:
                edges = self.step(step)
                for i, ref in enumerate(step.outputs):
                    if ref.name != "_":
                        self.names[ref.name] = edges[i] if i < len(edges) else None

    def latest(self) -> list[str]:
        """Return the names of the outputs of the last step, for hints. Steps that only draw random numbers are
        ignored."""
        named_edges = [(edge, name) for name, edge in self.names.items() if isinstance(edge, Edge)]
        last = max((edge.node for edge, _ in named_edges if not self.draws(edge.node)), default=-1)
        return [name for edge, name in sorted(named_edges) if edge.node == last]

    def draws(self, node: int) -> bool:
        """Return whether the node with the id ``node`` draws random numbers."""
        return self.graph.nodes[node].op.name.startswith("random.")

    def step(self, step: Step) -> tuple[Edge, ...]:
        """Add one step of the spec to the graph. Return the edges of its outputs; none if the step has a mistake."""
        cls = self.operator(step)
        inputs = [self.look_up(ref, step.label) for ref in step.inputs]
        if step.op in EXPRESSIONS:
            return self.expression_step(step, EXPRESSIONS[step.op])
        args, fine = self.arguments(cls, step.args, step.arg_marks, step.label, step.mark)
        if cls is None:
            return ()
        before = len(self.problems.found)
        low, high = cls.inputs
        if not low <= len(inputs) <= high and not step.broken:
            expected = str(low) if low == high else f"{low} to {high}"
            hint = "" if step.inputs else slips.no_input(cls, self.latest())
            self.say(step, f"takes {expected} input{'s' * (expected != '1')}, got {len(inputs)}{hint}")
        if step.device != "auto" and step.device not in cls.devices:
            self.say(step, f"cannot run on {step.device}; it has kernels for {', '.join(cls.devices)}")
        if issubclass(cls, ProgramInput) and self.spec.write is not None:
            self.say(step, "is fed by a Python program, and a job that writes has none; read data with readers.*")
        edges = [e for e in inputs if e is not None]
        if len(self.problems.found) > before or not fine or step.broken or len(edges) < len(inputs):
            return ()
        return self.add(step, cls, edges, args)

    def add(self, step: Step, cls: type[Operator], inputs: Sequence[Edge], args: Mapping[str, Any]) -> tuple[Edge, ...]:
        try:
            edges = self.graph.add(cls, inputs, args, name=step.name, device=step.device, seed=step.seed,
                                   mark=replace(step.mark, label=step.label))  # fmt: skip
        except SpecError as e:
            self.say(step, str(e))
            return ()
        if len(step.outputs) != len(edges) and (step.outputs or not cls.leaves_out):
            self.say(step, f"has {len(edges)} output{'s' * (len(edges) != 1)}, but `out` names {len(step.outputs)}"
                     " (write _ for outputs that you do not want)")  # fmt: skip
        return edges if self.infer(step.mark, step.label) else ()

    def infer(self, mark: Mark, label: str) -> bool:
        """Infer the output types of the nodes that were added since the last call. Report inputs that an operator does
        not accept; return True if there are none."""
        fine = True
        nodes = self.graph.nodes
        for node in nodes[self.inferred :]:
            try:
                check_numbers(node.op, {name: nodes[e.node].specs[e.output] for name, e in node.args.items()})
                specs = infer_node(node, [nodes[e.node].specs[e.output] for e in node.inputs])
            except SpecError as e:
                self.problems.add(mark, f"{label}: {e}")
                specs, fine = (BatchSpec(),) * node.op.num_outputs, False
            nodes[node.id] = replace(node, specs=specs)
            if remark := node.op.remark():
                self.notes.add(mark, f"{label}: {remark}")
        self.inferred = len(nodes)
        return fine

    def say(self, step: Step, text: str) -> None:
        self.problems.add(step.mark, f"{step.label}: {text}")

    def operator(self, step: Step) -> type[Operator] | None:
        if not step.op:
            return None
        cls, problem = _find(step.op)
        if cls is None:
            # entry points cost time, and are loaded only for names that are not known yet
            broken = load_installed_plugins()
            cls, problem = _find(step.op)
            if cls is None and not self.all_known:
                self.unknown.append(step.op)
            elif cls is None:
                problem = (
                    f"there is no operator {step.op!r}{hint}"
                    if (hint := slips.operator(step.op, {k: v.to_python() for k, v in step.args.items()}))
                    else problem
                )
                self.problems.add(step.op_mark, f"{step.label}: {'; '.join([problem, *broken])}")
        return cls

    def arguments(
        self, cls: type[Operator] | None, values: Mapping[str, Value], marks: Mapping[str, Mark], label: str, mark: Mark
    ) -> tuple[dict[str, Any], bool]:
        """Return (arguments of a step for its graph node, whether all are valid). For an unknown operator (``cls``
        None), only `$names` are checked."""
        args: dict[str, Any] = {}
        fine = True
        for key, value in values.items():
            data = self.argument(value, label)
            if data is None and not (value.sound and value.data is None):
                fine = False
                args[key] = None
                if cls is not None and key not in parameters(cls):
                    self.problems.add(marks[key], f"{label}: {no_argument(cls, key)}")
            elif cls is not None:
                try:
                    name, args_value = check_argument(cls, key, data)
                    args[name] = args_value
                    self.note(parameters(cls)[key].arg, key, marks[key], label)
                except SpecError as e:
                    known = key in parameters(cls)
                    hint = slips.value(data, takes=partial(_takes, cls, key)) if known else slips.key("step", key)
                    self.problems.add(value.mark if known else marks[key], f"{label}: {e}{hint}")
                    fine = False
                    args[key] = None
        if cls is not None:
            for p in parameters(cls).values():
                if p.required and p.name not in args:
                    self.problems.add(mark, f"{label}: needs argument {p.name!r} ({type_name(p.type)}: {p.arg.help})")
                    fine = False
        return args, fine

    def note(self, arg: Arg, key: str, mark: Mark, label: str) -> None:
        if arg.deprecated:
            self.notes.add(mark, f"{label}: argument {key!r} is deprecated; use {arg.deprecated!r}")
        elif arg.ignored:
            self.notes.add(mark, f"{label}: argument {key!r} has no effect: {arg.ignored}")

    def argument(self, value: Value, label: str) -> Any:
        """Return the value of an argument: a constant or, for a `$name`, the edge of the batch. Return None after
        reporting a mistake."""
        if not value.sound:
            return None
        data = value.data
        if isinstance(data, str) and data.startswith("$"):
            if data.startswith("$$"):
                return data[1:]
            if data.startswith(("$.", "$[")):  # a path in JSON
                return data
            if data.startswith("${"):  # written as $${; `substitute` has already replaced references
                return data
            match = _REF.fullmatch(data)
            if match is None:
                hint = slips.dollar(data, self.spec.vars) or "; write $$ for a plain $"
                self.problems.add(value.mark, f"{label}: {show(data)} is not the name of a batch{hint}")
                return None
            return self.look_up(Ref(match[1], value.mark), label)
        inner = data.values() if isinstance(data, dict) else data if isinstance(data, tuple) else ()
        for item in inner:
            if isinstance(item.data, str) and _REF.fullmatch(item.data):
                self.problems.add(item.mark, f"{label}: {item.data} is inside a list or mapping; an argument is "
                                  "either one whole batch (stack them first) or a constant")  # fmt: skip
                return None
        return value.to_python()

    # -- expressions and conditionals -----------------------------------------------------------------------------

    def expression_step(self, step: Step, kind: Expression) -> tuple[Edge, ...]:
        text = step.args.get(kind.key)
        for key in step.args:
            if key != kind.key:
                hint = nearest(key, [kind.key])
                self.problems.add(step.arg_marks[key], f"{step.label}: has no argument {key!r}{hint}")
        if step.inputs:
            self.problems.add(step.inputs[0].mark, f"{step.label}: takes its inputs from the names in the expression; "
                              "remove `in:`")  # fmt: skip
        if text is None:
            self.say(step, f'needs argument {kind.key!r} ("{kind.example}")')
            return ()
        if not text.sound:
            return ()
        if not isinstance(text.data, str):
            self.problems.add(text.mark, f"{step.label}: {kind.key} must be text, got {text.kind}")
            return ()
        inputs = self.expression_inputs(text.data, text.mark, step.label)
        if inputs is None or step.broken:
            return ()
        args = {kind.argument: text.data, "names": tuple(inputs)}
        if step.op == "expr":
            args = without_indices(text.data, tuple(inputs))
        return self.add(step, find_operator(step.op), list(inputs.values()), args)

    def expression_inputs(self, text: str, mark: Mark, label: str) -> dict[str, Edge] | None:
        """Return the edges of the batches that the expression ``text`` names, by name; None if it has a mistake."""
        try:
            names = expression.names(expression.parse(text))
        except SpecError as e:
            self.problems.add(mark, f"{label}: {e}")
            return None
        if not names:
            self.problems.add(
                mark, f"{label}: {show(text)} names no batch; write a constant as an argument, or use `constant`"
            )
            return None
        elements = {n: self.look_up(Ref(expression.element(n)[0], mark), label) for n in names}
        edges = {n: self.element(n, e, mark, label) for n, e in elements.items() if e is not None}
        known = {n: e for n, e in edges.items() if e is not None}
        return known if len(known) == len(names) else None

    def element(self, name: str, edge: Edge, mark: Mark, label: str) -> Edge | None:
        """Return the edge for ``name`` in an expression: ``edge`` or, for a name with an index such as ``shape[0]``, an
        edge of the indexed element."""
        indices = expression.element(name)[1]
        if not indices:
            return edge
        args = {"kinds": "i" * len(indices), "start": indices}
        edges = self.graph.add("tensor_subscript", [edge], args, mark=replace(mark, label=f"{label}: {name}"))
        return edges[0] if self.infer(mark, f"{label}: {name}") else None

    def condition(self, step: Condition) -> None:
        predicate = self.predicate(step)
        before = dict(self.names)
        ends: list[dict[str, Known]] = []
        for branch, steps in ((True, step.then), (False, step.otherwise)):
            self.names = dict(before)
            if predicate is not None:
                self.graph.enter(predicate, branch)
                self.infer(step.mark, step.label)
            self.steps(steps)
            if predicate is not None:
                self.graph.leave()
            ends.append(self.names)
        self.names = before
        then, otherwise = ends
        for name in dict.fromkeys([*then, *otherwise]):
            self.names[name] = self.merged(step, name, predicate, then, otherwise)

    def predicate(self, step: Condition) -> Edge | None:
        text, mark = step.predicate.name, step.predicate.mark
        if not text:
            return None
        plain = _REF.fullmatch(text)
        if plain:
            return self.look_up(Ref(plain[1], mark), step.label)
        inputs = self.expression_inputs(text, mark, step.label)
        if inputs is None:
            return None
        edges = self.graph.add("expr", list(inputs.values()), without_indices(text, tuple(inputs)),
                               mark=replace(mark, label=step.label))  # fmt: skip
        return edges[0] if self.infer(mark, step.label) else None

    def merged(
        self,
        step: Condition,
        name: str,
        predicate: Edge | None,
        then: Mapping[str, Known],
        otherwise: Mapping[str, Known],
    ) -> Known:
        """Return the meaning of a batch name after a conditional, given its meanings in the two branches."""
        if name not in then or name not in otherwise:
            return _Partial("then" if name in then else "else", step.label)
        a, b = then[name], otherwise[name]
        if a == b:
            return a
        if not isinstance(a, Edge) or not isinstance(b, Edge) or predicate is None:
            return a if isinstance(a, _Partial) else b if isinstance(b, _Partial) else None
        try:
            edge = self.graph.merge(predicate, a, b)
        except SpecError as e:
            self.problems.add(step.mark, f"{step.label}: {name!r}: {e}")
            return None
        return edge if self.infer(step.mark, f"{step.label}: {name!r}") else None

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self) -> Writer | None:
        write = self.spec.write
        assert write is not None
        if not write.writer:
            return None
        try:
            cls = known_writer(write.writer)
        except SpecError as e:
            self.problems.add(write.writer_mark, f"write: {e}{slips.value(write.writer, 'writer')}")
            return None
        known = options_of(cls)
        before = len(self.problems.found)
        for key in write.options:
            if key not in known:
                hint = nearest(key, [*known, "writer", "path", "shard", "fields"])
                self.problems.add(write.option_marks[key], f"write: writer {write.writer} has no option {key!r}{hint}")
        options = {k: v.to_python() for k, v in write.options.items() if k in known and v.sound}
        wrong = []
        for key, plain in options.items():
            try:
                make_writer(write.writer, {key: plain})
            except SpecError as e:
                if f"option {key!r}:" in str(e):
                    self.problems.add(write.options[key].mark, f"write: {e}")
                    wrong.append(key)
        if wrong or len(self.problems.found) > before or len(options) < len(write.options):
            return None
        try:
            return make_writer(write.writer, options)
        except SpecError as e:
            self.problems.add(write.mark, f"write: {e}")
            return None

    def fields(self, outputs: Mapping[str, Edge | None]) -> tuple[dict[str, Edge | None], dict[str, FieldConfig]]:
        """Add encoders for the fields to write. Return their edges in the graph, and the form in which the writer
        stores each field."""
        write = self.spec.write
        assert write is not None
        fields = write.fields
        if fields is None:
            fields = tuple(WriteField(name, write.mark) for name in outputs)
        edges: dict[str, Edge | None] = {}
        for field in fields:
            label = f"write.fields.{field.name}"
            if field.name not in outputs:
                if not self.spec.outputs:
                    continue  # all outputs are missing, which was reported
                known = f"; outputs: {', '.join(outputs)}" if outputs else ""
                hint = nearest(field.name, outputs) or known
                self.problems.add(field.mark, f"{label}: there is no output {field.name!r}{hint}")
                continue
            edge = outputs[field.name]
            if field.config.encode == "keep" and edge is not None and not self.comes_from_reader(edge):
                self.problems.add(field.mark, f"{label}: keep writes the bytes that were read, so it needs "
                                  "the output of a reader, of a step that makes files, or parts of them; use raw, npy, "
                                  "jpeg, png, webp, avif, flac or wav. Bytes that another step made are written as "
                                  "they are by encode: auto, with extension: and the name that they get")  # fmt: skip
                edge = None
            elif field.config.encode in ENCODERS:
                edge = self.encoder(field, edge, label)
            edges[field.name] = edge
        return edges, {field.name: field.config for field in fields}

    def comes_from_reader(self, edge: Edge) -> bool:
        """Return whether samples at ``edge`` may be files with unchanged bytes: after a reader (also through
        `split_samples` or conditionals), and after a plugin, whose output the writer checks."""
        node = self.graph.nodes[edge.node]
        if isinstance(node.op, SplitSamples):
            return edge.output < len(node.inputs) and self.comes_from_reader(node.inputs[edge.output])
        if isinstance(node.op, (Split, Merge)):
            return all(map(self.comes_from_reader, node.inputs))
        plugin = not type(node.op).__module__.startswith("dali_run.") and edge.output < len(node.specs)
        handed_on = plugin and is_encoded(node.specs[edge.output])
        return isinstance(node.op, Reader) or node.op.makes_files or handed_on

    def encoder(self, field: WriteField, edge: Edge | None, label: str) -> Edge | None:
        """Add a graph node that encodes ``field``, and return the edge of its output; None after a mistake."""
        cls = find_operator(ENCODERS[field.config.encode])
        args, fine = self.arguments(cls, field.encoder_args, field.arg_marks, label, field.mark)
        if edge is None or not fine:
            return None
        args["format"] = field.config.encode
        if field.config.quality is not None:
            args["quality"] = field.config.quality
        try:
            outputs = self.graph.add(
                cls, [edge], args, name=f"encode {field.name}", mark=replace(field.mark, label=label)
            )
        except SpecError as e:
            self.problems.add(field.mark, f"{label}: {e}")
            return None
        return outputs[0] if self.infer(field.mark, label) else None

    def check_writer(
        self, writer: Writer | None, outputs: Mapping[str, Edge | None], configs: Mapping[str, FieldConfig]
    ) -> None:
        write = self.spec.write
        if writer is None or write is None or any(e is None for e in outputs.values()) or set(configs) != set(outputs):
            return
        specs = {n: self.graph.nodes[e.node].specs[e.output] for n, e in outputs.items() if e is not None}
        try:
            writer.check(configs, specs)
        except SpecError as e:
            self.problems.add(write.mark, f"write: {e}")
