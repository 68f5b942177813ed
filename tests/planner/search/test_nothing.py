"""What is said where nothing fits, and why a layout is not the answer."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hwmodels.cluster import load
from hwmodels.errors import InfeasibleError, InputError
from hwmodels.units import parse_duration
from planner.memory import HEADROOM
from planner.model import load as load_model
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.predict import predict
from planner.search import SearchResult, Space, search
from planner.search.absent import absent, read_values
from planner.search.constraints import parse, parse_all
from planner.search.deadline import Deadline, fewest, least_seconds, sizes
from planner.search.nothing import Ask
from planner.search.question import Question, Target
from planner.search.result import Row

MODEL = from_shape(name="small", layers=8, hidden=1024, heads=8, ffn_hidden=4096, vocab=8192, seq_len=1024)
CLUSTER = load("dgx-a100:1")
WORKLOAD = Workload(1024, 32)
SPACE = Space(cp=(1,), fsdp=(0,), mbs=(1, 2), recompute=("none",), sp=(0,), zero_stage=(0, 1))


def refused(*texts: str, space: Space = SPACE, **changes: Any) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as error:
        search(MODEL, changes.pop("cluster", CLUSTER), changes.pop("workload", WORKLOAD), space,
               where=parse_all(texts), **changes)  # fmt: skip
    assert error.value.exit_code == 3
    return error.value


def test_contradictory_constraints_are_named_with_the_one_to_drop() -> None:
    error = refused("pp <= 4", "tp <= 4", "tp in [8]")
    assert "'tp <= 4'" in error.binding and "'tp in [8]'" in error.binding and "pp" not in error.binding
    assert error.nearest == "without 'tp <= 4' or without 'tp in [8]'"


def test_a_constraint_outside_the_given_values_names_them() -> None:
    error = refused("tp == 8", space=Space(tp=(1, 2), cp=(1,), fsdp=(0,), mbs=(1,)))
    assert "'tp == 8'" in error.binding and "tp in 1, 2" in error.binding


def test_a_limit_of_a_figure_names_the_best_that_there_is() -> None:
    best = search(MODEL, CLUSTER, WORKLOAD, SPACE, top=1).rows[0]
    error = refused("step_time <= 1ms")
    assert "'step_time <= 1ms'" in error.binding and best.layout.label() in error.binding
    loosened = parse(error.nearest.split('"')[1])
    found = search(MODEL, CLUSTER, WORKLOAD, SPACE, top=1, where=[loosened])
    assert found.rows[0].layout == best.layout


def test_a_limit_of_a_figure_is_told_without_the_least_layout_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lean part of the space shows that the memory is not what binds."""
    monkeypatch.setattr(Ask, "smallest", lambda self: pytest.fail("the whole space was sized"))
    assert "step_time <= 1ms" in refused("step_time <= 1ms").binding


def test_limits_that_exclude_each_other_are_each_told_against_the_others() -> None:
    fast = search(MODEL, CLUSTER, WORKLOAD, SPACE, top=1).rows[0].step.step_s.mid
    small = search(MODEL, CLUSTER, WORKLOAD, SPACE, top=1, objective="peak_memory").rows[0].figures["peak_memory"]
    error = refused(f"step_time <= {fast * 1.001}s", f"peak_memory <= {small * 1.001 / 2**30}GiB")
    assert error.binding.count("the best that the others leave is") == 2
    for part in error.nearest.split("; or ")[:2]:  # each alone makes the other feasible
        assert part.startswith('"')


def test_limits_that_are_out_of_reach_each_are_told_alone_with_a_number_that_works() -> None:
    error = refused("step_time <= 1ms", "peak_memory <= 1MiB")
    assert error.binding.count("the best is") == 2
    for way in error.nearest.split("; or "):
        text, _, alone = way[1:].partition('" ')
        assert alone == "alone"
        assert search(MODEL, CLUSTER, WORKLOAD, SPACE, top=1, where=[parse(text)]).rows


def test_sharding_and_host_memory_are_tried_together() -> None:
    """70.6e9 parameters, 8 ranks: neither ZeRO-3 (18 bytes over 8) nor a host that keeps 12 of 18 bytes is enough."""
    model, _ = load_model("llama-3-70b")
    space = Space(tp=(1,), pp=(1,), cp=(1,), zero_stage=(0,), recompute=("full",), mbs=(1,), sp=(0,))
    with pytest.raises(InfeasibleError) as error:
        search(model, load("dgx-h100:1"), Workload(4096, 64), space)
    assert error.value.nearest.startswith("with --zero-stage 3 --offload-optimizer 100: dp8 zero3 mbs1 full")


