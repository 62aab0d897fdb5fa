"""Measure loops that users write for audio and video, in the same way as `bench.measure`.

    python media_loop.py torchaudio|librosa|torchcodec|pyav recipe.json

``torchaudio``: soundfile and torchaudio's transforms in threads. ``librosa``: its functions in processes.
``torchcodec``: a VideoDecoder for each sequence in threads, torch's resizing. ``pyav``: PyAV in threads, FFmpeg's
resizing. All are written as their documentation advises, on the CPU, and run in an interpreter without this package.
Started by `bench.run`.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

RECIPE: dict[str, Any] = json.loads(Path(sys.argv[2]).read_text())


# -- sounds -----------------------------------------------------------------------------------------------------------


def by_librosa(i: int) -> Any:
    import librosa

    signal, rate = librosa.load(RECIPE["files"][i], sr=None, mono=True)
    power = librosa.feature.melspectrogram(
        y=signal, sr=rate, n_fft=RECIPE["nfft"], win_length=RECIPE["window_length"], hop_length=RECIPE["window_step"],
        n_mels=RECIPE["bands"],
    )  # fmt: skip
    return librosa.power_to_db(power, ref=RECIPE["reference"], amin=10 ** (RECIPE["cutoff"] / 10), top_db=None)


@cache
def torchaudio_steps() -> Any:
    import torch
    from torchaudio import transforms

    torch.set_num_threads(1)  # clips run in parallel, not the work within a clip
    return transforms.MelSpectrogram(
        sample_rate=int(RECIPE["rate"]), n_fft=RECIPE["nfft"], win_length=RECIPE["window_length"],
        hop_length=RECIPE["window_step"], n_mels=RECIPE["bands"], norm="slaney", mel_scale="slaney",
    ), transforms.AmplitudeToDB("power")  # fmt: skip


def by_torchaudio(i: int) -> Any:
    import soundfile
    import torch

    signal, _ = soundfile.read(RECIPE["files"][i], dtype="float32", always_2d=True)
    mel, decibels = torchaudio_steps()
    with torch.inference_mode():
        return decibels(mel(torch.from_numpy(signal).mean(1))).numpy()


# -- videos -----------------------------------------------------------------------------------------------------------


def size_of(height: int, width: int) -> tuple[int, int]:
    """Return (height, width) of a frame after resizing; the shorter side then has the requested length."""
    scale = RECIPE["shorter"] / min(height, width)
    return round(height * scale), round(width * scale)


def by_torchcodec(i: int) -> Any:
    import torch
    from torchcodec.decoders import VideoDecoder

    torch.set_num_threads(1)
    frames = VideoDecoder(RECIPE["files"][i], num_ffmpeg_threads=1).get_frames_at(RECIPE["frames"][i]).data
    with torch.inference_mode():
        small = torch.nn.functional.interpolate(frames, size_of(*frames.shape[2:]), mode="bilinear", antialias=True)
        mean, std = (torch.tensor(RECIPE[k]).view(1, 3, 1, 1) for k in ("mean", "std"))
        return ((small.float() - mean) / std).numpy()


def by_pyav(i: int) -> Any:
    import av

    times: list[float] = RECIPE["times"][i]
    found: list[Any] = []
    with av.open(RECIPE["files"][i]) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        if times[0] > 0:
            container.seek(int(times[0] / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            if frame.time is not None and abs(frame.time - times[len(found)]) < 1e-3:
                height, width = size_of(frame.height, frame.width)
                found.append(frame.to_ndarray(format="rgb24", width=width, height=height))
                if len(found) == len(times):
                    break
    mean, std = np.array(RECIPE["mean"], np.float32), np.array(RECIPE["std"], np.float32)
    return np.ascontiguousarray(np.moveaxis((np.stack(found) - mean) / std, 3, 1))


# -- the loop ---------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "librosa": ("audio", by_librosa),
    "torchaudio": ("audio", by_torchaudio),
    "torchcodec": ("video", by_torchcodec),
    "pyav": ("video", by_pyav),
}


def batches(pool: Executor, work: Callable[[int], Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the results of ``work`` for batch after batch without end. ``pool`` prepares two batches ahead."""
    order, labels = list(range(len(RECIPE["files"]))), np.array(RECIPE["labels"], np.int32)
    draw = random.Random(0)

    def numbers() -> Iterator[int]:
        while True:
            if RECIPE["shuffle"]:
                draw.shuffle(order)
            yield from order

    stream = numbers()
    queue: list[tuple[list[int], list[Any]]] = []
    while True:
        indices = list(itertools.islice(stream, RECIPE["batch_size"]))
        queue.append((indices, [pool.submit(work, i) for i in indices]))
        if len(queue) > 2:
            done, futures = queue.pop(0)
            made = [f.result() for f in futures]
            alike = len({m.shape for m in made}) == 1
            yield (np.stack(made) if alike else made), labels[done].reshape(-1, 1)


def main() -> None:
    """Measure this library for the requested time, and print the result as JSON in the last line."""
    name = sys.argv[1]
    kind, work = WAYS[name]
    if kind != RECIPE["kind"]:
        sys.stdout.write(json.dumps({"refused": f"{name} is for {kind}"}) + "\n")
        return
    threads = RECIPE["num_threads"]
    # librosa holds the GIL for most of its time
    pool: Executor = (
        ProcessPoolExecutor(threads, multiprocessing.get_context("spawn"))
        if name == "librosa"
        else ThreadPoolExecutor(threads)
    )
    with pool:
        made = batches(pool, work)
        began = time.perf_counter()
        try:
            data, labels = next(made)
        except Exception as e:  # the package is missing, or does not find its libraries
            pool.shutdown(wait=False, cancel_futures=True)
            lines = next((line for line in str(e).splitlines() if line.strip()), "")
            sys.stdout.write(json.dumps({"error": f"{type(e).__name__}: {lines}"}) + "\n")
            return
        first = time.perf_counter() - began
        for _ in range(RECIPE["warm_up"]):
            next(made)
        samples = count = 0
        began = time.perf_counter()
        while (taken := time.perf_counter() - began) < RECIPE["seconds"] or count < RECIPE["fewest_batches"]:
            samples += len(next(made)[1])
            count += 1
        pool.shutdown(wait=False, cancel_futures=True)
    one = data[0]
    layout = "ft" if kind == "audio" else "FCHW"
    described = {"data": ["FLOAT" if one.dtype == np.float32 else one.dtype.name, one.ndim, layout],
                 "label": ["INT32", labels.ndim - 1, ""]}  # fmt: skip
    packages = {"librosa": "librosa", "torchaudio": "torchaudio", "torchcodec": "torchcodec", "pyav": "av"}
    from importlib.metadata import version

    result = {
        "samples_per_second": samples / taken,
        "first_batch_seconds": first,
        "outputs": [described[o] for o in RECIPE["outputs"]],
        "version": version(packages[name]),
        "memory": {"peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024},
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
