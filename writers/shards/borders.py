"""Boundaries and names of the shards of an output, and the check that every position is accounted for once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ops.batch import I64, Samples
from ...ops.errors import JobError, SpecError
from .config import WriteConfig
from .left_out import LeftOutRows
from .manifest import OutputFiles
from .rejects import RejectRow


class ShardBounds:
    """Decides at which samples the shards of an output begin and end. Samples are counted by their position in the
    job's order. For a retry or append, which has a list of positions, indices in this list are counted instead. Created
    and used by `Output`."""

    def __init__(
        self, config: WriteConfig, files: OutputFiles, start: int, total: int | None, whole: int | None
    ) -> None:
        """Parameters are those of `Output.open`. Raises SpecError for a job part that begins inside a shard."""
        self.start = start
        self.stop = None if total is None else start + total
        """Position after the last sample of the job or job part; None if the number of samples is unknown."""
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

    def indices(self, positions: I64) -> I64:
        """Return the index of each position, by which shards are cut: the position itself or, for a retry or append,
        its index in the list of positions to write."""
        return positions if self._output_files.addition is None else self._output_files.addition.indices(positions)

    def index(self, position: int) -> int:
        """Return the index of one position; see `indices`."""
        return int(self.indices(np.array([position]))[0])

    # -- borders --------------------------------------------------------------------------------------------------

    def _border(self, start: int) -> int | None:
        """Return the position after the shard that holds position ``start``; None if shards have no fixed ends."""
        return None if self._samples is None or self._config.full else (start // self._samples + 1) * self._samples

    def end(self, start: int, stop: int, positions: I64, held: int) -> int:
        """Return the position in [start, stop) before which samples still go into the open shard, by their number
        alone: sizes in bytes are not considered. ``positions``: positions of the samples to write. ``held``: number of
        samples in the shard."""
        border = self._border(start)
        if self._config.full and self._samples is not None:
            indices = self.indices(positions)
            last = int(np.searchsorted(indices, start)) + max(self._samples - held, 1) - 1
            border = int(indices[last]) + 1 if last < len(indices) else None
        return stop if border is None else min(stop, border)

    def fitting(self, filled: int, sizes: I64) -> tuple[int, bool]:
        """Return how many of the next records still go into a shard of ``filled`` bytes (at least one), and whether the
        shard is then full. ``sizes`` are the records' sizes in bytes."""
        if self._config.bytes is None:
            return len(sizes), False
        reached = filled + np.cumsum(sizes)
        n = min(len(sizes), int(np.searchsorted(reached, self._config.bytes)) + 1)
        return n, int(reached[n - 1]) >= self._config.bytes

    def complete(self, start: int, stop: int, filled: int, held: int) -> bool:
        """Whether a shard of positions [start, stop), with ``filled`` bytes and ``held`` samples, is complete."""
        if self._config.full and self._samples is not None and held >= self._samples:
            return True
        return stop == self._border(start) or (self._config.bytes is not None and filled >= self._config.bytes)

    def expected(self, start: int) -> int:
        """Return the number of samples of the shard that begins at ``start``, if none is rejected; 0 if unknown."""
        if self._config.by_content or self._config.split:
            return 0
        border = self._border(start)
        ends = [e for e in (border, self.stop) if e]
        return max(0, min(ends) - start) if ends else 0

    # -- names ----------------------------------------------------------------------------------------------------

    def stem(self, start: int, number: int) -> str:
        """Return the name, without suffix, of shard ``number`` of this output, which begins at ``start``."""
        addition, part = self._output_files.addition, self._output_files.part
        name = self._config.name if addition is None else f"{self._config.name}-{addition.name}"
        if self._config.by_content:  # numbered in the order of their creation, by each part separately
            mark = "" if part is None else f"-{part[0]:05d}"
            return f"{name}{mark}-{number:05d}"
        of = "" if self._count is None else f"-of-{self._count:05d}"
        return f"{name}-{start // self._samples if self._samples else 0:05d}{of}"

    # -- accounting -----------------------------------------------------------------------------------------------

    def check(
        self, due: int, start: int, stop: int, samples: Samples, rejects: Sequence[RejectRow], left_out: LeftOutRows
    ) -> None:
        """Check that ``samples``, ``rejects`` and ``left_out`` together contain each position in [start, stop) exactly
        once, and that ``start`` is ``due``, the position that has to come next. Raises JobError."""
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
            return  # the usual case
        lost = np.array([r.position for r in rejects if not r.there], np.int64)
        given = self.indices(np.concatenate((samples.position, lost, left_out.positions)))
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
        """Like `check`, for samples that were split into items: each position has samples or rejects, and no item of a
        sample occurs twice."""
        part = np.zeros(0, np.int32) if samples.part is None else samples.part
        written = list(zip(samples.position.tolist(), part.tolist(), strict=True))
        lost = [(r.position, r.part) for r in rejects if not r.there]
        lost += zip(left_out.positions.tolist(), left_out.parts.tolist(), strict=True)
        given = np.unique(self.indices(np.array([p for p, _ in (*written, *lost)], np.int64)))
        whole = {p for p, k in lost if k < 0} & {p for p, _ in written}
        twice = len({*written, *lost}) < len(written) + len(lost)
        if written != sorted(written) or whole or twice or not np.array_equal(given, np.arange(start, stop)):
            raise JobError(
                f"internal: of positions {start} to {stop}, {len(samples)} parts and {len(rejects)} rejects do not "
                "account for each one"
            )
