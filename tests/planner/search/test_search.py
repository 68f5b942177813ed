"""The search against exhaustive prediction, and its answers when nothing fits."""

import numpy as np
import pytest

from hwmodels.cluster import load
from hwmodels.errors import InfeasibleError, InputError
from planner.evaluate import bounds, exact_seconds
from planner.layout import Layout
from planner.model import load as load_model
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.predict import predict
from planner.priced import price_model
from planner.replay import replay
from planner.search import Space, pool, search
from planner.search.space import enumerate_layouts
from planner.step.assemble import assemble, dag_groups


def small() -> ModelSpec:
    return from_shape(name="small", layers=8, hidden=1024, heads=8, ffn_hidden=4096, vocab=8192, seq_len=1024)


WORKLOAD = Workload(1024, 32)


def test_bounds_never_exceed_exact_times() -> None:
    model, cluster = small(), load("dgx-a100:2")
    found = enumerate_layouts(Space(cp=(1,), fsdp=(0,)), model, cluster, WORKLOAD)
    priced = price_model(model, WORKLOAD, found.layouts, cluster)
    for key in dag_groups(priced, np.arange(len(found.layouts))):
        group = assemble(priced, *key)
        exact = exact_seconds(group, np.arange(len(group.index)))
        assert (bounds(group) <= exact * (1 + 1e-12)).all()


def test_every_candidate_is_accounted_for() -> None:
    result = search(small(), load("dgx-a100:1"), WORKLOAD, top=3)
    assert result.considered == sum(result.dropped.values()) + result.priced
    assert [r.rank for r in result.rows] == [1, 2, 3]
    assert result.rows[0].pareto


def test_equal_inputs_give_equal_answers() -> None:
    first, second = (search(small(), load("dgx-a100:1"), WORKLOAD).to_dict() for _ in range(2))
    first.pop("wall_s"), second.pop("wall_s")
    assert first == second


def test_layouts_of_the_space_are_legal_and_distinct() -> None:
    found = enumerate_layouts(Space(), small(), load("dgx-a100:2"), WORKLOAD)
    layouts = [found.layouts.layout(i) for i in range(len(found.layouts))]
    assert len(set(layouts)) == len(layouts)
    assert all(lay.world == 16 for lay in layouts)
    assert all(lay.schedule == "interleaved-1f1b" for lay in layouts if lay.vpp > 1)


def test_a_model_that_cannot_fit_names_stage_and_nearest_layout() -> None:
    model, _ = load_model("llama-3.1-405b")
    with pytest.raises(InfeasibleError) as error:
        search(model, load("dgx-a100:1"), Workload(4096, 8))
    assert "memory of stage" in str(error.value)
    assert "misses by least" in str(error.value)
    assert error.value.exit_code == 3


def test_a_batch_that_no_layout_divides_is_infeasible() -> None:
    with pytest.raises(InfeasibleError) as error:
        search(small(), load("dgx-a100:1"), Workload(1024, 7), Space(tp=(1,), pp=(1,)))
    assert "gbs-microbatch" in str(error.value)
    assert "gbs=8" in str(error.value)


def test_wrong_ranges_are_one_error_with_all_faults() -> None:
    with pytest.raises(InputError) as error:
        Space.of({"tp": [0], "zero_stage": [4], "schedule": ["zigzag"], "color": [1]})
    assert len(error.value.faults) == 4


def test_fixed_fields_are_kept() -> None:
    result = search(small(), load("dgx-a100:1"), WORKLOAD, Space(tp=(2,), pp=(2,), recompute=("full",)), top=5)
    assert {(r.layout.tp, r.layout.pp, r.layout.recompute) for r in result.rows} == {(2, 2, "full")}


def test_predict_refuses_a_layout_with_every_broken_rule() -> None:
    with pytest.raises(InputError) as error:
        predict(small(), load("dgx-a100:1"), WORKLOAD, Layout(tp=3, pp=19, dp=1))
    assert {f.rule for f in error.value.faults} >= {"world-product", "tp-heads", "layers-stages"}


def test_kinds_of_context_parallelism_and_resharding_are_searched() -> None:
    space = Space.of({
        "tp": (1,), "cp": (1, 4), "pp": (1,), "vpp": (1,), "zero_stage": (1, 3), "mbs": (1,), "recompute": ("none",),
        "cp_kind": ("ring", "hierarchical"), "reshard": ("default", "never"),
    })  # fmt: skip
    found = enumerate_layouts(space, small(), load("dgx-a100:1"), WORKLOAD).layouts
    each = [found.layout(i) for i in range(len(found))]
    assert len(set(each)) == len(each)
    # kinds with cp alone, an inner degree (2 of 4) with two levels alone, resharding in stage 3 alone
    assert {(lay.cp, lay.cp_kind, lay.cp_ulysses) for lay in each if lay.cp > 1} == {
        (4, "ring", 0), (4, "hierarchical", 2)
    }  # fmt: skip
    assert {(lay.zero_stage, lay.reshard) for lay in each} == {(1, "default"), (3, "default"), (3, "never")}
    with pytest.raises(InputError, match="cp_kind 'spiral'"):
        Space.of({"cp_kind": ("spiral",)})


def test_the_best_rows_are_played_with_contention() -> None:
    """What the event engine says of a row alone; a step in which nothing shares a link takes what it took."""
    model, cluster = small(), load("dgx-a100:2")
    space = Space(tp=(2,), pp=(2,), cp=(1,), fsdp=(0,), vpp=(1,), mbs=(1, 2), recompute=("none",))
    result = search(model, cluster, WORKLOAD, space, top=3, contended=2)
    assert result.contended == 2
    assert result.rows[2].contended_s is None
    for row in result.rows[:2]:
        alone = replay(model, cluster, WORKLOAD, row.layout, contention=True)
        assert row.contended_s == pytest.approx(alone.step_s, rel=1e-12)
        assert row.contended_s >= row.step.step_s.mid * (1 - 1e-12)


def test_parts_of_a_large_space_change_nothing_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at in two parts or at once, the rows are the same, and every candidate is counted once."""
    at_once = search(small(), load("dgx-a100:1"), WORKLOAD, top=3)
    monkeypatch.setattr(pool, "LARGE", 100)
    monkeypatch.setattr(pool, "SEEDS", 40)
    parts = search(small(), load("dgx-a100:1"), WORKLOAD, top=3)
    assert [(row.layout, row.step.step_s.mid) for row in parts.rows] == [
        (row.layout, row.step.step_s.mid) for row in at_once.rows
    ]
    assert (parts.considered, parts.screened) == (at_once.considered, at_once.screened)
    assert parts.considered == sum(parts.dropped.values()) + parts.priced
