"""Order of records: which record comes at which position, as a pure function of (size, arguments, seed, position).

The shuffles named ``window`` and ``epoch`` equal DALI 2.4's to the bit: C++'s std::shuffle and uniform_int_distribution
as libstdc++ 11 computes them (Lemire's method for generators with a power-of-two range, division for minstd_rand0), on
the engines of ISO C++ [rand.predef]. Random numbers are drawn for a whole pass at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..ops.batch import Origins, Samples
from ..ops.errors import JobError, SpecError
from ..ops.streams import philox, seed_sequence

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

Shuffle = Literal["none", "window", "full", "epoch"]

LIST_SEED = 524287
"""DALI's fixed seed for shuffling file lists, and the default of shuffle_after_epoch_seed."""


@dataclass(frozen=True, slots=True)
class Job:
    """Order in which a job converts records: one epoch of one shard of the data set, every record exactly once."""

    positions: range
    """Positions of this shard in the order of the whole data set of N records; shard k of n has the positions [floor(N
    k/n), floor(N (k+1)/n))."""
    first: int
    """Index of the record at position 0; used if records are read in stored order."""
    shuffled: I64 | None
    """Index of the record at each position of the whole data set's order. None for stored order, because a list of a
    billion consecutive numbers would take 8 GB."""
    epochs: I64 | None = None
    """For mixtures, whose records may come several times: for each position, how often its data set was read before
    (its pass). None if always 0."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def index(self) -> I64:
        """Index of the record at each position of the whole data set's order, as one array."""
        return np.arange(self.positions.stop, dtype=np.int64) + self.first if self.shuffled is None else self.shuffled

    def samples(self, start: int, n: int, origins: Origins) -> Samples:
        """Return the samples at the positions in [start, start + n) that belong to this shard."""
        position = np.arange(max(start, self.positions.start), min(start + n, self.positions.stop), dtype=np.int64)
        slot = np.arange(len(position), dtype=np.int32)
        index = position + self.first if self.shuffled is None else self.shuffled[position]
        epoch = np.zeros(len(position), np.int64) if self.epochs is None else self.epochs[position]
        return Samples(slot, position, epoch, index, origins)


