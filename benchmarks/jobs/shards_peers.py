"""JPEGs into tar shards of smaller JPEGs as others make them, beside `benchmarks/jobs/shards.py`.

    python benchmarks/jobs/shards_peers.py FOLDER [--peers cpu,dali] [--site SITE_PACKAGES] [--seconds 6]
        [--json out.json]

``cpu`` is the way of img2dataset: a process for each core decodes, resizes and encodes (OpenCV where it is installed,
else simplejpeg and Pillow) and writes tar shards of its own. ``dali``: NVIDIA DALI, which encodes nothing, decodes and
resizes on the GPU, batches of 256; threads on all cores encode (simplejpeg), and one writes tar. Shorter side 256,
quality 90, everything in --scratch, in memory by default. Rates are of --seconds after the first batches.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import multiprocessing
import os
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.different import data_files
from benchmarks.jobs.apart import answer, run_apart

SHORTER, QUALITY, SHARD, BATCH, DEPTH = 256, 90, 10000, 256, 3


def write_tar(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a member, as webdataset's TarWriter does."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def smaller(data: bytes) -> bytes:
    """A JPEG as one of shorter side 256."""
    try:
        import cv2
        import numpy as np
    except ImportError:
        return _smaller_by_pillow(data)
    cv2.setNumThreads(1)
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    scale = SHORTER / min(image.shape[:2])
    size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    image = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def _smaller_by_pillow(data: bytes) -> bytes:
    import numpy as np
    import simplejpeg
    from PIL import Image

    image = Image.fromarray(simplejpeg.decode_jpeg(data))
    scale = SHORTER / min(image.size)
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), reducing_gap=2.0)
    return bytes(simplejpeg.encode_jpeg(np.asarray(image), quality=QUALITY, colorsubsampling="420"))


def _worker(files: list[str], out: str, began: Any, ends: float, count: Any) -> None:
    smaller(Path(files[0]).read_bytes())
    began.wait()
    stop = time.perf_counter() + ends
    for shard in itertools.count():
        with tarfile.open(f"{out}-{shard:06d}.tar", "w") as archive:
            for i in range(SHARD):
                k = shard * SHARD + i
                write_tar(archive, f"{k:09d}.jpg", smaller(Path(files[k % len(files)]).read_bytes()))
                if time.perf_counter() > stop:
                    count.put((k + 1, ends + time.perf_counter() - stop))
                    return


def cpu(files: list[str], out: str, seconds: float) -> dict[str, Any]:
    """Processes on all cores."""
    n = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("fork")
    began, count = context.Barrier(n), context.SimpleQueue()
    workers = [
        context.Process(target=_worker, args=(files[i::n] or files, f"{out}/{i:03d}", began, seconds, count))
        for i in range(n)
    ]
    for worker in workers:
        worker.start()
    told = [count.get() for _ in workers]
    for worker in workers:
        worker.join()
    by = "OpenCV" if _has_cv2() else "simplejpeg and Pillow"
    return {"rate": sum(done / took for done, took in told), "workers": n, "by": by}


def _has_cv2() -> bool:
    try:
        import cv2  # noqa: F401
    except ImportError:
        return False
    return True


def dali(files: list[str], out: str, seconds: float) -> dict[str, Any]:
    """DALI on GPU 0, and threads that encode."""
    import numpy as np
    import simplejpeg
    from nvidia.dali import fn, pipeline_def

    cores = len(os.sched_getaffinity(0))

    @pipeline_def(batch_size=BATCH, num_threads=cores, device_id=0, prefetch_queue_depth=DEPTH)  # type: ignore[untyped-decorator]
    def pictures() -> Any:
        encoded, _ = fn.readers.file(files=files)
        return fn.resize(fn.decoders.image(encoded, device="mixed"), resize_shorter=SHORTER)

    pipeline = pictures()
    pipeline.build()

    def encode(image: Any) -> bytes:
        return bytes(simplejpeg.encode_jpeg(np.asarray(image), quality=QUALITY, colorsubsampling="420"))

    done, waiting = 0, []
    began = 0.0
    with ThreadPoolExecutor(cores) as pool, contextlib.ExitStack() as archives:
        for step in itertools.count():
            images = pipeline.run()[0].as_cpu()
            waiting.append((images, [pool.submit(encode, images.at(i)) for i in range(len(images))]))
            if step == 2 * DEPTH:
                done, began = 0, time.perf_counter()
            if len(waiting) < 2:
                continue
            for future in waiting.pop(0)[1]:  # while the next batch is encoded, and DALI makes others
                if done % SHARD == 0:
                    archives.close()
                    archive = archives.enter_context(tarfile.open(f"{out}/{step:06d}.tar", "w"))
                write_tar(archive, f"{done:09d}.jpg", future.result())
                done += 1
            took = time.perf_counter() - began
            if began and took > seconds:
                return {"rate": done / took, "threads": cores, "batch": BATCH}
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--gigabytes", type=float, default=0, help="of different files; 0: those of FOLDER")
    parser.add_argument("--peers", default="cpu,dali")
    parser.add_argument("--site", default="", help="a folder from which `import nvidia.dali` works")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        told = json.loads(args.child)
        answer(json.dumps({**told, "files": json.loads(Path(told["files"]).read_text())}), {"cpu": cpu, "dali": dali})
        return
    results: dict[str, Any] = {}
    for peer in args.peers.split(","):
        with tempfile.TemporaryDirectory(dir=args.scratch) as name:
            scratch = Path(name)
            files = [str(p) for p in data_files(args.folder, scratch / "different", args.gigabytes)]
            (scratch / "files.json").write_text(json.dumps(files))
            given = {"what": peer, "files": str(scratch / "files.json"), "out": name, "seconds": args.seconds}
            results[peer] = run_apart(__file__, given, args.site or None)
        print(f"{peer}: {results[peer]}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
