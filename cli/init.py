"""``dali-run init``: a first spec for one's own data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .output import Json, print_json, remark, tell

NAME = "init"


def command(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Files, class folders, shards, COCO, LMDB; a URL.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="TASK", help="resize, train, val, keep, logmel or clips.")] = None,
    to: Annotated[str | None, typer.Option(metavar="FORMAT", help="webdataset, tfrecord, numpy, lmdb, ...")] = None,
    out: Annotated[str | None, typer.Option(metavar="PATH", help="Where the job writes.")] = None,
    size: Annotated[int | None, typer.Option(min=1, metavar="PIXELS", help="Of resized pictures.")] = None,
    spec: Annotated[Path, typer.Option("--spec", "-o", metavar="FILE", help="The spec to write.")] = Path("spec.yaml"),
    schema: Annotated[bool, typer.Option(help="Write spec.schema.json beside it, for completion in editors.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a spec that is there.")] = False,
    json: Json = False,
) -> None:
    """Look at a data set, and write a commented spec for it.

    In a terminal it asks what is not given: where the data is, what to make of it, where to. Elsewhere the first task
    that fits the data is taken. What it writes validates, and runs as it is.

    \b
    Examples:
      dali-run init
      dali-run init data/train
      dali-run init data/train --task val --to tfrecord --out out/val -o val.yaml
    """
    from ..ops.errors import SpecError
    from ..pipelines.job import first_spec
    from ..pipelines.spec.json_schema import schema_text, spec_schema
    from ..pipelines.tools.preview import check_spec

    asks = sys.stdin.isatty() and sys.stderr.isatty() and not json
    if spec.exists() and not force:
        raise SpecError(f"{spec} is there already; name another one (-o FILE), or give --force")
    if data is None:
        if not asks:
            raise typer.BadParameter("is missing: the folder or file with the data", param_hint="DATA")
        data = typer.prompt("Where is the data?", default="./data/train", err=True)
    seen = first_spec.look_at(data)
    tasks = first_spec.tasks_of(seen, size)
    if asks and task is None:
        remark(f"{data}: {seen.about}")
        for name, text in tasks.items():
            remark(f"  {name:8} {text}")
        task = typer.prompt("What is to be made of it?", default=next(iter(tasks)), err=True)
    task = task or next(iter(tasks))
    if asks and out is None:
        out = typer.prompt("Where to?", default=f"./out/{Path(data).resolve().name}-{task}", err=True)
    text = first_spec.spec_text(data, seen, task, writer=to or "", out=out or "", size=size, schema=schema)
    spec.write_text(text.replace("SPEC", str(spec)), encoding="utf-8")
    files = [str(spec)]
    if schema:
        beside = spec.with_name(first_spec.SCHEMA)
        beside.write_text(schema_text(spec_schema()), encoding="utf-8")
        files.append(str(beside))
    checked = check_spec(spec)
    if checked["problems"]:
        raise SpecError(f"{spec} was written, but is not valid: {checked['problems'][0]['text']}")
    if json:
        print_json({"spec": str(spec), "files": files, "kind": seen.kind, "about": seen.about, "task": task})
        return
    if not asks:
        tell(f"{data}: {seen.about}")
    tell(f"wrote {' and '.join(files)}: {tasks[task]}")
    tell(f"next: dali-run run {spec} --limit 100")
