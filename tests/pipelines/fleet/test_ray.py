"""A cluster of several nodes on this machine: nodes come, go and die; the output is that of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("ray", reason="needs Ray (extra ray)")

import ray
from ray.cluster_utils import Cluster

from dali_run.ops.errors import JobError
from dali_run.pipelines.fleet.run import run
from dali_run.pipelines.job.run import INTERRUPTED, REJECTS, Progress, run_job

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]
SPEC = """
version: 1
name: many
pipeline: {batch_size: 4, num_threads: 1, device: auto, seed: 3}
graph:
  - {op: readers.file, file_root: IN, random_shuffle: true, out: [x, label]}
  - {op: decoders.image, in: x, out: x}
  - {op: resize, in: x, size: [16, 16], out: x}
outputs: {x: x, label: label}
write: {writer: tfrecord, path: OUT, shard: {samples: 5}, fields: {x: {encode: raw}, label: {}}}
on_error: {policy: skip, max_errors: 3}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False, configure_logging=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    rng = np.random.default_rng(1)
    for i in range(200):
        (folder / "in" / "ab"[i % 2]).mkdir(exist_ok=True, parents=True)
        picture = Image.fromarray(rng.integers(0, 255, (24, 24, 3), np.uint8))
        picture.save(folder / "in" / "ab"[i % 2] / f"{i:03d}.png")
    (folder / "in" / "a" / "010.png").write_bytes(b"no picture")
    file = folder / "spec.yaml"
    file.write_text(SPEC.replace("IN", str(folder / "in")).replace("OUT", str(folder / "one")))
    assert run_job(file).exit_code == REJECTS
    return file


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "report.json"}


def test_nodes_that_die_and_come_change_nothing(cluster: Cluster, spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    notes: list[str] = []
    result: list[Any] = []

    def job() -> None:
        where = {"write.path": str(out)}
        result.append(run(spec, where, on="ray", workers=3, cores=1, note=notes.append))

    driver = threading.Thread(target=job)
    second = cluster.add_node(num_cpus=1)
    driver.start()
    while len(list(out.glob("*.tfrecord"))) < 3 and driver.is_alive():
        time.sleep(0.05)
    cluster.remove_node(second, allow_graceful=False)
    cluster.add_node(num_cpus=1)  # a node that comes later gets its share
    driver.join()
    assert result[0].exit_code == REJECTS, result[0].message
    assert contents(out) == contents(spec.parent / "one")
    report = result[0].report
    assert report["samples"]["written"] == 199
    assert all(n["bottleneck"]["sentence"] for n in report["nodes"])
    assert any("was lost" in n for n in notes)
    assert len([w for w in report["workers"] if w["parts"]]) >= 2


def test_an_interrupted_job_continues_and_nothing_but_words_pass_through_ray(
    cluster: Cluster, spec: Path, tmp_path: Path
) -> None:
    def interrupt(state: Progress) -> None:
        if state.done > 20:
            raise KeyboardInterrupt

    where = {"write.path": str(tmp_path / "out")}
    assert run(spec, where, on="ray", cores=1, progress=interrupt).exit_code == INTERRUPTED
    assert run(spec, where, on="processes:2").exit_code == REJECTS  # anything that knows the journals
    assert contents(tmp_path / "out") == contents(spec.parent / "one")


def test_problems_of_workers_are_the_jobs(cluster: Cluster, spec: Path, tmp_path: Path) -> None:
    where = {"write.path": str(tmp_path / "out"), "graph.readers.file.file_root": "/nowhere"}
    with pytest.raises(JobError, match="nowhere"):
        run(spec, where, on="ray", cores=1)
