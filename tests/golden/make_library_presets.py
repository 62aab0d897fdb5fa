"""Makes library_presets.npz: what torchvision and albumentations give for `library_calls.CASES`.

    TORCH_PYTHON tests/golden/make_library_presets.py torchvision
    ALBUMENTATIONS_PYTHON tests/golden/make_library_presets.py albumentations

Each replaces its own part of the file.
"""

import sys
from pathlib import Path

import numpy as np
from library_calls import CASES, called, image

FILE = Path(__file__).with_name("library_presets.npz")


def main(library: str) -> None:
    found = {}
    if FILE.exists():
        with np.load(FILE) as stored:
            found = {k: stored[k] for k in stored.files if not k.startswith(f"{library} ")}
    for case in CASES:
        if case.library == library:
            found[case.name] = np.ascontiguousarray(called(case, image()))
    np.savez_compressed(FILE, **dict(sorted(found.items())))


if __name__ == "__main__":
    main(sys.argv[1])
