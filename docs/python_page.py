"""Generator of docs/python.md: the Python API, from signatures and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from importlib import import_module
from typing import Any

_HEAD = """# Python

Written by `make docs` from signatures and docstrings. `fn.*` and `ops.*` are the [operators](operators/index.md), with
stubs (`dali_run/fn.pyi`) for editors and type checkers. DALI's names that are the same here are in
[differences from DALI](dali-differences.md). `dali_run.plugin.pytorch` and `dali_run.plugin.jax` have the iterators
of `dali_run.plugin.numpy`, with tensors of PyTorch and arrays of JAX.
"""
SECTIONS: dict[str, tuple[str, ...]] = {
    "Jobs": ("dali_run.run_job", "dali_run.Report", "dali_run.OperatorReport", "dali_run.Progress"),
    "Errors": ("dali_run.DaliRunError", "dali_run.SpecError", "dali_run.JobError", "dali_run.DeviceError"),
    "Pipelines": ("dali_run.load_spec", "dali_run.pipeline_def", "dali_run.Pipeline", "dali_run.DataNode"),
    "Results": ("dali_run.tensors.TensorList", "dali_run.tensors.Tensor", "dali_run.tensors.TensorListCPU",
                "dali_run.tensors.TensorListGPU"),
    "Iterators": ("dali_run.plugin.numpy.DALIGenericIterator", "dali_run.plugin.numpy.DALIRaggedIterator",
                  "dali_run.plugin.numpy.LastBatchPolicy"),
    "Serving": ("dali_run.Server",),
    "Math on batches": ("dali_run.math",),
    "Features of TFRecord": ("dali_run.tfrecord.FixedLenFeature", "dali_run.tfrecord.VarLenFeature"),
    "Writing operators, readers, writers": (
        "dali_run.ops.base.Operator", "dali_run.ops.base.Arg", "dali_run.ops.base.Spec", "dali_run.ops.batch.Batch",
        "dali_run.ops.batch.Origin", "dali_run.ops.context.Context", "dali_run.ops.types.DALIDataType",
        "dali_run.readers.base.Reader", "dali_run.readers.base.Source", "dali_run.readers.fetch.extents.Mapped",
        "dali_run.readers.fetch.extents.Groups", "dali_run.readers.fetch.extents.expand",
        "dali_run.readers.fetch.extents.short_names", "dali_run.writers.base.Writer", "dali_run.writers.base.Shard",
        "dali_run.writers.base.Frames", "dali_run.writers.base.Refused"),
}  # fmt: skip
"""The public names, in the order of the page."""


def python_page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name) for name in names]
    return "\n".join(parts).rstrip() + "\n"


def find(name: str) -> Any:
    """Return the object with this name, or None if an optional package is missing."""
    module, _, last = name.rpartition(".")
    try:
        return getattr(import_module(module), last)
    except AttributeError:
        return import_module(name)


def _entry(name: str) -> str:
    found = find(name)
    if inspect.ismodule(found):
        functions = [(n, f) for n, f in vars(found).items() if inspect.isfunction(f) and f.__module__ == name]
        rows = [f"| `{n}{_signature(f)}` | {_cell(inspect.getdoc(f) or '')} |" for n, f in functions]
        return "\n".join([f"### {name}\n", _doc(found), "", "| | |", "|---|---|", *rows, ""])
    lines = [f"### {name}\n"]
    if inspect.isclass(found) and issubclass(found, BaseException):
        return "\n".join([*lines, _doc(found), ""])
    if inspect.isclass(found) and issubclass(found, enum.Enum):
        return "\n".join([*lines, _doc(found), "", ", ".join(f"`{m}`" for m in found.__members__), ""])
    if not dataclasses.is_dataclass(found):
        lines += ["```python", _header(found, name.rpartition(".")[2]), "```", ""]
    lines += [_doc(found), ""]
    if inspect.isclass(found):
        lines += _members(found)
    return "\n".join(lines)


def _header(found: Any, name: str) -> str:
    text = f"{name}{_signature(found)}"
    if len(text) <= 100:
        return text
    signature = inspect.signature(found)
    arguments = []
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not any(a.startswith("*") for a in arguments):
            arguments.append("*")
        arguments.append(_plain(str(p)))
    back = "" if inspect.isclass(found) else text.rpartition(")")[2]
    return f"{name}(\n" + "".join(f"    {a},\n" for a in arguments) + f"){back}"


def _signature(found: Any) -> str:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    if inspect.isclass(found):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    return _plain(str(signature.replace(parameters=parameters)))


def _plain(text: str) -> str:
    text = re.sub(r"<function <lambda> at [^>]*>", "...", text)
    text = re.sub(r"<factory>|<dataclasses\._MISSING_TYPE object at [^>]*>", "...", text)
    text = re.sub(r"\b(?:dali_run|collections|typing|pathlib|numpy)(?:\.\w+)*\.(\w+)", r"\1", text)
    text = re.sub(r"<class '?(?:\w+\.)*(\w+)'?>", r"\1", text)
    return text.replace("'", "") if " at 0x" not in text else re.sub(r"<[^>]* at 0x[^>]*>", "...", text)


def _doc(found: Any) -> str:
    return textwrap.dedent(inspect.getdoc(found) or "").strip()


def _members(cls: type) -> list[str]:
    """Return fields with their docstrings, then properties and methods of this class and its public base classes."""
    rows = [(f"{n}: {_plain(t)}", text) for n, t, text in _fields(cls)]
    seen = {n for n, _, _ in _fields(cls)}
    for name, member in _public(cls):
        if name in seen:
            continue
        text = inspect.getdoc(member) or ""
        if isinstance(member, property):
            rows.append((name, text))
        elif callable(member) or isinstance(member, (staticmethod, classmethod)):
            rows.append((f"{name}{_signature(getattr(cls, name))}", text))
    return ["| | |", "|---|---|", *(f"| `{_cell(a)}` | {_cell(b)} |" for a, b in rows), ""] if rows else []


def _public(cls: type) -> list[tuple[str, Any]]:
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        if base.__module__.startswith("dali_run"):
            found |= {n: m for n, m in vars(base).items() if not n.startswith("_") and inspect.getdoc(m) and (
                isinstance(m, (property, staticmethod, classmethod)) or inspect.isfunction(m))}  # fmt: skip
    return list(found.items())


def _fields(cls: type) -> list[tuple[str, str, str]]:
    """Return name, type and docstring of the fields of a dataclass, from its source."""
    if not dataclasses.is_dataclass(cls):
        return []
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    found = []
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            text = ""
            if (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                text = after.value.value
            kind, help = _argument(node.annotation)
            if "ClassVar" not in kind or text:
                found.append((node.target.id, kind, text or help))
    return found


def _argument(annotation: ast.expr) -> tuple[str, str]:
    """Return the type of a field, and its help if it is an operator's argument (``Annotated[int, Arg("...")]``)."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        kind, arg = annotation.slice.elts  # type: ignore[attr-defined]
        ignored = next((ast.literal_eval(k.value) for k in arg.keywords if k.arg == "ignored"), "")
        help = ast.literal_eval(arg.args[0])
        return ast.unparse(kind), f"{help} (without effect: {ignored})" if ignored else help
    return ast.unparse(annotation), ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
