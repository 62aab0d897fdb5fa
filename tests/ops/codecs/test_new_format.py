"""A new image format is one folder: QOI, as the README of codecs declares it, from file to pixels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.codecs import formats, pillow
from dali_run.ops.codecs.decoders import Image as Image_
from dali_run.ops.codecs.format import Format, Header, Signature
from tests.conftest import ROOT

PROGRAM = """
import sys
import numpy as np
from dali_run import fn, pipeline_def
from dali_run.ops.codecs.formats import BY_SUFFIX
from dali_run.pipelines.job.first_spec import _MEDIA
from dali_run.writers.formats.extensions import _SIGNATURES
assert BY_SUFFIX[".qoi"].name == "qoi" and ".qoi" in _MEDIA["pictures"] and (b"qoif", 0, "qoi") in _SIGNATURES

@pipeline_def(batch_size=3, num_threads=1, device_id=None)
def pictures():
    files, labels = fn.readers.file(file_root=sys.argv[1])
    return fn.decoders.image(files), fn.peek_image_shape(files), labels

pipe = pictures()
pipe.build()
images, shapes, labels = pipe.run()
np.savez(sys.argv[2], *[np.asarray(images[k]) for k in range(3)], shapes=np.asarray(shapes.as_array()))
"""


def qoi(pixels: np.ndarray) -> bytes:
    """A QOI file of RGB pixels (H, W, 3): each as QOI_OP_RGB (qoiformat.org, 2022)."""
    height, width = pixels.shape[:2]
    body = b"".join(b"\xfe" + bytes(p) for p in pixels.reshape(-1, 3))
    return b"qoif" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\3\0" + body + bytes(7) + b"\1"


def copy_of_project(to: Path, folder: str, declaration: str) -> None:
    """The project in ``to``, by links, with a folder in ops/codecs that holds ``declaration``."""
    for inside in (".", "ops", "ops/codecs"):
        (to / inside).mkdir()
        for path in (ROOT / inside).iterdir():
            if path.name not in ("ops", "codecs", "__pycache__", ".venv", ".git") or inside == "ops/codecs":
                (to / inside / path.name).symlink_to(path)
    (to / "dali_run").unlink()
    (to / "dali_run").mkdir()
    for path in (ROOT / "dali_run").iterdir():
        (to / "dali_run" / path.name).symlink_to(Path("..", path.name) if path.is_symlink() else path)
    (to / "ops/codecs" / folder).mkdir()
    (to / "ops/codecs" / folder / "__init__.py").write_text('"""QOI."""\n')
    (to / "ops/codecs" / folder / "format.py").write_text(declaration)


def test_a_new_format_is_one_folder(tmp_path: Path) -> None:
    text = (ROOT / "ops/codecs/README.md").read_text()
    (declaration,) = re.findall(r'```python\n("""QOI.*?)```', text, re.S)
    copy_of_project(tmp_path / "project", "qoi", declaration)
    rng, wanted = np.random.default_rng(0), []
    (tmp_path / "data" / "a").mkdir(parents=True)
    for k in range(3):
        wanted.append(rng.integers(0, 256, (5 + k, 9 - k, 3), np.uint8))
        path = tmp_path / "data" / "a" / f"{k}.qoi"
        path.write_bytes(qoi(wanted[k]))
        assert np.array_equal(np.asarray(Image.open(path)), wanted[k])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "project"), "PYTHONDONTWRITEBYTECODE": "1"}
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), str(tmp_path / "out.npz")]
    done = subprocess.run(arguments, env=environment, cwd=tmp_path / "project", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "out.npz")
    for k in range(3):
        np.testing.assert_array_equal(found[f"arr_{k}"], wanted[k])
    assert found["shapes"].tolist() == [list(w.shape) for w in wanted]


def made(**changes: object) -> Format:
    header = Header("qoi", 3, 2, 3, 8)
    declared = Format("qoi", 11, "QOI", (".qoi",), (Signature(b"qoif"),), lambda _: header, pillow="A.B")
    return replace(declared, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pillow": ""}, "declares no decoder"),
        ({"suffixes": ()}, "suffixes"),
        ({"suffixes": ("qoi",)}, "suffixes"),
        ({"signatures": ()}, "cannot be recognised"),
        ({"code": 1}, "png and qoi both declare 1"),
        ({"suffixes": (".qoi", ".jpg")}, "jpeg and qoi both declare '.jpg'"),
        ({"signatures": (Signature(b"BM"),)}, "bmp and qoi both declare"),
    ],
)
def test_a_declaration_that_is_not_complete_is_an_error(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        formats.checked([*formats.FORMATS, made(**changes)])


def test_a_plugin_that_does_not_exist_is_not_blamed_on_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(formats.BY_NAME, "qoi", made(pillow="QoiImagePlugin.NoSuchFile"))
    data = memoryview(qoi(np.zeros((2, 3, 3), np.uint8)))
    with pytest.raises(AttributeError, match="NoSuchFile"):
        pillow.decode(data, Header("qoi", 3, 2, 3, 8), True, 100)


def test_all_formats_have_what_they_name() -> None:
    """Functions of decoders are found when they are first called: all of them exist; and the operator's text names
    every format."""
    pillow.load()
    assert all(re.search(rf"\b{f.label}\b", Image_.__doc__ or "") for f in formats.FORMATS)
    for format in formats.FORMATS:
        if format.imagecodecs:
            imagecodecs = pytest.importorskip("imagecodecs")
            assert hasattr(imagecodecs, format.imagecodecs)
