"""The gate: rates that matter to users, before and after a change, and of NVIDIA DALI if it is installed.

    python benchmarks/gate.py                             # all rows of this machine, stored in benchmarks/results/gate
    python benchmarks/gate.py --compare                   # ratios to the stored ones; status 1 if a row lost over 3 %
    python benchmarks/gate.py --against ../old --rows val,mix  # this checkout and another in turns, pair by pair
    python benchmarks/gate.py --list

Rows use the public Python API (the same text for DALI) and the command `dali-run` with default settings, batches of 256
(64 on the CPU) and as many threads as cores. Images have natural sizes (natural.py). Each measurement is a separate
process. "first" is the rate of the first epoch after its first batch, "rate" that of later epochs, or of the first if
it outlasted the time. On the CPU the compared figure is the processor time of all threads; on a GPU it is the rate.

GPU memory ("gpu_gb") is the peak of the device memory in use according to NVML, beyond the CUDA contexts, sampled every
20 ms: everything in the process counts, including PyTorch's cache, which "torch_gb" lists separately. No other program
may use the GPU meanwhile. The row "exact" is the SHA-256 of all pixels, shapes, dtypes and reject codes of a corpus of
valid, unusual and corrupt images: a change must not change it, and the CPU's must equal the GPU's.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import (
    LEAST,
    WARM_UP,
    Side,
    answer,
    busy,
    dali_is_installed,
    gpu_name,
    measure,
    measured,
    rss_mb,
    versions,
)
from benchmarks.natural import ROOT, DataSets, add_data_arguments, dali_run, data_sets, mixed_corpus, save, shared

KEPT = ROOT / "benchmarks" / "results" / "gate"
LOSS = 0.03
"""Share of its figure (mostly samples per second) that a row may lose by a change of the code."""


def images(d: Side, *, program: str = "val", record: bool = False, iterator: bool = False, pace: float = 0,
           **settings: Any) -> dict[str, Any]:  # fmt: skip
    """Measure image files, or TFRecords, in the pipeline `Side.val` or `Side.train`."""

    def define() -> Any:
        return getattr(d, program)(records(d) if record else d.files())

    return measured(d, d.pipeline(define, **settings), iterator=iterator, pace=pace)


def records(d: Side) -> Any:
    tfrecord = d.module(".tfrecord")
    features = {"image": tfrecord.FixedLenFeature((), tfrecord.string, "")}
    return d.fn.readers.tfrecord(path=f"{d.data}/images.tfrecord", index_path=f"{d.data}/index", features=features,
                                 random_shuffle=True, name="Reader")["image"]  # fmt: skip


def photos(d: Side) -> dict[str, Any]:
    return measured(d, d.pipeline(lambda: d.val(d.files()), 64), batch=64)


def thumbnails(d: Side) -> dict[str, Any]:
    return measured(d, d.pipeline(lambda: d.fn.flip(d.fn.decoders.image(records(d), device=d.mixed))))


def audio(d: Side) -> dict[str, Any]:
    """Measure audio clips, decoded as in a program for DALI: on the CPU, then copied to the GPU."""

    def define() -> Any:
        audio, _ = d.fn.decoders.audio(d.files(), dtype=d.types.FLOAT, downmix=True)
        power = d.fn.spectrogram(audio.gpu() if d.gpu else audio, nfft=512, window_length=400, window_step=160)
        mel = d.fn.mel_filter_bank(power, sample_rate=16000.0, nfilter=80)
        return d.fn.to_decibels(mel, multiplier=10.0, reference=1.0, cutoff_db=-80.0)

    return measured(d, d.pipeline(define))


def video(d: Side) -> dict[str, Any]:
    if d.gpu and d.ours and not importlib.util.find_spec("PyNvVideoCodec"):
        raise ModuleNotFoundError("No module named 'PyNvVideoCodec'")
    names = sorted(str(p) for p in Path(d.data).glob("*.mp4"))
    define = partial(d.fn.readers.video, device=d.device, filenames=names, sequence_length=16, random_shuffle=True,
                     name="Reader")  # fmt: skip
    return measured(d, d.pipeline(define, 16), batch=16, each=16)


def augmentation(d: Side) -> dict[str, Any]:
    """Measure RandAugment of images that are on the device as one array."""
    pixels, augment = d.pixels(), d.module(".auto_aug.rand_augment").rand_augment

    def define() -> Any:
        source = d.fn.external_source(source=lambda: pixels, layout="HWC", device=d.device)
        return d.normalized(augment(source, n=2, m=9))

    return measured(d, d.pipeline(define, enable_conditionals=True))


def external_list(d: Side) -> dict[str, Any]:
    pixels = list(d.pixels())
    source = partial(d.fn.external_source, source=lambda: pixels, layout="HWC", device=d.device)
    return measured(d, d.pipeline(lambda: d.normalized(source())))


def by_pipeline(d: Side, batch: int) -> Callable[[list[np.ndarray]], Any]:
    """Return a function that turns encoded images into tensors of 224 x 224, by `Pipeline.run`."""

    def define() -> Any:
        image = d.fn.decoders.image(d.fn.external_source(name="j"), device=d.mixed, output_type=d.types.RGB)
        return d.normalized(d.fn.resize(image, size=[224, 224]))

    pipe = d.pipeline(define, batch, prefetch_queue_depth=1)
    pipe.build()
    return lambda bodies: pipe.run(j=bodies)


def request(d: Side, batch: int = 1, server: Any = by_pipeline) -> dict[str, Any]:
    """Measure the milliseconds until ``batch`` encoded images at a time are complete tensors of 224 x 224."""
    found = sorted(p for p in Path(d.data).rglob("*.*") if p.is_file())
    if Path(d.data).name == "val":
        found = [p for p in found if 80e3 < p.stat().st_size < 120e3]
    bodies = [np.fromfile(p, np.uint8) for p in found[:: max(1, len(found) // 200)]]
    if not bodies:
        raise RuntimeError(f"{d.data} holds no image of about 100 KB")
    serve = server(d, batch)
    serve(bodies[:1] * batch)
    taken: list[float] = []
    began, start_busy, used = time.perf_counter(), 0.0, 0
    while (now := time.perf_counter()) - began < WARM_UP + d.seconds or len(taken) < LEAST:
        if now - began < WARM_UP:
            taken, start_busy = [], busy()
            now = time.perf_counter()
        serve([bodies[(used + k) % len(bodies)] for k in range(batch)])
        d.synchronize()
        taken.append(1e3 * (time.perf_counter() - now))
        used += batch
    p50, p99 = np.percentile(taken, (50, 99))
    return {"p50_ms": p50, "p99_ms": p99, "rate": 1e3 * batch / p50,
            "cpu_ms": 1e3 * (busy() - start_busy) / len(taken) / batch}  # fmt: skip


def pipelines(d: Side) -> dict[str, Any]:
    """Measure how many pipelines per minute are built, return one batch of 32, and are dropped."""
    made, begun = 0, [time.perf_counter()]
    while made < 3 or time.perf_counter() - begun[3] < d.seconds:
        pipe = d.pipeline(lambda: d.val(d.files()), 32)
        pipe.build()
        pipe.run()
        del pipe
        made += 1
        begun.append(time.perf_counter())
        if made == 3:
            start_busy, start_rss = busy(), rss_mb()
    return {"rate": 60 * (made - 3) / (begun[-1] - begun[3]), "cpu_ms": 1e3 * (busy() - start_busy) / (made - 3),
            "rss_grown_mb": rss_mb() - start_rss, "made": made}  # fmt: skip


def run_job(d: Side, threads: int = 0, encode: str = "jpeg") -> dict[str, Any]:
    """Measure configs/imagenet_resize.yaml with `dali-run run`: from files to images whose shorter side is 256, in tar
    files. The rate excludes the start of the command, which ``wall_s`` includes; processor time covers all of it.
    ``encode`` selects another output format."""
    spec, out = (d.package / "configs/imagenet_resize.yaml").read_text(), d.scratch / "out"
    if encode != "jpeg":
        spec = spec.replace("jpg", encode).replace("encode: jpeg, quality: 90", f"encode: {encode}")
    (d.scratch / "spec.yaml").write_text(spec)
    start_busy, began = busy(), time.perf_counter()
    dali_run(d.package)("run", d.scratch / "spec.yaml", "--device", d.device, "--fresh", "--quiet",
                        "--set", f"pipeline.num_threads={threads or d.threads}", "--set", f"data={d.data}",
                        "--set", f"out={out}", "--report", d.scratch / "report.json")  # fmt: skip
    wall, used = time.perf_counter() - began, busy() - start_busy
    report = json.loads((d.scratch / "report.json").read_text())
    shutil.rmtree(out)
    read = report["samples"]["read"]
    return {"rate": read / report["seconds"], "cpu_ms": 1e3 * used / read, "samples": read, "wall_s": wall,
            "rejected": report["samples"]["rejected"], "command": True}  # fmt: skip


def exact(d: Side) -> dict[str, Any]:
    """Return SHA-256 of the output of `dali-run run` on the corpus ``data``, and of the codes of its rejects."""
    spec = d.scratch / "exact.yaml"
    spec.write_text(
        "version: 1\nname: exact\ngraph:\n"
        f"  - {{op: readers.file, name: Reader, file_root: '{Path(d.data).parent}', out: [files, labels]}}\n"
        "  - {op: decoders.image, in: files, output_type: RGB, out: images}\noutputs: {image: images}\n"
        f"write: {{writer: webdataset, path: '{d.scratch}/exact', fields: {{image: {{encode: npy}}}}}}\n"
        "on_error: {policy: skip, max_errors: 100%}\n"
    )
    dali_run(d.package)("run", spec, "--device", d.device, "--fresh", "--quiet")
    lines = []
    for shard in sorted((d.scratch / "exact").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                body = tar.extractfile(member).read()  # type: ignore[union-attr]
                lines.append(f"{member.name} {hashlib.sha256(body).hexdigest()}")
    rejects = [json.loads(line) for line in (d.scratch / "exact" / "rejects.jsonl").read_text().splitlines()]
    lines += [f"{reject['key']} {reject['code']}" for reject in rejects]
    shutil.rmtree(d.scratch / "exact")
    digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    return {"sha256": digest, "samples": len(lines) - len(rejects), "rejects": len(rejects), "command": True,
            "lines": sorted(lines)}  # fmt: skip


def resnet18(d: Side) -> dict[str, Any]:
    """Measure the training of a ResNet-18 (bf16, channels_last, batch 256): on a batch that stays on the GPU, fed by
    this loader, and on a batch that stays again. Return images per second, and the share that the loader keeps."""
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = "cuda" if d.gpu else "cpu"
    model = small_resnet(torch).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(x: Any, labels: Any) -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def rate(batches: Iterator[tuple[Any, Any]], seconds: float) -> float:
        warm_up, done = time.perf_counter() + min(WARM_UP, seconds), 0
        while time.perf_counter() < warm_up:
            step(*next(batches))
        d.synchronize()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(8):
                step(*next(batches))
            d.synchronize()  # else the program runs ahead of the device, and the clock with it
            done += 8 * d.batch
        return done / (time.perf_counter() - began)

    labels = torch.randint(0, 1000, (d.batch,), device=device)
    resident = torch.randn((d.batch, 3, 224, 224), device=device)
    synthetic = iter(lambda: (resident, labels), None)
    before = rate(synthetic, d.seconds / 2)
    pipe = d.pipeline(lambda: d.train(d.files()))
    loader = d.module(".plugin.pytorch").DALIGenericIterator(pipe, ["x"])
    start_busy, began = busy(), time.perf_counter()
    fed = rate(((batch[0]["x"].to(device), labels) for batch in loader), d.seconds)
    used, seconds = busy() - start_busy, time.perf_counter() - began
    del loader, pipe
    after = rate(synthetic, d.seconds / 2)
    return {"rate": fed, "synthetic": (before + after) / 2, "share": 2 * fed / (before + after),
            "cores": used / seconds, "torch_gb": torch.cuda.max_memory_reserved() / 1e9 if d.gpu else 0}  # fmt: skip


def small_resnet(torch: Any) -> Any:
    """Return a ResNet-18 as torchvision builds it, without torchvision."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            conv = partial(nn.Conv2d, bias=False)
            self.body = nn.Sequential(
                conv(before, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU(True),
                conv(width, width, 3, 1, 1), nn.BatchNorm2d(width))  # fmt: skip
            self.skip = nn.Sequential()
            if stride > 1:
                self.skip = nn.Sequential(conv(before, width, 1, stride), nn.BatchNorm2d(width))

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x) + self.skip(x))

    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [Block(*width) for width in (*widths, (512, 512, 1))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


# -- rows ---------------------------------------------------------------------------------------------------------

TFRECORD, TFRECORD_SMALL = "val.tfrecord", "thumbnails.tfrecord"
ROWS: dict[str, tuple[Callable[[Side], dict[str, Any]], str, str, str]] = {
    "val": (partial(images, iterator=True), "gpu cpu", "val", "both"),
    "train": (partial(images, program="train"), "cpu", "val", "both"),
    "val-1gib": (partial(images, iterator=True, memory={"gpu": "1GiB"}), "gpu", "val", "ours"),
    "val-2gib": (partial(images, iterator=True, memory={"gpu": "2GiB"}), "gpu", "val", "ours"),
    "val-4gib": (partial(images, iterator=True, memory={"gpu": "4GiB"}), "gpu", "val", "ours"),
    "val-3000": (partial(images, iterator=True, pace=3000), "gpu", "val", "both"),
    "resnet18": (resnet18, "gpu", "val", "both"),
    "run-jpeg": (run_job, "gpu cpu", "val", "ours"),
    "run-jpeg-1": (partial(run_job, threads=1), "cpu", "val", "ours"),
    "request-jpeg": (request, "gpu", "val", "both"),
    "pipelines": (pipelines, "gpu", "val", "ours"),
    "tfrecord": (partial(images, record=True), "gpu", TFRECORD, "both"),
    "mix": (images, "gpu cpu", "mix", "both"),
    "png": (images, "gpu", "png", "both"),
    "webp": (images, "gpu", "webp", "both"),
    "request-webp": (request, "gpu", "webp", "both"),
    "progressive": (images, "gpu", "progressive", "both"),
    "photos": (photos, "gpu", "photos", "both"),
    "wav": (audio, "gpu", "wav", "both"),
    "flac": (audio, "gpu", "flac", "both"),
    "video": (video, "gpu", "video", "both"),
    "augmentation": (augmentation, "gpu", "", "both"),
    "external-list": (external_list, "gpu", "", "both"),
    "thumbnails": (thumbnails, "cpu", TFRECORD_SMALL, "both"),
    "exact": (exact, "gpu cpu", "exact", "ours"),
}
"""For each row of the gate's table: the function that measures it, the devices that it belongs to, its data set, and
whether DALI also runs it."""


# -- the gate -----------------------------------------------------------------------------------------------------


class Gate:
    """Options, device and data sets of one call of the gate; runs each measurement in a separate process."""

    def __init__(self, args: argparse.Namespace, scratch: Path, data: DataSets) -> None:
        self.args, self.scratch, self.data = args, scratch, data
        self.device = args.device

    def place(self, name: str) -> str:
        if name == "exact":
            place = self.scratch / "exact-corpus"
            if not place.exists():
                mixed_corpus(place / "0", self.data.images, self.args.corpus or shared("corpus"))
            return str(place / "0")
        began, made = time.perf_counter(), str(self.data.path(name)) if name else ""
        if (seconds := time.perf_counter() - began) > 1:
            print(f"{name}: data made in {seconds:.0f} s", flush=True)
        return made

    def measure(self, row: str, library: str, package: Path, device: str) -> dict[str, Any]:
        """Return one measurement of ``row``; {"error": ...} if it fails."""
        work = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            return measure(__file__, row, self.args.limit, library=library, device=device, package=str(package),
                           data=self.place(ROWS[row][2]), threads=self.args.threads, seconds=self.args.seconds,
                           scratch=str(work))  # fmt: skip
        except Exception as error:  # the data set could not be made
            return {"error": f"{type(error).__name__}: {error}"[:500]}
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def drop_data(self, rows: list[str]) -> None:
        """Delete the data sets that no row of ``rows`` needs, unless data sets are kept."""
        needed = {part for row in rows for part in (ROWS[row][2], ROWS[row][2].removesuffix(".tfrecord"))}
        for mark in [] if self.args.data else list(self.data.root.glob("*.done")):
            if mark.stem not in needed:
                mark.unlink()
                shutil.rmtree(self.data.root / mark.stem)


def figure(found: dict[str, Any], device: str) -> float:
    """Return the number by which a row is compared, larger is better: the rate, on the CPU samples per second of
    processor time; 0 if there is none."""
    if device == "cpu" and found.get("cpu_ms"):
        return 1e3 / float(found["cpu_ms"])
    return float(found.get("rate", 0))


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Return text that names the samples of the row ``exact`` that differ between two measurements. Remove the
    measurements' lists of samples."""
    lines = set(one.pop("lines")) ^ set(other.pop("lines"))
    names = sorted({line.split()[0] for line in lines})
    return f"DIFFERENT in {len(names)} samples: {', '.join(names[:12])}" if names else "equal"


def shown(found: dict[str, Any]) -> str:
    for key in ("error", "skipped"):
        if key in found:
            return f"{key}: {found[key]}"
    if "sha256" in found:
        return f"{found['sha256'][:16]} {found['samples']} samples, {found['rejects']} rejects"
    parts = [f"{found['rate']:,.0f}/s"]
    parts += [f"first {found['first']:,.0f}/s"] if found.get("first") else []
    units = {"p50_ms": "ms p50", "p99_ms": "ms p99", "share": "of synthetic", "cpu_ms": "ms cpu", "gpu_gb": "GB gpu"}
    parts += [f"{found[key]:.3g} {unit}" for key, unit in units.items() if key in found]
    return ", ".join(parts)


def full(gate: Gate, rows: list[str], kept: dict[str, Any], target: Path, machine: dict[str, Any]) -> int:
    """Measure ``rows`` once, with dali-run and DALI, write each result to ``target`` at once, and compare with the
    earlier results ``kept``."""
    result: dict[str, Any] = {**machine, "rows": {}}
    lost = []
    for k, row in enumerate(rows):
        libraries = ["dali_run"]
        if gate.args.dali and ROWS[row][3] == "both":
            libraries.append("nvidia.dali")
        found = {library: gate.measure(row, library, ROOT, gate.device) for library in libraries}
        ours = found["dali_run"]
        if row == "exact" and gate.device == "gpu":
            found["cpu"] = gate.measure(row, "dali_run", ROOT, "cpu")
            if "sha256" in ours and "sha256" in found["cpu"]:
                ours["equal"] = (told := difference(ours, found["cpu"])) == "equal"
                print(f"GPU and CPU: {told}")
        ours.pop("lines", None)
        if dali := figure(found.get("nvidia.dali", {}), gate.device):
            found["ratio"] = figure(ours, gate.device) / dali  # type: ignore[assignment]
        result["rows"][row] = found
        save(target, result)
        line = "   DALI ".join(f"{shown(found[library])}" for library in libraries)
        before = kept.get("rows", {}).get(row, {}).get("dali_run", {})
        if figure(before, gate.device):
            change = figure(ours, gate.device) / figure(before, gate.device)
            line += f"   {change:.3f} of what is kept"
            lost += [row] if change < 1 - LOSS else []
        if before.get("sha256", ours.get("sha256")) != ours.get("sha256") or ours.get("equal") is False:
            lost.append(row)
        print(f"{row:14} {line}" + (f"   {found['ratio']:.2f}x" if "ratio" in found else ""), flush=True)
        gate.drop_data(rows[k + 1 :])
    if gate.args.compare is not None:
        print(f"worse than what is kept: {', '.join(lost) or 'none'}")
    return int(gate.args.compare is not None and bool(lost))


def in_turns(gate: Gate, rows: list[str], other: Path, target: Path, machine: dict[str, Any]) -> int:
    """Measure this checkout of dali-run and the one at ``other`` in turns; print the ratio of each pair."""
    result: dict[str, Any] = {**machine, "against": versions(other), "rows": {}}
    lost = []
    for k, row in enumerate(rows):
        pairs = []
        for turn in range(gate.args.pairs):
            order = (ROOT, other) if turn % 2 == 0 else (other, ROOT)
            found = {package: gate.measure(row, "dali_run", package, gate.device) for package in order}
            new, old = found[ROOT], found[other]
            pairs.append((new, old))
            base = figure(old, gate.device)
            ratio = f"{figure(new, gate.device) / base:.3f}" if base else ""
            if "sha256" in new and "sha256" in old:
                ratio = difference(new, old)
            print(f"{row:14} {ratio}   {shown(new)}   against {shown(old)}", flush=True)
        ratios = [figure(n, gate.device) / b for n, o in pairs if (b := figure(o, gate.device))]
        different = any(n.get("sha256") != o.get("sha256") for n, o in pairs)
        lost += [row] if different or (ratios and max(ratios) < 1 - LOSS) else []
        result["rows"][row] = {"pairs": pairs, "ratios": ratios}
        save(target, result)
        gate.drop_data(rows[k + 1 :])
    print(f"worse in every pair: {', '.join(lost) or 'none'}")
    return int(bool(lost))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="rows, separated by commas (default: the rows of the device)")
    parser.add_argument("--device", choices=["gpu", "cpu"], help="default: gpu if nvidia-smi shows one")
    parser.add_argument("--seconds", type=float, default=4, help="seconds of a row after its warm-up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="one second per row, small data sets")
    parser.add_argument("--compare", nargs="?", const="", help="compare with a JSON file, or with the stored one")
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns with this one")
    parser.add_argument("--pairs", type=int, default=2, help="with --against: measurements of each checkout")
    parser.add_argument("--no-dali", dest="dali", action="store_false", help="leave DALI out")
    parser.add_argument("--no-warm", dest="warm", action="store_false", help="do not compile loops before the rows")
    parser.add_argument("--corpus", type=Path, help="folder of unusual and corrupt files for the row exact")
    parser.add_argument("--limit", type=float, default=180, help="seconds after which a measurement is ended")
    parser.add_argument("--list", action="store_true", help="print the rows")
    add_data_arguments(parser, None)
    args = parser.parse_args()
    if args.child:
        answer(args.child, {row: row_of[0] for row, row_of in ROWS.items()})
    if args.list:
        for row, (_, devices, data, who) in ROWS.items():
            print(f"{row:14} {devices:8} {data:20} {who}")
        return 0
    name = gpu_name()
    args.device = args.device or ("gpu" if name else "cpu")
    args.gigabytes = args.gigabytes or {"gpu": 4, "cpu": 0.1}[args.device] / (8 if args.quick else 1)
    args.seconds = 1 if args.quick else args.seconds
    cores = len(os.sched_getaffinity(0))
    kind = "-".join(name.lower().split()[:2]) if args.device == "gpu" else "cpu"
    kind += f"-{cores}cores"
    rows = args.rows.split(",") if args.rows else [row for row, r in ROWS.items() if args.device in r[1].split()]
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"unknown rows {', '.join(unknown)}; --list prints them")
    partly = args.rows or args.quick or args.against or args.compare is not None
    target = args.json or (ROOT / "build" / "gate" if partly else KEPT) / f"{kind}.json"
    reference = Path(args.compare) if args.compare else KEPT / f"{kind}.json"
    kept = json.loads(reference.read_text()) if args.compare is not None and reference.exists() else {}
    machine = {"kind": kind, "gpu": name, "cores": cores, "date": time.strftime("%Y-%m-%d %H:%M"),
               "load": os.getloadavg(), "versions": versions(ROOT), "seconds": args.seconds,
               "gigabytes": args.gigabytes, "threads": args.threads}  # fmt: skip
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 12e9 * max(1, args.gigabytes)
    with data_sets(args, memory if roomy else None) as (scratch, data):
        if args.warm and args.against:
            dali_run(args.against.resolve())("warm", "--quiet")
        args.dali = args.dali and dali_is_installed()
        gate = Gate(args, scratch, data)
        if args.against:
            return in_turns(gate, rows, args.against.resolve(), target, machine)
        return full(gate, rows, kept, target, machine)


if __name__ == "__main__":
    sys.exit(main())
