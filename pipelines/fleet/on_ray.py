"""Workers on a Ray cluster: one actor per GPU, or per number of cores, on any node with room.

An actor only holds the process that works (`processes.py`) and passes messages between it and the driver: a few numbers
and sentences per second. Data, journals and shards never pass through Ray. So the loss of a node costs only what its
workers had not published, and Ray may end an actor at any moment: its process notices the end of its socket, and
publishes its complete shards if it has the time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ops.errors import DeviceError, JobError, SpecError
from ..cores import usable_cores
from ..wording import duration
from .job_message import JobMessage, WorkerResources
from .messages import Message

_CORES = 16
"""Number of cores of a Ray worker without a GPU if the user sets no number: as many as one process uses well, or all
cores of the smallest node."""
_NODES_SECONDS = 5.0
"""Seconds between two queries for the nodes of the Ray cluster, which come and go."""
_TURN = 1.0
"""Minimum seconds for which one call of `Carrier.turn` waits for messages of the worker."""
_GONE = 30.0
"""Seconds without any living node after which a Ray cluster that the job itself started counts as lost."""
_AGAIN = "Run the same command again: it continues after the last finished shards"
_REMIND = 300.0
"""Seconds between two notes to the user that the job still waits for a node with room. Only for an existing Ray
cluster, which may grow."""


class Carrier:
    """Runs inside a Ray actor: holds one worker process of this node, and passes the worker's messages on. Created by
    Ray for `Actors`."""

    def __init__(self, job: Mapping[str, Any], cores: int, gpu: bool) -> None:
        from .machine import cpus_near, pci_address
        from .processes import Processes

        near = cpus_near(pci_address(0)) if gpu else frozenset()
        usable = os.sched_getaffinity(0)
        bound = tuple(sorted(near & usable)) if near and len(near & usable) < len(usable) else ()
        resources = WorkerResources("GPU" if gpu else "worker", cores, min(1.0, cores / usable_cores()), bound)
        self._group = Processes(JobMessage(**job), [resources])
        self._group.__enter__()
        self._worker: Any = None
        import ray

        self._node_id = ray.get_runtime_context().get_node_id()

    def turn(self, seconds: float) -> list[Message]:
        """Return the messages of the worker: at once if there are any, otherwise after at most ``seconds``."""
        if self._worker is None:
            try:
                self._group.fill(1)
            except (JobError, SpecError, DeviceError) as e:
                kind = "spec" if isinstance(e, SpecError) else "device" if isinstance(e, DeviceError) else "job"
                return [{"problem": str(e), "kind": kind}, {"gone": "could not begin"}]
            (self._worker,) = self._group.workers
        messages = [message for _, message in self._group.poll(seconds)]
        return [{**message, "node_id": self._node_id} if "opened" in message else message for message in messages]

    def give(self, order: Message) -> None:
        """Pass an order, such as to run a job part, on to the worker. May be called while `turn` waits."""
        if self._worker is not None:
            self._group.give(self._worker, order)


@dataclass(eq=False)
class Actor:
    """A worker on the Ray cluster, as the driver of the job sees it. Created by `Actors`."""

    name: str
    handle: Any
    node: str = "a node"
    turn: Any = None
    """Ray's reference to the running call of `Carrier.turn`, which waits for messages of the worker."""


