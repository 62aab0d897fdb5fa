"""CUDA tensors without a GPU: arrays stand for tensors, an emulated lane for the GPU, g++ for NVRTC.

Results are torchvision's to the bit, as those of the host are."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dali_run.transforms as ours
from dali_run.ops.batch import Batch
from dali_run.transforms import base, images, on_gpu, run

from ..kit.emulated_lane import EmulatedLane
from ..kit.fake_cupy import Stream, faked
from .cases import OF_TORCH, SEED, arrays, cases, chain, digest

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "transforms.json").read_text())


class Emulated(on_gpu.Gpu):
    """A GPU whose memory is the host's."""

    lanes: list[EmulatedLane]
    hosted: int
    """How often a batch went to the host."""

    def __init__(self) -> None:
        super().__init__(0)

    def __enter__(self) -> Emulated:
        self.lane = EmulatedLane()
        self.lanes.append(self.lane)
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def host(self, batch: Batch) -> Batch:
        Emulated.hosted += 1
        return super().host(batch)

    def flat(self, tensors: Sequence[Any]) -> Any:
        joined = np.concatenate([t.reshape(-1) for t in tensors])
        room = np.empty(joined.nbytes + 256, np.uint8)  # begins where memory of a GPU would
        start = -room.ctypes.data % 256
        there = room[start : start + joined.nbytes].view(joined.dtype)
        there[:] = joined
        return self._remember(there, there.copy())

    def empty(self, n: int, dtype: Any) -> Any:
        made = EmulatedLane().empty(n, dtype)  # PyTorch's memory, not the lane's
        return self._remember(made, made)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[EmulatedLane]:
    """Those of all calls from here on."""
    made: list[EmulatedLane] = []
    monkeypatch.setattr(Emulated, "lanes", made, raising=False)
    monkeypatch.setattr(Emulated, "hosted", 0, raising=False)
    monkeypatch.setattr(on_gpu, "of", lambda value: Emulated() if isinstance(value, np.ndarray) else None)
    return made


def on_host(monkeypatch: pytest.MonkeyPatch, work: Any) -> Any:
    with monkeypatch.context() as patched:
        patched.setattr(on_gpu, "of", lambda _value: None)
        ours.manual_seed(5)
        return work()


@pytest.mark.parametrize(("name", "kind"), [case for case in cases() if case[1] != "pictures"])
def test_the_results_are_torchvisions_to_the_bit(name: str, kind: str, lanes: list[EmulatedLane]) -> None:
    if name in OF_TORCH:
        pytest.importorskip("torch")
    ours.manual_seed(SEED)
    assert digest(list(chain(name, ours)(arrays(kind)))) == GOLDEN["digests"][f"{name} {kind}"]
    if name != "back":  # to a picture
        assert Emulated.hosted == 0


