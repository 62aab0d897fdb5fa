"""``dali-run convert``: convert a data set from one container to another."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from .interrupts import heeded
from .output import FollowLinks, Json, end_with, errors_as_json, print_json, say

NAME = "convert"


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder of files, shards, or a database; or a URL.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="Output folder, or a URL.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Format of the output: tfrecord, webdataset, files, parquet, lmdb, recordio, mds, ...",
        ),
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="Prefix of the shards' names.")] = "data",
    samples: Annotated[int | None, typer.Option(min=1, metavar="N", help="Samples per shard.")] = None,
    size: Annotated[str | None, typer.Option(metavar="SIZE", help="Largest size of a shard: 1GB, 256MiB.")] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle the whole data set.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed for --shuffle.")] = 0,
    resize: Annotated[
        int | None,
        typer.Option(min=1, metavar="PIXELS", help="Shrink images to this shorter side; smaller images are unchanged."),
    ] = None,
    enlarge: Annotated[
        bool, typer.Option("--enlarge", help="With --resize, also enlarge images that are smaller.")
    ] = False,
    format_: Annotated[str | None, typer.Option("--format", help="Re-encode images as jpeg, png or webp.")] = None,
    quality: Annotated[int | None, typer.Option(min=1, max=100, help="Quality of JPEG and WebP.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Convert only these columns (Parquet).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Convert only the first N records.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set an option of the writer, like --set.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete existing output and start over.")] = False,
    append: Annotated[bool, typer.Option("--append", help="Add records that SRC received since the last run.")] = False,
    follow_links: FollowLinks = False,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Device that re-encodes images: cpu, gpu, gpu:N, gpu:all.")
    ] = "cpu",
    on: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Use several workers: processes:N, ray or ray://HOST:PORT.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the spec of the conversion and exit.")] = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Convert a data set, or resize and re-encode its images.

    The source may be TFRecord, LMDB, tar (webdataset), RecordIO, Parquet or a folder of files; --to names the container
    that is written. Images are decoded only if another size or format is requested (a new size without --format gives
    JPEG). Images that already have both, according to their header, keep their bytes, metadata included; with --quality
    all images are re-encoded. After an interruption, run the same command again: it continues.

    \b
    Examples:
      dali-run convert data/train out --to webdataset --samples 1000 --shuffle
      dali-run convert data/train out --to lmdb --resize 256 --format jpeg
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
    requested = ConvertOptions(
        to, name, samples, size, shuffle, seed, resize, enlarge, format_, quality, options, names, limit, follow_links
    )
    if show:
        spec = conversion(source, target, requested, say)
        print_json({**spec, "pipeline": {**spec["pipeline"], "device": device}})
        return
    with errors_as_json(json), shown(quiet=quiet or json) as progress:
        result = convert(source, target, requested, fresh=fresh, append=append, device=device,
                         progress=heeded(progress), note=(lambda _: None) if quiet else say,
                         by=partial(run, on=on))  # fmt: skip
    end_with(result, json=json, quiet=quiet)
