"""Makes readers.npz: small data sets of every format, and what NVIDIA DALI's readers give for them.

Run it with a Python that has DALI 2.4. The files are kept in the archive beside DALI's answers.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.tfrecord as tfrec
import nvidia.dali.types as types
from nvidia.dali import pipeline_def


def varint(n: int) -> bytes:
    out = b""
    while True:
        n, low = n >> 7, n & 127
        out += bytes([low | (128 if n else 0)])
        if not n:
            return out


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value & 2**64 - 1)
    return varint(number << 3 | 2) + varint(len(value)) + value


def database(values: dict[bytes, bytes]) -> bytes:
    """An LMDB file of one leaf page, by the format's definition (so that nothing but DALI is needed here)."""
    page, nothing = 4096, 2**64 - 1
    leaf, pointers = bytearray(page), []
    top = page
    for key, value in sorted(values.items()):
        node = struct.pack("<HHHH", len(value), 0, 0, len(key)) + key + value
        top -= len(node) + len(node) % 2
        leaf[top : top + len(node)] = node
        pointers.append(top)
    struct.pack_into("<QHHHH", leaf, 0, 2, 0, 2, 16 + 2 * len(pointers), top)
    struct.pack_into(f"<{len(pointers)}H", leaf, 16, *pointers)
    metas = b""
    for number in range(2):
        free = struct.pack("<IHHQQQQQ", page, 0, 0, 0, 0, 0, 0, nothing)
        full = struct.pack("<IHHQQQQQ", 0, 0, 1, 0, 1, 0, len(values), 2)
        empty = struct.pack("<IHHQQQQQ", 0, 0, 0, 0, 0, 0, 0, nothing)
        head = struct.pack("<QHHHH", number, 0, 8, 0, 0) + struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 1 << 20)
        metas += (head + free + (full if number else empty) + struct.pack("<QQ", 2, number)).ljust(page, b"\0")
    return metas + bytes(leaf)


def tensor(kind: int, dims: tuple[int, ...], **values: Any) -> bytes:
    out = b"".join(field(1, d) for d in dims) + field(2, kind)
    if "floats" in values:
        out += field(3, struct.pack(f"<{len(values['floats'])}f", *values["floats"]))
    if "ints" in values:
        out += field(4, b"".join(varint(i & 2**64 - 1) for i in values["ints"]))
    if "string" in values:
        out += field(6, values["string"])
    return field(1, out)


def feature(value: Any) -> bytes:
    if isinstance(value, bytes):
        return field(1, field(1, value))
    if isinstance(value[0], float):
        return field(2, field(1, struct.pack(f"<{len(value)}f", *value)))
    return field(3, field(1, b"".join(varint(v & 2**64 - 1) for v in value)))


def tfrecord(records: list[dict[str, Any]]) -> tuple[bytes, bytes]:
    """The file and its index, with right checksums (DALI does not look at them)."""

    def masked(data: bytes) -> bytes:
        crc = 0xFFFFFFFF
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        crc ^= 0xFFFFFFFF
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    out, index = b"", ""
    for record in records:
        entries = b"".join(field(1, field(1, k.encode()) + field(2, feature(v))) for k, v in record.items())
        payload = field(1, entries)
        length = struct.pack("<Q", len(payload))
        whole = length + masked(length) + payload + masked(payload)
        index += f"{len(out)} {len(whole)}\n"
        out += whole
    return out, index.encode()


def recordio(records: list[tuple[list[float], bytes]]) -> tuple[bytes, bytes]:
    out, index = b"", ""
    for i, (labels, data) in enumerate(records):
        many = labels if len(labels) > 1 else []
        payload = struct.pack("<IfQQ", len(many), labels[0], i, 0) + struct.pack(f"<{len(many)}f", *many) + data
        index += f"{i}\t{len(out)}\n"
        out += struct.pack("<II", 0xCED7230A, len(payload)) + payload + bytes(-len(payload) % 4)
    return out, index.encode()


