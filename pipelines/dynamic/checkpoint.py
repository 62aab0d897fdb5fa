"""Checkpoint: the states of readers and random generators, as JSON."""

from __future__ import annotations

import glob
import json
import re
import string
from pathlib import Path
from typing import Any

from ...ops.errors import ArgumentTypeError, ArgumentValueError
from .contexts import EvalContext

_VERSION = 1
_OWN = "__op_"
"""Prefix of names that are made here."""


class Checkpoint:
    """States by name. Register readers and generators, `collect` their states, `save` them; later `load` them and
    register objects of the same kinds under the same names: each goes on from its state at once."""

    def __init__(self) -> None:
        self._ops: dict[str, Any] = {}
        self._states: dict[str, tuple[Any, str | None]] = {}
        """State (an object, or its text once it was loaded) and the name of the class it belongs to."""
        self._dirty: set[str] = set()
        """Names whose state was not given to an object yet."""
        self._complete = self._loaded = False
        self._made = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all registered objects."""
        return tuple(self._ops)

    @property
    def is_complete(self) -> bool:
        """`collect` was the last to change the states."""
        return self._complete

    @property
    def is_loaded(self) -> bool:
        """The states come from `load` or `deserialize`."""
        return self._loaded

    def clear(self) -> None:
        """Forget all objects and states."""
        self.__init__()  # type: ignore[misc]

    def register(self, op: Any, name: str | None = None) -> str:
        """Take care of ``op``, a reader or generator, under ``name``, or one that is made up; the name. A state that
        was loaded for the name is given to it. Raises TypeError for what has no state, ValueError for a name that
        begins as those that are made up."""
        if not (hasattr(op, "get_state") and hasattr(op, "set_state")):
            raise ArgumentTypeError(f"{op!r} has no state to keep: register readers and RNGs")
        if name is None:
            known = next((n for n, o in self._ops.items() if o is op), None)
            if known is not None:
                return known
            name = f"{_OWN}{self._made}"
            self._made += 1
        elif name.startswith(_OWN):
            raise ArgumentValueError(f"names that begin with {_OWN!r} are made by the checkpoint itself, got {name!r}")
        if self._ops.get(name) is not op:
            self._ops[name] = op
            self._complete = False
        self._apply(name)
        return name

    def _apply(self, name: str) -> None:
        if name not in self._dirty or name not in self._ops:
            return
        state, kind = self._states[name]
        op = self._ops[name]
        if kind is not None and kind != type(op).__name__:
            raise ArgumentTypeError(f"the state of {name!r} is that of a {kind}, not of a {type(op).__name__}")
        op.set_state(state)
        self._dirty.discard(name)

    def collect(self) -> None:
        """Ask all registered objects for their states. Raises RuntimeError where there is a state of an object that
        nobody registered."""
        self._check_known()
        self._states = {name: (op.get_state(), type(op).__name__) for name, op in self._ops.items()}
        self._dirty.clear()
        self._complete, self._loaded = True, False

    def restore(self) -> None:
        """Give all states that wait to their objects. Raises RuntimeError where an object or a state is missing."""
        if not self._states:
            return
        self._check_known()
        missing = self._ops.keys() - self._states.keys()
        if missing:
            raise RuntimeError(f"the checkpoint has no state for: {', '.join(sorted(missing))}")
        for name in self._ops:
            self._apply(name)

    def _check_known(self) -> None:
        unknown = self._states.keys() - self._ops.keys()
        if unknown:
            raise RuntimeError(f"the checkpoint has states of objects that are not registered: "
                               f"{', '.join(sorted(unknown))}")  # fmt: skip

    def get_state(self, name: str) -> Any:
        """The state under ``name``; a text, if it was loaded. Raises KeyError."""
        if name not in self._ops:
            raise KeyError(f"nothing is registered as {name!r}")
        return self._states[name][0]

    def set_state(self, name: str, value: Any, op_type: Any = None) -> None:
        """Set the state of ``name``; it is given to the object when that is registered, or by `restore`. ``op_type``,
        a class or its name, is compared with the object's. Raises KeyError once `collect` was called and nothing is
        registered as ``name``, TypeError for another ``op_type``."""
        if op_type is not None and not isinstance(op_type, (str, type)):
            raise ArgumentTypeError(f"op_type is a class or its name, got {op_type!r}")
        if self._complete and name not in self._ops:
            raise KeyError(f"nothing is registered as {name!r}")
        self._states[name] = value, op_type.__name__ if isinstance(op_type, type) else op_type
        self._dirty.add(name)

    def serialize(self) -> str:
        """The states as JSON. Raises RuntimeError where there are none."""
        if not self._states:
            raise RuntimeError("the checkpoint holds no states: collect() them first")
        states = {n: {"state": str(state), "type": kind} for n, (state, kind) in self._states.items()}
        return json.dumps({"dali_run_dynamic": _VERSION, "states": states})

    def deserialize(self, data: str) -> None:
        """Take the states that `serialize` wrote. Raises ValueError for another text."""
        try:
            held = json.loads(data)
            if held["dali_run_dynamic"] != _VERSION:
                raise ArgumentValueError(f"the checkpoint's version is {held['dali_run_dynamic']}, not {_VERSION}")
            states = {str(n): (str(v["state"]), v["type"]) for n, v in held["states"].items()}
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise ArgumentValueError("this is no checkpoint of the dynamic mode; one of DALI's own cannot be read "
                                     "here") from None  # fmt: skip
        self._states = states
        self._dirty = set(states)
        self._complete, self._loaded = False, True
        for name in self._ops:
            self._apply(name)

    def save(self, filename: str) -> str:
        """Write the states to a file; ``{seq}`` in its name (also ``{seq:04d}``) is the next number that is free. The
        file's name. Raises RuntimeError where there are no states."""
        text = self.serialize()
        taken = _numbered(filename)
        path = filename.format(seq=max(taken, default=-1) + 1) if _has_number(filename) else filename
        part = Path(f"{path}.part")
        part.write_text(text)
        part.replace(path)
        return path

    def load(self, filename: str) -> str:
        """Take the states of the file, of the highest number where ``{seq}`` stands in its name. The file's name.
        Raises FileNotFoundError, and ValueError for another file."""
        path = filename
        if _has_number(filename):
            found = _numbered(filename)
            if not found:
                raise FileNotFoundError(f"there is no checkpoint {filename}")
            path = found[max(found)]
        self.deserialize(Path(path).read_text())
        return path


def _has_number(filename: str) -> bool:
    return any(field == "seq" for _, field, _, _ in string.Formatter().parse(filename))


def _numbered(filename: str) -> dict[int, str]:
    """The files that a name with ``{seq}`` in it stands for, by their numbers."""
    parts = [(text, field) for text, field, _, _ in string.Formatter().parse(filename)]
    shape = "".join(glob.escape(text) + ("*" if field else "") for text, field in parts)
    wanted = re.compile("".join(re.escape(text) + ("([0-9]+)" if field else "") for text, field in parts))
    matches = [(wanted.fullmatch(path), path) for path in glob.glob(shape)]
    return {int(m.group(1)): path for m, path in matches if m and m.groups()}


def current() -> Checkpoint:
    """The checkpoint of the current `EvalContext`."""
    return EvalContext.current().checkpoint
