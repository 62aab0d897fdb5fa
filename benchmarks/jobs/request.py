"""Latency of one request: from the bytes of one image, or of eight, to a tensor of 224 x 224, compared with the
libraries that serve such requests today.

    python benchmarks/jobs/request.py [--kinds jpeg,png,webp,photo] [--batches 1,8] [--device gpu] [--json out.json]

Decode, resize, normalise; the clock stops when the tensor is complete. dali-run by `Pipeline.run(j=[bytes])` and in
dynamic mode; DALI by `Pipeline.run`; torchvision (nvJPEG for JPEG on a GPU, otherwise its CPU decoders); Pillow with
NumPy. Every row is a separate process and uses up to 200 different files of natural sizes; JPEGs have 80 to 120 KB,
photos 12 megapixels. Prints p50 and p99 in milliseconds.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gate import by_pipeline, request
from benchmarks.measuring import MEAN, STD, Side, answer, dali_is_installed, gpu_name, measure, versions
from benchmarks.natural import ROOT, add_data_arguments, data_sets, save

Serve = Callable[[list[np.ndarray]], Any]
DATA = {"jpeg": "val", "png": "png", "webp": "webp", "photo": "photos"}


def dynamic(d: Side, _: int) -> Serve:
    import dali_run.dynamic as ndd

    def serve(bodies: list[np.ndarray]) -> Any:
        images = ndd.decoders.image(ndd.batch(bodies), device=d.device)
        images = ndd.resize(images, size=[224, 224])
        return ndd.crop_mirror_normalize(images, dtype=ndd.float32, output_layout="CHW", mean=MEAN, std=STD).evaluate()

    return serve


def torchvision(d: Side, _: int) -> Serve:
    import torch
    from torchvision import io as files
    from torchvision.transforms import v2

    device = "cuda" if d.gpu else "cpu"
    mean, std = (torch.tensor(x, device=device).view(3, 1, 1) for x in (MEAN, STD))

    def serve(bodies: list[np.ndarray]) -> Any:
        encoded = [torch.from_numpy(body) for body in bodies]
        if d.gpu and bytes(bodies[0][:2]) == b"\xff\xd8":
            images = files.decode_jpeg(encoded, mode=files.ImageReadMode.RGB, device=device)
        else:
            images = [files.decode_image(x, mode=files.ImageReadMode.RGB).to(device) for x in encoded]
        images = [v2.functional.resize(image, [224, 224], antialias=True) for image in images]
        return (torch.stack(images).float() - mean) / std

    return serve


def pillow(d: Side, _: int) -> Serve:
    from PIL import Image

    def serve(bodies: list[np.ndarray]) -> Any:
        images = [Image.open(io.BytesIO(body)).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
                  for body in bodies]  # fmt: skip
        pixels = (np.stack([np.asarray(image) for image in images]) - np.float32(MEAN)) / np.float32(STD)
        pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        if d.gpu:
            import torch

            return torch.from_numpy(pixels).to("cuda")
        return pixels

    return serve


SERVERS: dict[str, tuple[str, Callable[[Side, int], Serve]]] = {
    "dali-run": ("dali_run", by_pipeline),
    "dali-run dynamic": ("dali_run", dynamic),
    "DALI": ("nvidia.dali", by_pipeline),
    "torchvision": ("dali_run", torchvision),
    "Pillow": ("dali_run", pillow),
}
"""For each row of the table: the library that its process uses, and the function that creates the server of
requests."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(DATA))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu" if gpu_name() else "cpu")
    add_data_arguments(parser, 0.2)
    args = parser.parse_args()
    if args.child:
        row = json.loads(args.child)["row"]
        batch, server = row.split(" ", 1)
        answer(args.child, {row: partial(request, batch=int(batch), server=SERVERS[server][1])})
    result: dict[str, Any] = {"gpu": gpu_name(), "versions": versions(ROOT), "threads": args.threads, "rows": {}}
    with data_sets(args) as (scratch, data):
        for kind in args.kinds.split(","):
            for batch in args.batches.split(","):
                for server, (library, _) in SERVERS.items():
                    if library == "nvidia.dali" and not dali_is_installed():
                        continue
                    found = measure(__file__, f"{batch} {server}", library=library, device=args.device,
                                    package=str(ROOT), data=str(data.path(DATA[kind])), threads=args.threads,
                                    seconds=args.seconds, scratch=str(scratch))  # fmt: skip
                    result["rows"].setdefault(f"{kind} {batch}", {})[server] = found
                    told = (
                        f"p50 {found['p50_ms']:7.2f} ms  p99 {found['p99_ms']:7.2f} ms" if "p50_ms" in found else found
                    )
                    print(f"{kind:6} {batch:2} {server:17} {told}", flush=True)
                    save(args.json, result)


if __name__ == "__main__":
    main()
