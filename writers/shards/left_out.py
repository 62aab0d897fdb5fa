"""Log the samples that a job leaves out on purpose: one line of left_out.jsonl for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.batch import I32, I64, Origin, Samples
from ...ops.storage.json_text import parse_json


@dataclass(frozen=True, slots=True)
class LeftOutRows:
    """Lines of left_out.jsonl (samples that were left out on purpose), in the job's order. They are stored as columns,
    because there may be as many of them as of written samples."""

    positions: I64
    """Position of each sample in the job's order, [N]."""
    parts: I32
    """Number of each row's item if its sample was split, -1 if it was not, [N]."""
    lines: list[str]
    """JSON of each sample with a final newline, N texts."""

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, selected: npt.NDArray[np.intp]) -> LeftOutRows:
        """Return the rows whose indices are ``selected``."""
        return LeftOutRows(self.positions[selected], self.parts[selected], [self.lines[i] for i in selected.tolist()])

    @staticmethod
    def joined(rows: Iterable[LeftOutRows]) -> LeftOutRows:
        """Join several sets of lines into one, ordered by position and part."""
        all_rows = [r for r in rows if len(r)]
        if not all_rows:
            return NOTHING_LEFT_OUT
        positions = np.concatenate([r.positions for r in all_rows])
        parts = np.concatenate([r.parts for r in all_rows])
        whole = LeftOutRows(positions, parts, [line for r in all_rows for line in r.lines])
        return whole.take(np.lexsort((parts, positions)))


NOTHING_LEFT_OUT = LeftOutRows(np.zeros(0, np.int64), np.zeros(0, np.int32), [])


def rows_without_position(origins: Sequence[Origin], operator: str, condition: str) -> LeftOutRows:
    """Return the log's lines for records that the reader ``operator`` left out, because ``condition`` does not hold.
    They have the position -1, since the job's order contains only what the reader keeps."""
    minus = np.full(len(origins), -1, np.int64)
    tail = f'"operator": {quoted(operator)}, "condition": {quoted(condition)}, "values": {{}}}}\n'
    return LeftOutRows(minus, minus.astype(np.int32), [f"{_head(-1, o)}{tail}" for o in origins])


def _head(position: int, origin: Origin) -> str:
    """Return the beginning of a line of left_out.jsonl: position and origin of its sample."""
    return (f'{{"position": {position}, "key": {quoted(origin.key)}, "source": {quoted(origin.source)}, '
            f'"record": {origin.record}, "offset": {origin.offset}, ')  # fmt: skip


def left_out_rows(
    samples: Samples, operator: str, condition: str, values: Mapping[str, npt.NDArray[Any]]
) -> LeftOutRows:
    """Return the log's lines for ``samples``. The graph node ``operator`` left them out, because ``condition`` does not
    hold for ``values`` ([N] each). The JSON is ASCII; a value that is not finite is null."""
    tail = f'"operator": {quoted(operator)}, "condition": {quoted(condition)}, "values": {{'
    names = [f"{quoted(name)}: " for name in values]
    columns = [_texts(v) for v in values.values()]
    n = len(samples)
    cells = [", ".join(map("".join, zip(names, row, strict=True))) for row in zip(*columns, strict=True)] or [""] * n
    parts = np.full(n, -1, np.int32) if samples.part is None else samples.part
    lines = []
    for origin, position, part, cell in zip(
        samples.all_origins(), samples.position.tolist(), parts.tolist(), cells, strict=True
    ):
        end = f', "part": {part}}}\n' if part >= 0 else "}\n"
        lines.append(f"{_head(position, origin)}{tail}{cell}}}{end}")
    return LeftOutRows(samples.position, parts, lines)


def _texts(values: npt.NDArray[Any]) -> list[str]:
    """Return each of ``values`` as JSON. Floats have the fewest digits that identify them."""
    if values.dtype.kind == "b":
        return ["true" if v else "false" for v in values.tolist()]
    if values.dtype.kind != "f":
        return list(map(str, values.tolist()))
    texts: list[str] = values.astype(str).tolist()
    return [t if finite else "null" for t, finite in zip(texts, np.isfinite(values).tolist(), strict=True)]


def parse_position(line: bytes) -> int:
    """Parse the position from a ``line`` of left_out.jsonl. Raises ValueError for anything else."""
    try:
        row = parse_json(line)
        position = row["position"]
        if type(position) is int and isinstance(row["values"], dict) and isinstance(row["key"], str):
            return position
    except (TypeError, KeyError):
        pass
    raise ValueError("is not a line of left_out.jsonl")
