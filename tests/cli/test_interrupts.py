"""Signals that ask a job to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dali_run.cli import interrupts
from dali_run.cli import main as cli
from dali_run.cli.interrupts import heeded, interruptible
from dali_run.pipelines.tools.sample_data import make_sample_data

ROOT = Path(__file__).parents[2]
SPEC = """\
version: 1
name: small
graph:
  - {op: readers.file, file_root: data, out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, out: images}
outputs: {image: images}
write: {writer: tfrecord, path: out, fields: {image: {encode: raw}}}
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As a process has them when it starts; put back afterwards."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for kind, handler in before.items():
        signal.signal(kind, handler)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_a_library_lost_is_raised_after_the_next_batch(kind: signal.Signals) -> None:
    told: list[int] = []
    report = heeded(told.append)
    report(1)
    lost = True
    with suppress(KeyboardInterrupt):
        signal.raise_signal(kind)
        lost = False
    assert lost
    with pytest.raises(KeyboardInterrupt):
        report(2)
    assert told == [1]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGHUP])
def test_what_is_ignored_stays_so(kind: signal.Signals) -> None:
    """Under nohup, say."""
    signal.signal(kind, signal.SIG_IGN)
    report = heeded(print)
    signal.raise_signal(kind)
    report("on it goes")


def test_a_key_that_bounces_is_one_interrupt() -> None:
    """The second would meet the code that puts things in order; a later one is meant."""
    with interruptible(process=False):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        for kind in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(kind)
        interrupts._interrupts.last -= interrupts._BOUNCE
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("first", ["0", "1"])
def test_at_any_moment_of_the_start_the_exit_code_is_130(tmp_path: Path, first: str) -> None:
    """Interrupts that meet code made of text have ended the process by SIGINT, in one of thirty starts, and a second
    Ctrl-C in one of five."""
    make_sample_data(tmp_path / "made", 8)
    (tmp_path / "made/train").rename(tmp_path / "data")
    (tmp_path / "spec.yaml").write_text(SPEC)
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.early_signals", first, "run", "spec.yaml", "--quiet"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    ended = json.loads(done.stdout.splitlines()[-1])
    assert set(ended.values()) == {130}, ended
    assert "Traceback" not in done.stderr


def test_signals_mean_afterwards_what_they_meant_before() -> None:
    before = [signal.getsignal(k) for k in interrupts._KINDS]
    with pytest.raises(KeyboardInterrupt), interruptible(process=False):
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(k) for k in interrupts._KINDS] == before
    with interruptible(process=True):
        pass
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


@pytest.mark.parametrize("json_too", [False, True])
def test_an_interrupt_before_the_job_begins_says_so(
    json_too: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """While loops are compiled, say: the last line would be about those."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dali_run.pipelines.fleet.run.run", interrupted)
    assert cli.main(["run", "quickstart", *(["--json"] if json_too else [])]) == 130
    out, err = capfd.readouterr()
    assert err == "dali-run: interrupted\n"
    assert (json.loads(out)["exit_code"] == 130) if json_too else (out == "")
