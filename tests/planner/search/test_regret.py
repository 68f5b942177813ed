"""The search against exhaustive timing of every layout, and its screen against exact time and memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from hwmodels.cluster import load
from planner.evaluate import exact_seconds
from planner.layout import RECOMPUTE
from planner.model import load as load_model
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.search import Space, search
from planner.search.examine import kernel_seconds
from planner.search.least import peak_bytes
from planner.search.space import variants
from planner.search.variant import variants_of
from planner.step.assemble import assemble_all, dag_groups


def dense(layers: int = 8) -> ModelSpec:
    return from_shape(name="small", layers=layers, hidden=2048, heads=16, ffn_hidden=8192, vocab=32768, seq_len=2048)


def experts() -> ModelSpec:
    return load_model("mixtral-8x7b")[0]


@dataclass(frozen=True)
class Case:
    """A space that is small enough to time every layout of it."""

    model: ModelSpec
    cluster: str
    workload: Workload
    ranges: dict[str, tuple[object, ...]] = field(default_factory=dict)


CASES = {
    "dense": Case(dense(), "dgx-a100:2", Workload(2048, 64), {"mbs": (1, 2, 4), "fsdp": (0, 4)}),
    "uneven": Case(dense(13), "dgx-a100:2", Workload(2048, 32), {"mbs": (1, 2), "tp": (1, 2), "vpp": (1, 2)}),
    "context": Case(dense(), "dgx-h100:2", Workload(4096, 32, framework="fsdp2"), {
        "cp": (1, 2, 4), "mbs": (1, 2), "tp": (1, 2), "reshard": ("default", "never"), "fsdp": (0, 8),
    }),
    "experts": Case(experts(), "dgx-h100:4", Workload(4096, 64, framework="megatron"), {
        "mbs": (1, 2), "tp": (1, 2, 4), "cp": (1,), "fsdp": (0,), "vpp": (1, 2), "zero_stage": (0, 1), "ep": (1, 4, 8),
    }),
    "blocks": Case(dense(), "dgx-a100:2", Workload(2048, 64, framework="megatron"), {
        "mbs": (1, 2), "tp": (2,), "recompute": ("none", "full", "block"), "recompute_layers": (0, 1, 2), "cp": (1,),
        "fsdp": (0,), "offload_optimizer": (0, 50), "offload_activations": (0, 1), "vpp": (1, 2),
    }),
    "split": Case(dense(), "dgx-h100:1", Workload(2048, 32), {
        "schedule": ("1f1b", "zb-h1", "zb-v", "dualpipe", "interleaved-zb", "gpipe"), "mbs": (1, 2), "tp": (1, 2),
        "cp": (1,), "fsdp": (0,), "zero_stage": (0, 1),
    }),
    "precision": Case(dense(), "dgx-h100:1", Workload(2048, 32, framework="megatron"), {
        "precision": ("bf16", "fp8"), "switches": (("overlap_grad_reduce", ("true", "false")),), "mbs": (1, 2),
        "tp": (1, 2), "cp": (1,), "fsdp": (0,), "vpp": (1, 2), "recompute": ("none", "selective"),
    }),
    "deepspeed": Case(dense(), "dgx-a100:1", Workload(2048, 32, framework="deepspeed"), {
        "cp": (1, 2), "mbs": (1, 2, 4), "tp": (1, 2), "fsdp": (0, 2), "offload_optimizer": (0, 100),
        "offload_parameters": (0, 1),
    }),
}  # fmt: skip


def every(case: Case) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Screened seconds and bytes, exact seconds and bytes of every legal layout, one tuple a workload."""
    space, cluster = Space.of(case.ranges), load(case.cluster)
    found = []
    for _, _, variant in variants_of(space, case.model, cluster, variants(space, case.workload), ()):
        if variant is None:
            continue
        work, state = (np.concatenate(rows) for rows in zip(*variant.found.chunks(), strict=True))
        priced = variant.of(work, state)
        exact = np.zeros(len(work))
        for group in assemble_all(priced, list(dag_groups(priced, np.arange(len(work))))):
            exact[group.index] = exact_seconds(group, np.arange(len(group.index)))
        found.append((*variant.screened(work, state), exact, peak_bytes(priced)))
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_search_has_no_regret_and_its_screen_no_false_alarm(name: str) -> None:
    """Bounds of every layout below its exact time and memory; the ten best those of timing every layout that fits."""
    case = CASES[name]
    parts = every(case)
    for low, least, exact, peak in parts:
        assert (low <= exact).all()
        assert (least <= peak).all()
    low, least, exact, peak = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    # a limit that some keep and some do not, so that the memory has a part in the order
    cluster = load(case.cluster)
    limit = float(np.median(peak))
    headroom = max(1.0 - limit / cluster.device.memory_bytes, 0.0)
    fits = peak <= cluster.device.memory_bytes * (1.0 - headroom)
    assert fits.any()
    result = search(case.model, cluster, case.workload, Space.of(case.ranges), memory_headroom=headroom)
    best = np.sort(exact[fits])[: len(result.rows)]
    assert [row.step.step_s.mid for row in result.rows] == pytest.approx(best.tolist(), rel=1e-12)
    assert result.optimal
    assert result.screened == len(exact)
    assert result.considered == sum(result.dropped.values()) + result.priced


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_of_the_screen_are_those_of_every_layout(name: str) -> None:
    """Seconds of kernels by the screen: at most the exact ones, and the same where nothing of them is left open."""
    case = CASES[name]
    space, cluster = Space.of(case.ranges), load(case.cluster)
    for _, _, variant in variants_of(space, case.model, cluster, variants(space, case.workload), ()):
        if variant is None:
            continue
        work, state = (np.concatenate(rows) for rows in zip(*variant.found.chunks(), strict=True))
        priced = variant.of(work, state)
        exact = np.zeros(len(work))
        for group in assemble_all(priced, list(dag_groups(priced, np.arange(len(work))))):
            exact[group.index] = kernel_seconds(group)
        low = variant.screen.compute_s(work)
        assert (low <= exact).all()
        plain = variant.screen.work.sure[work] | (priced.layouts.recompute == RECOMPUTE.index("none"))
        assert low[plain] == pytest.approx(exact[plain], rel=1e-8)