class Actors:
    """The workers of one job on a Ray cluster; a `WorkerGroup`. A context manager that ends all workers and the
    connection. Created by `fleet.run`; used by one thread."""

    def __init__(
        self, job: JobMessage, address: str, workers: int | None, cores: int | None, note: Callable[[str], None]
    ) -> None:
        """``address``: the URL of a cluster, or ``ray``: the cluster to which this process belongs, or else a new one
        of this machine only."""
        try:
            import ray
        except ImportError:
            raise SpecError(f"--on {address} needs Ray: pip install 'dali-run[ray]'") from None
        self._ray = ray
        self._job = job
        self._address = address
        self._max_workers = workers
        self._user_cores = cores
        self._note = note
        self._actors: list[Actor] = []
        self._number = 0
        self._counted_at = -_NODES_SECONDS
        self._room = 0
        self._stopping = False
        self._own_cluster = False
        """Whether the Ray cluster was started for this job on this machine only, so that no other node will come."""
        self._empty_since: float | None = None
        self._reminded = 0.0

    def __enter__(self) -> Actors:
        ray = self._ray
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            kind: dict[str, Any] = {"address": self._address} if self._address != "ray" else {"address": "auto"}
            quiet = {"log_to_driver": False, "configure_logging": False}
            try:
                try:
                    ray.init(**kind, **quiet)
                except ConnectionError:
                    if self._address != "ray":
                        raise
                    ray.init(include_dashboard=False, **quiet)  # there is no cluster: this machine becomes one
                    self._own_cluster = True
            except Exception as e:
                raise JobError(f"--on {self._address}: {' '.join(str(e).split())}") from None
        self._gpu = self._job.device != "cpu" and any(self._gpus(n) for n in self._nodes())
        if self._gpu:
            self._job = JobMessage(**{**self._job.to_dict(), "device": "gpu"})
        elif self._job.device == "null":
            self._job = JobMessage(**{**self._job.to_dict(), "device": "cpu"})
        self._cores = self._user_cores or self._cores_of_one()
        needs: dict[str, Any] = {
            "num_cpus": self._cores,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 2,
        }
        if self._gpu:
            needs["num_gpus"] = 1
        self._make = ray.remote(**needs)(Carrier)
        return self

    def __exit__(self, *exc: object) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor.handle)
        if self._connected_here:
            self._ray.shutdown()

    # -- the cluster --------------------------------------------------------------------------------------------------

    def _nodes(self) -> list[dict[str, Any]]:
        """Return the living nodes of the Ray cluster. Raises JobError if the cluster does not answer."""
        try:
            return [n for n in self._ray.nodes() if n["Alive"]]
        except Exception as e:  # Ray raises many kinds of errors when its head node is lost
            raise JobError(
                f"--on {self._address}: the Ray cluster does not answer ({_first_line(e)}). {_AGAIN}"
            ) from None

    @staticmethod
    def _gpus(node: Mapping[str, Any]) -> int:
        return int(node["Resources"].get("GPU", 0))

    def _cores_of_one(self) -> int:
        nodes = self._nodes()
        if self._gpu:
            return max(1, min(int(n["Resources"].get("CPU", 1)) // self._gpus(n) for n in nodes if self._gpus(n)))
        return max(1, min([_CORES, *(int(n["Resources"]["CPU"]) for n in nodes if n["Resources"].get("CPU", 0) >= 1)]))

    def _count_room(self) -> None:
        """Count how many workers fit on the present nodes of the Ray cluster."""
        if time.monotonic() - self._counted_at < _NODES_SECONDS:
            return
        self._counted_at = time.monotonic()
        room = 0
        for node in self._nodes():
            fits = int(node["Resources"].get("CPU", 0)) // self._cores
            room += min(fits, self._gpus(node)) if self._gpu else fits
        self._room = room
        if room:
            self._empty_since = None
        else:
            self._wait_for_a_node()

    def _wait_for_a_node(self) -> None:
        """Remind the user at times that no node has room for a worker. Raises JobError if no node will come."""
        now = time.monotonic()
        if self._empty_since is None:
            self._empty_since, self._reminded = now, now - _REMIND
        if self._own_cluster and now - self._empty_since >= _GONE:
            raise JobError("the Ray node that this job started on this machine is gone (killed, or out of memory: its "
                           f"log is below /tmp/ray). {_AGAIN}")  # fmt: skip
        if now - self._reminded >= _REMIND:
            self._reminded = now
            what = f"{self._cores} cores and a GPU" if self._gpu else f"{self._cores} cores"
            since = f" for {duration(now - self._empty_since)}" if now > self._empty_since else ""
            self._note(f"no node of the cluster has held a worker of {what}{since}; waiting for one (Ctrl-C ends the "
                       "job, which continues later)")  # fmt: skip

    def room(self) -> int:
        """Return the number of workers that run or could be started. A number that the user set is returned unchanged:
        nodes may come later, because autoscalers see the requests."""
        self._count_room()
        return self._max_workers if self._max_workers is not None else max(self._room, 1)

    def fill(self, count: int) -> None:
        """Request actors from Ray until there are ``count``; Ray starts them when a node has room."""
        while len(self._actors) < count and not self._stopping:
            handle = self._make.remote(self._job.to_dict(), self._cores, self._gpu)
            actor = Actor(f"worker {self._number}", handle)
            self._number += 1
            self._actors.append(actor)
            actor.turn = handle.turn.remote(self._seconds())

    def _seconds(self) -> float:
        """Return the seconds for which each actor waits for messages in one call. Of thousands of actors, each waits
        longer, so that the driver keeps up."""
        return max(_TURN, len(self._actors) / 500)

    # -- for the driver -----------------------------------------------------------------------------------------------

    def poll(self, seconds: float) -> Sequence[tuple[Actor, Message]]:
        """Wait up to ``seconds`` for messages of workers, and return them, each with its worker. The last message of a
        worker that has ended is ``{"gone": why}``."""
        turns = {a.turn: a for a in self._actors}
        if not turns:
            time.sleep(seconds)
            return []
        done, _ = self._ray.wait(list(turns), num_returns=1, timeout=seconds)
        if done:  # also the calls that have ended meanwhile
            done, _ = self._ray.wait(list(turns), num_returns=len(turns), timeout=0)
        received: list[tuple[Actor, Message]] = []
        for ref in done:
            actor = turns[ref]
            try:
                messages = self._ray.get(ref)
            except self._ray.exceptions.RayError as e:
                messages = [{"gone": f"was lost ({_first_line(e)})"}]
            for message in messages:
                if "opened" in message:
                    actor.node = f"{message['process']['host']}/{message['node_id'][:6]}"
                received.append((actor, message))
            if any("gone" in message for message in messages):
                self._drop(actor)
            else:
                actor.turn = actor.handle.turn.remote(self._seconds())
        return received

    def give(self, worker: Actor, order: Message) -> None:
        """Send a message with an order, such as to run a job part, to a worker."""
        worker.handle.give.remote(order)

    def stop(self) -> None:
        """Tell all workers to publish their complete shards and then to end."""
        self._stopping = True
        for actor in self._actors:
            actor.handle.give.remote({"stop": True})

    def _drop(self, actor: Actor) -> None:
        self._actors.remove(actor)
        with contextlib.suppress(Exception):
            self._ray.kill(actor.handle)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