def test_batches_floats_and_pictures(lanes: list[EmulatedLane], monkeypatch: pytest.MonkeyPatch) -> None:
    batch = np.stack([a[:, :50, :40] for a in arrays("tensors")]).reshape(2, 3, 3, 50, 40)
    floats = batch.astype(np.float32) / np.float32(255)
    for part, given in (
        (ours.Resize(20), batch),
        (ours.RandomRotation(180, expand=True), batch),  # sizes of their own: a list
        (ours.RandomApply([ours.Resize(20), ours.RandomInvert(1.0)], p=0.5), batch),  # each its own way
        (ours.Resize(20), floats),  # no kernel: by way of the host
        (ours.Compose([ours.RandomHorizontalFlip(), ours.Normalize([0.5], [0.2])]), floats),
        (ours.RandomHorizontalFlip(0.0), batch),  # nothing to be done
    ):
        want = on_host(monkeypatch, lambda part=part, given=given: part(given))
        ours.manual_seed(5)
        got = part(given)
        assert type(want) is type(got)
        assert lanes
        for a, b in zip(want, got, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_array_equal(a, b)
    pictures = ours.Compose([ours.RandomInvert(1.0), ours.ToPILImage()])(batch[0])
    np.testing.assert_array_equal(np.asarray(pictures[1]), 255 - batch[0, 1].transpose(1, 2, 0))
    back = ours.Compose([ours.ToPILImage(), ours.RandomInvert(1.0), ours.ToImage(), ours.RandomInvert(1.0)])(batch[0])
    np.testing.assert_array_equal(np.asarray(back), batch[0])


def test_later_calls_repeat_what_the_first_ones_launched(
    lanes: list[EmulatedLane], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one lane, as PyTorch's stream has one: taps of known windows, and whole calls that draw nothing."""
    lane, made = EmulatedLane(), []
    monkeypatch.setattr(Emulated, "__enter__", lambda self: (setattr(self, "lane", lane), self)[1])
    on_gpu_ = run._run_on_gpu
    monkeypatch.setattr(run, "_run_on_gpu", lambda *given: (made.append(1), on_gpu_(*given))[1])
    random = np.random.default_rng(4)
    chains = {
        "resize": ours.Compose([ours.Resize(20), ours.CenterCrop(16), ours.Normalize([0.5], [0.2])]),
        "bytes": ours.Compose([ours.Resize((9, 20)), ours.RandomInvert(1.0)]),
        "crops": ours.RandomResizedCrop((20, 17)),
        "nearest": ours.RandomResizedCrop(24, interpolation=ours.InterpolationMode.NEAREST),
    }
    chains["resize"].transforms.insert(2, ours.ToDtype(np.float32, scale=True))
    for name, part in chains.items():
        for turn in range(6):
            batch = random.integers(0, 256, (5, 3, 50, 40 if turn < 5 else 700), dtype=np.uint8)
            want = on_host(monkeypatch, lambda part=part, batch=batch: part(batch))
            ours.manual_seed(5)
            before = len(made)
            np.testing.assert_array_equal(part(batch), want)
            assert len(made) - before == int(name != "resize" or turn in (0, 1, 5))


def test_problems_are_told_as_on_the_host(lanes: list[EmulatedLane]) -> None:
    with pytest.raises(ValueError, match="half is smaller"):
        ours.GaussianBlur(9)(np.zeros((2, 3, 4, 4), np.uint8))
    with pytest.raises(TypeError, match="takes uint8 images, got float32"):
        ours.RandomEqualize(1.0)(np.zeros((2, 3, 4, 4), np.float32))
    with pytest.raises(ValueError, match="images of a list must be"):
        ours.RandomInvert(1.0)([np.zeros((3, 4, 4), np.uint8), np.zeros((4, 4), np.uint8)])
    assert not any(lane.launched for lane in lanes)


class Tensor:
    """As much of a CUDA tensor of PyTorch's as is used, over memory of the host."""

    is_cuda, device = True, SimpleNamespace(index=0)

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.ndim, self.dtype = array, array.shape, array.ndim, f"torch.{array.dtype}"
        self.__cuda_array_interface__ = array.__array_interface__

    def detach(self) -> Tensor:
        return self

    def numel(self) -> int:
        return int(self.array.size)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def contiguous(self) -> Tensor:
        return self if self.array.flags.c_contiguous else Tensor(self.array.copy())

    def reshape(self, *shape: int) -> Tensor:
        return Tensor(self.array.reshape(shape))

    def __getitem__(self, where: Any) -> Tensor:
        return Tensor(self.array[where])


def test_calls_follow_each_other_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that drives a real GPU, on streams that do nothing before somebody waits: what a call gave to be copied
    must hold until then, however many calls follow it."""
    given = [np.stack([a[:, :50, :40] for a in arrays("tensors")[k % 5 :][:2]]) for k in range(11)]
    part = ours.Compose([
        ours.RandomResizedCrop(20), ours.RandomRotation(30), ours.GaussianBlur(3), ours.ToDtype(np.float32, scale=True),
        ours.RandomErasing(1.0),
    ])  # fmt: skip
    ours.manual_seed(5)
    want = [part(batch) for batch in given]
    with faked(memory=True, late=True) as fake:
        stream = Stream()
        torch = SimpleNamespace(
            cuda=SimpleNamespace(current_stream=lambda _index: SimpleNamespace(cuda_stream=stream.ptr)),
            empty=lambda n, dtype, device: Tensor(np.full(n, 77, dtype)), uint8=np.uint8, float32=np.float32,
            cat=lambda tensors: Tensor(np.concatenate([t.array for t in tensors])),
        )  # fmt: skip
        monkeypatch.setattr(on_gpu, "_torch", lambda: torch)
        monkeypatch.setattr(on_gpu, "_thread_slots", threading.local())
        monkeypatch.setattr(images, "_is_tensor", lambda value: isinstance(value, Tensor))
        ours.manual_seed(5)
        got = [part(Tensor(batch)) for batch in given[:-1]]
        got.append(part([Tensor(image) for image in given[-1]]))
        assert not np.array_equal(got[-2].array, want[-2])  # nobody has waited yet
        stream.synchronize()
        assert fake.launched
        for a, b in zip(want[:-1], got[:-1], strict=True):
            np.testing.assert_array_equal(a, b.array)
        for a, b in zip(want[-1], got[-1], strict=True):
            np.testing.assert_array_equal(a, b.array)
        views = ours.CenterCrop(9)(Tensor(given[0]))
        assert np.shares_memory(views.array, given[0])


@pytest.mark.parametrize("shape", [(5, 3, 9, 8), (4, 1, 7, 5), (2, 3, 3, 6, 4)])
@pytest.mark.parametrize("part", [ours.RandomHorizontalFlip(), ours.RandomVerticalFlip(0.7)], ids=repr)
def test_flips_of_one_tensor(shape: tuple[int, ...], part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go a shorter way."""
    given = np.random.default_rng(2).integers(0, 256, shape, dtype=np.uint8)
    ours.manual_seed(4)
    want = [part(given) for _ in range(3)]
    with faked(memory=True):
        stream = Stream()
        torch = SimpleNamespace(
            cuda=SimpleNamespace(current_stream=lambda _index: SimpleNamespace(cuda_stream=stream.ptr)),
            empty_like=lambda t: Tensor(np.full_like(t.array, 77)),
        )
        monkeypatch.setattr(on_gpu, "_torch", lambda: torch)
        monkeypatch.setattr(on_gpu, "_thread_slots", threading.local())
        monkeypatch.setattr(base, "plain_batch", lambda value: isinstance(value, Tensor))
        ours.manual_seed(4)
        got = [part(Tensor(given)) for _ in range(3)]
        stream.synchronize()
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b.array)


@pytest.mark.gpu(emulated=False)
@pytest.mark.parametrize("shape", [(5, 3, 9, 8), (4, 1, 7, 5), (2, 3, 3, 6, 4)])
@pytest.mark.parametrize("part", [ours.RandomHorizontalFlip(), ours.RandomVerticalFlip(0.7)], ids=repr)
def test_flips_of_one_tensor_on_a_real_gpu(shape: tuple[int, ...], part: Any) -> None:
    torch = on_a_real_gpu()
    given = torch.from_numpy(np.random.default_rng(2).integers(0, 256, shape, dtype=np.uint8))
    torch.manual_seed(4)
    want, drawn = part(given), torch.get_rng_state()
    torch.manual_seed(4)
    got = part(given.cuda())
    assert got.is_cuda
    assert torch.equal(got.cpu(), want)
    assert torch.equal(torch.get_rng_state(), drawn)
    turned = given.cuda().transpose(-1, -2)  # with gaps
    torch.manual_seed(4)
    want = part(given.transpose(-1, -2).contiguous())
    torch.manual_seed(4)
    assert torch.equal(part(turned).cpu(), want)


def on_a_real_gpu() -> Any:
    """torch, where it has a GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no GPU here")
    return torch


@pytest.mark.gpu(emulated=False)
@pytest.mark.parametrize(("name", "kind"), [case for case in cases() if case[1] != "pictures"])
def test_the_results_of_a_real_gpu_are_torchvisions_to_the_bit(name: str, kind: str) -> None:
    torch = on_a_real_gpu()
    torch.manual_seed(SEED)
    given = [torch.from_numpy(a).cuda() for a in arrays(kind)]
    found = list(chain(name, ours)(given))
    if name != "back":  # to a picture
        assert all(f.is_cuda for f in found)
    assert (
        digest([np.asarray(f.cpu()) if hasattr(f, "cpu") else f for f in found]) == GOLDEN["digests"][f"{name} {kind}"]
    )


@pytest.mark.gpu(emulated=False)
def test_calls_on_a_real_gpu_follow_each_other_without_waiting() -> None:
    """On a stream of the program's, many calls ahead of the GPU, from several threads."""
    torch = on_a_real_gpu()
    given = [torch.from_numpy(np.stack([a[:, :50, :40] for a in arrays("tensors")[k % 5 :][:2]])) for k in range(40)]
    part = ours.Compose([
        ours.RandomResizedCrop(20), ours.RandomRotation(30), ours.GaussianBlur(3), ours.ToDtype(np.float32, scale=True),
        ours.RandomErasing(1.0),
    ])  # fmt: skip
    torch.manual_seed(5)
    want = [part(batch) for batch in given]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        torch.manual_seed(5)
        got = [part(batch.cuda(non_blocking=True)) for batch in given]
    stream.synchronize()
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b.cpu())
    blur = ours.GaussianBlur(5, sigma=1.0)
    wanted = [np.asarray(blur(batch)) for batch in given]
    found: dict[int, Any] = {}

    def work(first: int) -> None:
        for k in range(first, len(given), 4):
            found[k] = blur(given[k].cuda())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, batch in enumerate(wanted):
        np.testing.assert_array_equal(batch, found[k].cpu())


