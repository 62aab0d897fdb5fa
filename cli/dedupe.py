"""``dali-run dedupe``: one of each cluster of duplicates, by scores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .output import Json, print_json, remark, tell, written_to

NAME = "dedupe"


def command(
    scores: Annotated[list[str], typer.Argument(metavar="SCORES", help="Files of scores, or folders of them.")],
    out: Annotated[Path, written_to("File for the keys to keep: .txt, one per line, or .parquet.")],
    exact: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of content hashes: equal ones are duplicates.")
    ] = None,
    near: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of perceptual hashes: near ones are duplicates, too.")
    ] = None,
    distance: Annotated[
        int, typer.Option(min=0, max=32, metavar="N", help="Bits of 64 in which near duplicates may differ.")
    ] = 4,
    best: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Keep the row with the largest number in this column."),
    ] = None,
    key: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the samples' keys.")] = "key",
    keys: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text file with the keys of a .npy file, one per line.")
    ] = None,
    html: Annotated[Path | None, written_to("Write the largest clusters as a page.")] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, exists=True, help="Folder of the images, for thumbnails."),
    ] = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
) -> None:
    """List the keys of a data set without its duplicates.

    SCORES are Parquet files or JSON Lines with a column of keys and columns of 64-bit hashes, as a job writes them with
    content_hash and image_scores, or a .npy file of hashes. Images are not read.

    Rows are duplicates if their content hashes are equal, or if their perceptual hashes differ in at most N bits, and
    so are duplicates of duplicates. Of each such cluster one row is kept: the one whose key sorts first, or with --best
    the one with the largest number. The rows that are kept do not depend on how scores are split into files, nor on
    their order.

    Without --exact and --near, the columns content_hash and phash are used, if they exist.

    \b
    Examples:
      dali-run dedupe out/scores --out keep.txt --html page.html --images data
      dali-run dedupe out/scores --out keep.parquet --distance 6 --best sharpness
    """
    from ..ops.errors import SpecError
    from ..pipelines.tools.dedupe.deduplicate import DedupeOptions, deduplicate, write_keys
    from ..pipelines.wording import count

    if out.suffix not in (".txt", ".parquet"):
        raise SpecError(f"--out {out}: the name must end in .txt or .parquet")
    progress = remark if sys.stderr.isatty() and not quiet and not json else None
    options = DedupeOptions(exact, near, distance, key, best, keys)
    found = deduplicate(scores, options, progress)
    write_keys(found, out)
    if html is not None:
        from ..pipelines.tools.dedupe.clusters_page import clusters_page

        html.write_text(clusters_page(found, images, ["dali-run", *sys.argv[1:]]), encoding="utf-8")
    numbers = found.summary()
    if json:
        print_json({"out": str(out), **numbers})
        return
    left = numbers["rows"] - numbers["kept"]
    clusters, rows = count(numbers["clusters"], "cluster"), count(numbers["largest"], "row")
    tell(
        f"{out}: {numbers['kept']:,} of {numbers['rows']:,} keys; {left:,} duplicates are left out "
        f"({numbers['exact']:,} exact, {numbers['near']:,} near) in {clusters}, the largest of {rows}"
    )
