"""Worker processes that run the sources of parallel external_sources and pass arrays to the parent in shared memory."""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ....ops.errors import JobError
from ....readers.external_source import BatchInfo, SampleInfo
from . import pickling
from .blocks import Block

_ALIGNMENT = 64
_PARENT_CHECK = 5.0
"""Seconds after which an idle worker checks again whether the parent process still runs."""


@dataclass(frozen=True, slots=True)
class ParallelSource:
    """The description of one parallel external_source that worker processes get."""

    name: str
    source: Any
    arity: int
    per_batch: bool
    batch_info: bool
    wants_info: bool
    is_function: bool
    """Whether the source is called with a sample or batch number, by any worker. Otherwise it is an iterator, which one
    worker owns and advances."""
    cycle: Any


@dataclass(frozen=True, slots=True)
class Task:
    """Request to one worker process: the samples [low, high) of a batch, or the whole batch if the source returns
    batches."""

    source: str
    epoch: int
    iteration: int
    batch_size: int
    low: int
    high: int
    slot: int
    """Index of the worker's shared-memory block for the result."""


@dataclass(slots=True)
class _Worker:
    process: Any
    connection: Connection
    queue: list[Task] = field(default_factory=list)
    """Tasks that were sent to this worker and not answered yet."""
    answers: dict[Task, Any] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    slots: int = 0

    def slot(self) -> int:
        """Return the index of a shared-memory block that is not in use."""
        if self.free:
            return self.free.pop()
        self.slots += 1
        return self.slots - 1


class WorkerPool:
    """Processes that run parallel external sources, ``depth`` batches ahead of the program. Owned by the session of a
    pipeline, which closes it."""

    def __init__(
        self, sources: Sequence[ParallelSource], batch_size: int, depths: Mapping[str, int], workers: int, method: str,
        pickler: Any = None,
    ) -> None:  # fmt: skip
        """Start the worker processes. Raises ValueError for an unknown start method, JobError if the system allows no
        more processes."""
        if method not in ("fork", "spawn"):
            raise ValueError(f"py_start_method must be 'fork' or 'spawn', got {method!r}")
        self._sources = {s.name: s for s in sources}
        self._batch_size = batch_size
        self._depths = depths
        self._ahead: dict[str, list[tuple[int, int]]] = {s.name: [] for s in sources}
        """For each source, the (epoch, iteration) of the batches that were requested from workers and not returned yet,
        in order."""
        self._parts: dict[tuple[str, int, int], list[tuple[_Worker, Task]]] = {}
        self._turn = 0
        context: Any = multiprocessing.get_context(method)
        dumps, loads, loads_args = _pickler(pickler)
        payload = dumps(list(sources)) if method == "spawn" else list(sources)
        self._workers: list[_Worker] = []
        _open[id(self._workers)] = self._workers
        try:
            for k in range(workers):
                arguments = payload, loads if method == "spawn" else None, loads_args
                self._workers.append(_started(context, f"dali-run source {k}", arguments))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [w.process.pid for w in self._workers]

    def capacities(self) -> list[int]:
        """Return the sizes in bytes of the shared-memory blocks in use."""
        return [b.size for w in self._workers for b in w.blocks.values()]

    def next_batch(self, name: str, iteration: int, epoch: int) -> Any:
        """Return batch ``iteration`` of ``epoch`` as (newly allocated arrays, None), without a layout. Raises
        StopIteration at the end, JobError with the traceback if the source raised an error."""
        ahead = self._ahead[name]
        if ahead and ahead[0] != (epoch, iteration):
            self._discard(name)
        for k in range(self._depths[name] + 1):
            if (epoch, iteration + k) not in ahead:
                self._ask(name, epoch, iteration + k)
                ahead.append((epoch, iteration + k))
        ahead.pop(0)
        parts = []
        ended = False
        for worker, task in self._parts.pop((name, epoch, iteration)):
            kind, value = self._answer(worker, task)
            if kind == "error":
                raise JobError(f"{name}: the source raised an error in a worker process:\n{value}")
            if kind == "lost":
                raise JobError(f"external_source cannot open the memory of its processes: {value}; allow more files "
                               "(ulimit -n), or lower py_num_workers")  # fmt: skip
            ended |= kind == "end"
            if kind == "data":
                parts += _read(worker.blocks[task.slot], value)
            worker.free.append(task.slot)
        if ended:
            self._discard(name)
            raise StopIteration
        source = self._sources[name]
        if source.per_batch:
            return (tuple(parts) if source.arity else parts[0]), None
        return (tuple(zip(*parts, strict=True)) if source.arity else parts), None

    def _ask(self, name: str, epoch: int, iteration: int) -> None:
        source = self._sources[name]
        if not source.is_function:
            owners, step = [self._workers[list(self._sources).index(name) % len(self._workers)]], self._batch_size
        elif source.per_batch:
            owners, step = [self._workers[self._turn % len(self._workers)]], self._batch_size
            self._turn += 1
        else:
            owners, step = self._workers, math.ceil(self._batch_size / len(self._workers))
        parts = []
        for worker, low in zip(owners, range(0, self._batch_size, step), strict=False):
            high = min(low + step, self._batch_size)
            task = Task(name, epoch, iteration, self._batch_size, low, high, worker.slot())
            try:
                worker.connection.send(task)
            except OSError:
                raise _died(worker) from None
            worker.queue.append(task)
            parts.append((worker, task))
        self._parts[name, epoch, iteration] = parts

    def _answer(self, worker: _Worker, task: Task) -> Any:
        while task not in worker.answers:
            try:
                _hear(worker)
            except (EOFError, OSError):
                raise _died(worker) from None
        return worker.answers.pop(task)

    def _discard(self, name: str) -> None:
        """Discard the batches of source ``name`` that were requested ahead, because its epoch ended or restarts."""
        for epoch, iteration in self._ahead[name]:
            for worker, task in self._parts.pop((name, epoch, iteration), []):
                if self._answer(worker, task)[0] != "lost":
                    worker.free.append(task.slot)
        self._ahead[name].clear()

    def close(self) -> None:
        """Stop the worker processes and free their shared memory."""
        if _open.pop(id(self._workers), None) is not None:
            _shut_down(self._workers)


