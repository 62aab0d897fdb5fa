"""Compiled interpreter of expressions on the CPU: a block of elements passes through all functions while it is in the
first cache. Numbers are float32 or int32; `expression_plan` decides which expressions it supports."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code="call-arg, unreachable"

from __future__ import annotations

from math import copysign, fabs, gcd, sqrt
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from . import expression_plan as plan

F = np.float32


@intrinsic
def _at(_typing: Any, _address: Any) -> Any:
    """Convert an address to a pointer for `numba.carray`."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


# Loops with two or three arguments and one result, all of them in the first cache. Division by zero follows IEEE 754.
inner = njit(error_model="numpy")


@inner
def _floats(op, n, at, bt, ct, to):
    """Apply function number ``op`` to ``n`` float32 values, with float32 results."""
    a, b, c = carray(_at(at), n, np.float32), carray(_at(bt), n, np.float32), carray(_at(ct), n, np.float32)
    o = carray(_at(to), n, np.float32)
    if op == plan.ADD_F:
        for k in range(n):
            o[k] = a[k] + b[k]
    elif op == plan.SUB_F:
        for k in range(n):
            o[k] = a[k] - b[k]
    elif op == plan.MUL_F:
        for k in range(n):
            o[k] = a[k] * b[k]
    elif op == plan.DIV_F:
        for k in range(n):
            o[k] = a[k] / b[k]
    elif op == plan.MIN_F:
        for k in range(n):
            o[k] = a[k] if a[k] < b[k] else b[k]
    elif op == plan.MAX_F:
        for k in range(n):
            o[k] = a[k] if a[k] > b[k] else b[k]
    elif op == plan.CLAMP_F:
        for k in range(n):
            raised = b[k] if a[k] < b[k] else a[k]
            o[k] = c[k] if c[k] < raised else raised
    elif op == plan.NEG_F:
        for k in range(n):
            o[k] = -a[k]
    elif op == plan.ABS_F:
        for k in range(n):
            o[k] = fabs(a[k])
    elif op == plan.SQRT:
        for k in range(n):
            o[k] = sqrt(a[k])
    elif op == plan.RSQRT:
        for k in range(n):
            o[k] = F(1) / F(sqrt(a[k]))
    elif op == plan.FLOOR:
        for k in range(n):
            o[k] = np.floor(a[k])
    elif op == plan.CEIL:
        for k in range(n):
            o[k] = np.ceil(a[k])


@inner
def _integers(op, n, at, bt, ct, to):
    """Apply function number ``op`` to ``n`` int32 values. Results are int32 and wrap around; comparisons and logic give
    0 or 1."""
    a, b, c = carray(_at(at), n, np.int32), carray(_at(bt), n, np.int32), carray(_at(ct), n, np.int32)
    o = carray(_at(to), n, np.int32)
    if op == plan.ADD_I:
        for k in range(n):
            o[k] = a[k] + b[k]
    elif op == plan.SUB_I:
        for k in range(n):
            o[k] = a[k] - b[k]
    elif op == plan.MUL_I:
        for k in range(n):
            o[k] = a[k] * b[k]
    elif op == plan.DIV_I:
        for k in range(n):  # exact in float64, whose quotients never round up to the next integer
            whole = np.float64(a[k]) / np.float64(b[k] if b[k] != 0 else np.int32(1))
            most = np.int32(-2147483648) if whole > 2147483647.0 else np.int32(min(whole, 2147483647.0))
            o[k] = most if b[k] != 0 else np.int32(0)
    elif op == plan.MIN_I:
        for k in range(n):
            o[k] = a[k] if a[k] < b[k] else b[k]
    elif op == plan.MAX_I:
        for k in range(n):
            o[k] = a[k] if a[k] > b[k] else b[k]
    elif op == plan.CLAMP_I:
        for k in range(n):
            raised = b[k] if a[k] < b[k] else a[k]
            o[k] = c[k] if c[k] < raised else raised
    elif op == plan.NEG_I:
        for k in range(n):
            o[k] = np.int32(0) - a[k]
    elif op == plan.ABS_I:
        for k in range(n):
            o[k] = a[k] if a[k] >= 0 else np.int32(0) - a[k]
    elif op == plan.EQ_I:
        for k in range(n):
            o[k] = a[k] == b[k]
    elif op == plan.NE_I:
        for k in range(n):
            o[k] = a[k] != b[k]
    elif op == plan.LT_I:
        for k in range(n):
            o[k] = a[k] < b[k]
    elif op == plan.LE_I:
        for k in range(n):
            o[k] = a[k] <= b[k]
    elif op == plan.GT_I:
        for k in range(n):
            o[k] = a[k] > b[k]
    elif op == plan.GE_I:
        for k in range(n):
            o[k] = a[k] >= b[k]
    elif op == plan.AND:
        for k in range(n):
            o[k] = a[k] & b[k]
    elif op == plan.OR:
        for k in range(n):
            o[k] = a[k] | b[k]
    elif op == plan.XOR:
        for k in range(n):
            o[k] = a[k] ^ b[k]


