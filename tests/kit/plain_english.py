"""Finds docstrings, comments and Markdown lines that a newcomer cannot understand at one reading.

``python -m tests.kit.plain_english PATH...`` prints each place and a count; tests/test_plain_english.py sets limits.
The rules find phrases and sentence shapes that readers of this project misunderstood. A text can pass and be unclear.

Level "unclear": the reader must guess what the text is about.

- no-noun: the text starts with "Of", "Those", "They", ...; start with the noun that the text describes
- no-content: the first sentence has only function words; name the things
- stacked-where: three "where" clauses in one sentence; use "if" or "when", or two sentences
- split-clause: a relative clause is far from its noun ("the files may stay which wait"); put it beside the noun

Level "odd": the text can be understood, but does not use the usual words.

- fragment: a comment continues the code ("of a class"); write a sentence or a noun phrase
- phrase: a phrase of ``_PHRASES`` (both levels); use the words in its third column
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Level = Literal["unclear", "odd"]

_WORDS_WITHOUT_CONTENT = (
    "a an the of to in on at by for from with without as is are was were be been being it its they their them "
    "those these this that there here one ones other others another all none some any each every both so such too "
    "no not nor or and but if than then what which who whose whom where when how why do does did done has have "
    "had may might can could must will would shall should once only also else still yet again more most less "
    "least many much few several same own up out off over about whatever whoever nothing something anything "
    "nobody somebody came come comes go goes gone went make makes made give gives given take takes taken get gets "
    "keep keeps kept hold holds held let say says said tell tells told ask asks asked know knows known begin "
    "begins began begun stay stays lie lies stand stands way ways besides beside before after until while "
    "otherwise moment now found wanted"
)
_FUNCTION_WORDS = frozenset(_WORDS_WITHOUT_CONTENT.split())
_NO_NOUN = re.compile(
    r"Of (?!course)|The same[.,;:]|The same( \w+)? (of|for|in|where|by)\b|(Those|They|Them|Others|Whose|It|These)\b|"
    r"As (it|they|that)\b|That (?!is\b)|As of\b|Who(ever)?\b|(Whether|Where) (it|they|that|this|those)\b|"
    r"(In|By|From|To) which\b|All of (it|them)\b"
)
_NOUN_FOLLOWS = re.compile(
    r"It is (assumed|possible|recommended|an error|time)|Those who|These (are|functions|classes|tests)|Whether this\b"
)
_FRAGMENT = re.compile(r"(of|whose|which|that (?!is)|those|them|in which|for which|whom)\b")
_WHERE = re.compile(r"\b[Ww]here (?:it|they|that|this|one|all|some|none|nothing|there|those|its?)\b")
_SPLIT_CLAUSE = re.compile(
    r"\b(that|which|what)( \w+){1,3} (may|can|must|takes?|leads? to|pass|have|has)( \w+)? (which|that) "
    r"(are|is|was|were|wait|lie|lead|have|has|may|can|come|go)\b"
)
_NOT_A_TEXT = re.compile(r"(fmt|noqa|type|mypy|pragma|ruff|pylint)\b")
_PHRASES: list[tuple[Level, re.Pattern[str], str]] = [
    (level, re.compile(pattern), better)
    for level, pattern, better in (
        ("unclear", r"\bcomes? to an end\b", "finish; 'does not come to an end': hangs"),
        ("unclear", r"\b(is|are|was|were) (one|ones) for\b", "is left to"),
        (
            "unclear",
            r"\b(go|goes|went) (by|without|the other way|this way|that way|another way)\b(?! name| itself)",
            "depends on, takes the slow path",
        ),
        ("odd", r"\b[Ll]et(s|ting)? go of\b", "release, free, close"),
        ("odd", r"\bon (the|no|its|an|one) accounts?\b(?! of)", "charged to the memory budget"),
        (
            "odd",
            r"\bhand(s|ed)? (it |them |the batch |batches |a batch )?on\b(?! the\b| a\b)",
            "pass to the next stage",
        ),
        (
            "odd",
            r"\b(is|are|was|were|be|been) told (of|which|how|what|whether)\b|\b(told|tells?) of\b",
            "reported, notified",
        ),
        ("odd", r"\bwhat (is no|finds? out|may be|comes? of)\b", "name the thing"),
        ("odd", r"\bin vain\b", "without success"),
        (
            "odd",
            r"\bby ourselves\b|\b(loop|decoder|kernel|one|code|bug)s? of ours\b|\b(none|those) of ours\b",
            "built in, dali-run's own",
        ),
        ("odd", r"\bso (many|much)\b(?! (as|that|more|less|faster|slower|of)\b)", "this many, N"),
        ("odd", r"\b(anew|for ever|once more)\b|\ball the same\b[,.;]", "again, forever, anyway"),
        (
            "odd",
            r"(?<![Tt]here )\b(is|are|was|were|be) no (?!longer|more|such|need|way|use|other|doubt|match|problem|"
            r"different|less|good|help|better)[a-z]",
            "is not a",
        ),
        ("odd", r"\bwhere there (is|are|was|were) (none|one|some|no more)\b|\b[Nn]one where\b", "None if ..."),
        ("odd", r"\b(one|once|entry|row|call|number) an? (sample|batch|output|call|epoch|label|image)\b", "per sample"),
    )
]


@dataclass(slots=True, frozen=True)
class Finding:
    """One rule that a text breaks."""

    path: Path
    line: int
    """Line of the file on which the text begins, counted from 1."""
    level: Level
    rule: str
    remark: str
    """Words that break the rule and, for a phrase, the usual words."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.level}/{self.rule}: {self.remark}"


