"""Forks and CUDA: a worker of a GPU is a fork only of a process that never asked CUDA anything."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dali_run.pipelines.fleet import fork_server
from dali_run.pipelines.fleet.job_message import JobMessage, WorkerResources
from dali_run.pipelines.fleet.messages import MessageSocket

ROOT = Path(__file__).parents[3]
NURSERY = """
import signal, socket
from dali_run.pipelines.fleet import fork_server

fork_server.cuda_is_initialised = lambda *_: {asked}
fork_server.ForkServer(socket.socket(fileno={fd})).run()
"""
SEES = """
import os
from typing import Annotated
import numpy as np
from dali_run.ops.base import Arg, Operator
from dali_run.ops.batch import Batch

class Sees(Operator, name="tested.sees"):
    "Its process was told what to see."
    def infer(self, *specs):
        return specs[0]
    def cpu(self, ctx, given):
        with open({told!r}, "a") as file:
            file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "nothing") + " " + str(os.getpid()) + chr(10))
        return given
"""
SPEC = """
version: 1
name: seen
plugins: [sees.py]
pipeline: {batch_size: 2, num_threads: 1, device: cpu}
graph:
  - {op: readers.file, file_root: in, out: [x, label]}
  - {op: tested.sees, in: x, out: x}
outputs: {x: x}
write: {writer: tfrecord, path: out, shard: {samples: 2}, fields: {x: {encode: raw}}}
"""


def test_open_devices_of_the_driver_tell_of_cuda(tmp_path: Path) -> None:
    assert not fork_server.cuda_is_initialised(tmp_path / "nowhere")
    for number, leads in enumerate(("/dev/null", "socket:[17]", "/home/dev/nvidia0")):
        (tmp_path / str(number)).symlink_to(leads)
    assert not fork_server.cuda_is_initialised(tmp_path)
    (tmp_path / "9").symlink_to("/dev/nvidiactl")
    assert fork_server.cuda_is_initialised(tmp_path)


@pytest.mark.parametrize("asked", [False, True])
def test_the_worker_sees_its_gpu_as_a_fork_and_as_a_process_of_its_own(tmp_path: Path, asked: bool) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for k in range(4):
        (tmp_path / "in" / "a" / f"{k}.jpg").write_bytes(bytes([k]) * 10)
    told = tmp_path / "told"
    (tmp_path / "sees.py").write_text(SEES.replace("{told!r}", repr(str(told))))
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    job = JobMessage(str(spec), SPEC, {}, "cpu", None, str(tmp_path))
    resources = WorkerResources("GPU 1", 1, 0.5, visible="GPU-0815")
    driver, serves = socket.socketpair()
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", NURSERY.format(asked=asked, fd=serves.fileno())]
    with subprocess.Popen(command, pass_fds=[serves.fileno()], cwd=ROOT) as running, driver, ours:
        serves.close()
        messages = MessageSocket(driver)
        messages.send({"job": job.to_dict()})
        answers = messages.receive()
        assert next(answers) == {"ready": True}
        socket.send_fds(driver, [json.dumps({"resources": resources.to_dict()}).encode()], [theirs.fileno()])
        theirs.close()
        pid = next(answers)["pid"]
        words = talk(MessageSocket(ours))
        assert next(answers) == {"exited": pid, "status": 0}
        driver.shutdown(socket.SHUT_WR)
        assert running.wait() == 0
    assert [next(iter(w)) for w in words if "at" not in w] == ["opened", "ended"], words
    assert words[-1]["written"] == 4
    assert {line for line in told.read_text().splitlines() if line.endswith(str(pid))} == {f"GPU-0815 {pid}"}
    assert sorted(p.name for p in (tmp_path / "out").glob("*.tfrecord"))


def talk(messages: MessageSocket) -> list[dict[str, Any]]:
    """Give the worker its only part; everything that it said."""
    words: list[dict[str, Any]] = []
    for word in messages.receive():
        words.append(word)
        if "opened" in word:
            messages.send({"part": [0, 1], "range": word["opened"]})
        elif "ended" in word:
            messages.send({"stop": True})
    return words
