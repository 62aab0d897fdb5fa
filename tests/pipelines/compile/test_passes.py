"""The passes one by one: each is a pure function of the graph."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from dali_run.ops.base import Arg, Operator, Spec
from dali_run.ops.errors import DeviceError, SpecError
from dali_run.ops.streams import seed_sequence
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.compile.infer import check_numbers, infer
from dali_run.pipelines.compile.place import Target, place
from dali_run.pipelines.compile.plan import assign_seeds, compile_graph
from dali_run.pipelines.compile.prune import prune
from dali_run.pipelines.compile.schedule import schedule
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.graph.conditionals import Merge, Split
from dali_run.pipelines.graph.nodes import Edge, Graph
from dali_run.pipelines.graph.rules import verify
from tests.kit.operators import operator


class Bytes(Operator, name="testing.bytes"):
    """Encoded data and a label."""

    inputs = (0, 0)
    per_batch = True
    random = True

    @property
    def num_outputs(self) -> int:
        return 2

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        return Spec((None,), DALIDataType.UINT8), Spec((1,), DALIDataType.INT32)

    def cpu(self, ctx: Any) -> Any: ...


class Decode(Operator, name="testing.decode"):
    """On the CPU, or from the CPU onto the GPU."""

    def infer(self, *specs: Spec) -> Spec:
        return Spec((None, None, 3), DALIDataType.UINT8, "HWC")

    def cpu(self, ctx: Any, x: Any) -> Any: ...

    def mixed(self, ctx: Any, x: Any) -> Any: ...


class Everywhere(Operator, name="testing.everywhere"):
    """Has both kernels."""

    layouts = ("HWC",)
    amount: Annotated[float, Arg("per sample", per_sample=True)] = 0.0

    def cpu(self, ctx: Any, x: Any) -> Any: ...

    gpu = cpu


class HostOnly(Operator, name="testing.host_only"):
    """Has only a CPU kernel."""

    def cpu(self, ctx: Any, x: Any) -> Any: ...


class Encode(Operator, name="encoders.testing"):
    """Data may come back from the GPU for it."""

    accepts_gpu = True

    def cpu(self, ctx: Any, x: Any) -> Any: ...


class Draw(Operator, name="testing.draw"):
    """A random scalar."""

    inputs = (0, 0)
    random = True

    def infer(self, *specs: Spec) -> Spec:
        return Spec((), DALIDataType.FLOAT)

    def cpu(self, ctx: Any) -> Any: ...


def stages(graph: Graph, target: Target) -> dict[str, str]:
    return {n.name: n.stage for n in place(infer(graph), target).nodes}


def chain(*ops: str, **last: Any) -> Graph:
    b = GraphBuilder()
    (x, label) = b.add("testing.bytes")
    for op in ops:
        (x,) = b.add(op, [x], **(last if op == ops[-1] else {}))
    return b.build({"x": x, "label": label})


def test_a_cpu_target_takes_everything_mixed_included() -> None:
    assert set(stages(chain("testing.decode", "testing.everywhere"), Target()).values()) == {"cpu"}
    graph = chain("testing.decode", device="mixed")
    assert set(stages(graph, Target()).values()) == {"cpu"}


def test_on_a_gpu_decoders_are_mixed_and_what_follows_is_gpu() -> None:
    graph = chain("testing.decode", "testing.everywhere")
    assert stages(graph, Target("gpu")) == {
        "testing.bytes": "cpu",
        "testing.decode": "mixed",
        "testing.everywhere": "gpu",
    }
    assert stages(graph, Target("gpu", auto_mixed=False))["testing.decode"] == "cpu"


def test_a_host_only_operator_keeps_its_decoder_on_the_host() -> None:
    graph = chain("testing.decode", "testing.host_only")
    assert set(stages(graph, Target("gpu")).values()) == {"cpu"}


def test_a_host_only_operator_behind_an_insisting_gpu_is_refused() -> None:
    b = GraphBuilder()
    (x, _) = b.add("testing.bytes")
    (x,) = b.add("testing.decode", [x], device="mixed")
    (x,) = b.add("testing.host_only", [x])
    with pytest.raises(SpecError, match=r"has no GPU kernel .* move it before the decoder"):
        stages(b.build({"x": x}), Target("gpu"))


def test_data_comes_back_for_encoders() -> None:
    graph = chain("testing.decode", "testing.everywhere", "encoders.testing")
    assert stages(graph, Target("gpu"))["encoders.testing"] == "cpu"


def test_an_argument_from_the_gpu_is_refused() -> None:
    b = GraphBuilder()
    (x, _) = b.add("testing.bytes")
    (x,) = b.add("testing.decode", [x], device="mixed")
    (y,) = b.add("random.uniform", device="gpu")
    (x,) = b.add("testing.everywhere", [x], {"amount": y})
    with pytest.raises(SpecError, match="'amount' comes from the GPU"):
        stages(b.build({"x": x}), Target("gpu"))


def test_specs_flow_through_the_graph() -> None:
    b = GraphBuilder()
    (x, _) = b.add("testing.bytes")
    (x,) = b.add("testing.decode", [x])
    (x,) = b.add("testing.everywhere", [x])
    good = infer(b.build({"x": x}))
    assert good.spec(good.outputs["x"]) == Spec((None, None, 3), DALIDataType.UINT8, "HWC")


def test_steps_cut_where_the_kind_of_work_changes() -> None:
    graph = chain("testing.decode", "testing.everywhere", "encoders.testing")
    on_gpu = schedule(place(infer(graph), Target("gpu")))
    assert [s.kind for s in on_gpu] == ["whole", "device", "chunk"]
    on_cpu = schedule(place(infer(graph), Target()))
    assert [s.kind for s in on_cpu] == ["whole", "chunk"]
    assert [n.name for n in on_cpu[1].nodes] == ["testing.decode", "testing.everywhere", "encoders.testing"]
    assert on_cpu[0].gives == (Edge(0, 0), Edge(0, 1))


def test_random_numbers_are_drawn_in_the_first_step() -> None:
    b = GraphBuilder()
    (x, _) = b.add("testing.bytes")
    (x,) = b.add("testing.decode", [x])
    (r,) = b.add("testing.draw")
    (x,) = b.add("testing.everywhere", [x], {"amount": r})
    steps = schedule(place(infer(b.build({"x": x})), Target("gpu")))
    assert [n.name for n in steps[0].nodes] == ["testing.bytes", "testing.draw"]


def test_pruning_renumbers_and_keeps_what_outputs_need() -> None:
    b = GraphBuilder()
    b.add("testing.draw")
    (x, _) = b.add("testing.bytes")
    b.add("testing.decode", [x])
    (y,) = b.add("testing.decode", [x])
    graph = verify(prune(b.build({"y": y})), "prune")
    assert [n.op.name for n in graph.nodes] == ["testing.bytes", "testing.decode"]
    assert graph.outputs == {"y": Edge(1)}


def test_seeds_are_dealt_depth_first_from_the_outputs() -> None:
    b = GraphBuilder()
    draws = [b.add("testing.draw", name=n)[0] for n in "abc"]
    b.add("testing.draw", name="unused")
    (own,) = b.add("testing.draw", name="own", seed=5)
    graph = prune(b.build({"c": draws[2], "own": own, "a": draws[0], "b": draws[1]}))
    seeds = assign_seeds(graph, 77)
    pool = seed_sequence(77, 1024)
    named = {graph.nodes[i].name: s for i, s in seeds.items()}
    assert named == {"c": pool[0], "own": 5, "a": pool[1], "b": pool[2]}


def test_seeds_in_branches_and_arguments_are_dealt_as_dali_does() -> None:
    """Recorded of DALI 2.4: what reads nothing is made before the branch is split; arguments go by their names."""
    b = GraphBuilder()
    (flag,) = b.add("random.coin_flip", name="flag", args={"dtype": "BOOL"})
    ends = []
    for branch, name in ((True, "then"), (False, "else")):
        b.enter(flag, branch)
        ends += b.add("random.uniform", name=name)
        b.leave()
    merged = b.merge(flag, *ends)
    given = {n: b.add("random.uniform", name=n)[0] for n in ("stddev", "mean")}
    (normal,) = b.add("random.normal", args=given, name="normal")
    graph = b.build({"merged": merged, "flag": flag, "normal": normal})
    seeds = {graph.nodes[i].name: s for i, s in assign_seeds(graph, 11).items()}
    assert list(seeds) == ["then", "flag", "else", "mean", "stddev", "normal"]
    assert list(seeds.values()) == seed_sequence(11, 1024)[:6].tolist()


def test_the_verifier_names_the_broken_rule() -> None:
    b = GraphBuilder()
    (x, _) = b.add("testing.bytes")
    graph = b.build({"x": x})
    with pytest.raises(AssertionError, match="wrong after testing: output x belongs to no node"):
        verify(Graph(graph.nodes, {"x": Edge(7)}), "testing")


def test_a_branch_splits_each_outer_value_once() -> None:
    b = GraphBuilder()
    (x, _) = b.add("testing.bytes")
    (x,) = b.add("testing.decode", [x])
    (p,) = b.add("testing.draw")
    b.enter(p, True)
    (t,) = b.add("testing.everywhere", [x])
    (t,) = b.add("testing.everywhere", [t])
    (u,) = b.add("testing.everywhere", [x])
    b.leave()
    out = b.merge(p, t, x)
    second = b.merge(p, u, x)
    graph = verify(b.build({"out": out, "second": second}), "building")
    splits = [n for n in graph.nodes if isinstance(n.op, Split)]
    assert len(splits) == 2  # the predicate (for the branch's samples) and the image
    assert sum(isinstance(n.op, Merge) for n in graph.nodes) == 2


def test_a_value_of_one_branch_cannot_be_used_outside() -> None:
    b = GraphBuilder()
    (x, _) = b.add("testing.bytes")
    (p,) = b.add("testing.draw")
    b.enter(p, True)
    (t,) = b.add("testing.decode", [x])
    b.leave()
    with pytest.raises(SpecError, match="inside one branch"):
        b.add("testing.everywhere", [t])
    with pytest.raises(SpecError, match="output 't' is computed inside a branch"):
        b.build({"t": t})


def test_wrong_arguments_are_all_named_at_once() -> None:
    b = GraphBuilder()
    (x, _) = b.add("testing.bytes")
    with pytest.raises(SpecError) as e:
        b.add("testing.everywhere", [x, x], {"amont": 1, "amount": "much"}, device="mixed")
    text = str(e.value)
    for part in ("no argument 'amont'; did you mean amount?", "needs a number, got 'much'", "takes 1 input, got 2",
                 "cannot run on mixed; it has kernels for cpu, gpu"):  # fmt: skip
        assert part in text


def test_compiling_describes_itself() -> None:
    plan = compile_graph(chain("testing.decode", "testing.everywhere"), Target("gpu"), seed=3)
    told = plan.describe()
    assert [s["id"] for s in told["stages"]] == ["00:read", "01:gpu"]
    assert told["outputs"]["x"] == {"from": "testing.everywhere", "spec": "uint8[?x?x3] HWC"}


def test_which_gpus_a_device_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from dali_run.pipelines.compile import place as placing

    monkeypatch.setattr(placing, "gpu_count", lambda: 3)
    named = {"auto": (0,), "gpu": (0,), "gpu:2": (2,), "gpu:2,0": (2, 0), "gpu:all": (0, 1, 2)}
    for text, indices in named.items():
        target = placing.resolve_target(text)
        assert (target.device, target.indices) == ("gpu", indices)
    for text in ("gpu:3", "gpu:0,3"):
        with pytest.raises(DeviceError, match="3 usable GPUs"):
            placing.resolve_target(text)
    with pytest.raises(SpecError, match="twice"):
        placing.resolve_target("gpu:1,1")
    for text in ("gpu:", "gpu:a", "gpu:1,", "gpus", "cpu:all"):
        with pytest.raises(SpecError, match="device must be"):
            placing.resolve_target(text)
    monkeypatch.setattr(placing, "gpu_count", lambda: 0)
    with pytest.raises(DeviceError, match="0 usable GPUs"):
        placing.resolve_target("gpu:all")


@pytest.mark.parametrize(
    ("layout", "shape", "taken"),
    [("", (), True), ("", (1,), True), ("", (3,), False), ("", None, True), ("", (None,), True), ("HWC", None, False),
     ("F", (3,), True), ("F", (None,), True), ("F", (3, 1), True), ("F", (3, 2), False), ("FHWC", None, False)],
)  # fmt: skip
def test_an_argument_of_one_number_takes_one_a_sample_or_one_a_frame(
    layout: str, shape: tuple[int | None, ...] | None, taken: bool
) -> None:
    given = {"angle": Spec(shape, DALIDataType.FLOAT, layout)}
    rotate = operator("rotate", ["angle"])
    if taken:
        check_numbers(rotate, given)
        return
    with pytest.raises(SpecError, match="argument 'angle' takes one number for each sample"):
        check_numbers(rotate, given)