def tar(items: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in items:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def blob(seed: int) -> list[list[float]]:
    """A polygon that goes round a point at random distances, partly out of the image, with double points."""
    rng = np.random.default_rng(seed)
    angle = np.sort(rng.uniform(0, 2 * np.pi, 40))
    radius = rng.uniform(5, 60, 40)
    x, y = 300 * rng.random() + radius * np.cos(angle), 77 * rng.random() + radius * np.sin(angle)
    points = np.stack([x, y], axis=1).round(2)
    return [np.concatenate([points[:20], points[19:]]).reshape(-1).tolist()]


def compressed(runs: list[int]) -> str:
    """Run lengths as COCO's text: five bits a character, differences to the run before the last."""
    out = ""
    for i, run in enumerate(runs):
        rest = run - runs[i - 2] if i > 2 else run
        while True:
            bits, rest = rest & 31, rest >> 5
            more = rest != (-1 if bits & 16 else 0)
            out += chr(48 + bits + 32 * more)
            if not more:
                break
    return out


def annotations() -> dict[str, Any]:
    """Four images whose ids are not in order, small boxes, a crowd, polygons, categories that have to be numbered."""
    sizes = {9: (8, 6), 3: (10, 20), 5: (8, 6), 7: (333, 77)}
    names = {9: "a.jpg", 3: "b.jpg", 5: "c.jpg", 7: "sub/d.jpg"}

    runs = [5000, 30, 47, 31, 46, 1, 200, 40, 9000, 3]
    runs.append(77 * 333 - sum(runs))

    def annotation(image: int, category: int, box: list[float], segmentation: Any, crowd: int = 0) -> dict[str, Any]:
        return {"image_id": image, "category_id": category, "bbox": box, "segmentation": segmentation, "iscrowd": crowd,
                "area": 1.0}  # fmt: skip

    return {
        "images": [{"id": i, "width": w, "height": h, "file_name": names[i]} for i, (w, h) in sizes.items()],
        "categories": [{"id": 18}, {"id": 7}, {"id": 90}, {"id": 33}],
        "annotations": [
            annotation(9, 18, [1, 2, 3, 4], [[1, 2, 3, 4, 5, 6], [1, 1, 2, 2, 3, 3, 4, 4]]),
            annotation(9, 7, [0, 0, 0.05, 0.05], [[1, 1, 2, 2, 3, 3]]),
            annotation(9, 90, [0.5, 0.25, 2.5, 1.75], [[1, 1, 2, 2.5, 3, 3]]),
            annotation(3, 7, [4, 3, 2, 2], {"counts": [48, 10, 142], "size": [20, 10]}, 1),
            annotation(5, 7, [0, 0, 0.05, 0.05], [[1, 1, 2, 2, 3, 3]]),
            annotation(7, 90, [11.3, 0.7, 301.9, 55.5], [[11.3, 0.7, 313.2, 56.2, 100, 50.1]]),
            annotation(77, 90, [1, 1, 2, 2], []),
            annotation(7, 7, [11.3, 0.7, 301.9, 55.5], blob(0), 0),
            annotation(7, 18, [11.3, 0.7, 301.9, 55.5], blob(1) + blob(2), 0),
            # a category of its own: DALI loses the run lengths of one that has polygons too
            annotation(7, 33, [11.3, 0.7, 301.9, 55.5], {"counts": compressed(runs), "size": [77, 333]}, 1),
        ],
    }


def inputs() -> dict[str, bytes]:
    """The files, by their paths."""
    files: dict[str, bytes] = {}
    for folder, count in (("b", 2), ("a", 1), ("c10", 3), ("c2", 1), ("C3", 2)):
        for i in range(count):
            files[f"tree/{folder}/im{i}.jpg"] = f"{folder}-{i}".encode() * (i + 1)
    files |= {
        "tree/a/UP.JPEG": b"upper",
        "tree/a/note.txt": b"text",
        "tree/c 10/x y.png": b"spaces",
        "tree/top.jpg": b"x",
    }
    files["list.txt"] = b"tree/a/im0.jpg 5\ntree/b/im1.jpg   7 \n\ntree/c 10/x y.png 3\n"
    datum = {
        k: field(4, b"jpeg" * (i + 1)) + field(5, 100 - 60 * i) + field(7, 1) for i, k in enumerate((b"10", b"9", b"1"))
    }
    files["caffe/data.mdb"] = database(datum)
    files["caffe-2/data.mdb"] = database({b"%d" % i: field(4, b"more" + b"x" * i) + field(5, i) for i in range(4)})
    image = tensor(4, (1,), string=b"JPEG")
    label = [tensor(2, (1,), ints=[i + 7]) for i in range(3)]
    further = tensor(1, (2, 2), floats=[1, 2, 3, 4]) + tensor(2, (3,), ints=[1, -2, 3])
    files["c2/data.mdb"] = database({b"%d" % i: image + t for i, t in enumerate(label)})
    files["c2-dense/data.mdb"] = database({b"0": image + tensor(2, (3,), ints=[4, 5, 6]), b"1": image + label[0]})
    files["c2-none/data.mdb"] = database({b"0": image})
    files["c2-more/data.mdb"] = database({b"%d" % i: image + t + further for i, t in enumerate(label)})
    files["c2-box/data.mdb"] = database({b"0": image + label[1] + tensor(2, (4,), ints=[1, 2, 3, 4])})
    records = [
        {
            "img": b"image" * (i + 1),
            "lab": [i - 1],
            "vec": [float(j) for j in range(i + 1)],
            "box": [0.5 * j for j in range(4 * (i % 3 + 1))],
            "two": [float(i), -float(i)],
            "ids": [10**12 + i] * (i % 4 + 1),
        }
        for i in range(9)
    ]
    for k, part in enumerate((records[:4], records[4:])):
        files[f"tf/{k}.tfrecord"], files[f"tf/{k}.idx"] = tfrecord(part)
    nine = [("0001.jpg", b"j1"), ("0001.cls", b"3"), ("0001.seg.png", b"zz"), ("0002.cls", b"4"), ("0002.jpg", b"j2"),
            ("dir/0003.jpg", b"j3"), ("dir/0003.cls", b"5"), ("0004.jpg", b"j4"), ("0005.cls", b"9")]  # fmt: skip
    files["w/a.tar"] = tar(nine)
    files["w/b.tar"] = tar([(f"{i}.{e}", f"{i}{e}".encode()) for i in range(4) for e in ("JPG", "cls", "f")])
    files["w/floats.tar"] = tar([(f"{i}.f", struct.pack(f"<{i + 1}f", *range(i + 1))) for i in range(3)])
    files["m.rec"], files["m.idx"] = recordio(
        [([i + 0.5], b"rec" * i) for i in range(5)] + [([1.5, 2.5, 3.5], b"many")]
    )
    files["coco.json"] = json.dumps(annotations()).encode()
    for name in ("a.jpg", "b.jpg", "c.jpg", "sub/d.jpg"):
        files[f"coco/{name}"] = f"bytes of {name}".encode()
    a = np.arange(12, dtype=np.int16).reshape(3, 4)
    files |= {"npy/a.npy": npy(a), "npy/f.npy": npy(np.asfortranarray(a[:, ::-1])), "npy/sub/b.npy": npy(a[1:, :3])}
    return files


_TF = {
    "img": {"dtype": "string", "shape": []},
    "lab": {"dtype": "int64", "shape": [1]},
    "vec": {"dtype": "float", "var_len": True},
    "box": {"dtype": "float", "var_len": True, "shape": [4]},
    "two": {"dtype": "float", "shape": [2]},
    "ids": {"dtype": "int64", "var_len": True},
}
_FILES = {"path": ["@tf/0.tfrecord", "@tf/1.tfrecord"], "index_path": ["@tf/0.idx", "@tf/1.idx"], "features": _TF}
_SHUFFLED = {"random_shuffle": True, "initial_fill": 3, "seed": 11}
_SHARD = {"num_shards": 2, "shard_id": 1}
_COCO = {"file_root": "@coco", "annotations_file": "@coco.json"}
_OUTSIDE = {"roi_start": [-1, 1], "roi_end": [2, 5]}

CASES: list[tuple[str, int, int, dict[str, Any]]] = [  # reader, samples, batch, arguments
    ("readers.file", 12, 1, {"file_root": "@tree"}),
    ("readers.file", 24, 5, {"file_root": "@tree", **_SHUFFLED}),
    ("readers.file", 24, 4, {"file_root": "@tree", **_SHUFFLED, **_SHARD, "pad_last_batch": True}),
    ("readers.file", 24, 3, {"file_root": "@tree", "shuffle_after_epoch": True}),
    ("readers.file", 8, 1, {"file_root": "@tree", "dir_filters": ["c*"]}),
    ("readers.file", 6, 1, {"file_root": "@tree", "dir_filters": ["c*"], "case_sensitive_filter": True}),
    ("readers.file", 4, 2, {"file_root": "@tree", "file_filters": ["*.TXT", "up.*"]}),
    ("readers.file", 6, 2, {"file_list": "@list.txt"}),
    ("readers.file", 4, 2, {"file_root": "@tree", "files": ["b/im1.jpg", "a/im0.jpg"], "labels": [4, -9]}),
    ("readers.file", 4, 2, {"file_root": "@tree", "files": ["b/im1.jpg", "a/im0.jpg"]}),
    ("readers.caffe", 6, 2, {"path": "@caffe"}),
    ("readers.caffe", 14, 3, {"path": ["@caffe", "@caffe-2"], **_SHUFFLED}),
    ("readers.caffe", 8, 2, {"path": "@caffe-2", "label_available": False, **_SHARD}),
    ("readers.caffe", 4, 2, {"path": "@caffe-2", "image_available": False}),
    ("readers.caffe2", 6, 2, {"path": "@c2", "label_type": 0}),
    ("readers.caffe2", 2, 2, {"path": "@c2-dense", "label_type": 2, "num_labels": 3}),
    ("readers.caffe2", 2, 2, {"path": "@c2-none", "label_type": 4}),
    ("readers.caffe2", 3, 3, {"path": "@c2-more", "label_type": 0, "additional_inputs": 2}),
    ("readers.caffe2", 2, 1, {"path": "@c2-box", "label_type": 0, "bbox": True}),
    ("readers.tfrecord", 18, 4, _FILES),
    ("readers.tfrecord", 18, 4, {**_FILES, **_SHUFFLED}),
    ("readers.tfrecord", 18, 2, {**_FILES, **_SHARD, "stick_to_shard": True}),
    ("readers.tfrecord", 18, 2, {**_FILES, "shuffle_after_epoch": True, "shuffle_after_epoch_seed": 3}),
    ("readers.webdataset", 5, 1, {"paths": "@w/a.tar", "ext": ["jpg", "cls"]}),
    (
        "readers.webdataset",
        6,
        2,
        {"paths": "@w/a.tar", "ext": ["jpg", "seg.png;cls"], "missing_component_behavior": "skip"},
    ),
    ("readers.webdataset", 18, 3, {"paths": ["@w/a.tar", "@w/b.tar"], "ext": ["jpg", "cls"], **_SHUFFLED}),
    ("readers.webdataset", 8, 2, {"paths": "@w/b.tar", "ext": ["jpg"], "case_sensitive_extensions": False}),
    ("readers.webdataset", 3, 1, {"paths": "@w/floats.tar", "ext": ["f"], "dtypes": ["FLOAT"]}),
    ("readers.mxnet", 12, 2, {"path": "@m.rec", "index_path": "@m.idx"}),
    ("readers.mxnet", 12, 3, {"path": "@m.rec", "index_path": "@m.idx", **_SHUFFLED, **_SHARD}),
    ("readers.coco", 5, 1, _COCO),
    ("readers.coco", 8, 2, {**_COCO, "ratio": True, "ltrb": True, "image_ids": True, **_SHUFFLED}),
    ("readers.coco", 4, 1, {**_COCO, "skip_empty": True, "size_threshold": 2.0}),
    ("readers.coco", 4, 1, {**_COCO, "skip_empty": True, "include_iscrowd": False, "avoid_class_remapping": True}),
    ("readers.coco", 4, 2, {**_COCO, "polygon_masks": True, "image_ids": True}),
    ("readers.coco", 4, 2, {**_COCO, "polygon_masks": True, "ratio": True, "include_iscrowd": False}),
    ("readers.coco", 4, 1, {**_COCO, "pixelwise_masks": True}),
    ("readers.coco", 4, 2, {**_COCO, "pixelwise_masks": True, "avoid_class_remapping": True, "image_ids": True}),
    ("readers.coco", 3, 1, {**_COCO, "images": ["sub/d.jpg", "a.jpg"], "ltrb": True}),
    ("readers.coco", 8, 1, {**_COCO, "shuffle_after_epoch": True}),
    ("readers.numpy", 6, 1, {"file_root": "@npy"}),
    ("readers.numpy", 9, 3, {"file_root": "@npy", **_SHUFFLED}),
    ("readers.numpy", 3, 1, {"file_root": "@npy", "roi_start": [1, 1], "roi_end": [2, 3]}),
    ("readers.numpy", 3, 1, {"file_root": "@npy", "roi_start": [1], "roi_shape": [2], "roi_axes": [1]}),
    ("readers.numpy", 3, 1, {"file_root": "@npy", "rel_roi_start": [0.34, 0.13], "rel_roi_end": [0.9, 0.7]}),
    ("readers.numpy", 3, 1, {"file_root": "@npy", "rel_roi_start": [0.2, 0.13], "rel_roi_shape": [0.5, 0.63]}),
    (
        "readers.numpy",
        3,
        1,
        {"file_root": "@npy", **_OUTSIDE, "out_of_bounds_policy": "pad", "fill_value": 7.0},
    ),
    (
        "readers.numpy",
        3,
        1,
        {"file_root": "@npy", **_OUTSIDE, "out_of_bounds_policy": "trim_to_shape"},
    ),
]  # fmt: skip


def placed(value: Any, root: Path) -> Any:
    """Arguments with paths below ``root``."""
    if isinstance(value, str):
        return str(root / value[1:]) if value.startswith("@") else value
    if isinstance(value, list):
        return [placed(v, root) for v in value]
    return {k: placed(v, root) for k, v in value.items()} if isinstance(value, dict) else value


def as_dali(value: dict[str, Any]) -> Any:
    kinds = {"string": tfrec.string, "float": tfrec.float32, "int64": tfrec.int64}
    nothing = {"string": "", "float": 0.0, "int64": 0}[value["dtype"]]
    shape, kind = value.get("shape", []), kinds[value["dtype"]]
    if value.get("var_len"):
        return tfrec.VarLenFeature(shape, kind, nothing) if shape else tfrec.VarLenFeature(kind, nothing)
    return tfrec.FixedLenFeature(shape, kind, nothing)


def answers(reader: str, samples: int, batch: int, arguments: dict[str, Any]) -> list[list[np.ndarray]]:
    function: Callable[..., Any] = getattr(fn.readers, reader.removeprefix("readers."))
    given = {"seed": 1, **arguments}
    if "features" in given:
        given["features"] = {k: as_dali(v) for k, v in given["features"].items()}
    if "dtypes" in given:
        given["dtypes"] = [getattr(types, d) for d in given["dtypes"]]

    @pipeline_def(batch_size=batch, num_threads=1, device_id=None, seed=7)
    def pipeline() -> Any:
        out = function(**given)
        return tuple(out.values()) if isinstance(out, dict) else tuple(out) if isinstance(out, (list, tuple)) else out

    pipe = pipeline()
    pipe.build()
    rows: list[list[np.ndarray]] = []
    while len(rows) < samples:
        outputs = pipe.run()
        rows += [[np.array(o.at(i)) for o in outputs] for i in range(batch)]
    return rows[:samples]


def main() -> None:
    root = Path(tempfile.mkdtemp())
    golden: dict[str, Any] = {}
    files = inputs()
    for k, (name, data) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        golden[f"file{k}"] = np.frombuffer(data, np.uint8)
    for k, (reader, samples, batch, arguments) in enumerate(CASES):
        rows = answers(reader, samples, batch, placed(arguments, root))
        for output, column in enumerate(zip(*rows, strict=True)):
            golden[f"data{k}_{output}"] = np.concatenate([a.reshape(-1) for a in column])
            golden[f"shape{k}_{output}"] = np.array([a.shape for a in column], np.int32)
    golden["files"] = np.array(json.dumps(list(files)))
    golden["cases"] = np.array(json.dumps(CASES))
    np.savez_compressed(Path(__file__).with_name("readers.npz"), **golden)


if __name__ == "__main__":
    main()
