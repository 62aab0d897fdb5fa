"""``dali-run sample-data``: create data for trying out dali-run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import Json, print_json, tell

NAME = "sample-data"


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    count: Annotated[int, typer.Option(min=8, help="Number of images, a quarter of them for validation.")] = 96,
    seed: Annotated[int, typer.Option(min=0, help="Seed; equal seeds give equal images.")] = 0,
    json: Json = False,
) -> None:
    """Create sample images, audio, LMDB, TFRecord and COCO files.

    DIR/train and DIR/val contain photo-like JPEGs of all kinds in class folders: 4:2:0, 4:2:2, 4:4:4, gray, progressive
    and EXIF-rotated. DIR/lmdb (Caffe Datum) and DIR/tfrecord (Example) contain the training images, DIR/coco images
    with boxes and masks, DIR/audio WAV files in class folders and a manifest in NVIDIA NeMo's format. Every class
    occurs in all folders, even for small counts.

    \b
    Examples:
      dali-run sample-data data
      dali-run sample-data big --count 2000 --seed 7
    """
    from ..pipelines.tools.sample_data import make_sample_data
    from .progress import counted

    with counted("drew", quiet=json, amount=lambda n: f"{n:,.0f}") as progress:
        summary = make_sample_data(folder, count, seed, progress)
    if json:
        print_json(summary)
        return
    from ..pipelines.wording import count as number

    state = "already exists" if summary.get("already_there") else "created"
    tell(f"{folder} {state}: {number(summary['train'], 'image')} for training (also as lmdb and tfrecord), "
               f"{summary['val']} for validation, {len(summary['classes'])} classes; "
               f"{summary['coco']['images']} with boxes and masks (coco); "
               f"{number(summary['sounds'], 'audio file')}")  # fmt: skip
