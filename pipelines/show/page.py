"""HTML pages in one file without scripts or requests. They are readable on a phone and on paper, in light and dark, and
without colors. All data is escaped in `text`, and nowhere else."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ..wording import printable

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --card: #f4f6fa; --ink: #1b2130; --soft: #555d6d; --line: #d3d8e2;
  --rail: #e4e8ef; --busy: #1f6fc4; --waits: #7d8797; --blocked: #b8430f; --note: #fff3d1; --mark: #9a6a00;
  --s1: #1f6fc4; --s2: #b8430f; --s3: #2b7a3d; --s4: #7b4bb3; --s5: #8a6100; }
@media (prefers-color-scheme: dark) { :root { --page: #14171d; --card: #1d222b; --ink: #e7eaf0; --soft: #a9b1bf;
  --line: #39404d; --rail: #2b313c; --busy: #6fb1ff; --waits: #8891a1; --blocked: #ff9d66; --note: #332a10;
  --mark: #e7b84a; --s1: #6fb1ff; --s2: #ff9d66; --s3: #6cc983; --s4: #c3a0f0; --s5: #e7b84a; } }
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 66rem; padding: 0 1rem 2rem;
  color: var(--ink); background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 1.5rem 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .4rem 0; } a { color: var(--busy); } .soft, caption { color: var(--soft); }
.skip { position: absolute; left: -99rem; } .skip:focus { position: static; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0; margin: .8rem 0 0; }
.lead { background: var(--note); border-left: .3rem solid var(--mark); padding: .6rem 1rem; margin: 1rem 0; }
dl.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; margin: 1rem 0; }
dl.facts div { background: var(--card); border-radius: .4rem; padding: .5rem .8rem; }
dl.facts dt { color: var(--soft); font-size: .85rem; } dl.facts dd { margin: 0; font-weight: 600; font-size: 1.1rem; }
.scroll { overflow-x: auto; } .scroll + .scroll { margin-top: 1rem; }
:focus-visible { outline: .15rem solid var(--busy); outline-offset: .1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; } caption { text-align: left; padding: .2rem 0; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; }
thead th, thead td { border-bottom: 1px solid var(--line); }
tbody th { font-weight: 400; } td, th { overflow-wrap: normal; } .n { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
td.b { width: 60%; min-width: 6rem; vertical-align: middle; }
.bar { position: relative; display: flex; height: .95rem; background: var(--rail); border-radius: .15rem;
  overflow: hidden; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.bar i { display: block; } .busy { background: var(--busy); } .blocked { background: var(--blocked); }
.waits { background: repeating-linear-gradient(135deg, var(--waits) 0 3px, var(--rail) 3px 6px); }
.bar b { position: absolute; top: 40%; height: 20%; background: var(--ink); }
.key i { display: inline-block; width: .9rem; height: .9rem; margin: 0 .3rem -.1rem 1rem; border-radius: .15rem;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
figure { margin: 0; } .plot { background: var(--card); border-radius: .4rem; padding: .7rem .9rem; }
.plot svg { display: block; width: 100%; height: 8rem; border-bottom: 1px solid var(--soft); }
.plot .ends { display: flex; justify-content: space-between; color: var(--soft); font-size: .85rem; }
.plot path { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; }
.plot svg.swatch { display: inline-block; width: 2rem; height: .6rem; border: 0; margin-right: .2rem; }
.plot p { display: flex; flex-wrap: wrap; gap: 0 1rem; font-size: .9rem; }
.s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); stroke-dasharray: 7 3; } .s3 { stroke: var(--s3);
  stroke-dasharray: 2 3; } .s4 { stroke: var(--s4); stroke-dasharray: 9 3 2 3; } .s5 { stroke: var(--s5);
  stroke-dasharray: 14 4; }
.plot p span { white-space: nowrap; }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 18rem), 1fr)); gap: 1rem; }
.pictures figure { background: var(--card); border-radius: .4rem; padding: .6rem; }
.pair { display: flex; flex-wrap: wrap; gap: .6rem; align-items: end; } .pair div { flex: 1 1 6rem; font-size: .85rem; }
img { max-width: 100%; height: auto; display: block; border-radius: .2rem; background: var(--rail); }
td img { max-width: 6rem; } .pair img { min-width: 4rem; }
.strip { display: flex; flex-wrap: wrap; gap: .5rem; } .strip img { max-height: 9rem; }
pre, code { font: .85rem/1.45 ui-monospace, monospace; } pre { background: var(--card); padding: .8rem;
  border-radius: .4rem; overflow-x: auto; white-space: pre; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); color: var(--soft); font-size: .9rem; }
@media print { :root { --page: #fff; --card: #f4f6fa; --ink: #000; --soft: #444; --line: #bbb; --rail: #e4e8ef;
  --busy: #1f6fc4; --waits: #7d8797; --blocked: #b8430f; --note: #fff; --s1: #1f6fc4; --s2: #b8430f; --s3: #2b7a3d;
  --s4: #7b4bb3; --s5: #8a6100; }
  body { max-width: none; font-size: 10pt; } nav, .skip, details { display: none; }
  section, figure, tr { break-inside: avoid; } section.long { break-inside: auto; } pre { white-space: pre-wrap; } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content security policy of a page. With it, the browser loads no other files and runs no scripts."""