@inner
def _compared(op, n, at, bt, to):
    """Compare ``n`` pairs of float32 values by comparison number ``op``; results are 0 or 1."""
    a, b = carray(_at(at), n, np.float32), carray(_at(bt), n, np.float32)
    o = carray(_at(to), n, np.int32)
    if op == plan.EQ_F:
        for k in range(n):
            o[k] = a[k] == b[k]
    elif op == plan.NE_F:
        for k in range(n):
            o[k] = a[k] != b[k]
    elif op == plan.LT_F:
        for k in range(n):
            o[k] = a[k] < b[k]
    elif op == plan.LE_F:
        for k in range(n):
            o[k] = a[k] <= b[k]
    elif op == plan.GT_F:
        for k in range(n):
            o[k] = a[k] > b[k]
    elif op == plan.GE_F:
        for k in range(n):
            o[k] = a[k] >= b[k]
    elif op == plan.NOT_F:
        for k in range(n):
            o[k] = a[k] == 0


@inner
def _ends(kind):
    """Return the smallest and the largest number of element type ``kind``."""
    if kind == plan.U8:
        return np.int32(0), np.int32(255)
    if kind == plan.I8:
        return np.int32(-128), np.int32(127)
    if kind == plan.U16:
        return np.int32(0), np.int32(65535)
    if kind == plan.I16:
        return np.int32(-32768), np.int32(32767)
    return np.int32(-2147483648), np.int32(2147483647)


@inner
def _converted(op, n, at, kind, to):
    """Convert between float32 and int32 as cast does: halves away from zero, saturated to element type ``kind``."""
    f, i = carray(_at(at), n, np.float32), carray(_at(at), n, np.int32)
    of, oi = carray(_at(to), n, np.float32), carray(_at(to), n, np.int32)
    low, high = _ends(kind)
    if op == plan.FLOAT_OF:
        for k in range(n):
            of[k] = F(i[k])
    elif op == plan.CLIP:
        for k in range(n):
            oi[k] = min(max(i[k], low), high)
    elif op == plan.TRUE_OF:
        for k in range(n):
            oi[k] = not fabs(f[k]) < F(0.5)
    elif op == plan.ROUNDED:
        least, most = F(low), F(high)
        inside = min(most, F(2147483520.0))  # the largest float32 that fits into int32
        for k in range(n):
            v = f[k]
            w = min(v if v > least else least, inside)
            t = np.int32(w)
            up = fabs(F(w - F(t))) >= F(0.5)
            t += np.int32(copysign(F(1), w)) if up else np.int32(0)
            t = high if v >= most else t
            oi[k] = t if v == v else np.int32(0)


@inner
def _loaded(kind, address, start, period, n, as_float, to):
    """Load ``n`` elements of an input from ``start`` on as float32 or int32. If ``period`` is not 0, load its first
    ``period`` elements repeatedly."""
    of, oi = carray(_at(to), n, np.float32), carray(_at(to), n, np.int32)
    if period > 0:
        m = min(period, n)
    else:
        m = n
    if kind == plan.U8:
        u = carray(_at(address + start), m, np.uint8)
        if as_float:
            for k in range(m):
                of[k] = F(u[k])
        else:
            for k in range(m):
                oi[k] = np.int32(u[k])
    elif kind == plan.I8:
        i = carray(_at(address + start), m, np.int8)
        if as_float:
            for k in range(m):
                of[k] = F(i[k])
        else:
            for k in range(m):
                oi[k] = np.int32(i[k])
    elif kind == plan.U16:
        w = carray(_at(address + 2 * start), m, np.uint16)
        if as_float:
            for k in range(m):
                of[k] = F(w[k])
        else:
            for k in range(m):
                oi[k] = np.int32(w[k])
    elif kind == plan.I16:
        h = carray(_at(address + 2 * start), m, np.int16)
        if as_float:
            for k in range(m):
                of[k] = F(h[k])
        else:
            for k in range(m):
                oi[k] = np.int32(h[k])
    elif kind == plan.I32:
        d = carray(_at(address + 4 * start), m, np.int32)
        if as_float:
            for k in range(m):
                of[k] = F(d[k])
        else:
            for k in range(m):
                oi[k] = d[k]
    else:
        s = carray(_at(address + 4 * start), m, np.float32)
        for k in range(m):
            of[k] = s[k]
    if m == 1:
        first = oi[0]
        for k in range(1, n):
            oi[k] = first
    else:
        for k in range(m, n):
            oi[k] = oi[k - m]


