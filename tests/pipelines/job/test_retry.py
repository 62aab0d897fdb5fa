"""retry-failed: repaired files give the samples that they would have given in the first place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dali_run.ops.errors import JobError
from dali_run.pipelines.job.retry import retry_failed
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.tools.sample_data import make_sample_data
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.read_back import members
from tests.kit.jobs.small_spec import small_spec


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_sample_data(tmp_path / "data", 24)
    for name in ("clean", "broken"):
        shutil.copytree(tmp_path / "data/train", tmp_path / name)
        (tmp_path / f"{name}.yaml").write_text(small_spec(tmp_path / name, tmp_path / f"out-{name}", size=24))
    return tmp_path


def test_repaired_files_are_added_as_they_would_have_been(place: Path) -> None:
    assert run_job(place / "clean.yaml").exit_code == 0
    victims = sorted((place / "broken").rglob("*.jpg"))[::7]
    for path in victims:
        path.write_bytes(path.read_bytes()[:200])
    first = run_job(place / "broken.yaml")
    out = place / "out-broken"
    assert first.exit_code == 3
    assert (out / "rejects.jsonl").read_text().count("\n") == len(victims)
    for k, path in enumerate(victims):
        shutil.copy(place / "clean" / path.relative_to(place / "broken"), path)
        if k == 0:  # one is repaired first, the others in another round
            again = retry_failed(out)
            assert again.exit_code == 3, again.message
    last = retry_failed(out)
    assert last.exit_code == 0, last.message
    assert members(out) == members(place / "out-clean")
    verdict = verify(out)
    assert verdict.sound, verdict.problems
    assert verdict.rejects == 0
    assert "no rejects" in retry_failed(out).message


def test_other_inputs_and_specs_are_refused(place: Path) -> None:
    victims = sorted((place / "broken").rglob("*.jpg"))[::7]
    for path in victims:
        path.write_bytes(b"no picture")
    run_job(place / "broken.yaml")
    out = place / "out-broken"
    with pytest.raises(JobError, match="name the spec of this output"):
        retry_failed(out, place / "clean.yaml")
    text = (place / "broken.yaml").read_text()
    (place / "broken.yaml").write_text(text.replace("seed: 3", "seed: 4"))
    with pytest.raises(JobError, match=r"identity\.seed: was 3, now 4"):
        retry_failed(out)
    (place / "broken.yaml").write_text(text)
    shutil.copy(victims[0], victims[0].with_name("0000.jpg"))
    with pytest.raises(JobError, match="the inputs are not those of the job"):
        retry_failed(out)
    (place / "broken.yaml").unlink()
    with pytest.raises(JobError, match="name it with --spec"):
        retry_failed(out)
