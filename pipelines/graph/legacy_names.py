"""Names of operators in Python, including DALI's older names."""

from __future__ import annotations

from collections.abc import Iterable

LEGACY: dict[str, str] = {
    "image_decoder": "decoders.image",
    "image_decoder_crop": "decoders.image_crop",
    "image_decoder_random_crop": "decoders.image_random_crop",
    "image_decoder_slice": "decoders.image_slice",
    "experimental.decoders.image": "decoders.image",
    "experimental.decoders.image_crop": "decoders.image_crop",
    "experimental.decoders.image_random_crop": "decoders.image_random_crop",
    "experimental.decoders.image_slice": "decoders.image_slice",
    "experimental.decoders.video": "decoders.video",
    "experimental.peek_image_shape": "peek_image_shape",
    "audio_decoder": "decoders.audio",
    "file_reader": "readers.file",
    "caffe_reader": "readers.caffe",
    "caffe2_reader": "readers.caffe2",
    "coco_reader": "readers.coco",
    "mxnet_reader": "readers.mxnet",
    "nemo_asr_reader": "readers.nemo_asr",
    "numpy_reader": "readers.numpy",
    "sequence_reader": "readers.sequence",
    "tfrecord_reader": "readers.tfrecord",
    "video_reader": "readers.video",
    "video_reader_resize": "readers.video_resize",
    "coin_flip": "random.coin_flip",
    "normal_distribution": "random.normal",
    "uniform": "random.uniform",
    "transform_translation": "transforms.translation",
    "experimental.audio_resample": "audio_resample",
    "experimental.equalize": "equalize",
    "experimental.debayer": "debayer",
    "experimental.filter": "filter",
    "experimental.inflate": "decoders.inflate",
    "experimental.tensor_resize": "tensor_resize",
}
"""Operator names that DALI keeps for older programs, each with the present name."""
LEGACY |= {f"hidden.{old}": LEGACY[old] for old in (
    "audio_decoder", "caffe2_reader", "caffe_reader", "coco_reader", "coin_flip", "file_reader", "mxnet_reader",
    "nemo_asr_reader", "normal_distribution", "numpy_reader", "sequence_reader", "transform_translation", "uniform",
    "video_reader", "video_reader_resize")}  # fmt: skip
LEGACY |= {f"hidden.{same}": same for same in ("constant", "fast_resize_crop_mirror", "shapes", "ssd_random_crop")}
LEGACY |= {f"experimental.hidden.{same}": same for same in (
    "audio_resample", "debayer", "equalize", "filter", "tensor_resize")}  # fmt: skip
LEGACY |= {"experimental.hidden.inflate": "decoders.inflate", "readers.hidden.sequence": "readers.sequence",
           "experimental.decoders.hidden.video": "decoders.video"}  # fmt: skip

_WORDS = {"bbox": "BBox", "coco": "COCO", "dl": "DL", "mfcc": "MFCC", "mxnet": "MXNet", "rms": "RMS", "roi": "ROI",
          "ssd": "SSD", "tfrecord": "TFRecord"}  # fmt: skip


def class_name(name: str) -> str:
    """Return the name of the operator class for an operator's name: ``readers.File`` for ``readers.file``,
    ``TFRecordReader`` for ``tfrecord_reader``."""
    *folders, last = name.split(".")
    words = [_WORDS.get(w) or w[:1].upper() + w[1:] for w in last.split("_")]
    return ".".join((*folders, "".join(words)))


def callable_names(names: Iterable[str], aliases: Iterable[str] = ()) -> dict[str, str]:
    """Return every name under which an operator can be called, with the registered name of the operator. The registered
    names come first, then older ones and ``aliases``."""
    by_name = {n: n for n in names if not n.startswith("_")}
    by_name.update({a: a for a in aliases if not a.startswith("_")})
    by_name.update({old: new for old, new in LEGACY.items() if old not in by_name and new in by_name})
    return by_name
