"""Check what a release consists of, and write its notes; nothing is published.

    python docs/release.py build/release     # a folder with one wheel and one sdist, as `make release` builds them

The checks are those of an index and of a user: metadata that is complete and equal in both files, a description without
links that lead nowhere, a version that CHANGELOG.md has a section for, and files without which the package cannot run.
The notes are that section, in NOTES.md of the folder.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIELDS = ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Keywords", "Description-Content-Type")
NEEDED = ("dali_run/ops/codecs/jpeg/cuda", "dali_run/ops/compiled/loops.json", "dali_run/ops/compiled/kernels.json",
          "dali_run/fn.pyi", "dali_run/py.typed", "dali_run/cli/main.py", "licenses/LICENSE")  # fmt: skip


def notes(changelog: str, version: str) -> str:
    """Return the section of a version. Raises ValueError if there is none, or more than one."""
    found = re.findall(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if len(found) != 1 or not found[0].strip():
        raise ValueError(f"CHANGELOG.md has {len(found)} sections for {version}; one with text is needed")
    return str(found[0]).strip() + "\n"


def problems(wheel: Message, sdist: Message, names: Iterable[str]) -> list[str]:
    """Return what is wrong with the metadata of a wheel and an sdist, and with the file names in the wheel."""
    found = [f"the metadata has no {f}" for f in FIELDS if not wheel.get(f)]
    found += [f"{f} differs between wheel and sdist" for f in FIELDS if wheel.get(f) != sdist.get(f)]
    text = str(wheel.get_payload())
    found += [f"the description links to {target}" for target in re.findall(r"\]\((?!https?://)([^)]*)\)", text)]
    all_names = "\n".join(names)
    found += [f"the wheel has no {name}" for name in NEEDED if name not in all_names]
    found += [f"the wheel has {name}" for name in all_names.splitlines() if re.match(r"tests/|docs/", name)]
    return found


def main(folder: Path) -> int:
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        of_wheel = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode()
    with tarfile.open(sdist) as packed:
        info = next(m for m in packed.getmembers() if m.name.count("/") == 1 and m.name.endswith("/PKG-INFO"))
        file = packed.extractfile(info)
        assert file is not None
        of_sdist = file.read().decode()
    metadata = Parser().parsestr(of_wheel)
    found = problems(metadata, Parser().parsestr(of_sdist), names)
    try:
        (folder / "NOTES.md").write_text(notes((ROOT / "CHANGELOG.md").read_text(), metadata["Version"]))
    except ValueError as e:
        found.append(str(e))
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"{wheel.name}, {sdist.name}, NOTES.md: ready in {folder}; nothing was published")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
