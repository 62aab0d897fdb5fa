"""Equivalents of other libraries' transforms, for `dali-run ops --like`."""

from __future__ import annotations

import re
from typing import Any

from ...ops.base import nearest, operators
from ...ops.errors import SpecError
from ..graph.legacy_names import LEGACY, class_name
from ..plugins import load_operators
from ..spec.other_libraries import bare, matches, split, table

_DALI = ("nvidia.dali.fn", "nvidia.dali.ops", "dali_run.fn", "dali_run.ops", "dali.fn", "dali.ops", "fn", "ops", "dali")


def operators_like(name: str) -> list[dict[str, Any]]:
    """Return the steps of a spec that are equivalent to ``name``, a transform of another library: ``[{"name", "steps",
    "note", "operators"}]``, one entry per library with such a transform, or only for the library in ``name``. An entry
    for a transform without an equivalent has a note and no steps. For DALI's own names, also older ones and classes,
    the operator itself is returned. Raises SpecError with the nearest names."""
    transform = name.strip().removesuffix("()")
    answers = [_answer(known, **table()[known]) for known in matches(transform)]
    dali_operator = _of_dali(transform)
    if dali_operator:
        answers.append(dali_operator)
    if not answers:
        raise SpecError(f"dali-run knows no equivalent of {name!r}{_near(transform)}")
    return answers


def _answer(name: str, steps: list[str], note: str = "") -> dict[str, Any]:
    used = [name for step in steps for name in re.findall(r"\{op: ([\w.]+)", step)]
    return {"name": name, "steps": steps, "note": note, "operators": sorted(set(used))}


def _of_dali(name: str) -> dict[str, Any] | None:
    if split(name)[0] is not None:
        return None
    load_operators()
    known = {n: n for n in operators() if not n.startswith("_")}
    known |= {alias: op.name for op in operators().values() for alias in op.aliases if not alias.startswith("_")}
    known |= {old: new for old, new in LEGACY.items() if new in known}
    spelled = {bare(n): op for n, op in known.items()} | {bare(class_name(n)): op for n, op in known.items()}
    low = name.lower()
    prefix = next((p for p in _DALI if low.startswith(p + ".")), "")
    operator = spelled.get(bare(name)) or spelled.get(bare(name[len(prefix) + 1 :] if prefix else name))
    if operator is None:
        return None
    return _answer(f"DALI's {name}", [operators()[operator].example or f"{{op: {operator}}}"])


def _near(name: str) -> str:
    library, transform_name = split(name)
    transforms = {known.partition(".")[2]: known for known in table() if library in (None, known.partition(".")[0])}
    close = nearest(transform_name.rpartition(".")[2], transforms)
    if close:
        return close
    return nearest(transform_name, operators()) or "; `dali-run ops` lists the operators"
