"""``dali-run convert``: a data set from one container to another."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from .interrupts import heeded
from .output import FollowLinks, Json, end_with, errors_as_json, print_json, say

NAME = "convert"


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder of files, shards or a database; or its URL.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="Folder to write to, or a URL.")],
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="tfrecord, lmdb, webdataset, recordio, parquet, files.")
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="First part of the shards' names.")] = "data",
    samples: Annotated[int | None, typer.Option(min=1, metavar="N", help="Samples per shard.")] = None,
    size: Annotated[str | None, typer.Option(metavar="SIZE", help="Size of a shard: 1GB, 256MiB.")] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="In random order, all over the data set.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Shuffle seed.")] = 0,
    resize: Annotated[
        int | None, typer.Option(min=1, metavar="PIXELS", help="Shrink to this shorter side; smaller pictures stay.")
    ] = None,
    enlarge: Annotated[bool, typer.Option("--enlarge", help="With --resize: smaller pictures, too.")] = False,
    format_: Annotated[str | None, typer.Option("--format", help="Encode pictures anew: jpeg, png or webp.")] = None,
    quality: Annotated[int | None, typer.Option(min=1, max=100, help="Of jpeg and webp.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Of Parquet files: these columns only.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Take the first N records only.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the writer, as --set takes.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; delete existing output.")] = False,
    append: Annotated[bool, typer.Option("--append", help="Add what SRC got since the last run.")] = False,
    follow_links: FollowLinks = False,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Of pictures that are encoded anew: cpu, gpu, gpu:N, gpu:all.")
    ] = "cpu",
    on: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Several workers: processes:N, ray or ray://HOST:PORT.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the spec that does it, and stop.")] = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Convert a dataset to another container; samples are copied unchanged.

    TFRecord, LMDB, tar (webdataset), RecordIO, Parquet and folders of files, to any of these. Nothing is decoded unless
    pictures are asked for in another size or format (jpeg, if no other is named). Those that have both already, by
    their header, keep their bytes, metadata included; with --quality all are encoded anew. Rerun the same command after
    an interruption: it continues.

    \b
    Examples:
      dali-run convert data/train out --to webdataset --samples 1000 --shuffle
      dali-run convert train.lmdb out --to tfrecord --size 1GB
      dali-run convert data/train out --to lmdb --resize 256 --format jpeg --quality 90
      dali-run convert data/train out --to tfrecord --samples 10000 --resize 256 --device gpu:all
      dali-run convert train.lmdb out --to webdataset --samples 10000 --on processes:8
    """
    from ..pipelines.fleet.run import run
    from ..pipelines.job.convert import ConvertOptions, conversion, convert
    from ..pipelines.spec.variables import setting
    from .progress import shown

    options = {}
    for change in option or []:
        key, equals, value = change.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"needs KEY=VALUE, got {change!r}", param_hint="--option")
        options[key] = setting(value, f"--option {key}")
    names = tuple(filter(None, (columns or "").split(",")))
    if enlarge and resize is None:
        raise typer.BadParameter("needs --resize: the size to enlarge to", param_hint="--enlarge")
    wanted = ConvertOptions(
        to, name, samples, size, shuffle, seed, resize, enlarge, format_, quality, options, names, limit, follow_links
    )
    if show:
        spec = conversion(source, target, wanted, say)
        print_json({**spec, "pipeline": {**spec["pipeline"], "device": device}})
        return
    with errors_as_json(json), shown(quiet=quiet or json) as progress:
        result = convert(source, target, wanted, fresh=fresh, append=append, device=device, progress=heeded(progress),
                         note=(lambda _: None) if quiet else say, by=partial(run, on=on))  # fmt: skip
    end_with(result, json=json, quiet=quiet)
