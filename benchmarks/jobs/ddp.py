"""PyTorch DDP with a process for each GPU, fed by `plugin.pytorch`: rates beside one process.

    python benchmarks/jobs/ddp.py FOLDER [--ranks 1 2] [--cores 16] [--batch 512] [--seconds 8] [--gigabytes 4]
        [--torch-path SITE_PACKAGES] [--json out.json]

torchrun starts the ranks, each with its GPU and --cores cores. Each reads its shard of the files as the example in
docs/many-machines.md does: random crops of 224, normalised float16. ``loop`` reads batches on the GPU, ``DDP`` takes a
step with each of them: one linear layer on 16 x 16 means of the picture, so that loading is what is measured, and
gradients that NCCL adds up. The first epoch looks at the files' numbers: every one must come exactly once, from one
rank. Files are read under --times names, as an epoch of four batches is none. All ranks together: images a second
between two barriers, at least --seconds apart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.different import data_files

ROOT = Path(__file__).parents[2]
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
WARM_UP = 1.5


def rank_main(told: dict[str, Any]) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from dali_run import fn, pipeline_def, types
    from dali_run.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    rank, world, gpu = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), told["device"] == "gpu"
    cores = sorted(os.sched_getaffinity(0))[rank * told["cores"] : (rank + 1) * told["cores"]]
    if cores:
        os.sched_setaffinity(0, cores)
    place = torch.device("cuda", rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=place if gpu else None)
    files = json.loads(Path(told["files"]).read_text()) * told["times"]

    @pipeline_def(batch_size=told["batch"], num_threads=told["cores"], device_id=rank if gpu else None, seed=5)
    def pictures() -> Any:
        encoded, number = fn.readers.file(
            files=files, labels=list(range(len(files))), shard_id=rank, num_shards=world, random_shuffle=True,
            pad_last_batch=True, name="Reader",
        )  # fmt: skip
        image = fn.decoders.image_random_crop(encoded, device="mixed" if gpu else "cpu")
        image = fn.resize(image, size=[224, 224])
        return fn.crop_mirror_normalize(image, mean=MEAN, std=STD, dtype=types.FLOAT16), number

    loader = DALIGenericIterator([pictures()], ["image", "number"], reader_name="Reader", auto_reset=True,
                                 last_batch_policy=LastBatchPolicy.PARTIAL)  # fmt: skip
    layers = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(768, 100))
    model = DistributedDataParallel(layers.to(place).to(torch.float16 if gpu else torch.float32))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    total = torch.zeros((), device=place)

    def use(image: Any, train: bool) -> None:
        nonlocal total
        if not train:
            total += image[:, 0, 112, 112].sum()
            return
        optimizer.zero_grad(set_to_none=True)
        model(image if gpu else image.float()).float().square().mean().backward()
        optimizer.step()

    def agreed(flag: bool) -> bool:
        """The flag of rank 0."""
        said = torch.tensor([flag], dtype=torch.int32, device=place)
        dist.broadcast(said, 0)
        return bool(said.item())

    def endless() -> Any:
        while True:
            yield from (batch for (batch,) in loader)

    numbers = [batch["number"].flatten().cpu() for (batch,) in loader]
    seen: list[Any] = [None] * world
    dist.all_gather_object(seen, torch.cat(numbers).tolist())
    assert sorted(n for own in seen for n in own) == list(range(len(files))), "not everything once"
    found: dict[str, Any] = {"once": True, "of each rank": [len(own) for own in seen]}
    batches = endless()
    for name, train in (("loop", False), ("DDP", True)):
        warm = time.perf_counter()
        while agreed(time.perf_counter() - warm < WARM_UP):
            for _ in range(8):
                use(next(batches)["image"], train)
        samples = torch.zeros((), dtype=torch.int64, device=place)
        if gpu:
            torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        while agreed(time.perf_counter() - began < told["seconds"]):
            for _ in range(32):
                image = next(batches)["image"]
                samples += len(image)
                use(image, train)
        dist.all_reduce(samples)
        if gpu:
            torch.cuda.synchronize()
        found[name] = samples.item() / (time.perf_counter() - began)
        if rank == 0:  # as they come
            Path(told["out"]).write_text(json.dumps(found))
    assert bool(torch.isfinite(total))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--cores", type=int, default=16, help="of each rank")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--gigabytes", type=float, default=4, help="of different files; 0: those of FOLDER")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--torch-path", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        rank_main(json.loads(args.rank_of))
        return
    results: dict[str, Any] = {}
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH"), args.torch_path])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        scratch = Path(name)
        files = [str(p) for p in data_files(args.folder, scratch / "different", args.gigabytes)]
        (scratch / "files.json").write_text(json.dumps(files))
        for ranks in args.ranks:
            out = scratch / f"{ranks}.json"
            told = {"files": str(scratch / "files.json"), "out": str(out), "times": args.times, "batch": args.batch,
                    "cores": args.cores, "device": args.device, "seconds": args.seconds}  # fmt: skip
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
                       __file__, "--rank-of", json.dumps(told)]  # fmt: skip
            code = subprocess.run(command, env=environment, check=False).returncode
            results[str(ranks)] = {**(json.loads(out.read_text()) if out.exists() else {}), "code": code}
            print(f"{ranks}: {results[str(ranks)]}", flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1))
    sys.exit(any(r["code"] for r in results.values()))


if __name__ == "__main__":
    main()
