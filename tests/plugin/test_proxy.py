"""plugin.pytorch.experimental.proxy and loader_evaluator: workers of a torch DataLoader share one pipeline."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from dali_run import Pipeline, fn, types

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
proxy = pytest.importorskip("dali_run.plugin.pytorch.experimental.proxy")
evaluator = pytest.importorskip("dali_run.plugin.pytorch.loader_evaluator")


class Numbers(torch.utils.data.Dataset):
    """Sample k: an array of k's through the transform, and k itself."""

    def __init__(self, transform: Any, length: int = 10, bad: int = -1) -> None:
        self.transform, self.length, self.bad = transform, length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, k: int) -> Any:
        return self.transform(np.full((2, 3), k, np.float32 if k != self.bad else np.float64)), k


def doubled(batch_size: int = 4, **arguments: Any) -> Pipeline:
    pipe = Pipeline(batch_size=batch_size, num_threads=1, device_id=None, **arguments)
    with pipe:
        pipe.set_outputs(fn.external_source(name="x", dtype=types.FLOAT, ndim=2) * 2)
    return pipe


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_loader(workers: int, deterministic: bool) -> None:
    with proxy.DALIServer(doubled(prefetch_queue_depth=4), deterministic) as server:
        loader = proxy.DataLoader(server, Numbers(server.proxy), batch_size=4, num_workers=workers)
        for _ in range(2):
            got = list(loader)
            assert [k.tolist() for _, k in got] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
            for data, k in got:
                assert data.shape == (len(k), 2, 3)
                assert torch.equal(data[:, 0, 0], 2.0 * k)
        for data, _ in loader:  # left early
            assert data[0, 0, 0] == 0
            break
        assert len(list(loader)) == 3


def test_loader_starts_the_server_itself() -> None:
    server = proxy.DALIServer(doubled())
    loader = proxy.DataLoader(server, Numbers(server.proxy), batch_size=4, num_workers=1)
    assert len(list(loader)) == 3
    assert not server.is_running


def test_spawned_workers() -> None:
    with proxy.DALIServer(doubled()) as server:
        loader = proxy.DataLoader(
            server, Numbers(server.proxy, 4), batch_size=4, num_workers=1, multiprocessing_context="spawn"
        )
        ((data, _),) = loader
        assert data[:, 0, 0].tolist() == [0, 2, 4, 6]


class Pair(NamedTuple):
    first: Any
    second: Any


def test_by_hand_with_several_inputs_and_outputs() -> None:
    pipe = Pipeline(batch_size=3, num_threads=1, device_id=None)
    with pipe:
        a, b = (fn.external_source(name=n, dtype=types.FLOAT, ndim=1) for n in "ab")
        pipe.set_outputs(a + b, a - b)
    with proxy.DALIServer(pipe) as server:
        made = []
        for k in range(3):
            high, low = server.proxy(a=np.full(2, 10.0 * k, np.float32), b=torch.ones(2))
            made.append((k, {"high": high, "pair": Pair(low, k)}))
        number, outputs = server.produce_data(torch.utils.data.default_collate(made))
        assert number.tolist() == [0, 1, 2]
        assert outputs["high"][:, 0].tolist() == [1, 11, 21]
        assert isinstance(outputs["pair"], Pair)
        assert outputs["pair"].first[:, 1].tolist() == [-1, 9, 19]
        with pytest.raises(TypeError, match="a=, b="):
            server.proxy(np.zeros(2))


def test_a_batch_that_fails_fails_alone() -> None:
    with proxy.DALIServer(doubled(prefetch_queue_depth=3)) as server:
        loader = torch.utils.data.DataLoader(Numbers(server.proxy, 12, bad=5), batch_size=4, num_workers=1)
        outcomes = []
        for batch in loader:
            try:
                outcomes.append(server.produce_data(batch)[0][:, 0, 0].tolist())
            except Exception as e:
                outcomes.append(type(e).__name__)
        assert outcomes[0] == [0, 2, 4, 6]
        assert isinstance(outcomes[1], str)
        assert outcomes[2] == [16, 18, 20, 22]


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(TypeError, match="Pipeline"):
        proxy.DALIServer("pipeline")
    without = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with without:
        without.set_outputs(fn.constant(idata=[1]))
    with pytest.raises(RuntimeError, match="no inputs"):
        proxy.DALIServer(without)
    server = proxy.DALIServer(doubled())
    made = torch.utils.data.default_collate([server.proxy(np.zeros((1, 1), np.float32))])
    with pytest.raises(RuntimeError, match="is not running"):
        server.produce_data(made)
    refs = [server.proxy(np.zeros((1, 1), np.float32)) for _ in range(2)]
    with pytest.raises(RuntimeError, match="in the order"):
        torch.utils.data.default_collate(refs[::-1])


def test_evaluator(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=4)
    log = evaluator.LoaderEvaluator(loader, metrics_file=str(tmp_path / "times.json"))
    assert [b.tolist() for b in log] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert log.get_metrics()["total_batches"] == len(log) == 3
    log.save_metrics()
    assert "avg_batch_time" in (tmp_path / "times.json").read_text()
    replay = evaluator.LoaderEvaluator(loader, mode="replay", num_cached_batches=2)
    assert [b.tolist() for b in replay] == [[4, 5, 6, 7], [8, 9], [4, 5, 6, 7]]
    replay.print_summary()
    assert "replay" in capsys.readouterr().out
    with pytest.raises(ValueError, match="log or replay"):
        evaluator.LoaderEvaluator(loader, mode="other")