_open: dict[int, list[_Worker]] = {}
"""Workers of all open pools, by the id() of the pool's list of workers. They are stopped at the interpreter's exit."""


@atexit.register
def _shut_down_all() -> None:
    """Stop all worker processes and free their shared memory before the interpreter exits."""
    for workers in list(_open.values()):
        _shut_down(workers)
    _open.clear()


def _started(context: Any, name: str, arguments: tuple[Any, ...]) -> _Worker:
    try:
        own_end, worker_end = context.Pipe()
        try:
            inherited = [w.connection for workers in _open.values() for w in workers] + [own_end]
            forked = inherited if context.get_start_method() == "fork" else []
            process = context.Process(target=_work, args=(worker_end, forked, *arguments), daemon=True, name=name)
            process.start()
        except BaseException:
            own_end.close()
            raise
        finally:
            worker_end.close()
    except OSError as e:
        raise JobError(f"the processes of external_source cannot be started: {e.strerror or e}; allow more (ulimit -u, "
                       "ulimit -n), or lower py_num_workers") from None  # fmt: skip
    return _Worker(process, own_end)


def _shut_down(workers: list[_Worker]) -> None:
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.connection.send(None)
    for worker in workers:
        while worker.queue:  # the worker may be waiting for its answers to be read
            try:
                _hear(worker)
            except (EOFError, OSError):
                break
        worker.process.join(timeout=5)
        if worker.process.is_alive():
            worker.process.terminate()
            worker.process.join()
        worker.connection.close()
        for block in worker.blocks.values():
            block.close()
        worker.blocks.clear()


def _hear(worker: _Worker) -> None:
    """Receive the next answer of a worker, and its shared-memory block if that is new. If the block cannot be opened,
    the answer is "lost", and the index of the block (slot) must not be used again. Raises EOFError and OSError."""
    kind, value = worker.connection.recv()
    task = worker.queue.pop(0)
    if kind == "data" and task.slot not in worker.blocks:
        try:
            worker.blocks[task.slot] = Block.receive(worker.connection)
        except ConnectionError:
            raise
        except OSError as e:
            kind, value = "lost", e.strerror
    worker.answers[task] = kind, value


def _read(block: Block, rows: list[Any]) -> list[Any]:
    """Return the arrays that an answer describes, copied out of the shared memory ``block``."""
    memory = block.view()

    def array(entry: Any) -> Any:
        dtype, shape, offset = entry
        return np.ndarray(shape, dtype, memory, offset).copy()

    return [tuple(map(array, row)) if isinstance(row, list) else array(row) for row in rows]


def _died(worker: _Worker) -> JobError:
    worker.process.join(timeout=1)
    code = worker.process.exitcode
    how = f"exit code {code}"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            how = f"by {signal.Signals(-code).name}"
    return JobError(f"a worker process of external_source ended ({how}); see its output for the reason")


