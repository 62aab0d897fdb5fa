"""Screenshots of pages and of `dali-run top` for the guide: report_pictures.py RUN.html STATUS.json FOLDER

RUN.html is what `dali-run run --html` wrote, STATUS.json what `dali-run top OUT --json` printed while a job ran. Needs
the extra `browser` and a Chromium.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console

from dali_run.pipelines.show.live import live_view

_SHOTS = {"report": (1000, 1500, "light"), "report-dark": (1000, 720, "dark"), "report-phone": (390, 1200, "light")}


def main(page: str, status: str, folder: str) -> None:
    out = Path(folder)
    with sync_playwright() as p:
        own = Path(p.chromium.executable_path)
        browser = p.chromium.launch(executable_path=str(own) if own.exists() else shutil.which("chromium"),
                                    args=["--no-sandbox"])  # fmt: skip
        for name, (width, height, scheme) in _SHOTS.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            tab = context.new_page()
            tab.goto(Path(page).absolute().as_uri())
            with Image.open(io.BytesIO(tab.screenshot())) as shot:
                shot.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out / f"{name}.png", optimize=True)
        browser.close()
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, highlight=False)
    (job, *_) = json.loads(Path(status).read_text())
    console.print(live_view(job))
    console.save_svg(str(out / "top.svg"), title=f"dali-run top {job['output']}", unique_id="top")


if __name__ == "__main__":
    main(*sys.argv[1:])
