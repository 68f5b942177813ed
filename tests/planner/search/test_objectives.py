"""Objectives: the contract over every member, and values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.cluster import Cluster, load
from hwmodels.device import Coefficient
from hwmodels.errors import InputError
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.search.objectives import OBJECTIVES, Figures, Work, get, require
from planner.search.question import Question, Target

MODEL = from_shape(name="small", layers=8, hidden=1024, heads=8, ffn_hidden=4096, vocab=8192, seq_len=1024)
TARGET = Target(tokens=1e9, kg_per_kwh=0.5, pue=1.25)


def cluster() -> Cluster:
    return replace(load("dgx-a100:2"), usd_per_gpu_hour=Coefficient(1.8, "a test", 0, 0.0))


def figures(
    step_s: object, peak: object = 2.0**36, compute_s: object = 1.0, optimizer_s: object = 0.1, flops: object = 1e15
) -> Figures:
    step, memory, compute, optimizer, hardware = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(v, np.float64)) for v in (step_s, peak, compute_s, optimizer_s, flops))
    )
    question = Question(MODEL, cluster(), Workload(1024, 32), TARGET)
    return Figures(
        question, np.full(step.shape, 16), step, memory, lambda: Work(compute, optimizer, hardware),
        lambda: LayoutBatch.of([Layout(dp=16)] * step.size),
    )  # fmt: skip


# 16 A100 at 1.80 dollars an hour are 0.008 dollars a second; a step has 32*1024 = 32768 tokens, and 10^9 tokens take
# 30518 steps (30517.6). An A100 idles at 48 of 400 W. 10^15 FLOPs on 16 x 312e12 FLOP/s are 0.200321 s at the peak: in
# 1 s of kernels it draws 48 + 352 * 1.1 * 0.200321 = 125.564 W, in 0.1 s of the optimizer 48 + 352 * 0.5 * 0.65 =
# 162.4 W, and 48 W in the 0.9 s that are left: 125.564 + 16.24 + 43.2 = 185.004 J, times 16 and 1.25: 3700.09 J, or
# 0.00102780 kWh.
# A failure every 50,700 h / 16 = 11,407,500 s; 14 bytes for each of 110,209,024 parameters, half of them at 2 GB/s and
# 5 ms: checkpoints of 0.390732 s, which cost the square root of 2 * 0.390732 / 11,407,500 (Young); 720 s until ranks
# start again, 0.197866 s to load and 60 s of warm-up.
KEPT = 1.0 / (1.0 + (2 * 0.390732 / 11_407_500) ** 0.5 + 780.197866 / 11_407_500)
HAND = {
    "step_time": 2.0,
    "tokens_per_s": 16384.0,
    "tokens_per_s_per_gpu": 1024.0,
    # 8 layers of 12*1024^2 weights and the head's 8192*1024: 109,051,904; times 6, and 12*8*1024*1024 for attention
    # over the whole sequence: 754,974,720 FLOPs a token; times 32768 over 2 s and 4.992e15 FLOP/s
    "mfu": 754_974_720 * 32768 / 2.0 / 4.992e15,
    "usd_per_mtoken": 0.008 * 2.0 / 32768 * 1e6,
    "train_time": 61036.0,
    "train_usd": 488.288,
    "energy_kwh_per_mtoken": 0.0010278026 / 32768 * 1e6,
    "train_kwh": 0.0010278026 * 30518,
    "co2_kg_per_mtoken": 0.0010278026 * 0.5 / 32768 * 1e6,
    "train_co2_kg": 0.0010278026 * 0.5 * 30518,
    "peak_memory": 2.0**36,
    "memory_headroom": 80 * 2.0**30 - 2.0**36,
    "goodput": KEPT,
    "kept_tokens_per_s": 16384.0 * KEPT,
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_value_by_hand(name: str) -> None:
    assert OBJECTIVES[name].value(figures(2.0))[0] == pytest.approx(HAND[name], rel=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_member_keeps_the_contract(name: str) -> None:
    objective = OBJECTIVES[name]
    assert objective.name == name and objective.title and objective.sense in ("min", "max")
    assert objective.dimension in ("number", "seconds", "bytes", "share", "usd", "kwh", "kg")
    found = figures([2.0, 3.0])
    sign = 1.0 if objective.sense == "min" else -1.0
    assert (objective.cost(found) == sign * objective.value(found)).all()
    assert objective.value(found).shape == (2,)
    require([objective], found.question)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(OBJECTIVES)),
    st.floats(1e-3, 1e3),
    st.floats(1.0, 5.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 0.2),
    st.floats(0.0, 2.0),
    st.floats(1.0, 1.5),
)
def test_a_bound_of_the_step_bounds_the_objective(
    name: str, step: float, longer: float, busy: float, update: float, reached: float, fuller: float
) -> None:
    """The value at a lower bound of time and memory is never worse than at the exact ones, and the ends hold it."""
    objective = OBJECTIVES[name]
    work = {"compute_s": busy * step, "optimizer_s": update * step, "flops": reached * busy * step * 16 * 312e12}
    low = figures(step, 2.0**35, **work)
    exact = figures(step * longer, 2.0**35 * (1.0 if name == "memory_headroom" else fuller), **work)
    assert objective.cost(low)[0] <= objective.cost(exact)[0] * (1 + np.sign(objective.cost(exact)[0]) * 1e-12)
    ends = [float(end[0]) for end in objective.bounds(figures(step, **work))]
    value = float(objective.value(figures(step * longer, **work))[0])
    assert ends[0] * (1 - 1e-12) <= value <= ends[1] * (1 + 1e-12)


def test_what_a_question_lacks_is_named_once() -> None:
    bare = replace(cluster(), usd_per_gpu_hour=None)
    question = Question(MODEL, bare, Workload(1024, 32))
    with pytest.raises(InputError) as error:
        require([OBJECTIVES["train_usd"], OBJECTIVES["train_usd"], OBJECTIVES["train_time"]], question)
    texts = [str(fault) for fault in error.value.faults]
    assert len(texts) == 3
    assert "no price" in texts[1] and "--tokens 15T" in texts[0]


def test_a_device_without_a_power_has_no_energy() -> None:
    bare = cluster()
    pool = replace(bare.pools[0], device=replace(bare.device, tdp_w=0.0))
    with pytest.raises(InputError, match="board power"):
        require([OBJECTIVES["train_co2_kg"]], Question(MODEL, replace(bare, pools=(pool,)), Workload(1024, 32), TARGET))


def test_an_unknown_objective_names_those_that_resemble_it() -> None:
    with pytest.raises(InputError, match="step_time"):
        get("steptime")
    with pytest.raises(InputError) as error:
        Target(tokens=-1.0, kg_per_kwh=float("nan"), pue=0.5)
    assert len(error.value.faults) == 3


def test_the_steps_of_a_run_are_whole() -> None:
    question = Question(MODEL, cluster(), Workload(1024, 32), Target(tokens=32768.0 * 3))
    assert question.steps == 3.0
    assert replace(question, target=Target(tokens=32768.0 * 3 + 1)).steps == 4.0


def test_goodput_asks_for_layouts() -> None:
    with pytest.raises(InputError, match="without layouts"):
        OBJECTIVES["goodput"].value(replace(figures(2.0), find_layouts=None))