def text(value: object) -> str:
    """Return ``value`` as HTML text. Special characters are escaped, so that data cannot contain tags or end an
    attribute."""
    return escape(printable(str(value)))


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an HTML page: a heading, and ``parts`` in HTML below it."""

    title: str
    parts: Sequence[str]

    @property
    def id(self) -> str:
        """HTML id of the section's heading, for links to the section."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def page(title: str, kind: str, head: Sequence[str], sections: Sequence[Section], foot: str) -> str:
    """Return a whole HTML page: the title, ``head`` (HTML), ``sections`` that are not empty, and ``foot`` (plain
    text)."""
    sections = [s for s in sections if s.parts]
    links = "".join(f'<li><a href="#{s.id}">{text(s.title)}</a></li>' for s in sections)
    body = "\n".join(
        f'<section aria-labelledby="{s.id}" class="{"long" if len(s.parts) > 3 else "short"}">'
        f'<h2 id="{s.id}">{text(s.title)}</h2>\n' + "\n".join(s.parts) + "\n</section>"
        for s in sections
    )  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="generator" content="dali-run">\n'
        f"<title>{text(title)}: {text(kind)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#content">To the content</a>\n'
        f"<header>\n<h1>{text(title)}</h1>\n" + "\n".join(head) + "\n</header>\n"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main id="content">\n{body}\n</main>\n'
        f"<footer><p>{text(foot)}</p></footer>\n</body>\n</html>\n"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return HTML for a few facts, given as pairs of name and value."""
    inner = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in pairs)
    return f'<dl class="facts">{inner}</dl>'


def lead(sentence: str, advice: str) -> str:
    """Return an HTML paragraph with ``sentence``, about the bottleneck of a run, and ``advice``."""
    return (f'<div class="lead" role="note"><p><strong>{text(sentence)}</strong></p>'
            f"<p>To go faster: {text(advice)}</p></div>")  # fmt: skip


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: int, caption: str) -> str:
    """Return an HTML table whose cells are plain text. The first ``words`` columns contain text, the others numbers."""
    return table_of(columns, [[text(cell) for cell in row] for row in rows], words, caption)


def table_of(columns: Sequence[str], rows: Iterable[Sequence[str]], words: int, caption: str) -> str:
    """Return an HTML table like `table`, but from cells that are HTML. The first cell of a row is its heading."""

    def cell(i: int, inner: str) -> str:
        kind = "" if i < words else ' class="n"'
        return f'<th scope="row"{kind}>{inner}</th>' if i == 0 else f"<td{kind}>{inner}</td>"

    head = "".join(f'<th scope="col"{"" if i < words else " class=n"}>{text(c)}</th>' for i, c in enumerate(columns))
    body = "\n".join(f"<tr>{''.join(cell(i, c) for i, c in enumerate(row))}</tr>" for row in rows)
    return scrolling(f"<table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>"
                     "</table>", caption)  # fmt: skip


def scrolling(inner: str, name: str) -> str:
    """Return ``inner`` (HTML) in a region that scrolls sideways, also by keyboard, for contents wider than a phone."""
    return f'<div class="scroll" role="region" aria-label="{text(name)}" tabindex="0">{inner}</div>'


def picture(jpeg: bytes, alt: str) -> str:
    """Return HTML for an image that is embedded in the page."""
    return f'<img alt="{text(alt)}" src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}">'


def listing(content: str, name: str) -> str:
    """Return HTML for ``content`` as preformatted text."""
    return f'<pre tabindex="0" role="region" aria-label="{text(name)}"><code>{text(content)}</code></pre>'