@pytest.mark.gpu(emulated=False)
def test_floats_and_lists_on_a_real_gpu() -> None:
    torch = on_a_real_gpu()
    batch = torch.from_numpy(np.stack([a[:, :50, :40] for a in arrays("tensors")]).reshape(2, 3, 3, 50, 40))
    floats = batch / 255
    for part, given in (
        (ours.Resize(20), batch),
        (ours.RandomRotation(180, expand=True), batch),  # sizes of their own: a list
        (ours.RandomApply([ours.Resize(20), ours.RandomInvert(1.0)], p=0.5), batch),  # each its own way
        (ours.Resize(20), floats),  # no kernel: by way of the host
        (ours.Compose([ours.RandomHorizontalFlip(), ours.Normalize([0.5], [0.2])]), floats),
        (ours.RandomHorizontalFlip(0.0), batch),  # nothing to be done
        (ours.CenterCrop(9), batch),
        (ours.RandomInvert(1.0), batch[:, :, :, ::2, 1:]),  # not contiguous
    ):
        torch.manual_seed(5)
        want = part(given)
        torch.manual_seed(5)
        got = part(given.cuda())
        assert type(want) is type(got)
        for a, b in zip(want, got, strict=True):
            assert b.is_cuda
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_array_equal(a, b.cpu())
    torch.manual_seed(5)
    moved = ours.RandomHorizontalFlip(1.0, device="gpu")(batch[0])
    assert moved.is_cuda
    np.testing.assert_array_equal(moved.cpu(), batch[0].flip(-1))
