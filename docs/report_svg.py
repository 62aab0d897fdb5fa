"""Draw the table of a report.json as the terminal shows it: report_svg.py REPORT.json PICTURE.svg"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

from rich.console import Console

from dali_run.pipelines.show.terminal import report_view


def main(report: str, picture: str) -> None:
    found = json.loads(Path(report).read_text())
    command = ["dali-run run", Path(found["command"]["spec"]).stem]
    command += [f"--set {key}={value}" for key, value in found["command"]["overrides"].items()]
    console = Console(record=True, width=124, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(report_view(found))
    console.save_svg(picture, title=" ".join(command), unique_id="report")


if __name__ == "__main__":
    main(*sys.argv[1:])
