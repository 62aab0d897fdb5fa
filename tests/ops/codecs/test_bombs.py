"""Decompression bombs are refused by their headers: nothing of their size is ever allocated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.long import thinned
from tests.kit.ops.refusing import refused

from ...kit.files.bombs import bombs

ROOT = Path(__file__).parents[3]
ROOM = 256 << 20
"""Bytes that decoding all of them may add to the process, goal R11."""
CORPUS = ("jpeg_bad/jpeg-decoder__fuzz-afl__in__id_001411_src_000636_op_flip4_pos_165_+cov__7df416bf.jpg",
          "jpeg_bad/jpeg-decoder__tests__crashtest__images__max_size__910a15fe.jpg")  # fmt: skip
BOMBS = bombs()


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_too_large(name: str) -> None:
    reject = refused(BOMBS[name])
    assert reject.code == "too_large"
    if "text" not in name.removeprefix("pnm-") and "profile" not in name:
        assert "over the limit of 178,956,970 (max_pixels)" in reject.message
    assert not reject.message.startswith("Traceback")


def test_the_limit_can_be_raised() -> None:
    """A file over the old limit goes on to the decoder, which finds that the rest is missing."""
    assert refused(BOMBS["png"], max_pixels=10**10).code != "too_large"


def test_bombs_take_no_memory(shared_data: Path, tmp_path: Path) -> None:
    """All of them through the engine, in one process and in the decoders' own."""
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    for name, blob in BOMBS.items():
        (folder / f"{name}.jpg").write_bytes(blob)
    for name in CORPUS:
        (folder / name.rpartition("/")[2]).write_bytes((shared_data / "corpus" / name).read_bytes())
    for isolation in thinned(("auto", "none"), 2):
        done = subprocess.run([sys.executable, "-m", "tests.ops.codecs.test_bombs", str(tmp_path / "in"), isolation],
                              cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["rejected"] == {"too_large": len(BOMBS) + len(CORPUS)}
        assert max(found["grown"], found["children"]) < ROOM


def main() -> None:
    """Decode the files below the first argument; print what was rejected and what the processes grew by."""
    import resource

    from dali_run import fn
    from dali_run.pipelines.python.pipeline import Pipeline

    pipe = Pipeline(len(BOMBS) + len(CORPUS), 2, on_error="skip", isolation=sys.argv[2])
    with pipe:
        files, _ = fn.readers.file(file_root=sys.argv[1])
        pipe.set_outputs(fn.decoders.image(files))
    pipe.build()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    engine = pipe._session.engine()
    assert len(next(engine).samples) == 0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    rejected = dict(engine.stats.rejected)
    engine.stop()
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"rejected": rejected, "grown": grown * 1024, "children": children}))


if __name__ == "__main__":
    main()