def _pickler(setting: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return the functions dumps and loads, and the keyword arguments of each, for the setting ``py_callback_pickler``:
    a module, or (module, kwargs of dumps, kwargs of loads)."""
    if setting is None:
        return pickling.dumps, pickling.loads, {}
    parts = setting if isinstance(setting, tuple) else (setting,)
    module = parts[0]
    dump_args = parts[1] if len(parts) > 1 and parts[1] else {}
    load_args = parts[2] if len(parts) > 2 and parts[2] else {}
    return (lambda value: module.dumps(value, **dump_args)), module.loads, load_args


# -- in the worker ----------------------------------------------------------------------------------------------------


def _next_task(connection: Connection, parent: int | None) -> Any:
    """Wait for the next task and return it; None if the parent process has stopped this worker, or has ended."""
    try:
        while not connection.poll(_PARENT_CHECK):  # other children of the parent may keep the pipe open
            if os.getppid() != parent:
                return None
        return connection.recv()
    except (EOFError, OSError):
        return None


def _work(
    connection: Connection, inherited: Sequence[Connection], payload: Any, loads: Any, loads_args: Mapping[str, Any]
) -> None:
    """Process tasks until the parent stops the worker or ends. ``inherited`` are pipes of other workers that a fork has
    copied. They are closed first, because otherwise those workers do not notice the parent's end."""
    for end in inherited:
        end.close()
    sources = {s.name: s for s in (payload if loads is None else loads(payload, **loads_args))}
    iterators: dict[str, Any] = {}
    blocks: dict[int, Block] = {}
    program = multiprocessing.parent_process()
    parent = program.pid if program is not None else os.getppid()
    while True:
        if (task := _next_task(connection, parent)) is None:
            break
        new = None
        try:
            rows = _rows(sources[task.source], task, iterators)
            block = blocks.get(task.slot) or (new := Block.new())
            answer: Any = ("data", _store(rows, block))
        except StopIteration:
            answer = ("end", None)
        except BaseException:
            answer = ("error", traceback.format_exc())
        try:
            connection.send(answer)
            if new is not None and answer[0] == "data":
                new.send(connection)
                blocks[task.slot] = new
        except OSError:
            break


def _rows(source: ParallelSource, task: Task, iterators: dict[str, Any]) -> list[Any]:
    """Run the source for a task. Return one entry per sample, or one entry per output if the source returns batches."""
    if not source.is_function:
        rows = [_advance(source, task, iterators) for _ in range(1 if source.per_batch else task.high - task.low)]
    elif source.per_batch:
        info = BatchInfo(task.iteration, task.epoch) if source.batch_info else task.iteration
        rows = [source.source(info) if source.wants_info else source.source()]
    else:
        first = task.iteration * task.batch_size
        infos = [SampleInfo(first + k, k, task.iteration, task.epoch) for k in range(task.low, task.high)]
        rows = [source.source(i) if source.wants_info else source.source() for i in infos]
    if source.per_batch:
        return [_whole(part) for part in (rows[0] if source.arity else rows[:1])]
    if source.arity:
        return [[np.asarray(p) for p in row] for row in rows]
    return [np.asarray(row) for row in rows]


def _advance(source: ParallelSource, task: Task, iterators: dict[str, Any]) -> Any:
    key = source.name
    if key not in iterators or (iterators[key][0] != task.epoch and source.cycle == "raise"):
        iterators[key] = (task.epoch, iter(source.source() if callable(source.source) else source.source))
    try:
        return next(iterators[key][1])
    except StopIteration:
        if source.cycle not in (True, "quiet"):
            raise
    iterators[key] = (task.epoch, iter(source.source() if callable(source.source) else source.source))
    return next(iterators[key][1])


def _whole(part: Any) -> Any:
    """Return ``part``, one output of a batch, as NumPy data: one array, or a list of arrays, one per sample."""
    return [np.asarray(p) for p in part] if isinstance(part, (list, tuple)) else np.asarray(part)


def _store(rows: list[Any], block: Block) -> list[Any]:
    """Copy the arrays into the shared-memory ``block``. Return (dtype, shape, byte offset) of each array, nested like
    ``rows``."""
    entries: list[Any] = []
    copies: list[tuple[int, Any]] = []
    at = 0

    def place(array: Any) -> tuple[str, tuple[int, ...], int]:
        nonlocal at
        if array.dtype.kind not in "biuf":
            raise TypeError(f"the source returned {array.dtype}, which is not a number type")
        start = at
        copies.append((start, array))
        at += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return array.dtype.str, array.shape, start

    for row in rows:
        entries.append([place(a) for a in row] if isinstance(row, list) else place(row))
    block.grow(max(at, 1))
    memory = block.view()
    for start, array in copies:
        np.ndarray(array.shape, array.dtype, memory, start)[...] = array
    return entries
