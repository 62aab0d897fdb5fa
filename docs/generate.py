"""Write the generated pages and drawings of docs/, the schema and the stubs; --check prints which are out of date."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


from dali_run.pipelines.settings import table
from dali_run.pipelines.spec.json_schema import schema_text, spec_schema
from docs import figures, operator_pictures
from docs.commands_page import commands_page
from docs.dynamic_stubs import stub as dynamic_stub
from docs.json_page import json_page
from docs.machines_svg import draw as draw_machines
from docs.operators_page import operators_pages
from docs.python_page import python_page
from docs.rooms_svg import draw
from docs.stubs import classes_stub, functions_stub

HERE = Path(__file__).parent


def pages() -> dict[Path, str]:
    """Return the content of each generated file."""
    root = HERE.parent
    by_family = operators_pages(operator_pictures.images(), operator_pictures.captions())
    return {
        **{HERE / "operators" / name: text for name, text in by_family.items()},
        HERE / "architecture.svg": draw(),
        HERE / "many-machines.svg": draw_machines(),
        HERE / "commands.md": commands_page(),
        HERE / "json.md": json_page(),
        HERE / "package.md": package_page(figures.filled((root / "README.md").read_text())),
        **{p: figures.filled(p.read_text()) for p in (HERE / "performance.md", HERE / "performance" / "operators.md")},
        HERE / "pictures" / "speed.svg": figures.chart(),
        root / "README.md": figures.filled((root / "README.md").read_text()),
        HERE / "python.md": python_page(),
        HERE / "spec.md": _with_settings((HERE / "spec.md").read_text()),
        root / "configs" / "spec.schema.json": schema_text(spec_schema(installed=False)),
        root / "dali_run" / "dynamic" / "__init__.pyi": dynamic_stub(),
        root / "dali_run" / "fn.pyi": functions_stub(),
        root / "ops" / "__init__.pyi": classes_stub(),
    }


def package_page(readme: str) -> str:
    """Return README.md for a package index, which has neither the files that it links to nor its images."""
    without_pictures = re.sub(r"^!\[[^]]*\]\([^)]*\)\n\n", "", readme, flags=re.M)
    without_pictures = re.sub(r"^\[Documentation\]\(.*?\n\n", "", without_pictures, flags=re.M | re.S)
    return re.sub(r"\[([^]]+)\]\((?!https?://)[^)]*\)", r"\1", without_pictures)


def _with_settings(page: str) -> str:
    """Return docs/spec.md with rows for the settings that are declared in pipelines/settings.py."""
    begin = page.index("\n", page.index("| `prefetch_queue_depth` |")) + 1
    return page[:begin] + table() + page[page.index("\n\n", begin - 1) + 1 :]


def main() -> int:
    stale = [p for p, text in pages().items() if not p.exists() or p.read_text() != text]
    undrawn = [name for name in operator_pictures.steps() if operator_pictures.is_stale(name)]
    spare = operator_pictures.left_over()
    if "--check" in sys.argv[1:]:
        stale += [*map(operator_pictures.path_of, undrawn), *spare]
        for path in stale:
            print(f"{path} is out of date; run: make docs", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path])
        print(f"wrote {path}")
    if undrawn or spare:
        operator_pictures.refresh(undrawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
