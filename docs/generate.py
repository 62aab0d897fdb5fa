"""Write the pages of docs/ that are made from the code, or with --check say which of them are out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from dali_run.pipelines.reference import operators_page

HERE = Path(__file__).parent


def pages() -> dict[Path, str]:
    """The generated files and what they should hold."""
    return {HERE / "operators.md": operators_page()}


def main() -> int:
    stale = [p for p, text in pages().items() if not p.exists() or p.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is out of date; run: make docs", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path])
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
