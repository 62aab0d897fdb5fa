"""Borders of the shards of an output, and their names; every position is accounted for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ops.batch import I64, Samples
from ...ops.errors import JobError, SpecError
from .config import WriteConfig
from .left_out import LeftOutRows
from .manifest import OutputFiles
from .rejects import RejectRow


class Cuts:
    """Positions in shards. Where a stage is written, places in its list of positions take their part."""

    def __init__(
        self, config: WriteConfig, files: OutputFiles, start: int, total: int | None, whole: int | None
    ) -> None:
        """As `Output.open` takes them. Raises SpecError for a part that begins inside of a shard."""
        self.start = start
        self.stop = None if total is None else start + total
        """After the last position; None where that is unknown."""
        self._config = config
        self._output_files = files
        whole = whole if whole is not None else self.stop
        self._samples = config.samples_of_shard(whole, files.part)
        self._count: int | None = None
        if whole is not None and not config.by_content:
            self._count = -(-whole // self._samples) if self._samples else 1
        if files.part is not None and self._samples and not config.by_content and start % self._samples:
            raise SpecError(
                f"part {files.part[0]} begins at position {start}, inside a shard of {self._samples} samples; take "
                "WriteConfig.part_range"
            )

    def places(self, positions: I64) -> I64:
        """Places in what this output writes: the positions themselves, unless it is a stage."""
        return positions if self._output_files.addition is None else self._output_files.addition.places(positions)

    def place(self, position: int) -> int:
        """As `places`, of one."""
        return int(self.places(np.array([position]))[0])

    # -- borders --------------------------------------------------------------------------------------------------

    def _border(self, start: int) -> int | None:
        """Where the shard that holds ``start`` ends; None where that is not a matter of positions."""
        return None if self._samples is None or self._config.full else (start // self._samples + 1) * self._samples

    def end(self, start: int, stop: int, positions: I64, held: int) -> int:
        """Up to where [start, stop) belongs to one shard that holds ``held`` samples, as far as positions and the
        number of samples say so. ``positions`` are those of the samples to write."""
        border = self._border(start)
        if self._config.full and self._samples is not None:
            places = self.places(positions)
            last = int(np.searchsorted(places, start)) + max(self._samples - held, 1) - 1
            border = int(places[last]) + 1 if last < len(places) else None
        return stop if border is None else min(stop, border)

    def fitting(self, filled: int, sizes: I64) -> tuple[int, bool]:
        """How many records of ``sizes`` bytes (one at least) a shard with ``filled`` bytes still takes, and whether it
        is full with them."""
        if self._config.bytes is None:
            return len(sizes), False
        reached = filled + np.cumsum(sizes)
        n = min(len(sizes), int(np.searchsorted(reached, self._config.bytes)) + 1)
        return n, int(reached[n - 1]) >= self._config.bytes

    def complete(self, start: int, stop: int, filled: int, held: int) -> bool:
        """Whether a shard ends after its piece [start, stop), with ``filled`` bytes and ``held`` samples."""
        if self._config.full and self._samples is not None and held >= self._samples:
            return True
        return stop == self._border(start) or (self._config.bytes is not None and filled >= self._config.bytes)

    def expected(self, start: int) -> int:
        """Samples of the shard that begins at ``start``, if none is rejected; 0 where that is unknown."""
        if self._config.by_content or self._config.split:
            return 0
        border = self._border(start)
        ends = [e for e in (border, self.stop) if e]
        return max(0, min(ends) - start) if ends else 0

    # -- names ----------------------------------------------------------------------------------------------------

    def stem(self, start: int, number: int) -> str:
        """Name of the shard that begins at ``start``, the ``number``-th of this output, without suffix."""
        addition, part = self._output_files.addition, self._output_files.part
        name = self._config.name if addition is None else f"{self._config.name}-{addition.name}"
        if self._config.by_content:  # numbered as they come, by each part for itself
            mark = "" if part is None else f"-{part[0]:05d}"
            return f"{name}{mark}-{number:05d}"
        of = "" if self._count is None else f"-of-{self._count:05d}"
        return f"{name}-{start // self._samples if self._samples else 0:05d}{of}"

    # -- accounts -------------------------------------------------------------------------------------------------

    def check(
        self, due: int, start: int, stop: int, samples: Samples, rejects: Sequence[RejectRow], left_out: LeftOutRows
    ) -> None:
        """Raises JobError unless [start, stop) follows on ``due``, and ``samples``, ``rejects`` and ``left_out`` are
        each position of it exactly once."""
        if start != due or stop < start or (self.stop is not None and stop > self.stop):
            raise JobError(
                f"internal: positions {start} to {stop} were delivered, but {due} is the next of "
                f"{self.start} to {'?' if self.stop is None else self.stop}"
            )
        if self._config.split:
            self._check_parts(start, stop, samples, rejects, left_out)
            return
        if (
            not rejects
            and self._output_files.addition is None
            and np.array_equal(samples.position, np.arange(start, stop))
        ):
            return  # as almost always
        lost = np.array([r.position for r in rejects if not r.there], np.int64)
        given = self.places(np.concatenate((samples.position, lost, left_out.positions)))
        ordered = bool((np.diff(samples.position) > 0).all())
        there = np.isin([r.position for r in rejects if r.there], samples.position).all()
        if not ordered or not there or not np.array_equal(np.sort(given), np.arange(start, stop)):
            raise JobError(
                f"internal: of positions {start} to {stop}, {len(samples)} samples, {len(rejects)} rejects and "
                f"{len(left_out)} left out do not account for each one exactly once"
            )

    def _check_parts(
        self, start: int, stop: int, samples: Samples, rejects: Sequence[RejectRow], left_out: LeftOutRows
    ) -> None:
        """As `check`, where samples are parts: each position has some, or rejects; none comes twice."""
        part = np.zeros(0, np.int32) if samples.part is None else samples.part
        written = list(zip(samples.position.tolist(), part.tolist(), strict=True))
        lost = [(r.position, r.part) for r in rejects if not r.there]
        lost += zip(left_out.positions.tolist(), left_out.parts.tolist(), strict=True)
        given = np.unique(self.places(np.array([p for p, _ in (*written, *lost)], np.int64)))
        whole = {p for p, k in lost if k < 0} & {p for p, _ in written}
        twice = len({*written, *lost}) < len(written) + len(lost)
        if written != sorted(written) or whole or twice or not np.array_equal(given, np.arange(start, stop)):
            raise JobError(
                f"internal: of positions {start} to {stop}, {len(samples)} parts and {len(rejects)} rejects do not "
                "account for each one"
            )
