"""Checkpoints of the dynamic mode: the states of readers and random generators, as JSON."""

from __future__ import annotations

import glob
import json
import re
import string
from pathlib import Path
from typing import Any, NamedTuple

from ...ops.errors import ArgumentNameError, ArgumentTypeError, ArgumentValueError
from ...ops.storage.json_text import parse_json

_VERSION = 2
"""Version of the JSON format of checkpoints, which is DALI's."""
_OWN = "__op_"
"""Prefix of the names that `register` generates for unnamed objects."""


class StateEntry(NamedTuple):
    """State of a registered reader or random generator: a Python object, or text if the state was loaded."""

    state: Any
    type_name: str | None = None
    """Name of the class that the state belongs to; None for any class."""


class Checkpoint:
    """States of readers and generators by name. Register the objects, then `collect` and `save` their states. Later,
    `load` the states and register objects of the same kinds under the same names. Each continues from its state at
    once."""

    def __init__(self) -> None:
        self._ops: dict[str, Any] = {}
        self._states: dict[str, StateEntry] = {}
        self._dirty: set[str] = set()
        """Names of states that were loaded or set, but not yet passed to their objects."""
        self._complete = self._loaded = False
        self._next_number: int | None = None
        """Number of the next file to save; None before the first one."""

    def __len__(self) -> int:
        return len(self._ops)

    def __contains__(self, name: object) -> bool:
        return str(name) in self._ops

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all registered readers and random generators."""
        return tuple(self._ops)

    @property
    def is_complete(self) -> bool:
        """Whether `collect` has stored the states of all objects, and none were loaded since."""
        return self._complete

    @property
    def is_loaded(self) -> bool:
        """Whether the states come from a file or text, by `load` or `deserialize`."""
        return self._loaded

    def clear(self) -> None:
        """Remove all registered objects and their states."""
        self.__init__()  # type: ignore[misc]

    def register(self, op: Any, name: str | None = None) -> str:
        """Register ``op``, a reader or generator, under ``name`` or a generated name, and return the name. If a state
        was loaded for that name, ``op`` gets it.

        Raises TypeError for an object without a state, and for one of another type than the earlier object or loaded
        state of this name; ValueError for an empty name, and for one like a generated name; RuntimeError for a second
        name of one object, and for a new name after `collect`; KeyError for a name that a loaded checkpoint does not
        contain.
        """
        if not (hasattr(op, "get_state") and hasattr(op, "set_state")):
            raise ArgumentTypeError(f"{op!r} has no state; register readers and RNGs")
        known = next((n for n, o in self._ops.items() if o is op), None)
        if name is not None and (not name or name.startswith(_OWN)):
            raise ArgumentValueError(f"a name must not be empty or begin with {_OWN!r}, got {name!r}")
        if name is None:
            name = known or f"{_OWN}{len(self._ops)}"
        elif known not in (None, name):
            raise RuntimeError(f"the object is already registered as {known!r}, and cannot also be {name!r}")
        if name not in self._ops and self._complete:
            raise RuntimeError(f"{name!r} is new, but collect() has completed the checkpoint; call clear() first")
        if name not in self._ops and self._loaded and name not in self._states:
            listed = ", ".join(self._states)
            raise ArgumentNameError(f"the loaded checkpoint has no state for {name!r}; it has: {listed}")
        before = self._ops.get(name, op)
        if type(before) is not type(op):
            raise ArgumentTypeError(f"{name!r} is a {type(before).__qualname__}: it cannot be replaced by a "
                                    f"{type(op).__qualname__}")  # fmt: skip
        self._ops[name] = op
        self._apply(name)
        return name

    def _apply(self, name: str) -> None:
        if name not in self._dirty or name not in self._ops:
            return
        (state, kind), op = self._states[name], self._ops[name]
        if kind is not None and kind != type(op).__qualname__:
            raise ArgumentTypeError(f"the state of {name!r} belongs to a {kind}, not to a {type(op).__qualname__}")
        op.set_state(state)
        self._dirty.discard(name)

    def collect(self) -> None:
        """Get the states of all registered objects and store them here. Raises RuntimeError if there is a state of an
        object that is not registered."""
        self._check_known()
        self._states = {n: StateEntry(op.get_state(), type(op).__qualname__) for n, op in self._ops.items()}
        self._dirty.clear()
        self._complete, self._loaded = True, False

    def restore(self) -> None:
        """Pass each state to its object, if not done yet. Raises RuntimeError if an object or a state is missing."""
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
        """Return the state of the object ``name``: a text if it was loaded, None before `collect`. Raises KeyError."""
        if str(name) not in self._ops:
            raise KeyError(f"nothing is registered as {name!r}")
        return self._states.get(str(name), StateEntry(None)).state

    def set_state(self, name: str, value: Any, op_type: Any = None) -> None:
        """Set the state of ``name``. The object gets it when it is registered, or by `restore`. ``op_type``, a class or
        its name, is compared with the object's class. Raises KeyError after `collect` if nothing is registered as
        ``name``, TypeError for another ``op_type``."""
        if op_type is not None and not isinstance(op_type, (str, type)):
            raise ArgumentTypeError(f"op_type is a class or its name, got {op_type!r}")
        if self._complete and str(name) not in self._ops:
            raise KeyError(f"nothing is registered as {name!r}")
        self._states[str(name)] = StateEntry(value, op_type.__qualname__ if isinstance(op_type, type) else op_type)
        self._dirty.add(str(name))

    def serialize(self) -> str:
        """Return the states as JSON. Raises RuntimeError if there are none."""
        if not self._states:
            raise RuntimeError("the checkpoint has no states; call collect() first")
        states = {n: {"state": str(state), "type": kind} for n, (state, kind) in self._states.items()}
        return json.dumps({"version": _VERSION, "states": states})

    def deserialize(self, data: str) -> None:
        """Replace the states by those in ``data``, a text that `serialize` returned. Raises ValueError for any other
        text."""
        try:
            content = parse_json(data)
            version = content["version"]
            states = {str(n): StateEntry(str(v["state"]), v.get("type")) for n, v in content["states"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ArgumentValueError("this is not a checkpoint of the dynamic mode") from None
        if version != _VERSION:
            raise ArgumentValueError(f"the checkpoint's version is {version}, not {_VERSION}")
        odd = [n for n, entry in states.items() if not isinstance(entry.type_name, str | None)]
        if odd:
            raise ArgumentValueError(f"the type of {odd[0]!r} in the checkpoint is not a string")
        self._states = states
        self._dirty = set(states)
        self._complete, self._loaded = False, True
        for name in self._ops:
            self._apply(name)

    def save(self, filename: str) -> str:
        """Write the states to a file and return its name. ``{seq}`` in ``filename`` (also ``{seq:04d}``) becomes the
        next free number. Missing folders are created. Raises RuntimeError if there are no states, ValueError without
        ``{seq}``."""
        files = _numbered(filename)
        number = max(files, default=-1) + 1 if self._next_number is None else self._next_number
        while Path(filename.format(seq=number)).exists():
            number += 1
        path = Path(filename.format(seq=number))
        text = self.serialize()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text(text)
        part.replace(path)
        self._next_number = number + 1
        return str(path)

    def load(self, filename: str) -> str:
        """Load the states from the file with the highest number in place of ``{seq}``, and return its name. Raises
        FileNotFoundError if there is none, ValueError for another kind of file, or without ``{seq}``."""
        files = _numbered(filename)
        if not files:
            raise FileNotFoundError(f"there is no checkpoint {filename}")
        number = max(files)
        self.deserialize(Path(files[number]).read_text())
        self._next_number = number + 1
        return files[number]


def _numbered(filename: str) -> dict[int, str]:
    """Return the existing files whose names match ``filename`` with a number in place of ``{seq}``, by that number.
    Raises ValueError for fields other than ``{seq}``."""
    parts = [(text, field) for text, field, _, _ in string.Formatter().parse(filename)]
    if [field for _, field in parts if field is not None] != ["seq"]:
        raise ArgumentValueError(f"the name of a checkpoint has {{seq}} in it once, no other field, got {filename!r}")
    shape = "".join(glob.escape(text) + ("*" if field else "") for text, field in parts)
    pattern = re.compile("".join(re.escape(text) + ("([0-9]+)" if field else "") for text, field in parts))
    matches = [(pattern.fullmatch(path), path) for path in glob.glob(shape)]
    return {int(m.group(1)): path for m, path in matches if m}
