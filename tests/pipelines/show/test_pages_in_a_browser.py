"""Pages in a real browser: nothing is asked for, nothing is wider than the screen, everything can be read, in light and
dark and on paper. Needs the extra `browser` and a Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dali_run.cli import main as cli
from dali_run.pipelines.show.html import html_report
from dali_run.pipelines.tools.sample_data import make_sample_data
from tests.kit.pages import report

axe = pytest.importorskip("axe_playwright_python.sync_playwright")

SPEC = """\
version: 1
name: small
pipeline: {batch_size: 4, num_threads: 2, device: cpu}
graph:
  - {op: readers.file, name: Reader, file_root: ./data, out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, out: images}
  - {op: resize, in: images, size: [32, 32], out: images}
outputs: {image: images, label: labels}
write: {writer: tfrecord, path: ./out, fields: {image: {encode: jpeg}, label: {}}}
on_error: {policy: skip, max_errors: 50%}
"""
WIDTHS = (320, 768, 1280)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of every kind, as the commands write them, and one with all that a page can hold."""
    folder = tmp_path_factory.mktemp("pages")
    data = folder / "data"
    make_sample_data(data, 16)
    victim = next((data / "train").rglob("*.jpg"))
    victim.with_name("cut.jpg").write_bytes(victim.read_bytes()[:6000])
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.replace("./data", str(data / "train")).replace("./out", str(folder / "out")))
    made = {name: folder / f"{name}.html" for name in ("run", "bench", "spec", "data", "everything")}
    assert cli.main(["run", str(spec), "-q", "--html", str(made["run"])]) == 3
    quick = ["--seconds", "0.05", "--repeats", "1", "--warm-up", "0", "--no-limits"]
    assert cli.main(["bench", str(spec), *quick, "--html", str(made["bench"])]) == 0
    assert cli.main(["inspect", str(spec), "-n", "2", "--out", str(folder / "look"), "--html", str(made["spec"])]) == 0
    assert cli.main(["inspect", str(data / "train"), "-n", "2", "--html", str(made["data"])]) == 0
    made["everything"].write_text(html_report(report()))
    return made


KINDS = ("run", "bench", "spec", "data", "everything")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_reads_well(browser: Any, pages: dict[str, Path], kind: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 800}, color_scheme=scheme)
    asked: list[str] = []
    complaints: list[str] = []
    page = context.new_page()
    page.on("request", lambda r: asked.append(r.url) if not r.url.startswith("data:") else None)
    page.on("console", lambda m: complaints.append(m.text))
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.goto(pages[kind].as_uri())
    assert asked == [pages[kind].as_uri()]
    assert not complaints
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, background[4:-1].split(","))) < 64) == (scheme == "dark")
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing(browser: Any, pages: dict[str, Path], kind: str, scheme: str) -> None:
    """Contrast, names, headings, landmarks, tables, by the rules of WCAG."""
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(pages[kind].as_uri())
    for details in page.query_selector_all("details"):
        details.query_selector("summary").click()
    results = axe.Axe().run(page)  # its script is let in past the page's own policy
    assert results.violations_count == 0, results.generate_report()
    context.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_prints(browser: Any, pages: dict[str, Path], kind: str) -> None:
    """On paper: light, whatever the screen is, without what only a screen can use."""
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(pages[kind].as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert not page.query_selector("nav").is_visible()
    assert page.pdf().startswith(b"%PDF")
    context.close()


def test_without_scripts_all_is_there(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["run"].as_uri())
    page.get_by_text("Numbers").first.click()
    assert page.get_by_role("table", name="Samples per second, over time").is_visible()
    assert page.get_by_role("img", name="cut.jpg").first.is_visible()
    context.close()
