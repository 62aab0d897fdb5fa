"""`json_value`, the operator that reads a value of a JSON text by its path; and functions that do so for a batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch, Samples
from ..context import Context
from ..errors import SpecError
from ..kernels import Kernels
from ..types import DALIDataType

U8 = npt.NDArray[np.uint8]
ValueType = Literal["text", "int", "float"]
VALUE_SPECS: dict[str, Spec] = {
    "text": Spec((None,), DALIDataType.UINT8),
    "int": Spec((1,), DALIDataType.INT64),
    "float": Spec((1,), DALIDataType.FLOAT),
}
"""Shape and type of the operator's output, by kind of the value to read, such as ``float``."""

_kernels: Any = Kernels(".json_cpu", __package__)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9})\]|\['([^']*)'\]")
_MAX_NUMBER = 40
"""Maximum number of bytes of a text that is parsed as a number."""
_MAX_TEXT = 2**31 - 1
"""Maximum bytes of a text, because a batch stores sizes in 32 bits."""
_ABSENT = 4  # json_cpu.ABSENT


@dataclass(frozen=True, slots=True)
class Path:
    """Steps of one or several paths in JSON texts, such as ``$.a[0]``, in the form that the compiled loops of
    `json_cpu` take."""

    names: U8
    cuts: I64
    indices: I64

    @staticmethod
    def of(*texts: str) -> tuple[Path, I64]:
        """Return the steps of all paths ``texts`` one after the other, and the indices at which each path's steps begin
        and end. Raises SpecError for a text that is not a path."""
        steps: list[tuple[bytes, int]] = []
        ends = [0]
        for text in texts:
            steps += _steps(text)
            ends.append(len(steps))
        cuts = np.cumsum([0, *(len(name) for name, _ in steps)], dtype=np.int64)
        names = np.frombuffer(bytearray(b"".join(name for name, _ in steps) + b"\0"), np.uint8)
        return Path(names, cuts, np.array([i for _, i in steps], np.int64)), np.array(ends, np.int64)


def _steps(text: str) -> list[tuple[bytes, int]]:
    """Return the steps of the path ``text`` as (name, index); index is -1 for a name. Examples of paths: ``$.a[0]['b
    c']``, or without ``$``: ``a[0]['b c']``."""
    steps, at = [], 0
    rest = text.removeprefix("$") if text.startswith("$") else text if text.startswith("[") else f".{text}"
    while at < len(rest):
        found = _STEP.match(rest, at)
        if found is None:
            raise SpecError(f"{text!r} is not a path: write name, name.inner, list[0] or ['any name']")
        index = int(found[2]) if found[2] else -1
        steps.append(((found[1] or found[3] or "").encode(), index))
        at = found.end()
    return steps


