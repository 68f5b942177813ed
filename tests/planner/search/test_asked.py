"""Objectives, fronts and constraints of a search against every layout predicted alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.cluster import load
from hwmodels.errors import InfeasibleError
from planner.layout import Layout
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.predict import predict
from planner.results import Step
from planner.search import Space, search
from planner.search.asked import row_figures
from planner.search.constraints import parse, parse_all
from planner.search.objectives import OBJECTIVES
from planner.search.question import Question, Target
from planner.search.result import Row
from planner.search.space import enumerate_layouts

MODEL = from_shape(name="small", layers=4, hidden=1024, heads=8, ffn_hidden=4096, vocab=8192, seq_len=1024)
CLUSTER = load("dgx-a100:1")
WORKLOAD = Workload(1024, 32)
TARGET = Target(tokens=1e9, kg_per_kwh=0.2, pue=1.1)
QUESTION = Question(MODEL, CLUSTER, WORKLOAD, TARGET)
SPACE = Space(tp=(1, 2), cp=(1,), pp=(1, 2, 4), vpp=(1, 2), mbs=(1, 4), fsdp=(0,), zero_stage=(0, 1), sp=(0,),
              recompute=("none", "full"))  # fmt: skip


@pytest.fixture(scope="module")
def every() -> list[Row]:
    """Every legal layout predicted alone."""
    found = enumerate_layouts(SPACE, MODEL, CLUSTER, WORKLOAD).layouts
    rows = []
    for i in range(len(found)):
        layout = found.layout(i)
        step = predict(MODEL, CLUSTER, WORKLOAD, layout)
        rows.append(Row(0, layout, step, layout.microbatches(WORKLOAD.gbs), WORKLOAD))
    assert len(rows) > 30
    return rows


def value(name: str, row: Row) -> float:
    return float(OBJECTIVES[name].value(row_figures(QUESTION, row))[0])


def cost(name: str, row: Row) -> float:
    return value(name, row) * (1.0 if OBJECTIVES[name].sense == "min" else -1.0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_best_by_each_objective_are_those_of_exhaustive_prediction(name: str, every: list[Row]) -> None:
    found = search(MODEL, CLUSTER, WORKLOAD, SPACE, objective=name, top=5, target=TARGET)
    assert found.optimal and found.objectives == (name,)
    best = sorted(cost(name, row) for row in every)[:5]
    assert [cost(name, row) for row in found.rows] == pytest.approx(best, rel=1e-9)
    own = [row.figures[name] for row in found.rows]
    assert own == pytest.approx([value(name, row) for row in found.rows], rel=1e-12)


def front(rows: list[Row], names: tuple[str, ...]) -> set[Layout]:
    points = [tuple(cost(name, row) for name in names) for row in rows]

    def beaten(p: tuple[float, ...]) -> bool:
        return any(all(a <= b for a, b in zip(q, p, strict=True)) and q != p for q in points)

    return {row.layout for row, p in zip(rows, points, strict=True) if not beaten(p)}


@pytest.mark.parametrize(
    "names",
    [
        ("step_time", "peak_memory"),
        ("peak_memory", "energy_kwh_per_mtoken"),
        ("step_time", "peak_memory", "usd_per_mtoken"),
        ("step_time", "memory_headroom", "train_co2_kg"),
    ],
)
def test_a_front_is_that_of_exhaustive_prediction(names: tuple[str, ...], every: list[Row]) -> None:
    found = search(MODEL, CLUSTER, WORKLOAD, SPACE, objective=names, target=TARGET)
    assert {row.layout for row in found.rows} == front(every, names)
    assert all(row.pareto for row in found.rows)
    assert [cost(names[0], row) for row in found.rows] == sorted(cost(names[0], row) for row in found.rows)


HOLDS: dict[str, Callable[[Layout, Step], bool]] = {
    "tp <= 1": lambda lay, step: lay.tp <= 1,
    "pp in [2, 4]": lambda lay, step: lay.pp in (2, 4),
    "dp*tp == 8": lambda lay, step: lay.dp * lay.tp == 8,
    "microbatches >= 4*pp": lambda lay, step: 32 // (lay.mbs * lay.dp) >= 4 * lay.pp,
    "schedule == 1f1b": lambda lay, step: lay.schedule == "1f1b",
    "recompute != none": lambda lay, step: lay.recompute != "none",
    "peak_memory <= 2GiB": lambda lay, step: max(m.peak_bytes for m in step.memory) <= 2 * 2**30,
    "step_time >= 30ms": lambda lay, step: step.step_s.mid >= 0.03,
    "step_time <= 40ms": lambda lay, step: step.step_s.mid <= 0.04,
    "bubble <= 5%": lambda lay, step: step.bubble_fraction <= 0.05,
    "mfu > 0.2 or pp == 1": lambda lay, step: step.mfu > 0.2 or lay.pp == 1,
    "energy_kwh_per_mtoken <= 0.0006": lambda lay, step: step.energy_kwh_per_mtoken is not None
    and step.energy_kwh_per_mtoken * 1.1 / 1.2 <= 0.0006,  # predictions take the default PUE of 1.2
    "not (tp > 1 and peak_memory > 1.5GiB)": lambda lay, step: not (
        lay.tp > 1 and max(m.peak_bytes for m in step.memory) > 1.5 * 2**30
    ),
}  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(texts=st.lists(st.sampled_from(list(HOLDS)), min_size=1, max_size=3, unique=True))
def test_constraints_leave_what_satisfies_them_and_never_improve_the_best(every: list[Row], texts: list[str]) -> None:
    kept = sorted(
        row.step.step_s.mid for row in every if all(HOLDS[text](row.layout, row.step) for text in texts)
    )
    where = parse_all(texts)
    if not kept:
        with pytest.raises(InfeasibleError):
            search(MODEL, CLUSTER, WORKLOAD, SPACE, top=3, where=where, target=TARGET, nearest=False)
        return
    found = search(MODEL, CLUSTER, WORKLOAD, SPACE, top=3, where=where, target=TARGET)
    assert [row.step.step_s.mid for row in found.rows] == pytest.approx(kept[:3], rel=1e-9)
    fewer = search(MODEL, CLUSTER, WORKLOAD, SPACE, top=1, where=where[:-1], target=TARGET)
    assert fewer.rows[0].step.step_s.mid <= found.rows[0].step.step_s.mid
    assert found.considered == sum(found.dropped.values()) + found.priced


def test_dropped_candidates_are_counted_under_the_text_of_the_constraint() -> None:
    found = search(MODEL, CLUSTER, WORKLOAD, SPACE, where=[parse("tp <= 1"), parse("peak_memory <= 2GiB")])
    assert found.dropped["constraint:tp <= 1"] > 0 and found.dropped["constraint:peak_memory <= 2GiB"] > 0


def test_energy_of_a_row_is_that_of_its_step() -> None:
    found = search(MODEL, CLUSTER, WORKLOAD, SPACE, objective="energy_kwh_per_mtoken", top=3)
    for row in found.rows:
        assert row.figures["energy_kwh_per_mtoken"] == pytest.approx(row.step.energy_kwh_per_mtoken, rel=1e-12)
