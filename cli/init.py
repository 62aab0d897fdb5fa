"""``dali-run init``: write a first spec for the user's data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .output import Json, print_json, remark, tell

NAME = "init"


def command(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Files, class folders, shards, COCO, LMDB, or a URL.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Task: resize, train, val, keep, curate, logmel or clips."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Format of the output: webdataset, tfrecord, numpy, lmdb, ...")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="PATH", help="Folder for the output of the job.")] = None,
    size: Annotated[int | None, typer.Option(min=1, metavar="PIXELS", help="Size of resized images.")] = None,
    spec: Annotated[Path, typer.Option("--spec", "-o", metavar="FILE", help="The spec to write.")] = Path("spec.yaml"),
    schema: Annotated[bool, typer.Option(help="Also write spec.schema.json, for completion in editors.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing spec.")] = False,
    json: Json = False,
) -> None:
    """Write a commented spec for a data set.

    In a terminal, it asks for the missing arguments: data, task and output. Otherwise it uses the first task that suits
    the data. The spec is valid and can be run unchanged.

    \b
    Examples:
      dali-run init data/train
      dali-run init data/train --task val --to tfrecord --out out/val -o val.yaml
    """
    from ..ops.errors import SpecError
    from ..pipelines.job import first_spec

    asks = sys.stdin.isatty() and sys.stderr.isatty() and not json
    if spec.exists() and not force:
        raise SpecError(f"{spec} already exists; name another file (-o FILE), or use --force")
    if data is None:
        if not asks:
            raise typer.BadParameter("is missing: the folder or file with the data", param_hint="DATA")
        data = typer.prompt("Where is the data?", default="./data/train", err=True)
    dataset = first_spec.look_at(data)
    tasks = first_spec.tasks_of(dataset, size)
    if asks and task is None:
        remark(f"{data}: {dataset.about}")
        for name, text in tasks.items():
            remark(f"  {name:8} {text}")
        task = typer.prompt("Which task?", default=next(iter(tasks)), err=True)
    task = task or next(iter(tasks))
    if asks and out is None:
        out = typer.prompt("Where should the output go?", default=f"./out/{Path(data).resolve().name}-{task}", err=True)
    text = first_spec.spec_text(data, dataset, task, writer=to or "", out=out or "", size=size, schema=schema)
    files = _write(spec, text, schema)
    if json:
        print_json({"spec": str(spec), "files": files, "kind": dataset.kind, "about": dataset.about, "task": task})
        return
    if not asks:
        tell(f"{data}: {dataset.about}")
    tell(f"wrote {' and '.join(files)}: {tasks[task]}")
    tell(f"next: dali-run run {spec} --limit 100")


def _write(spec: Path, text: str, schema: bool) -> list[str]:
    """Write a spec, and its schema if requested. Return the files' paths. Raises SpecError for an invalid spec."""
    from ..ops.errors import SpecError
    from ..pipelines.job import first_spec
    from ..pipelines.spec.json_schema import schema_text, spec_schema
    from ..pipelines.tools.preview import check_spec

    spec.write_text(text.replace("SPEC", str(spec)), encoding="utf-8")
    files = [spec]
    if schema:
        files.append(spec.with_name(first_spec.SCHEMA))
        files[1].write_text(schema_text(spec_schema()), encoding="utf-8")
    checked = check_spec(spec)
    if checked["problems"]:
        raise SpecError(f"{spec} was written, but is not valid: {checked['problems'][0]['text']}")
    return list(map(str, files))
