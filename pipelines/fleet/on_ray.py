"""Workers on a Ray cluster: an actor for each GPU, or for some cores, wherever there is room.

An actor only holds the process that works (`processes.py`) and carries words between it and the driver: a few numbers
and sentences each second. Data, journals and shards never pass through Ray. So a node that is lost costs what its
workers had not published, and Ray may end an actor at any moment: its process hears the end of its socket and publishes
what is complete, if it is given the time.
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
"""Of a worker without a GPU, where nobody says: as many as one process uses well, or all of the smallest node."""
_LOOK = 5.0
"""Seconds between looks at the cluster: nodes come and go."""
_TURN = 1.0
_GONE = 30.0
"""Seconds without a living node after which a cluster that the job started itself counts as gone."""
_AGAIN = "Run the same command again: it continues after the last finished shards"
_REMIND = 300.0
"""Seconds between notes that the job waits for a node of somebody else's cluster, which may grow."""


class Carrier:
    """Runs inside an actor: one worker process of this node, and its words."""

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
        """The worker's messages within ``seconds``, or at once where there are any."""
        if self._worker is None:
            try:
                self._group.fill(1)
            except (JobError, SpecError, DeviceError) as e:
                kind = "spec" if isinstance(e, SpecError) else "device" if isinstance(e, DeviceError) else "job"
                return [{"problem": str(e), "kind": kind}, {"gone": "could not begin"}]
            (self._worker,) = self._group.workers
        said = [told for _, told in self._group.poll(seconds)]
        return [{**told, "node_id": self._node_id} if "opened" in told else told for told in said]

    def give(self, order: Message) -> None:
        """Pass an order on, while `turn` waits."""
        if self._worker is not None:
            self._group.give(self._worker, order)


@dataclass(eq=False)
class Actor:
    """A worker, as the driver sees it."""

    name: str
    handle: Any
    node: str = "a node"
    turn: Any = None
    """The call that waits for its words."""


class Actors:
    """The workers of one job on a cluster. A context manager; leaving it ends them all, and the connection."""

    def __init__(
        self, job: JobMessage, address: str, workers: int | None, cores: int | None, note: Callable[[str], None]
    ) -> None:
        """``address`` is ``ray`` (the cluster that this process belongs to, or one of this machine alone) or a URL."""
        try:
            import ray
        except ImportError:
            raise SpecError(f"--on {address} needs Ray: pip install 'dali-run[ray]'") from None
        self._ray = ray
        self._job = job
        self._address = address
        self._most = workers
        self._cores_asked = cores
        self._note = note
        self._actors: list[Actor] = []
        self._number = 0
        self._looked = -_LOOK
        self._room = 0
        self._stopping = False
        self._alone = False
        """The cluster is this machine alone, started for this job: no other node will come."""
        self._empty_since: float | None = None
        self._reminded = 0.0

    def __enter__(self) -> Actors:
        ray = self._ray
        self._ours = not ray.is_initialized()
        if self._ours:
            kind: dict[str, Any] = {"address": self._address} if self._address != "ray" else {"address": "auto"}
            quiet = {"log_to_driver": False, "configure_logging": False}
            try:
                try:
                    ray.init(**kind, **quiet)
                except ConnectionError:
                    if self._address != "ray":
                        raise
                    ray.init(include_dashboard=False, **quiet)  # no cluster here: this machine is one
                    self._alone = True
            except Exception as e:
                raise JobError(f"--on {self._address}: {' '.join(str(e).split())}") from None
        self._gpu = self._job.device != "cpu" and any(self._gpus(n) for n in self._nodes())
        if self._gpu:
            self._job = JobMessage(**{**self._job.to_dict(), "device": "gpu"})
        elif self._job.device == "null":
            self._job = JobMessage(**{**self._job.to_dict(), "device": "cpu"})
        self._cores = self._cores_asked or self._cores_of_one()
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
        if self._ours:
            self._ray.shutdown()

    # -- the cluster --------------------------------------------------------------------------------------------------

    def _nodes(self) -> list[dict[str, Any]]:
        """The nodes that live. Raises JobError if the cluster does not answer."""
        try:
            return [n for n in self._ray.nodes() if n["Alive"]]
        except Exception as e:  # Ray raises many kinds when its head is gone
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

    def _look(self) -> None:
        """How many workers the nodes hold that are there now."""
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
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
        """Say now and then that no node holds a worker. Raises JobError if none will come."""
        now = time.monotonic()
        if self._empty_since is None:
            self._empty_since, self._reminded = now, now - _REMIND
        if self._alone and now - self._empty_since >= _GONE:
            raise JobError("the Ray node that this job started on this machine is gone (killed, or out of memory: its "
                           f"log is below /tmp/ray). {_AGAIN}")  # fmt: skip
        if now - self._reminded >= _REMIND:
            self._reminded = now
            what = f"{self._cores} cores and a GPU" if self._gpu else f"{self._cores} cores"
            since = f" for {duration(now - self._empty_since)}" if now > self._empty_since else ""
            self._note(f"no node of the cluster has held a worker of {what}{since}; waiting for one (Ctrl-C ends the "
                       "job, which continues later)")  # fmt: skip

    def room(self) -> int:
        """How many workers there are, or could be. Asked for by number, they may come later: autoscalers see that."""
        self._look()
        return self._most if self._most is not None else max(self._room, 1)

    def fill(self, wanted: int) -> None:
        """Ask for actors until there are ``wanted``; Ray places them when there is room."""
        while len(self._actors) < wanted and not self._stopping:
            handle = self._make.remote(self._job.to_dict(), self._cores, self._gpu)
            actor = Actor(f"worker {self._number}", handle)
            self._number += 1
            self._actors.append(actor)
            actor.turn = handle.turn.remote(self._seconds())

    def _seconds(self) -> float:
        """How long an actor waits for news: with thousands of them, longer, so that the driver keeps up."""
        return max(_TURN, len(self._actors) / 500)

    # -- for the driver -----------------------------------------------------------------------------------------------

    def poll(self, seconds: float) -> Sequence[tuple[Actor, Message]]:
        """The messages of workers within ``seconds``; ``{"gone": why}`` is a worker's last word."""
        turns = {a.turn: a for a in self._actors}
        if not turns:
            time.sleep(seconds)
            return []
        done, _ = self._ray.wait(list(turns), num_returns=1, timeout=seconds)
        if done:  # those that are there by now, too
            done, _ = self._ray.wait(list(turns), num_returns=len(turns), timeout=0)
        heard: list[tuple[Actor, Message]] = []
        for ref in done:
            actor = turns[ref]
            try:
                said = self._ray.get(ref)
            except self._ray.exceptions.RayError as e:
                said = [{"gone": f"was lost ({_first_line(e)})"}]
            for told in said:
                if "opened" in told:
                    actor.node = f"{told['process']['host']}/{told['node_id'][:6]}"
                heard.append((actor, told))
            if any("gone" in told for told in said):
                self._drop(actor)
            else:
                actor.turn = actor.handle.turn.remote(self._seconds())
        return heard

    def give(self, worker: Actor, order: Message) -> None:
        """Tell a worker what to do."""
        worker.handle.give.remote(order)

    def stop(self) -> None:
        """Ask all workers to publish what is complete, and to end."""
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
