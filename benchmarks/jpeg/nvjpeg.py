"""nvJPEG on this machine: which files each backend takes, how far its pixels are from libjpeg-turbo's, how
fast it is, and what it does with damaged files.

    python benchmarks/jpeg/nvjpeg.py FOLDER_OF_JPEGS [--json result.json] [--seconds 2]
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import simplejpeg

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.decoders import Image
from dali_run.ops.codecs.jpeg import nvjpeg
from dali_run.ops.codecs.jpeg.header import read_headers
from dali_run.ops.codecs.jpeg.nvjpeg import Backend, Decoder, NvJpegError, Output
from dali_run.ops.context import Context
from dali_run.ops.gpu.lane import Lane, pinned_empty


class Files:
    """JPEG files packed into pinned memory, their headers, and room for their pixels."""

    def __init__(self, blobs: list[bytes]) -> None:
        self.lengths = np.array([len(b) for b in blobs], np.int64)
        self.offsets = np.cumsum(self.lengths) - self.lengths
        self.bytes = pinned_empty(int(self.lengths.sum()))
        for blob, at in zip(blobs, self.offsets, strict=True):
            self.bytes[at : at + len(blob)] = np.frombuffer(blob, np.uint8)
        self.headers = read_headers(self.bytes, self.offsets, self.lengths)
        self.pixels = self.headers["width"].astype(np.int64) * self.headers["height"]
        self.address = (self.offsets + self.bytes.ctypes.data).astype(np.uint64)

    def __len__(self) -> int:
        return len(self.lengths)

    def data(self, i: int) -> memoryview:
        return memoryview(self.bytes)[self.offsets[i] : self.offsets[i] + self.lengths[i]]

    def kind(self, i: int) -> str:
        h = self.headers[i]
        sampling = ",".join(f"{h['h'][c]}x{h['v'][c]}" for c in range(min(int(h["components"]), 4)))
        return f"SOF{int(h['sof']) - 0xC0} {sampling} status {h['status']}" + (" DRI" if h["restart_interval"] else "")


class Target:
    """Device memory for a batch, and the arguments of a batch call."""

    def __init__(self, files: Files, which: np.ndarray, channels: int = 3) -> None:
        sizes = files.pixels[which] * channels
        self.offsets = np.cumsum(sizes) - sizes
        self.memory = cupy.zeros(int(sizes.sum()), np.uint8)
        self.data = files.address[which]
        self.lengths = files.lengths[which].astype(np.uint64)
        pitches = files.headers["width"][which].astype(np.int64) * channels
        self.images = nvjpeg.destinations(self.memory.data.ptr, self.offsets, pitches)


def rate(work: Callable[[], int], seconds: float) -> float:
    """Images a second of ``work``, which returns how many it did."""
    work()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += work()
    return done / (time.perf_counter() - start)


def together(workers: list[Callable[[threading.Event], int]], seconds: float) -> list[float]:
    """Rates of workers that run at the same time until the event is set."""
    stop, counts = threading.Event(), [0.0] * len(workers)
    failures: list[BaseException] = []

    def run(k: int) -> None:
        try:
            start = time.perf_counter()
            counts[k] = workers[k](stop) / (time.perf_counter() - start)
        except BaseException as e:  # reported below
            failures.append(e)
            stop.set()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(workers))]
    for t in threads:
        t.start()
    stop.wait(seconds)
    stop.set()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]
    return counts


def info() -> dict[str, Any]:
    library = nvjpeg.library()
    result: dict[str, Any] = {"library": library.path, "version": library.version, "candidates": nvjpeg.candidates()}
    for backend in Backend:
        try:
            decoder = Decoder(backend)
            result[backend.name] = {"engines": decoder.engines()}
            decoder.close()
        except NvJpegError as e:
            result[backend.name] = str(e)
    return result


def decode_one(decoder: Decoder, files: Files, i: int, output: Output, batched: bool) -> np.ndarray:
    channels = 1 if output is Output.Y else 3
    target = Target(files, np.array([i]), channels)
    target.memory.fill(77)
    stream = cupy.cuda.get_current_stream()
    if batched:
        decoder.batch(target.data, target.lengths, target.images, output, stream.ptr)
    else:
        decoder.single(int(target.data[0]), int(target.lengths[0]), target.images[0], output, stream.ptr)
    stream.synchronize()
    h, w = int(files.headers["height"][i]), int(files.headers["width"][i])
    return cupy.asnumpy(target.memory).reshape(h, w, channels)


def acceptance(files: Files) -> dict[str, Any]:
    """For each backend, output and kind of header: how many decode, and how far from libjpeg-turbo they are."""
    result: dict[str, Any] = {}
    kinds = defaultdict(list)
    for i in range(len(files)):
        kinds[files.kind(i)].append(i)
    for backend in Backend:
        for fancy in (False, True):
            for output in (Output.RGB, Output.Y):
                try:
                    decoder = Decoder(backend, fancy)
                except NvJpegError as e:
                    result[backend.name] = str(e)
                    continue
                for kind, members in kinds.items():
                    key = f"{backend.name} {'fancy' if fancy else 'plain'} {output.name} {kind}"
                    means, maxima, errors = [], [], defaultdict(int)
                    for i in members[:12]:
                        try:
                            got = decode_one(decoder, files, i, output, backend is not Backend.HYBRID)
                        except NvJpegError as e:
                            errors[str(e)] += 1
                            continue
                        try:
                            space = "GRAY" if output is Output.Y else "RGB"
                            want = simplejpeg.decode_jpeg(files.data(i), space, strict=False)
                        except ValueError:
                            continue
                        d = np.abs(got.astype(np.int16) - want)
                        means.append(float(d.mean()))
                        maxima.append(int(d.max()))
                    result[key] = {
                        "ok": len(means),
                        "mean difference": round(float(np.mean(means)), 4) if means else None,
                        "max difference": max(maxima, default=None),
                        "errors": dict(errors),
                    }
    return result


def speed(files: Files, seconds: float) -> dict[str, Any]:
    """Images a second of each backend on baseline colour files."""
    result: dict[str, Any] = {}
    plain = np.flatnonzero((files.headers["status"] == 0) & (files.headers["components"] == 3))
    taken = np.resize(plain, 1024)

    def batches(backend: Backend, batch: int, states: int, order: np.ndarray, fancy: bool = False) -> list[float]:
        def worker(stop: threading.Event) -> int:
            decoder = Decoder(backend, fancy)
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                targets = [Target(files, order[k : k + batch]) for k in range(0, len(order) - batch + 1, batch)][:2]
                done = 0
                while not stop.is_set():
                    t = targets[done // batch % len(targets)]
                    decoder.batch(t.data, t.lengths, t.images, Output.RGB, stream.ptr)
                    stream.synchronize()
                    done += batch
            decoder.close()
            return done

        return together([worker] * states, seconds)

    def note(key: str, measure: Callable[[], Any]) -> None:
        try:
            result[key] = measure()
        except Exception as e:  # one refused configuration must not hide the others
            result[key] = f"{type(e).__name__}: {e}"
        print(f"  {key}: {result[key]}", flush=True)

    for batch in (64, 128, 256, 512):
        note(f"hardware batch {batch}", lambda b=batch: round(sum(batches(Backend.HARDWARE, b, 1, taken))))
    for states in (2, 3, 4):
        note(f"hardware 256 x {states} handles", lambda s=states: round(sum(batches(Backend.HARDWARE, 256, s, taken))))
    note("hardware 256 fancy", lambda: round(sum(batches(Backend.HARDWARE, 256, 1, taken, True))))
    by_size = taken[np.argsort(-files.pixels[taken], kind="stable")]
    note("hardware 512 largest first", lambda: round(sum(batches(Backend.HARDWARE, 512, 1, by_size))))
    for states in (1, 2):
        note(
            f"gpu_hybrid 256 x {states} handles",
            lambda s=states: round(sum(batches(Backend.GPU_HYBRID, 256, s, taken))),
        )

    def asynchrony() -> dict[str, float]:
        """Milliseconds that one batch of 256 holds the host, and until it is done."""
        decoder = Decoder(Backend.HARDWARE)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            targets = [Target(files, taken[k : k + 256]) for k in (0, 256, 512)]
            host, total = [], []
            for k in range(12):
                t = targets[k % 3]
                start = time.perf_counter()
                decoder.batch(t.data, t.lengths, t.images, Output.RGB, stream.ptr)
                host.append(time.perf_counter() - start)
                stream.synchronize()
                total.append(time.perf_counter() - start)
            start = time.perf_counter()
            for k in range(12):
                t = targets[k % 3]
                decoder.batch(t.data, t.lengths, t.images, Output.RGB, stream.ptr)
            queued = time.perf_counter() - start
            stream.synchronize()
            pipelined = (time.perf_counter() - start) / 12
        return {
            "host call ms": float(np.median(host) * 1e3),
            "call and wait ms": float(np.median(total) * 1e3),
            "queued without waiting, a batch, ms": queued / 12 * 1e3,
            "done, a batch, ms": pipelined * 1e3,
        }

    note("hardware asynchrony, batch 256", asynchrony)

    def cpu_worker(stop: threading.Event) -> int:
        done = 0
        while not stop.is_set():
            simplejpeg.decode_jpeg(files.data(int(taken[done % len(taken)])), "RGB")
            done += 1
        return done

    def hybrid_worker(stop: threading.Event) -> int:
        decoder, stream, done = Decoder(Backend.HYBRID), cupy.cuda.Stream(non_blocking=True), 0
        with stream:
            targets = [Target(files, taken[k : k + 1]) for k in range(64)]
            while not stop.is_set():
                t = targets[done % 64]
                decoder.single(int(t.data[0]), int(t.lengths[0]), t.images[0], Output.RGB, stream.ptr)
                done += 1
            stream.synchronize()
        decoder.close()
        return done

    for threads in (1, 4, 8, 12, 16):
        note(f"simplejpeg {threads} threads", lambda t=threads: round(sum(together([cpu_worker] * t, seconds))))
        note(f"hybrid {threads} threads", lambda t=threads: round(sum(together([hybrid_worker] * t, seconds))))

    def mixed(threads: int, worker: Callable[[threading.Event], int]) -> dict[str, int]:
        """Engines and threads at the same time: how much each slows the other."""
        holder: list[float] = []

        def hardware(stop: threading.Event) -> int:
            decoder, stream, done = Decoder(Backend.HARDWARE), cupy.cuda.Stream(non_blocking=True), 0
            with stream:
                targets = [Target(files, taken[k : k + 256]) for k in (0, 256, 512)]
                while not stop.is_set():
                    t = targets[done // 256 % 3]
                    decoder.batch(t.data, t.lengths, t.images, Output.RGB, stream.ptr)
                    stream.synchronize()
                    done += 256
            return done

        holder = together([hardware] + [worker] * threads, seconds)
        return {"engines": round(holder[0]), "threads": round(sum(holder[1:]))}

    for threads in (4, 8, 12, 15):
        note(f"engines with simplejpeg x {threads}", lambda t=threads: mixed(t, cpu_worker))
        note(f"engines with hybrid x {threads}", lambda t=threads: mixed(t, hybrid_worker))
    return result


def operator(files: Files, seconds: float) -> dict[str, Any]:
    """decoders.image as jobs run it: batches of 256 in flight on several lanes, launched by one thread."""
    result: dict[str, Any] = {}
    taken = np.resize(np.arange(len(files)), 1024)

    def run(lanes: int, load: float, batch: int) -> dict[str, float]:
        op = Image(jpeg_decoder="nvjpeg", hw_decoder_load=load)
        free = [Lane() for _ in range(lanes)]
        batches = []
        for k in range(0, len(taken), batch):
            which = taken[k : k + batch]
            samples = Samples.numbered(len(which), k)
            shapes = files.lengths[which].astype(np.int32)[:, None]
            batches.append(Batch(files.bytes, files.offsets[which], shapes, "", samples))
        flying: list[tuple[Lane, Any]] = []
        done, in_kernel = 0, 0.0

        def one() -> None:
            nonlocal done, in_kernel
            lane = free.pop() if free else flying.pop(0)[0]
            lane.synchronize()
            encoded = batches[done // batch % len(batches)]
            began = time.perf_counter()
            with lane:
                ctx = Context(op=op, stage="mixed", samples=encoded.samples, device=lane)
                flying.append((lane, op.mixed(ctx, encoded)))
            in_kernel += time.perf_counter() - began
            assert not ctx.rejects, ctx.rejects
            done += batch

        for _ in range(2 * lanes + 2):
            one()
        for lane, _ in flying:
            lane.synchronize()
        done, in_kernel = 0, 0.0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            one()
        for lane, _ in flying:
            lane.synchronize()
        wall = time.perf_counter() - start
        return {"images a second": round(done / wall), "kernel call, ms a batch": in_kernel / (done / batch) * 1e3}

    for lanes, load, batch in (
        (1, 1.0, 256), (2, 1.0, 256), (3, 1.0, 256), (3, 0.9, 256), (3, 0.8, 256), (3, 0.7, 256), (3, -1.0, 256),
        (3, -1.0, 128), (3, -1.0, 512), (4, -1.0, 256), (3, 0.0, 256),
    ):  # fmt: skip
        key = f"{lanes} lanes, load {load}, batch {batch}"
        try:
            result[key] = run(lanes, load, batch)
        except Exception as e:  # one refused configuration must not hide the others
            result[key] = f"{type(e).__name__}: {e}"
        print(f"  {key}: {result[key]}", flush=True)
    return result


def damage(blobs: list[bytes]) -> dict[str, Any]:
    """Status, and pixels left as they were, of damaged files; and whether a good batch decodes afterwards."""
    result: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    good = blobs[0]

    def noise(blob: bytes, share: float) -> bytes:
        b = np.frombuffer(blob, np.uint8).copy()
        at = rng.integers(len(b) // 2, len(b) - 2, max(1, int(len(b) * share)))
        b[at] = rng.integers(0, 255, len(at))
        return b.tobytes()

    cases = {
        "good": good,
        "no EOI": good[:-2],
        "half": good[: len(good) // 2],
        "header only": good[:700],
        "one byte": noise(good, 0.0),
        "noise 0.1%": noise(good, 0.001),
        "noise 5%": noise(good, 0.05),
        "junk after EOI": good + b"\x00" * 1000,
    }
    for backend in Backend:
        for name, blob in cases.items():
            files = Files([blob])
            if files.headers["width"][0] == 0:
                continue
            decoder = Decoder(backend)
            try:
                start = time.perf_counter()
                got = decode_one(decoder, files, 0, Output.RGB, backend is not Backend.HYBRID)
                same = None
                try:
                    want = simplejpeg.decode_jpeg(blob, "RGB", strict=False)
                    same = float(np.abs(got.astype(np.int16) - want).mean())
                except ValueError as e:
                    same = f"libjpeg-turbo: {e}"
                verdict: Any = {"decoded": True, "mean difference": same, "untouched": float((got == 77).mean()),
                                "ms": (time.perf_counter() - start) * 1e3}  # fmt: skip
            except NvJpegError as e:
                verdict = str(e)
            result[f"{backend.name} {name}"] = verdict
        try:  # one bad image in a batch: what the others look like, and whether the decoder goes on
            decoder = Decoder(backend)
            files = Files([*blobs[:3], cases["half"], *blobs[3:6]])
            t = Target(files, np.arange(7))
            stream = cupy.cuda.get_current_stream()
            try:
                decoder.batch(t.data, t.lengths, t.images, Output.RGB, stream.ptr)
                stream.synchronize()
                first = "accepted"
            except NvJpegError as e:
                first = str(e)
            touched = [bool(t.memory[int(o) : int(o) + 3000].any()) for o in t.offsets]
            t = Target(files, np.array([0, 1, 2, 4, 5, 6]))
            decoder.batch(t.data, t.lengths, t.images, Output.RGB, stream.ptr)
            stream.synchronize()
            result[f"{backend.name} bad one in a batch"] = {"status": first, "touched": touched, "next batch": "fine"}
        except Exception as e:
            result[f"{backend.name} bad one in a batch"] = f"{type(e).__name__}: {e}"
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="where the numbers go as well")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--odd", type=Path, help="a folder of odd valid files, for the table of what is taken")
    options = parser.parse_args()
    blobs = [p.read_bytes() for p in sorted(options.folder.rglob("*")) if p.is_file()]
    blobs = [b for b in blobs if b[:2] == b"\xff\xd8"]
    odd = [p.read_bytes() for p in sorted(options.odd.rglob("*")) if p.is_file()] if options.odd else []
    files = Files(blobs)
    everything = Files([*blobs, *(b for b in odd if 0 < pixels_of(b) < 50_000_000)])
    size, area = files.lengths.mean() / 1e3, files.pixels.mean() / 1e6
    print(f"{len(files)} files, {size:.1f} kB and {area:.3f} Mpixel in the mean")
    results: dict[str, Any] = {}
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "library": info,
        "operator": lambda: operator(files, options.seconds),
        "speed": lambda: speed(files, options.seconds),
        "what is taken": lambda: acceptance(everything),
        "damage": lambda: damage(blobs),
    }
    for name, section in sections.items():
        print(name, flush=True)
        try:
            results[name] = section()
        except Exception as e:  # the sections are independent
            results[name] = f"{type(e).__name__}: {e}"
        if name not in ("speed", "operator"):
            print(json.dumps(results[name], indent=1, default=str), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, default=str) + "\n")


def pixels_of(blob: bytes) -> int:
    header = read_headers(np.frombuffer(blob, np.uint8), np.zeros(1, np.int64), np.array([len(blob)], np.int64))[0]
    return int(header["width"]) * int(header["height"])


if __name__ == "__main__":
    main()
