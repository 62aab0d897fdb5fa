"""One process for each GPU, as PyTorch's DDP has it: what those of a machine share, and what each of them reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.gpu.lane import gpu_count
from dali_run.pipelines import cores
from dali_run.pipelines.cores import local_ranks, threads_of, usable_cores
from dali_run.pipelines.limits import HOST_SHARE, Memory, host_memory
from dali_run.pipelines.python.pipeline import Pipeline

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("told", "ranks"), [(None, 1), ("4", 4), ("0", 1), ("four", 1), ("", 1)])
def test_ranks_of_torchrun_share_the_machine(monkeypatch: pytest.MonkeyPatch, told: str | None, ranks: int) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 16)
    if told is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert local_ranks() == ranks
    assert threads_of("auto") == 16 // ranks
    assert threads_of(5) == 5
    assert Memory().host_bytes() == int(HOST_SHARE / ranks * host_memory())
    assert Memory(host=1 << 30).host_bytes() == 1 << 30
    assert Memory(host=0.25).host_bytes() == int(0.25 * host_memory())
    assert Pipeline(4)._settings.num_threads == 16 // ranks


def test_more_ranks_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(usable_cores() + 1))
    assert threads_of("auto") == 1


PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from dali_run import fn, pipeline_def
from dali_run.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
gpu = sys.argv[4] == "gpu"
place = torch.device("cuda", rank) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(rank)
store = dist.FileStore(sys.argv[3], world)
dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=rank, world_size=world)

@pipeline_def(batch_size=3, device_id=rank if gpu else None, seed=5)
def pictures(rank, world):
    encoded, label = fn.readers.file(file_root=sys.argv[1], shard_id=rank, num_shards=world, name="Reader",
                                     random_shuffle=True, pad_last_batch=True)
    image = fn.decoders.image(encoded, device="mixed" if gpu else "cpu")
    return image, label

loader = DALIGenericIterator([pictures(rank, world)], ["image", "label"], reader_name="Reader", auto_reset=True,
                             last_batch_policy=LastBatchPolicy.PARTIAL)
model = DistributedDataParallel(torch.nn.Linear(4 * 4 * 3, 1, bias=False).to(place))
steps, seen = [], []
for epoch in range(2):
    seen.append([])
    for (batch,) in loader:
        assert batch["image"].device == place
        model.zero_grad()
        model(batch["image"].float().flatten(1)).mean().backward()
        steps.append(float(model.module.weight.grad.sum()))
        seen[-1] += batch["image"][:, 0, 0, 0].tolist()
with open(sys.argv[2] + str(rank), "w") as file:
    json.dump({"seen": seen, "steps": steps}, file)
dist.destroy_process_group()
"""


@pytest.mark.gpu(emulated=False)
@pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")
def test_ranks_on_two_gpus_read_everything_once_and_step_together(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    train(tmp_path, "gpu")


def test_ranks_of_ddp_read_everything_once_and_step_together(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    train(tmp_path, "cpu")


def train(tmp_path: Path, device: str) -> None:
    """Two epochs by two ranks."""
    for i in range(14):
        (tmp_path / "in" / f"{i}").mkdir(parents=True)
        Image.fromarray(np.full((4, 4, 3), 10 * i, np.uint8)).save(tmp_path / "in" / f"{i}" / "0.png")
    environment = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "in"), str(tmp_path / "out"), str(tmp_path / "store"),
               device]  # fmt: skip
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(k)}, stderr=subprocess.PIPE) for k in range(2)]
    said = [rank.communicate(timeout=300)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    found = [json.loads((tmp_path / f"out{k}").read_text()) for k in range(2)]
    for epoch in range(2):
        assert sorted(x for rank in found for x in rank["seen"][epoch]) == [10 * i for i in range(14)]
    assert found[0]["steps"] == found[1]["steps"], "gradients are those of both"
    assert len(found[0]["steps"]) == 6