@inner
def _stored(kind, at, n, address, start):
    """Store ``n`` int32 values, which fit into element type ``kind``, as elements of that type."""
    i = carray(_at(at), n, np.int32)
    if kind in (plan.U8, plan.I8):
        u = carray(_at(address + start), n, np.uint8)
        for k in range(n):
            u[k] = i[k] & 255
    else:
        w = carray(_at(address + 2 * start), n, np.uint16)
        for k in range(n):
            w[k] = i[k] & 65535


@njit(nogil=True, cache=True, error_model="numpy")
def calculate(program, sources, constants, registers, addresses, starts, periods, sizes, target, target_starts):
    """Evaluate an expression: compute ``sizes[i]`` elements of each sample i. Return False, with nothing computed, if
    the periods do not fit into a block.

    ``program`` int64[P, 5]: function, register of the result, and three arguments. ``sources`` int64[K, 4]: input, its
    element type, its register, and whether the register is float32. ``constants`` int64[C, 2]: a register, and its
    bits. ``addresses`` [inputs]: addresses of data; ``starts`` and ``periods`` [inputs, N]: where a sample begins, and
    the number of elements after which it repeats, or 0. ``target`` [3]: address, element type, and the register from
    which it is written, or -1 if the last function writes to it directly.
    """
    for i in range(len(sizes)):
        step = 1
        for q in range(len(periods)):
            if 0 < periods[q, i] < sizes[i]:
                step = step // gcd(step, periods[q, i]) * periods[q, i]
                if step > plan.BLOCK:
                    return False
    memory = np.empty((registers, plan.BLOCK + 16), np.int32)
    base = memory.ctypes.data
    places = np.empty(registers, np.int64)
    for r in range(registers):
        places[r] = base + 4 * r * (plan.BLOCK + 16)
    for q in range(len(constants)):
        row = memory[constants[q, 0]]
        value = np.int32(constants[q, 1])
        for k in range(plan.BLOCK):
            row[k] = value
    out, out_kind, out_from = target[0], target[1], target[2]
    last = len(program) - 1
    for i in range(len(sizes)):
        size = sizes[i]
        step = 1
        for q in range(len(periods)):
            if 0 < periods[q, i] < size:
                step = step // gcd(step, periods[q, i]) * periods[q, i]
        block = plan.BLOCK // step * step
        for lo in range(0, size, block):
            n = min(block, size - lo)
            for q in range(len(sources)):
                which, kind, r, as_float = sources[q, 0], sources[q, 1], sources[q, 2], sources[q, 3] != 0
                period = periods[which, i]
                if 0 < period < size:
                    if lo == 0:
                        _loaded(kind, addresses[which], starts[which, i], period, n, as_float, places[r])
                elif kind >= plan.I32 and as_float == (kind != plan.I32):
                    places[r] = addresses[which] + 4 * (starts[which, i] + lo)
                else:
                    _loaded(kind, addresses[which], starts[which, i] + lo, 0, n, as_float, places[r])
            for p in range(len(program)):
                op, a, to = program[p, 0], places[program[p, 2]], places[program[p, 1]]
                if p == last and out_from < 0:
                    to = out + 4 * (target_starts[i] + lo)
                if op >= plan.FLOAT_OF:
                    _converted(op, n, a, program[p, 3], to)
                    continue
                b, c = places[program[p, 3]], places[program[p, 4]]
                if op < plan.ADD_I:
                    _floats(op, n, a, b, c, to)
                elif op < plan.EQ_F:
                    _integers(op, n, a, b, c, to)
                else:
                    _compared(op, n, a, b, to)
            if out_from >= 0:
                _stored(out_kind, places[out_from], n, out, target_starts[i] + lo)
        for q in range(len(sources)):  # these registers may have been used for inputs
            places[sources[q, 2]] = base + 4 * sources[q, 2] * (plan.BLOCK + 16)
    _keep(memory)
    return True


@njit(nogil=True, cache=True)
def _keep(memory: Any) -> Any:
    """Keep an array alive whose address is in use: Numba frees it after this call, not after its last mention."""
    return len(memory)