def check(paths: Iterable[Path]) -> tuple[list[Finding], int]:
    """Return all findings in Python and Markdown files, also those below folders, and the number of checked texts."""
    findings: list[Finding] = []
    count = 0
    for path in _files(paths):
        for line, kind, text in _texts(path):
            count += 1
            findings += [Finding(path, line, *found) for found in _broken_rules(kind, text)]
    return findings, count


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield Python and Markdown files in sorted order. Links to folders are not followed."""
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (f for f in files if f.suffix in (".py", ".md") and f.is_file())


def _texts(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, kind, text) for each docstring ("doc"), line of a comment ("comment", or "continued" from its second
    line on) and Markdown line ("md") outside of code and tables."""
    source = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".md":
        in_code = False
        for number, line in enumerate(source.splitlines(), 1):
            in_code ^= line.startswith("```")
            if not in_code and not line.startswith(("    ", "|")):
                yield number, "md", line
        return
    for node in ast.walk(ast.parse(source)):
        statements = getattr(node, "body", None)
        for statement in statements if isinstance(statements, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, "doc", text
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text, line = token.string.lstrip("#").strip(), token.start[0]
            if not _NOT_A_TEXT.match(text):
                yield line, "continued" if line == last + 1 else "comment", text
            last = line


def _broken_rules(kind: str, text: str) -> Iterator[tuple[Level, str, str]]:
    """Yield (level, rule, remark) for each rule that a text breaks. Code in backticks counts as one noun."""
    text = " ".join(re.sub(r"``.+?``|`.+?`", "CODE", text, flags=re.DOTALL).split())
    sentences = re.split(r"(?<=[.!?])\s", text)
    words = re.findall(r"[A-Za-z']+", sentences[0])
    content = [word for word in words if word.lower() not in _FUNCTION_WORDS]
    if kind == "doc" and _NO_NOUN.match(text) and not _NOUN_FOLLOWS.match(text):
        yield "unclear", "no-noun", " ".join(words[:3])
    elif kind == "doc" and len(words) >= 4 and (not content or 8 * len(content) < len(words)):
        yield "unclear", "no-content", sentences[0]
    if kind == "comment" and _FRAGMENT.match(text):
        yield "odd", "fragment", " ".join(words[:3])
    for sentence in sentences if kind != "md" else ():
        if len(_WHERE.findall(sentence)) >= 3:
            yield "unclear", "stacked-where", sentence
        if match := _SPLIT_CLAUSE.search(sentence):
            yield "unclear", "split-clause", match[0]
    for level, pattern, better in _PHRASES:
        if (match := pattern.search(text)) and (kind != "md" or level == "odd"):
            yield level, "phrase", f"{match[0]!r} -> {better}"


if __name__ == "__main__":
    _findings, _count = check(map(Path, sys.argv[1:]))
    for _finding in _findings:
        print(_finding)
    print(f"{len({(f.path, f.line) for f in _findings})} of {_count} texts")
