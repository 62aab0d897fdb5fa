"""``dali-run sample-data``: something to try everything on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import Json, print_json, tell

NAME = "sample-data"


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    count: Annotated[int, typer.Option(min=8, help="How many pictures; a quarter of them for validation.")] = 96,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same pictures.")] = 0,
    json: Json = False,
) -> None:
    """Make sample pictures, LMDB, TFRecord and COCO files, and sounds.

    Photo-like JPEGs of all kinds in class folders, the same as LMDB and TFRecord, pictures with boxes and masks, WAV.

    DIR/train and DIR/val hold class folders; DIR/lmdb (Caffe Datum) and DIR/tfrecord (Example) hold the training
    pictures; DIR/coco holds annotated ones. 4:2:0, 4:2:2, 4:4:4, gray, progressive and EXIF-rotated files are among
    them. DIR/audio holds class folders of WAV files, and a manifest as NVIDIA NeMo has it. However few there are, all
    folders of classes hold every class.

    \b
    Examples:
      dali-run sample-data data
      dali-run sample-data big --count 2000 --seed 7
    """
    from ..pipelines.tools.sample_data import make_sample_data
    from .progress import counted

    with counted("drew", quiet=json, amount=lambda n: f"{n:,.0f}") as progress:
        made = make_sample_data(folder, count, seed, progress)
    if json:
        print_json(made)
        return
    from ..pipelines.wording import count as number

    there = "is there already" if made.get("already_there") else "made"
    tell(f"{folder} {there}: {number(made['train'], 'picture')} to train on (also as lmdb and tfrecord), "
               f"{made['val']} to validate with, {len(made['classes'])} classes; "
               f"{made['coco']['images']} with boxes and masks (coco); {number(made['sounds'], 'sound')}")  # fmt: skip