def test_a_share_that_none_reaches_tells_that_of_the_fastest() -> None:
    error = refused("bubble > 90%")
    assert "the fastest layout has 0.0%" in error.binding


def test_memory_names_stage_bytes_and_changes_that_fit() -> None:
    model, _ = load_model("llama-3-70b")
    # 70.6e9 parameters of 18 bytes over 8 ranks are 148 GiB each; ZeRO shards them over 32, a pipeline over up to 32
    cluster, work, space = load("dgx-h100:4"), Workload(4096, 64), Space(tp=(8,), pp=(1,), cp=(1,), zero_stage=(0,))
    with pytest.raises(InfeasibleError) as error:
        search(model, cluster, work, space)
    assert error.value.binding.startswith("memory of stage 0: tp8 ") and "too much" in error.value.binding
    ways = error.value.nearest.split("; or ")
    assert 1 <= len(ways) <= 3
    assert ways[0].startswith("with pp open: tp8 ") and ways[1].startswith("with zero_stage open: tp8 ")


def test_more_nodes_are_the_smallest_tried_that_fit() -> None:
    model, _ = load_model("llama-3.1-405b")
    with pytest.raises(InfeasibleError) as error:
        search(model, load("dgx-h100:1"), Workload(4096, 64), Space(cp=(1,)))
    way = error.value.nearest.split("; or ")[-1]
    assert "ranks instead of 8" in way
    ranks = int(way.split("with ")[1].split(" ranks")[0].replace(",", ""))
    larger = search(model, load(f"dgx-h100:{ranks // 8}"), Workload(4096, 64), Space(cp=(1,)), top=1)
    assert larger.rows[0].layout.world == ranks


def test_a_batch_that_no_layout_divides_says_which_batch_would_do() -> None:
    error = refused(space=Space(tp=(1,), pp=(1,), cp=(1,), fsdp=(0,)), workload=Workload(1024, 7))
    assert "gbs-microbatch" in error.binding and "gbs=8" in error.nearest and "with tp open" in error.nearest


def test_values_are_read_in_any_spelling() -> None:
    assert read_values("tp=8 pp=4") == read_values("tp=8, pp == 4") == {"tp": 8, "pp": 4}
    assert read_values("schedule=zb-h1 recompute=none") == {"schedule": "zb-h1", "recompute": "none"}


@pytest.mark.parametrize("text", ["", "tp", "tp=", "tp<=8", "step_time=3s", "tp=8 tp=4", "tp=2.5", "schedule=zigzag"])
def test_what_is_no_field_with_a_value_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        read_values(text)
    assert all(fault.where == "--why" for fault in error.value.faults)


def ask(space: Space = SPACE, *texts: str) -> Ask:
    return Ask(MODEL, CLUSTER, WORKLOAD, space, parse_all(texts), HEADROOM, Target())


def finder(space: Space = SPACE, *texts: str, objective: str | tuple[str, ...] = "step_time") -> Any:
    def find(**changes: Any) -> SearchResult:
        asked = {"space": space, "objective": objective, "where": parse_all(texts)} | changes
        return search(MODEL, CLUSTER, WORKLOAD, **asked)

    return find


def test_a_slower_layout_is_told_with_its_rank_and_the_phases_that_lose() -> None:
    found = absent(ask(), {"tp": 4}, finder(), ("step_time",))
    best = search(MODEL, CLUSTER, WORKLOAD, Space(**{**_fields(SPACE), "tp": (4,)}), top=1).rows[0]
    assert found.best is not None and found.best.layout == best.layout and not found.unsearched
    every = search(MODEL, CLUSTER, WORKLOAD, SPACE, top=100).rows
    assert found.rank == next((row.rank for row in every if row.layout == best.layout), None)
    # the phases of a rank sum to the step, and so do their differences
    alone = [predict(MODEL, CLUSTER, WORKLOAD, row.layout).step_s.mid for row in (found.best, found.first)]
    assert sum(found.gaps.values()) == pytest.approx(alone[0] - alone[1], rel=1e-9)
    assert max(found.gaps, key=lambda name: found.gaps[name]) == "tp_comm"


def _fields(space: Space) -> dict[str, Any]:
    return {name: getattr(space, name) for name in Space.__dataclass_fields__}


def test_the_first_row_itself_is_rank_1() -> None:
    first = search(MODEL, CLUSTER, WORKLOAD, SPACE, top=1).rows[0].layout
    assert absent(ask(), {"tp": first.tp, "mbs": first.mbs}, finder(), ("step_time",)).rank == 1


