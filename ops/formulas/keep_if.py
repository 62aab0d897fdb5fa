"""keep_if: leave samples out of a data set on purpose, by a condition on any of their values."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SpecError
from ..types import DALIDataType, from_numpy, to_numpy
from . import expression
from .arithmetic import evaluate


class KeepIf(Operator, name="keep_if"):
    """Keep the samples for which a condition is true, and leave all others out: later steps do not see them.

    The condition is an expression with the syntax of `expr`, in which each name is one number per sample, for example
    ``width >= 256 and aspect < 2``; ``shape[1]`` is an element of a batch of lists. Numbers may come from operators on
    a GPU. A sample that is left out is not a reject: it has a line in ``left_out.jsonl`` with the condition and the
    numbers, and the exit code and ``max_errors`` do not count it. An input that is not one number rejects its sample.
    The output is true for every sample that is kept. In a spec the condition is the key ``if``, and ``out`` may be
    omitted.
    """

    inputs = (1, len(expression.LETTERS))
    accepts_gpu = True
    leaves_out = True
    example = '{op: keep_if, if: "shape[0] >= 256 and shape[1] >= 256"}'

    condition: Annotated[str, Arg("expression that is true for the samples to keep")] = "a"
    names: Annotated[tuple[str, ...], Arg("names of the inputs in the condition; a, b, ... by default")] = ()

    def check(self) -> None:
        tree = expression.parse(self.condition)
        known = self.names or expression.LETTERS
        unknown = [n for n in expression.names(tree) if n not in known]
        if unknown:
            raise SpecError(f"{unknown[0]!r} in the condition names no input")
        expression.check_constants(tree)

    def selects(self) -> str:
        return f"keeps samples with {self.condition}"

    def infer(self, *specs: Spec) -> Spec:
        known = dict(zip(self._names(len(specs)), specs, strict=True))
        for name, spec in known.items():
            if spec.shape is not None and any(d not in (None, 1) for d in spec.shape):
                index = f"{name}[{', '.join('0' * len(spec.shape))}]"
                raise SpecError(f"{name} is {spec}, and a condition takes one number per sample; write an element, "
                                f"such as {index}, or compute one number of it before")  # fmt: skip
        used = expression.names(expression.parse(self.condition))
        dtypes = {n: known[n].dtype for n in used}
        if all(dtypes.values()):
            self._typed({n: to_numpy(d) for n, d in dtypes.items() if d is not None})
        return Spec((), DALIDataType.BOOL, "")

    def cpu(self, ctx: Context, *batches: Batch) -> Batch:
        names, n = self._names(len(batches)), len(ctx.samples)
        sound = np.ones(n, np.bool_)
        for name, batch in zip(names, batches, strict=True):
            for i in np.flatnonzero(batch.sizes != 1).tolist():
                shape = " x ".join(map(str, batch.shapes[i].tolist()))
                ctx.reject(i, "bad_shape", f"{name} has the shape {shape}, and a condition takes one number")
                sound[i] = False
        selected = np.flatnonzero(sound)
        values = {name: b.data[b.offsets[selected]] for name, b in zip(names, batches, strict=True)}
        with np.errstate(all="ignore"):
            found = evaluate(self._typed({name: v.dtype for name, v in values.items()}), values)
        keep = np.ones(n, np.bool_)
        keep[selected] = found != 0
        if not keep.all():
            columns: dict[str, npt.NDArray[Any]] = {}
            for name, v in values.items():
                columns[name] = np.zeros(n, v.dtype)
                columns[name][selected] = v
            ctx.leave_out(~keep, columns)
        return Batch(keep, np.arange(n, dtype=np.int64), np.empty((n, 0), np.int32), "", ctx.samples)

    def _names(self, inputs: int) -> tuple[str, ...]:
        names = self.names or expression.LETTERS[:inputs]
        if len(names) != inputs:
            raise SpecError(f"names {len(names)} inputs, got {inputs}")
        missing = set(expression.names(expression.parse(self.condition))) - set(names)
        if missing:
            raise SpecError(f"{min(missing)!r} in the condition names no input")
        return names

    def _typed(self, dtypes: dict[str, np.dtype[Any]]) -> expression.Typed:
        result = expression.typed(expression.parse(self.condition), dtypes)
        if result.dtype.kind not in "biu":
            raise SpecError(f"the condition is a number of type {from_numpy(result.dtype).name}, and must be true or "
                            "false; compare it, as in `score > 0.5`")  # fmt: skip
        return result
