"""Iterators over pipelines for training: the number of batches of an epoch, and of valid samples in its last one."""

from __future__ import annotations

import enum
import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

import numpy as np
import numpy.typing as npt

from ...ops.storage.json_text import parse_json
from ..user_warnings import warn
from .api_type import PipelineAPIType
from .pipeline import Pipeline
from .regroup import Regroup
from .tensors import TensorList

I64 = npt.NDArray[np.int64]


class LastBatchPolicy(enum.Enum):
    """The rule for an epoch that ends within a batch.

    FILL returns full batches (with samples of the next epoch, or repeated ones), DROP omits the last batch, PARTIAL
    returns the samples that are left.
    """

    FILL = 0
    DROP = 1
    PARTIAL = 2


class IteratorArgumentError(ValueError, AssertionError):
    """Error for arguments of an iterator that contradict each other or its pipelines. It is also an AssertionError, as
    in DALI."""


class Epochs(Protocol):
    """Protocol of the objects that give an iterator the number of batches in each epoch, and the number of valid
    samples in each batch."""

    def batches(self) -> int:
        """Return the number of batches in this epoch; -1 if it is unknown until the pipeline raises StopIteration."""
        ...

    def skipped(self) -> int:
        """Return the number of batches at the end of this epoch that are run and discarded."""
        ...

    def counts(self, batch: int) -> list[int] | None:
        """Return the number of valid samples in batch number ``batch``, for each pipeline; None if all samples are
        valid."""
        ...

    def advance(self) -> None:
        """Begin the next epoch."""
        ...

    def size(self) -> int:
        """Return the number of samples in this epoch."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the state from a checkpoint."""
        ...


