"""A job leaves nothing in memory but what serves the next one. Errors that are kept hold the frames that they came
through, and frames hold batches: jobs once after the other grew by a quarter of a gigabyte each."""

from __future__ import annotations

import gc
import random
import types
from collections import Counter
from pathlib import Path

from dali_run.ops.batch import Batch
from dali_run.ops.errors import SampleError
from dali_run.pipelines.job.run import run_job
from tests.fuzz.jobs import IMAGES, mutated
from tests.kit.small_spec import small_spec


def alive() -> Counter[str]:
    """Errors of samples, batches, and frames of our code that have ended, as far as the collector sees them."""
    gc.collect()
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance would ask a weak proxy's object, which may be gone
        if issubclass(kind, (SampleError, Batch)):
            found[kind.__name__] += 1
        elif kind is types.TracebackType and "dali_run" in thing.tb_frame.f_code.co_filename:
            found[f"traceback in {thing.tb_frame.f_code.co_qualname}"] += 1
    return found


def test_a_job_of_damaged_images_leaves_nothing(tmp_path: Path) -> None:
    data, rng = tmp_path / "data", random.Random(5)
    (data / "0").mkdir(parents=True)
    for k in range(160):
        name, make = list(IMAGES.items())[k % len(IMAGES)]
        content = make(rng)
        damaged = (content[: len(content) // 50 + 4], mutated(content, rng), content)[k % 3]
        (data / "0" / f"{k:03d}-{name}").write_bytes(damaged)
    spec = tmp_path / "spec.yaml"
    text = small_spec(data, tmp_path / "out", size=24).replace("random_shuffle: true", 'file_filters: ["*"]')
    spec.write_text(text.replace("max_errors: 50%", "max_errors: 100%"))
    before = alive()
    report = run_job(spec).report
    assert report["samples"]["rejected"] > 40, report["samples"]
    del report
    left = alive() - before
    assert not left, left
