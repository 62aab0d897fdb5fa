"""The site of the documentation in a real browser: built strictly, readable on a phone, in light and dark, searchable.
Needs the extras `docs` and `browser`, and a Chromium (`make pages`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """Address of the site, which is served without a network, and the names of its pages."""
    pytest.importorskip("sphinx")
    pytest.importorskip("playwright")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "sphinx", "-W", "-q", "-c", "docs", ".", str(folder)], cwd=ROOT, check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", [str(p.relative_to(folder)) for p in folder.rglob("*.html")]
        server.shutdown()


def test_every_page_fits_a_phone(browser: Any, site: tuple[str, list[str]]) -> None:
    address, pages = site
    assert len(pages) > 60
    page = browser.new_page(viewport={"width": 390, "height": 844})
    for name in set(pages) - {"index.html"}:  # which leads to docs/index.html at once
        page.goto(f"{address}/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)"), name
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_page_and_the_search(browser: Any, site: tuple[str, list[str]], scheme: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{site[0]}/docs/index.html")
    first = page.locator("article").inner_text()
    assert "pip install" in first
    assert page.locator("article pre").first.evaluate("e => e.scrollWidth <= e.clientWidth"), (
        "the first lines are cut off"
    )
    assert page.locator("article img").first.is_visible()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, background[4:-1].split(","))) < 64) == (scheme == "dark")
    page.get_by_role("textbox", name="Search").first.fill("random_resized_crop")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    assert any("operators" in a.get_attribute("href") for a in page.query_selector_all("#search-results li a"))
    page.goto(f"{site[0]}/docs/operators/index.html")
    assert page.locator("td img").first.evaluate("e => e.getBoundingClientRect().width") > 100
    context.close()