@dataclass(slots=True)
class ReaderEpochs:
    """Epochs of an iterator whose lengths follow from the sizes that readers report (DALI's ``reader_name``)."""

    shard_sizes: I64
    """Number of samples of every shard of the data set, including shards that other processes read."""
    shards: Sequence[int]
    """For each pipeline, the index of the shard with which its reader begins."""
    padded: bool
    sticks: bool
    batch_size: int
    policy: LastBatchPolicy
    epoch: int = 0
    ahead: I64 = None  # type: ignore[assignment]  # set below
    """For each shard, the number of samples of this epoch that the previous epoch already returned to fill its last
    batch (policy FILL without padding)."""

    def __post_init__(self) -> None:
        self.ahead = np.zeros_like(self.shard_sizes)

    @classmethod
    def of(cls, metas: Sequence[Mapping[str, Any]], batch_size: int, policy: LastBatchPolicy) -> ReaderEpochs:
        """Create the epochs from ``metas``, the results of `Pipeline.reader_meta` for each pipeline. Raises ValueError
        if they contradict each other."""
        first = metas[0]
        for key in ("epoch_size", "number_of_shards", "pad_last_batch", "stick_to_shard"):
            if any(m[key] != first[key] for m in metas):
                raise IteratorArgumentError(
                    f"the readers of all pipelines must agree on {key}, got {[m[key] for m in metas]}"
                )
        n, shards = first["epoch_size"], first["number_of_shards"]
        bounds = [n * k // shards for k in range(shards + 1)]
        sizes = np.array(bounds[1:], np.int64) - np.array(bounds[:-1], np.int64)
        return cls(sizes, [m["shard_id"] for m in metas], bool(first["pad_last_batch"]),
                   bool(first["stick_to_shard"]), batch_size, policy)  # fmt: skip

    @property
    def _sizes(self) -> I64:
        """Number of samples in this epoch by shard: entry i is for a pipeline whose reader began with shard i."""
        return self.shard_sizes if self.sticks else np.roll(self.shard_sizes, -self.epoch)

    @property
    def _padded_batches(self) -> int:
        return math.ceil(math.ceil(int(self.shard_sizes.sum()) / len(self.shard_sizes)) / self.batch_size)

    def batches(self) -> int:
        if self.policy is LastBatchPolicy.DROP:
            return int(self._sizes.min()) // self.batch_size
        if self.padded:
            return self._padded_batches
        left = self._sizes - self.ahead if self.policy is LastBatchPolicy.FILL else self._sizes
        return math.ceil(int(left.max()) / self.batch_size)

    def skipped(self) -> int:
        if self.policy is not LastBatchPolicy.DROP:
            return 0
        if self.padded:
            return self._padded_batches - self.batches()
        return int(self.batches() * self.batch_size < int(self.shard_sizes.sum()) // len(self.shard_sizes))

    def counts(self, batch: int) -> list[int] | None:
        if self.policy is not LastBatchPolicy.PARTIAL:
            return None
        moved, shards = 0 if self.sticks else self.epoch, len(self.shard_sizes)
        left = [int(self.shard_sizes[(s + moved) % shards]) - batch * self.batch_size for s in self.shards]
        return [min(max(n, 0), self.batch_size) for n in left]

    def advance(self) -> None:
        if self.policy is LastBatchPolicy.FILL and not self.padded:
            self.ahead = self.ahead + self.batches() * self.batch_size - self._sizes
        self.epoch += 1
        if self.policy is LastBatchPolicy.FILL and not self.padded and self.batches() == 0:
            self.ahead = np.zeros_like(self.ahead)  # the whole epoch was read ahead
            self.epoch += 1

    def size(self) -> int:
        samples, shards = int(self.shard_sizes.sum()), len(self.shard_sizes)
        if self.policy is LastBatchPolicy.DROP:
            return samples // shards
        return math.ceil(samples / shards) if self.padded else self.batches() * self.batch_size

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "ahead": self.ahead.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.ahead = state["epoch"], np.array(state["ahead"], np.int64)


@dataclass(slots=True)
class SizedEpochs:
    """Epochs of an iterator with a fixed number of samples, counted over all its pipelines."""

    samples: int
    pipelines: int
    padded: bool
    batch_size: int
    policy: LastBatchPolicy
    ahead: int = 0

    @property
    def _step(self) -> int:
        return self.pipelines * self.batch_size

    def batches(self) -> int:
        left = self.samples - self.ahead
        return left // self._step if self.policy is LastBatchPolicy.DROP else math.ceil(left / self._step)

    def skipped(self) -> int:
        return int(self.policy is LastBatchPolicy.DROP and self.samples % self._step != 0)

    def counts(self, batch: int) -> list[int] | None:
        if self.policy is not LastBatchPolicy.PARTIAL:
            return None
        left = self.samples - batch * self._step
        counts = [min(left - p * self.batch_size, self.batch_size) for p in range(self.pipelines)]
        return [n for n in counts if n > 0]  # as in DALI, pipelines without valid samples are not in the list

    def advance(self) -> None:
        if self.policy is LastBatchPolicy.FILL and not self.padded:
            self.ahead = (self.ahead + self.batches() * self._step) % self.samples

    def size(self) -> int:
        return self.samples

    def state(self) -> dict[str, Any]:
        return {"ahead": self.ahead}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.ahead = state["ahead"]


class UntilStop:
    """Epochs of an iterator that end when the pipeline raises StopIteration."""

    def batches(self) -> int:
        return -1

    def skipped(self) -> int:
        return 0

    def counts(self, batch: int) -> list[int] | None:
        return None

    def advance(self) -> None:
        pass

    def size(self) -> int:
        return -1

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class BaseIterator:
    """Base class of all frameworks' iterators. `next_outputs` returns the next batch of each pipeline. One thread at a
    time may use it."""

    def __init__(
        self,
        pipelines: Pipeline | Sequence[Pipeline],
        size: int = -1,
        reader_name: str | None = None,
        auto_reset: bool | str | None = False,
        fill_last_batch: bool | None = None,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:
        """Raises ValueError for arguments that contradict each other."""
        self.pipelines = [pipelines] if isinstance(pipelines, Pipeline) else list(pipelines)
        if auto_reset not in (True, False, None, "yes", "no"):
            raise IteratorArgumentError(f"auto_reset must be 'yes', 'no', True or False, got {auto_reset!r}")
        batching = self._batching()
        self.batch_size = self.pipelines[0].max_batch_size
        if fill_last_batch is not None:
            warn("fill_last_batch is DALI's old spelling of last_batch_policy", DeprecationWarning)
            last_batch_policy = LastBatchPolicy.FILL if fill_last_batch else LastBatchPolicy.PARTIAL
        if not isinstance(last_batch_policy, LastBatchPolicy):
            raise IteratorArgumentError(f"last_batch_policy must be a LastBatchPolicy, got {last_batch_policy!r}")
        self._auto_reset = auto_reset in (True, "yes")
        self._last = last_batch_policy
        self._epochs = self._epochs_of(size, reader_name, last_batch_padded, last_batch_policy)
        self._total = 0
        """Number of batches in this epoch; -1 if it is unknown until the pipeline raises StopIteration."""
        self._batch = 0
        """Number of batches returned in this epoch."""
        self._at_end = False
        for p in self.pipelines:
            p.build()
        extra = self.pipelines[0].restored_extra
        if extra:
            self._epochs.restore(extra["epochs"])
            self._batch, self._at_end = extra["batch"], extra["at_end"]
        self._regroup = (
            None
            if batching == "positions"
            else Regroup(self.batch_size, batching == "shapes", (extra or {}).get("delivered", ()))
        )
        self._states: deque[tuple[int, int, bytes]] = deque()
        """States of the pipeline before each batch that was not wholly returned: (position, number of batches,
        checkpoint). Used with checkpointing, if samples wait to be grouped into other batches."""
        self._total = self._epochs.batches()
        self._scheduled = False
        if prepare_first_batch:
            if self._total == 0 and not extra:
                raise RuntimeError(
                    f"the epoch has no full batch of {self.batch_size} samples, and last_batch_policy DROP "
                    "omits the others: use a smaller batch_size, or PARTIAL or FILL"
                )
            self._schedule()

    def _batching(self) -> str:
        """Return the setting ``batching`` of the pipelines. Raises ValueError if they cannot share an iterator."""
        if not self.pipelines:
            raise IteratorArgumentError("at least one pipeline is needed")
        if len({p.max_batch_size for p in self.pipelines}) > 1:
            raise IteratorArgumentError("all pipelines must have the same batch_size")
        batching = self.pipelines[0]._settings.run.batching
        if batching != "positions" and len(self.pipelines) > 1:
            raise IteratorArgumentError(
                f"batching: {batching} is for an iterator of one pipeline, got {len(self.pipelines)}"
            )
        return batching

    def _epochs_of(self, size: int, reader_name: str | None, padded: bool, policy: LastBatchPolicy) -> Epochs:
        if reader_name is None:
            if size == 0 or size < -1:
                raise IteratorArgumentError(
                    f"size must be positive, or -1 to iterate until the pipeline ends, got {size}"
                )
            if size > 0:
                return SizedEpochs(size, len(self.pipelines), padded, self.batch_size, policy)
            if len(self.pipelines) > 1:
                raise IteratorArgumentError("several pipelines need reader_name or size")
            return UntilStop()
        if size != -1:
            raise IteratorArgumentError("pass either size or reader_name, not both")
        if padded:
            raise IteratorArgumentError(
                "last_batch_padded must not be given with reader_name: the reader determines it"
            )
        return ReaderEpochs.of([p.reader_meta(reader_name) for p in self.pipelines], self.batch_size, policy)

    def _remember_state(self) -> None:
        """Store a checkpoint of the pipeline before its next batch. A checkpoint of the iterator needs it while samples
        of that batch wait to be grouped."""
        pipe, regroup = self.pipelines[0], self._regroup
        if pipe._settings.checkpointing and regroup is not None:
            waiting = regroup.first_position()
            while len(self._states) > 1 and (waiting is None or self._states[1][0] <= waiting):
                self._states.popleft()
            self._states.append((pipe._session.taken, self._batch, pipe.checkpoint_with({})))

    def _schedule(self) -> None:
        if not self._scheduled:
            for p in self.pipelines:
                with p._check_api_type_scope(PipelineAPIType.ITERATOR):
                    p.schedule_run()
            self._scheduled = True

    def next_outputs(self) -> list[tuple[TensorList, ...]]:
        """Return the next batch of each pipeline, without padding and without samples that the pipeline rejects or
        leaves out. An empty batch is skipped. Raises StopIteration at the end of the epoch."""
        regroup = self._regroup
        if regroup is None:
            outputs = self._next_batch()
            if outputs is None:
                self._end()
            return outputs
        while (full := regroup.full()) is None:
            self._remember_state()
            outputs = self._next_batch()
            if outputs is None:
                rest = (
                    None
                    if self._last is LastBatchPolicy.DROP
                    else regroup.rest(fill=self._last is LastBatchPolicy.FILL)
                )
                if rest is None:
                    regroup.clear()
                    self._states.clear()
                    self._end()
                return [rest]
            regroup.add(outputs[0])
        return [full]

    def _next_batch(self) -> list[tuple[TensorList, ...]] | None:
        """Return the next batch of each pipeline that has samples; None at the end of the epoch."""
        while True:
            if self._at_end or self._all_given:
                return None
            try:
                outputs = self._run_on()
            except StopIteration:
                self._at_end = True
                return None
            counts = self._epochs.counts(self._batch)
            self._batch += 1
            if counts is not None:
                starts = [p._session.started for p in self.pipelines]
                outputs = [
                    tuple(_cut(t, start + n) for t in one)
                    for one, start, n in zip(outputs, starts, counts, strict=False)
                ]
            if any(len(one[0]) for one in outputs if one) or (counts is not None and not any(counts)):
                return outputs  # as in DALI, also a batch that the epoch gives no samples

    @property
    def _all_given(self) -> bool:
        return 0 <= self._total <= self._batch

    def _run_on(self) -> list[tuple[TensorList, ...]]:
        """Return the outputs of `_run`. If an external source reports its end only now, at the start of an epoch,
        restart it and run again."""
        try:
            return self._run()
        except StopIteration:
            if self._batch or self._total < 0:
                raise
        for p in self.pipelines:
            p.reset()
        return self._run()

    def _run(self) -> list[tuple[TensorList, ...]]:
        self._schedule()
        self._scheduled = False
        outputs = []
        for p in self.pipelines:
            with p._check_api_type_scope(PipelineAPIType.ITERATOR):
                outputs.append(p.outputs())
        return outputs

    def _end(self) -> NoReturn:
        """End the epoch. Raises StopIteration."""
        self._leave_rest()
        if self._auto_reset:
            self.reset()
        raise StopIteration

    def _leave_rest(self) -> None:
        """Run and discard the batches of this epoch that the iterator does not return. Does nothing if that is already
        done."""
        if not self._at_end:
            self._at_end = True
            for _ in range(self._epochs.skipped()):
                try:
                    self._run()
                except StopIteration:  # the source ended first
                    break

    def reset(self) -> None:
        """Begin the next epoch. In the middle of an epoch, only warn."""
        if self._all_given:
            self._leave_rest()
        if not self._at_end:
            if self._batch:
                warn("the epoch is not over yet: reset is ignored")
            return
        self._epochs.advance()
        self._total = self._epochs.batches()
        self._batch = 0
        self._at_end = False
        for p in self.pipelines:
            p.reset()

    def __iter__(self) -> Self:
        if self._batch and (self._at_end or self._all_given):
            self.reset()
        return self

    def __next__(self) -> Any:
        raise NotImplementedError

    def next(self) -> Any:
        """Return the next batch."""
        return self.__next__()

    def __len__(self) -> int:
        """Return the number of batches of this epoch. Raises TypeError if it is unknown until the pipeline ends the
        epoch."""
        if self._regroup is not None:
            raise TypeError("with batching: full or shapes the length is known only at the end of the epoch")
        if self._total < 0:
            raise TypeError("the length is unknown without reader_name or size")
        return self._total

    @property
    def size(self) -> int:
        """Number of samples in this epoch for each pipeline."""
        return self._epochs.size()

    @property
    def _size(self) -> int:
        """DALI's name of `size`, for programs that use it, such as DALI's ResNet-50 example, which divides
        ``loader._size`` by the batch size."""
        return self.size

    @property
    def _pipes(self) -> list[Pipeline]:
        """DALI's name of `pipelines`, for programs with their own subclasses of iterators."""
        return self.pipelines

    @property
    def _num_gpus(self) -> int:
        """DALI's name for the number of pipelines."""
        return len(self.pipelines)

    def checkpoints(self) -> list[bytes]:
        """Return a checkpoint of each pipeline, with the state of the iterator. Pipelines created from them continue
        from here."""
        extra = {"epochs": self._epochs.state(), "batch": self._batch, "at_end": self._at_end}
        waiting = None if self._regroup is None else self._regroup.first_position()
        if self._regroup is not None and waiting is not None:
            # go back to the batch of the first sample that waits, and drop what was delivered since
            position, batch, state = next(s for s in reversed(self._states) if s[0] <= waiting)
            extra |= {"batch": batch, "at_end": False, "delivered": self._regroup.delivered_from(position)}
            return [json.dumps({**parse_json(state), "extra": extra}, sort_keys=True).encode()]
        return [p.checkpoint_with(extra) for p in self.pipelines]


def _cut(outputs: TensorList, stop: int) -> TensorList:
    """Return ``outputs`` without the samples from position ``stop`` on. Positions may have gaps."""
    n = int(np.searchsorted(outputs.batch.samples.position, stop))
    return outputs if len(outputs) <= n else type(outputs)(outputs.batch.take(slice(0, n)))


def checked_output_map(names: Sequence[Any] | None, pipelines: Sequence[Pipeline]) -> list[str]:
    """Return the names of an iterator's outputs: ``names``, or by default the pipeline's. Raises ValueError if a name
    repeats, or if there is not one name per output."""
    if names is None:
        names = pipelines[0].output_names
        if not names:
            raise IteratorArgumentError(
                "output_map is needed, because the outputs of the pipeline have no names (a definition that returns "
                "a dict or a spec names them)"
            )
    flat = [n[0] if isinstance(n, tuple) else n for n in names]
    if len(set(flat)) != len(flat):
        raise IteratorArgumentError(f"output_map must have distinct names, got {flat}")
    for p in pipelines:
        if p.num_outputs != len(flat):
            raise IteratorArgumentError(f"output_map names {len(flat)} outputs, the pipeline has {p.num_outputs}")
    return flat