@dataclass(slots=True)
class Order:
    """Order in which one reader returns its samples. One thread at a time may use it. A pass reads one shard once; the
    endless sequence of samples is pass 0, 1, ... Without ``stick_to_shard``, pass ``e`` reads shard (shard_id + e) mod
    num_shards, as a DALI reader does epoch after epoch."""

    size: int
    """Number of records of the data set that the reader reads, before it is divided into shards."""
    first: int = 0
    """Index of the record that comes first in stored order (argument ``skip``)."""
    shuffle: Shuffle = "none"
    seed: int = 0
    fill: int = 1024
    """Number of samples in the buffer of the ``window`` shuffle."""
    shuffled_list: bool = False
    """Whether the list of records is shuffled once, with a fixed seed, before the ``window`` shuffle, as in DALI."""
    groups: I64 | None = None
    """Number of records in each file, if the ``epoch`` shuffle permutes whole files (as DALI does for containers)."""
    num_shards: int = 1
    shard_id: int = 0
    stick_to_shard: bool = False
    pad_last_batch: bool = False
    batch_size: int = 1
    """Batch size; a pass is padded to a multiple of it (``pad_last_batch``)."""
    subset: I64 | None = None
    """Indices of the records to read, in stored order, [size]. None if these are all records from ``first`` on."""
    _passes: dict[int, I64] = field(default_factory=dict, repr=False)
    _list: I64 | None = field(default=None, repr=False)
    _states: list[int] = field(default_factory=list, repr=False)
    _permuted: tuple[int, I64] | None = field(default=None, repr=False)
    _job: Job | None = field(default=None, repr=False)

    # -- sizes --------------------------------------------------------------------------------------------------

    @property
    def epoch_size(self) -> int:
        """Number of records in an epoch of all shards together."""
        return self.size

    def epoch_size_padded(self, batch_size: int = 1) -> int:
        """Number of samples of all shards in one epoch, padded to full batches; DALI reports it for batches of 1."""
        return -(-_ceil(self.size, self.num_shards) // batch_size) * batch_size * self.num_shards

    def shard_size(self, epoch: int) -> int:
        """Number of samples in pass ``epoch`` of this shard, padding included."""
        if self.pad_last_batch:
            return _ceil(_ceil(self.size, self.num_shards), self.batch_size) * self.batch_size
        low, high = self._range(epoch)
        return high - low

    # -- the endless sequence -----------------------------------------------------------------------------------

    def samples(self, start: int, n: int, origins: Origins) -> Samples:
        """Return the samples [start, start + n) of the endless sequence of passes, for training. Raises JobError for an
        empty data set, SpecError for more shards than records."""
        if self.size == 0:
            raise JobError("the data set has no records")
        if self.num_shards > self.size:
            raise SpecError(f"num_shards is {self.num_shards}, but there are only {self.size} records")
        epoch, at = self._locate(start)
        if at + n <= self.shard_size(epoch) and not self.pad_last_batch:  # most batches lie within one pass
            slot, index = np.arange(n, dtype=np.int32), self.pass_order(epoch)[at : at + n]
            passes = self.pass_epochs(epoch)
            epochs = np.full(n, epoch, np.int64) if passes is None else passes[at : at + n]
            return Samples(slot, np.arange(start, start + n), epochs, index, origins)
        epochs, index = np.empty(n, np.int64), np.empty(n, np.int64)
        done = 0
        while done < n:
            length = min(self.shard_size(epoch) - at, n - done)
            records = self.pass_order(epoch)
            # positions past the end are padding: the last sample again
            places = np.minimum(np.arange(at, at + length), len(records) - 1)
            index[done : done + length] = records[places]
            passes = self.pass_epochs(epoch)
            epochs[done : done + length] = epoch if passes is None else passes[places]
            done, at, epoch = done + length, 0, epoch + 1
        return Samples(
            np.arange(n, dtype=np.int32), np.arange(start, start + n, dtype=np.int64), epochs, index, origins
        )

    def locate(self, position: int) -> tuple[int, int]:
        """Number of the pass that holds ``position`` of the endless sequence of samples, and the index in that pass."""
        return self._locate(position) if self.size else (0, position)

    def pass_order(self, epoch: int) -> I64:
        """Indices of the records of pass ``epoch``, in the order in which they are read, without padding."""
        if epoch not in self._passes:
            while len(self._passes) > 1:
                del self._passes[next(iter(self._passes))]
            self._passes[epoch] = self.records(self._pass(epoch))
        return self._passes[epoch]

    def records(self, numbers: I64) -> I64:
        """Convert ``numbers``, which count only records that are read, in stored order, to record indices."""
        return numbers + self.first if self.subset is None else self.subset[numbers]

    def pass_epochs(self, epoch: int) -> I64 | None:
        """Return for each sample of pass ``epoch`` of a mixture how often its own data set was read before. None if
        that is ``epoch`` for all."""
        return None

    def job(self) -> Job:
        """Return this shard of epoch 0 of the whole data set, for jobs that convert it. The order is equal for any
        number of shards, so that their joined outputs equal the output of one machine."""
        if self._job is None:
            whole = replace(self, num_shards=1, shard_id=0, stick_to_shard=False, _passes={}, _states=[],
                            _permuted=None)  # fmt: skip
            low, high = _cut(self.size, self.num_shards, self.shard_id)
            shuffled = None if self.shuffle == "none" and self.subset is None else whole.pass_order(0)
            self._job = Job(range(low, high), self.first, shuffled, whole.pass_epochs(0))
        return self._job

    # -- shards -------------------------------------------------------------------------------------------------

    @property
    def _keeps_shard(self) -> bool:
        # each epoch's order of all records is cut into shards at the same positions
        return self.stick_to_shard or self.shuffle in ("full", "epoch")

    def _range(self, epoch: int) -> tuple[int, int]:
        shard = self.shard_id if self._keeps_shard else (self.shard_id + epoch) % self.num_shards
        return _cut(self.size, self.num_shards, shard)

    def _locate(self, position: int) -> tuple[int, int]:
        """Number of the pass that holds ``position``, and the index in that pass; see `locate`."""
        if self.num_shards == 1 or self.pad_last_batch or self._keeps_shard:
            return divmod(position, self.shard_size(0))
        cycle, rest = divmod(position, self.size)
        ends = np.cumsum([self.shard_size(e) for e in range(self.num_shards)])
        inside = int(np.searchsorted(ends, rest, side="right"))
        return cycle * self.num_shards + inside, rest - (int(ends[inside - 1]) if inside else 0)

    # -- shuffles -----------------------------------------------------------------------------------------------

    def _pass(self, epoch: int) -> I64:
        low, high = self._range(epoch)
        if self.shuffle == "window":
            return self._window(epoch)
        if self.shuffle == "epoch":
            return self._permutation(epoch)[low:high]
        if self.shuffle == "full" and self.stick_to_shard:
            return low + _random_permutation(high - low, self.seed, epoch ^ (self.shard_id << 40))
        if self.shuffle == "full":
            return _random_permutation(self.size, self.seed, epoch)[low:high]
        return np.arange(low, high, dtype=np.int64)

    def _window(self, epoch: int) -> I64:
        """Return the order of pass ``epoch``, shuffled as by DALI's buffer: it returns a random one of the next
        ``fill`` records, and puts the record after them in its place.

        The buffer never reaches beyond the pass, so that a pass depends on earlier ones only through the state of the
        generator.
        """
        from .order_cpu import MINSTD, window

        if self._list is None:
            everything = np.arange(self.size, dtype=np.int64)
            self._list = std_shuffle(everything, MT19937(LIST_SEED)) if self.shuffled_list else everything
        if not self._states:
            self._states.append(int(seed_sequence(self.seed, 4)[3]) % MINSTD or 1)
        order = self._list
        for walk in range(
            min(epoch, len(self._states) - 1), epoch + 1
        ):  # earlier passes only for the generator's state
            order = self._list[slice(*self._range(walk))].copy()
            state = window(order, self._states[walk], self.fill)
            if walk + 1 == len(self._states):
                self._states.append(state)
        return order

    def _permutation(self, epoch: int) -> I64:
        """Return an order shuffled as by DALI's shuffle_after_epoch. A list of single files is shuffled from the last
        epoch's order, containers of records are shuffled from stored order each epoch."""
        if self.groups is None:
            done, order = self._permuted or (0, np.arange(self.size, dtype=np.int64))
            if done > epoch + 1:
                done, order = 0, np.arange(self.size, dtype=np.int64)
            while done <= epoch:
                done += 1
                order = std_shuffle(order, self._epoch_words(done))
            self._permuted = (done, order)
            return order
        order = std_shuffle(np.arange(len(self.groups), dtype=np.int64), self._epoch_words(epoch + 1))
        starts = np.cumsum(self.groups) - self.groups
        records = np.concatenate([np.arange(starts[g], starts[g] + self.groups[g]) for g in order.tolist()])
        # skip and limit exclude records of some files
        return records[(records >= self.first) & (records < self.first + self.size)] - self.first

    def _epoch_words(self, epoch: int) -> MT19937_64:
        return MT19937_64((self.seed + (epoch << 32)) & _MASK64)


def _ceil(n: int, d: int) -> int:
    return -(-n // d)


def _cut(size: int, num_shards: int, shard: int) -> tuple[int, int]:
    return size * shard // num_shards, size * (shard + 1) // num_shards


def _random_permutation(n: int, seed: int, epoch: int) -> I64:
    """Return a random permutation of 0 ... n-1: sorted by 64-bit Philox numbers of (seed, epoch, number)."""
    low = np.arange(_ceil(n, 2), dtype=np.uint64)
    words = philox(seed & _MASK64, np.full(len(low), epoch, np.uint64), low)
    return np.argsort(words.view(np.uint64).reshape(-1)[:n], kind="stable").astype(np.int64)


# -- C++'s generators and distributions -----------------------------------------------------------------------------

_MASK64 = 0xFFFFFFFFFFFFFFFF
_BLOCK = 1 << 14


class _Words:
    """Base of random number generators that compute words in blocks. `peek` shows the next words to a caller; words
    that are not skipped (`skip`) come again."""

    bits: int

    def __init__(self) -> None:
        self._ready: U64 = np.empty(0, np.uint64)

    def peek(self, n: int) -> U64:
        """Return the next ``n`` words without consuming them."""
        while len(self._ready) < n:
            self._ready = np.concatenate([self._ready, self._more()])
        return self._ready[:n]

    def skip(self, n: int) -> None:
        """Consume the next ``n`` words."""
        self._ready = self._ready[n:]

    def _more(self) -> U64:
        raise NotImplementedError


class MT19937(_Words):
    """The generator std::mt19937; NumPy's RandomState uses the same seeding and steps."""

    bits = 32

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._state = np.random.RandomState(seed)

    def _more(self) -> U64:
        return self._state.randint(0, 1 << 32, _BLOCK, np.uint32).astype(np.uint64)


class MT19937_64(_Words):  # noqa: N801 - the engine's name
    """The generator std::mt19937_64 (64-bit variant by Matsumoto and Nishimura), one block of 312 words at a time."""

    bits = 64

    def __init__(self, seed: int) -> None:
        super().__init__()
        words = [seed & _MASK64]
        for i in range(1, 312):
            words.append((6364136223846793005 * (words[-1] ^ words[-1] >> 62) + i) & _MASK64)
        self._state = np.array(words, np.uint64)

    def _more(self) -> U64:
        blocks = []
        for _ in range(_BLOCK // 312):
            blocks.append(self._temper(self._twist()))
        return np.concatenate(blocks)

    def _twist(self) -> U64:
        old = self._state
        new = np.empty_like(old)
        new[:156] = old[156:] ^ _mix(old[:156], old[1:157])
        new[156:311] = new[:155] ^ _mix(old[156:311], old[157:])
        new[311:] = new[155:156] ^ _mix(old[311:], new[:1])
        self._state = new
        return new

    @staticmethod
    def _temper(y: U64) -> U64:
        y = y ^ ((y >> np.uint64(29)) & np.uint64(0x5555555555555555))
        y = y ^ ((y << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000))
        y = y ^ ((y << np.uint64(37)) & np.uint64(0xFFF7EEE000000000))
        return y ^ (y >> np.uint64(43))


def _mix(upper: U64, lower: U64) -> U64:
    x = (upper & np.uint64(0xFFFFFFFF80000000)) | (lower & np.uint64(0x7FFFFFFF))
    return (x >> np.uint64(1)) ^ np.where(x & np.uint64(1), np.uint64(0xB5026F5AA96619E9), np.uint64(0))


def _multiply32(words: U64, bounds: U64) -> tuple[U64, U64]:
    product = words * bounds
    return product >> np.uint64(32), product & np.uint64(0xFFFFFFFF)


def _multiply64(words: U64, bounds: U64) -> tuple[U64, U64]:
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a, b, c, d = words >> half, words & low, bounds >> half, bounds & low
    middle = a * d + ((b * d) >> half)
    high = a * c + (middle >> half) + ((b * c + (middle & low)) >> half)
    return high, words * bounds


def _lemire(words: _Words, bounds: U64) -> U64:
    """Return one random integer per element of ``bounds``, at least 0 and below it: the high half of word x bound
    (Lemire, "Fast random integer generation")."""
    multiply: Callable[[U64, U64], tuple[U64, U64]] = _multiply32 if words.bits == 32 else _multiply64
    mask = np.uint64((1 << words.bits) - 1)
    out, at = np.empty(len(bounds), np.uint64), 0
    while at < len(bounds):
        bound = bounds[at : at + _BLOCK]
        high, low = multiply(words.peek(len(bound)), bound)
        suspects = np.flatnonzero(low < bound)
        threshold = ((~bound[suspects] + np.uint64(1)) & mask) % bound[suspects]
        odd = suspects[low[suspects] < threshold]
        used = int(odd[0]) if len(odd) else len(bound)
        out[at : at + used] = high[:used]
        words.skip(used + (1 if len(odd) else 0))
        at += used
    return out


def std_shuffle(values: I64, words: _Words) -> I64:
    """Shuffle a copy of ``values`` as std::shuffle does.

    libstdc++ takes two indices from one random word while the square of the size fits the generator's range.
    """
    n = len(values)
    if n < 2:
        return values.copy()
    places = np.arange(1, n, dtype=np.uint64)
    if ((1 << words.bits) - 1) // n < n:
        return _swap(values, _lemire(words, places + np.uint64(1)).astype(np.int64), first=1)
    odd = places[0 if n % 2 else 1 :: 2]  # the first index of each pair; with an even size one draw precedes them
    bounds = (odd + np.uint64(1)) * (odd + np.uint64(2))
    drawn = _lemire(words, bounds if n % 2 else np.concatenate([np.array([2], np.uint64), bounds]))
    pairs = drawn if n % 2 else drawn[1:]
    targets = np.stack([pairs // (odd + np.uint64(2)), pairs % (odd + np.uint64(2))], axis=1).reshape(-1)
    if n % 2 == 0:
        targets = np.concatenate([drawn[:1], targets])
    return _swap(values, targets.astype(np.int64), first=1)


def _swap(values: I64, targets: I64, first: int = 0) -> I64:
    """Return a copy of ``values`` with element first + k exchanged with element targets[k], for each k in turn."""
    if len(targets) > 50_000:  # enough elements to be worth the import of compiled code
        from .order_cpu import swap

        copy = values.copy()
        swap(copy, np.ascontiguousarray(targets), first)
        return copy
    out: list[int] = values.tolist()
    for i, j in enumerate(targets.tolist(), first):
        out[i], out[j] = out[j], out[i]
    return np.array(out, np.int64)