def read_values(ctx: Context, data: U8, values: I64, kind: str, what: str, samples: Samples) -> Batch:
    """Convert ``values`` [N, 3] (start, size and kind of each in ``data``) to a batch of texts, int64 or float32
    numbers. Samples whose value is not such a number, or not text in UTF-8, are rejected. ``what``: name of the value
    for messages."""
    n, large = len(values), values[:, 1] > _MAX_TEXT
    for i in np.flatnonzero(large).tolist():
        ctx.reject(i, "too_large", f"{what} has {int(values[i, 1])} bytes; at most {_MAX_TEXT} are allowed")
    values = np.where(large[:, None], np.array([0, 0, _ABSENT]), values)
    sizes = values[:, 1] if kind == "text" else np.minimum(values[:, 1], _MAX_NUMBER + 1)
    ends = np.cumsum((sizes + 15) // 16 * 16)
    at = ends - (sizes + 15) // 16 * 16
    out = np.empty(int(ends[-1]) if n else 0, np.uint8)
    values, sizes = np.ascontiguousarray(np.stack((values[:, 0], sizes, values[:, 2]), axis=1)), np.empty(n, np.int64)
    _kernels.put_texts(data, values, out, at, sizes)
    if kind == "text":
        for i in np.flatnonzero(sizes < 0).tolist():
            ctx.reject(i, "corrupt_data", f"{what} is not text in UTF-8")
        return Batch(out, at, np.maximum(sizes, 0).astype(np.int32).reshape(-1, 1), "", samples)
    good = np.empty(n, np.bool_)
    numbers: npt.NDArray[Any] = np.empty(n, np.int64)
    if kind == "int":
        _kernels.put_integers(out, at, sizes, numbers, good)
    else:
        texts = [out[a : a + max(s, 0)].tobytes() for a, s in zip(at.tolist(), sizes.tolist(), strict=True)]
        numbers, good = _floats(texts)
    good = (good & (values[:, 1] <= _MAX_NUMBER)) | (values[:, 2] == _ABSENT)
    for i in np.flatnonzero(~good).tolist():
        shown = out[at[i] : at[i] + max(int(sizes[i]), 0)].tobytes()[:_MAX_NUMBER]
        number = "a whole number" if kind == "int" else "a number"
        ctx.reject(i, "corrupt_data", f"{what} is {shown.decode('utf-8', 'backslashreplace')!r}, which is not {number}")
    return Batch.from_dense(numbers.reshape(-1, 1), "", samples)


def _floats(texts: list[bytes]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Parse ``texts`` as float32 numbers. Return the numbers, and a mask of the texts that are numbers."""
    good = np.ones(len(texts), np.bool_)
    try:
        with np.errstate(over="ignore"):  # infinity, as for a number in Python
            return np.array(texts, f"S{_MAX_NUMBER}").astype(np.float64).astype(np.float32), good
    except ValueError:
        numbers = np.zeros(len(texts), np.float32)
        for i, text in enumerate(texts):
            try:
                numbers[i] = float(text)
            except ValueError:
                good[i] = False
        return numbers, good


class JsonValue(Operator, name="json_value"):
    """Read one value of a JSON text by its path: ``caption``, ``$.labels[0].name``, ``['any name'].x``.

    Output: text in UTF-8 (uint8, 1-D), or a number (int64 or float32, shape (1,)). The text of a value that is not a
    string is its JSON. Samples whose text is not JSON, or lacks the value, are rejected; ``missing: empty`` gives an
    empty text or 0 for absent values and null.
    """

    example = "{op: json_value, in: meta, path: caption, out: captions}"

    path: Annotated[str, Arg("steps to the value: caption, labels[0].name, $.caption")]
    type: Annotated[ValueType, Arg("type of the output")] = "text"
    missing: Annotated[Literal["reject", "empty"], Arg("action if the text lacks the value, or it is null")] = "reject"

    def check(self) -> None:
        Path.of(self.path)

    def infer(self, *specs: Spec) -> Spec:
        text = specs[0]
        if text.dtype not in (None, DALIDataType.UINT8) or text.ndim not in (None, 1):
            raise SpecError(f"takes JSON text, uint8[?], got {text}")
        return VALUE_SPECS[self.type]

    def cpu(self, ctx: Context, text: Batch) -> Batch:
        n, (path, _) = len(text), Path.of(self.path)
        values, results = np.zeros((n, 3), np.int64), np.empty(n, np.int64)
        data, offsets = np.ascontiguousarray(text.data), np.ascontiguousarray(text.offsets)
        _kernels.find_values(data, offsets, text.sizes, path.names, path.cuts, path.indices, values, results)
        for i in np.flatnonzero(results < 0).tolist():
            ctx.reject(i, "corrupt_data", "the text is not JSON")
        absent = results == 0
        for i in np.flatnonzero(absent).tolist() if self.missing == "reject" else ():
            ctx.reject(i, "missing_feature", f"the JSON text has no value at {self.path} (missing: empty takes it)")
        values[results < 1, 1:] = 0, _ABSENT
        return read_values(ctx, data, values, self.type, self.path, text.samples)
