"""Write transforms.json: digests of what torchvision makes of tests/transforms/cases.py.

PYTHONPATH=. PYTHON_WITH_TORCHVISION tests/golden/make_transforms.py
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import PIL
import torch
import torchvision
from torchvision.transforms import v2

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.transforms.cases import SEED, cases, chain, digest, pictures

warnings.simplefilter("ignore")
found = {}
for name, kind in cases():
    made = chain(name, v2)
    torch.manual_seed(SEED)
    images = [x if kind == "pictures" else torch.from_numpy(x) for x in pictures(kind)]
    found[f"{name} {kind}"] = digest([made(x) for x in images])
versions = {"torch": torch.__version__, "torchvision": torchvision.__version__, "pillow": PIL.__version__}
Path(__file__).with_name("transforms.json").write_text(json.dumps({**versions, "digests": found}, indent=0) + "\n")
