"""Every layout on two real processes against one: loss, gradients, the next loss; and what is measured."""

from __future__ import annotations

from typing import Any

import pytest

from executor.check import TOLERANCE
from planner.results import PHASES
from planner.results_io import load_measurement
from tests.executor.conftest import TWO_RANKS


@pytest.mark.parametrize("name", TWO_RANKS)
def test_equals_a_single_process(two_ranks: dict[str, Any], name: str) -> None:
    found = two_ranks[name].correctness
    assert found["passed"]
    assert found["tolerance"] == TOLERANCE["fp32"] == 1e-4
    # fp32 sums in another order: some 1e-6. A gradient that is missing one reduction is off by 0.5.
    assert found["loss_rel_err"] < 1e-5
    assert found["grad_rel_err"] < 1e-4
    assert found["next_loss_rel_err"] < 1e-4
    assert found["actions_executed"]


@pytest.mark.parametrize("name", TWO_RANKS)
def test_measured_json_is_whole(two_ranks: dict[str, Any], name: str) -> None:
    measured = two_ranks[name]
    stored = load_measurement(two_ranks["out"] / name / "measured.json")
    assert stored == measured
    assert measured.plan_hash == two_ranks["plans"][name].digest()
    assert len(measured.step_s) == len(measured.losses) >= 2
    assert len(measured.phases) == len(measured.peak_bytes) == 2
    assert {r.rank for r in measured.records} == {e.rank for e in measured.timeline} == {0, 1}
    assert measured.environment["backend"] == "gloo"
    for phases in measured.phases:
        assert set(phases) == set(PHASES)
        # By construction every moment belongs to one phase.
        assert sum(phases.values()) == pytest.approx(measured.median_step_s, rel=1e-6)
        assert phases["forward"] > 0 and phases["backward"] > 0 and phases["optimizer"] > 0


def records(measured: Any, op: str, group: str) -> list[tuple[int, int]]:
    return sorted((r.nbytes, r.count) for r in measured.records if r.rank == 0 and r.op == op and r.group == group)


def test_tensor_parallel_counts_are_megatrons(two_ranks: dict[str, Any]) -> None:
    # One micro-batch of 8 x 32 tokens, hidden 64, fp32: 8*32*64*4 = 65536 bytes. Each of 4 layers
    # reduces 2 outputs forward and 2 input gradients backward (not 5: q, k, v share one), the
    # embedding one output, the head one input gradient: 4*4 + 2 = 18.
    assert (65536, 18) in records(two_ranks["tp"], "all_reduce", "tp")


def test_sequence_parallel_replaces_all_reduces(two_ranks: dict[str, Any]) -> None:
    # Every all-reduce of 65536 bytes becomes a reduce-scatter and, on the way back, an all-gather.
    found = two_ranks["tp-sp-gpt2"]
    assert records(found, "reduce_scatter", "tp") == [(65536, 18)]
    assert records(found, "all_gather", "tp") == [(65536, 18)]


def test_data_parallel_bytes(two_ranks: dict[str, Any]) -> None:
    # Parameters of the llama: embedding and head 2*256*64; a layer 64*(64+32+32+64) + 3*64*128 + 2*64; norm 64.
    parameters = 2 * 256 * 64 + 4 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128 + 2 * 64) + 64
    reduced = records(two_ranks["ddp"], "all_reduce", "dp")
    assert sum(nbytes * count for nbytes, count in reduced) == 4 * parameters
    # ZeRO-1 sends every parameter once more, from the rank that updated it.
    sent = records(two_ranks["zero1"], "broadcast", "dp")
    assert sum(nbytes * count for nbytes, count in sent) == 4 * parameters
    # ZeRO-3 gathers for the forward and again for the backward of the one micro-batch (but for the
    # root's embedding, norm and head, which stay), and reduces once.
    layers = parameters - 2 * 256 * 64 - 64
    gathered = records(two_ranks["fsdp"], "all_gather", "dp")
    assert sum(nbytes * count for nbytes, count in gathered) >= 4 * (parameters + layers)
    kept = records(two_ranks["zero2"], "all_gather", "dp")
    assert sum(nbytes * count for nbytes, count in kept) == 4 * parameters
    for name in ("zero2", "fsdp"):
        scattered = records(two_ranks[name], "reduce_scatter", "dp")
        assert sum(nbytes * count for nbytes, count in scattered) == 4 * parameters


def test_pipeline_sends(two_ranks: dict[str, Any]) -> None:
    # 4 micro-batches of 2 x 32 x 64 fp32 = 16384 bytes: rank 0 sends 4 activations forward; with
    # two virtual stages a rank (0, 2) it sends 8 forward and the gradients of stage 2, 4, backward.
    assert records(two_ranks["1f1b"], "send_recv", "pp")[-1][0] == 16384
    # In a V rank 0 holds stages 0 and 3: 4 activations to stage 1 and 4 gradients to stage 2.
    expected = {"gpipe": 4, "1f1b": 4, "interleaved": 12, "zb-h1": 4, "interleaved-zb": 12, "zb-v-gpt2": 8,
                "dualpipe-v": 8}  # fmt: skip
    assert {n: sum(c for b, c in records(two_ranks[n], "send_recv", "pp")) for n in expected} == expected


def test_the_plans_actions_are_the_ones_executed(two_ranks: dict[str, Any]) -> None:
    for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "interleaved-zb", "zb-v-gpt2", "dualpipe-v", "ends-alone"):
        plan, measured = two_ranks["plans"][name], two_ranks[name]
        for rank in (0, 1):
            bars = [e for e in measured.timeline if e.rank == rank and e.kind in ("F", "B", "I", "W")]
            order = [e.name for e in sorted(bars, key=lambda e: e.start_s)]
            assert order == list(plan.actions[rank])


def test_recomputation_is_its_own_phase(two_ranks: dict[str, Any]) -> None:
    assert all(p["recompute"] > 0 for p in two_ranks["ddp-gpt2-full"].phases)
    assert all(p["recompute"] > 0 for p in two_ranks["tp-sp-gpt2"].phases)
    assert all(p["recompute"] == 0 for p in two_ranks["ddp"].phases)


def test_peak_memory_by_layout(two_ranks: dict[str, Any]) -> None:
    # Weights, gradients and two moments are 16 bytes a parameter; nothing may report less.
    parameters = 2 * 256 * 64 + 4 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128 + 2 * 64) + 64
    assert min(two_ranks["ddp"].peak_bytes) > 16 * parameters
    # ZeRO-1 halves the 8 bytes of moments; ZeRO-3 halves (nearly) all 16.
    assert max(two_ranks["zero1"].peak_bytes) < max(two_ranks["zero2"].peak_bytes) * 3
    assert min(two_ranks["fsdp"].peak_bytes) < min(two_ranks["zero1"].peak_bytes)
    # A later stage of 1F1B holds fewer micro-batches than GPipe's.
    assert two_ranks["1f1b"].peak_bytes[1] < two_ranks["gpipe"].peak_bytes[1]