def test_a_value_that_is_not_searched_is_said_and_placed() -> None:
    found = absent(ask(), {"recompute": "full", "mbs": 4}, finder(), ("step_time",))
    assert found.unsearched == (
        "recompute=full is not searched: given are none", "mbs=4 is not searched: given are 1, 2"
    )  # fmt: skip
    assert found.best is not None and found.best.layout.mbs == 4


def test_a_value_that_a_rule_excludes_names_the_rule_and_a_way_out() -> None:
    found = absent(ask(), {"tp": 3}, finder(), ("step_time",))
    assert found.best is None
    assert "tp divides the attention heads." in found.excluded and "What would work" in found.excluded
    given = Space(tp=(1, 2), cp=(1,), fsdp=(0,), mbs=(1, 2), recompute=("none",), sp=(0,), zero_stage=(0, 1))
    found = absent(ask(given), {"tp": 3}, finder(given), ("step_time",))
    assert "What would work" in found.excluded
    assert "tp open" not in found.excluded and "without the given fields" not in found.excluded  # no tp of 3 either


def test_a_value_that_a_constraint_excludes_names_it() -> None:
    found = absent(ask(SPACE, "tp <= 2"), {"tp": 4}, finder(SPACE, "tp <= 2"), ("step_time",))
    assert found.best is None and "'tp <= 2'" in found.excluded


def test_a_layout_off_the_front_names_a_row_that_beats_it() -> None:
    names = ("step_time", "peak_memory")
    found = absent(ask(), {"tp": 2, "pp": 4}, finder(objective=names), names)
    assert found.best is not None and found.dominated_by is not None
    for name in names:
        assert found.dominated_by.figures[name] <= found.best.figures[name]


def _fewest(nodes: int, deadline_s: float, tokens: float = 1e9) -> tuple[Deadline, dict[int, float]]:
    """The answer, and the seconds of the run on every size."""
    space = Space(cp=(1,), fsdp=(0,), mbs=(1,), zero_stage=(1,), recompute=("none",), sp=(0,), vpp=(1,))
    question = Question(MODEL, load(f"dgx-a100:{nodes}"), WORKLOAD, Target(tokens=tokens))

    def find(cluster: Any, where: Any) -> Row | None:
        try:
            return search(MODEL, cluster, WORKLOAD, space, top=1, where=where, target=question.target,
                          nearest=False).rows[0]  # fmt: skip
        except InfeasibleError:
            return None

    every = {}
    for n in range(1, nodes + 1):
        row = find(load(f"dgx-a100:{n}"), ())
        if row is not None:
            every[n] = row.step.step_s.mid * question.steps
    return fewest(question, deadline_s, find, lambda _: None), every


def test_the_fewest_nodes_for_a_deadline_are_those_of_every_size_tried() -> None:
    _, every = _fewest(4, 1e9)
    for deadline in (max(every.values()) * 1.01, sorted(every.values())[1] * 1.01, min(every.values()) * 1.001):
        found, _ = _fewest(4, deadline)
        assert found.cluster.nodes == min(n for n, seconds in every.items() if seconds <= deadline)
        assert found.train_s == pytest.approx(every[found.cluster.nodes], rel=1e-9)


def test_a_deadline_that_the_cluster_misses_names_what_it_takes() -> None:
    with pytest.raises(InfeasibleError) as error:
        _fewest(2, 10.0)
    assert "the fastest layout" in error.value.binding and "a deadline of" in error.value.nearest
    told = error.value.nearest.removeprefix("a deadline of ").partition(",")[0]
    found, every = _fewest(2, parse_duration(told))
    assert min(every.values()) <= parse_duration(told) <= min(every.values()) * 1.01
    assert found.cluster.nodes == 2


def test_sizes_are_those_that_a_layout_divides() -> None:
    # 8 heads, 8 layers, 32 sequences, 1024 tokens: 8*n ranks for n of 2^k * 3, 5, 7 (pp) and no 11, 13
    cluster = load("dgx-a100:14")
    assert sizes(MODEL, cluster, WORKLOAD) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14]


def test_the_least_seconds_are_below_every_step() -> None:
    row = search(MODEL, CLUSTER, WORKLOAD, SPACE, top=1).rows[0]
    assert least_seconds(Question(MODEL, CLUSTER, WORKLOAD, Target())) < row.step.step_s.mid


@pytest.mark.slow
def test_the_nearest_request_is_told_in_seconds_on_a_large_cluster() -> None:
    model, _ = load_model("llama-3.1-405b")
    start = time.perf_counter()
    with pytest.raises(InfeasibleError):
        search(model, load("dgx-h100:2048"), Workload(8192, 2048), Space(tp=(1,), pp=(1,), zero_stage=(0,)))
    assert time.perf_counter() - start < 20.0
