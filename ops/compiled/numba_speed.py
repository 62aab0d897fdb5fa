"""Replace functions of Numba's compiler in which it spends much of its time by faster ones that return the same.

Numba's passes list the variables of every statement again and again, its caches of overloads compare the compiler's
flags, and every operator of two numbers is also looked up as a ufunc. That took a fifth of the time of compiling the
loops of a first job. Called by `worker`: Numba of a user's process is not changed.
"""

# Numba has no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="attr-defined, method-assign"

from __future__ import annotations

from contextlib import suppress
from functools import cache


def install() -> None:
    """Replace the functions that this version of Numba has."""
    with suppress(ImportError, AttributeError):
        _hook_flags()
    with suppress(ImportError, AttributeError):
        _hook_variables()
    with suppress(ImportError, AttributeError):
        _hook_ufuncs()


def _hook_flags() -> None:
    from numba.core.targetconfig import TargetConfig

    equal, hash_of = TargetConfig.__eq__, TargetConfig.__hash__
    hashes: dict[type, int] = {}

    def equal_flags(self, other):
        return (type(self) is type(other) and self._values == other._values) or equal(self, other)

    def hash_of_names(self):
        """Return the hash of the names of the options, as Numba does: one number per class."""
        if (known := hashes.get(type(self))) is None:
            known = hashes[type(self)] = hash_of(self)
        return known

    TargetConfig.__eq__, TargetConfig.__hash__ = equal_flags, hash_of_names


def _hook_variables() -> None:
    from numba.core import ir

    if not hasattr(ir.Inst, "_rec_list_vars"):
        return
    without_variables = {str, int, float, bool, type(None), ir.Loc}

    def _rec_list_vars(self, val):
        """Return the variables in ``val``: a variable, statement, list, tuple, dictionary or anything else."""
        if isinstance(val, ir.Var):
            return [val]
        if isinstance(val, ir.Inst):
            return val.list_vars()
        values = val.values() if isinstance(val, dict) else val if isinstance(val, list | tuple) else ()
        found = []
        for value in values:
            kind = type(value)
            if kind is ir.Var:
                found.append(value)
            elif kind not in without_variables:
                found += self._rec_list_vars(value)
        return found

    ir.Inst._rec_list_vars = _rec_list_vars


def _hook_ufuncs() -> None:
    from numba.core.typing import npydecl

    find = cache(npydecl.ufunc_find_matching_loop)

    def ufunc_find_matching_loop(ufunc, arg_types):
        return find(ufunc, tuple(arg_types))

    npydecl.ufunc_find_matching_loop = ufunc_find_matching_loop
