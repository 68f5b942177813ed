"""Context parallelism: traffic and kernels of every kind, by hand and from Transformer Engine's own rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import cluster as clusters
from planner.frameworks import get
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec
from planner.plan import Workload
from planner.price import price_block, price_op
from planner.workload.context import Shapes
from planner.workload.context_parallel import Split, exchange_ops, fused_core
from planner.workload.lower import lower
from planner.workload.op import Block, Op

# 16 query and 8 key-value heads of 64; sequences of 1024 tokens
MODEL = from_shape(name="m", layers=2, hidden=1024, heads=16, kv_heads=8, ffn_hidden=64, vocab=64, seq_len=1024)
WORK = Workload(1024, 8, framework="megatron")


def windowed(window: int) -> ModelSpec:
    layer = DecoderLayer(Attention(16, 8, 64, window=window), Mlp(64))
    return ModelSpec("w", "llama", 1024, 64, (layer,))


def split(model: ModelSpec = MODEL, **degrees: object) -> Split:
    s = Shapes.of(model, WORK, LayoutBatch.of([Layout(**degrees)]), get("megatron"))  # type: ignore[arg-type]
    attention = model.layers[0].softmax
    assert attention is not None
    return Split.of(attention, s)


def traffic(of: Split) -> dict[str, tuple[float, float]]:
    """Bytes and runs of every op that runs."""
    found = {}
    for op in exchange_ops(of):
        runs = float(np.max(op.count))
        if runs and op.kind == "collective":
            found[op.name.removeprefix("attention.")] = (float(np.max(op.dims["nbytes"])), runs)
    return found


def test_a_ring_sends_keys_and_values_cp_minus_one_times() -> None:
    # 1024/4 tokens of 8/2 key-value heads, 64 + 64 wide, 2 bytes
    kv = 2 * 256 * 4 * 128
    assert traffic(split(tp=2, cp=4)) == {
        "kv_send.first": (kv, 1),
        "kv_send": (kv, 2),
        "kv_send.again.first": (kv, 1),
        "kv_send.again": (2 * kv, 2),  # with the gradients of the step before
        "kv_grad_send.last": (kv, 1),
    }  # 3 kv forward, 3 kv and 3 gradients of the same size backward


def test_two_ranks_have_no_steps_between() -> None:
    kv = 2 * 512 * 8 * 128
    names = ("kv_send.first", "kv_send.again.first", "kv_grad_send.last")
    assert traffic(split(cp=2)) == dict.fromkeys(names, (kv, 1))


def test_ulysses_swaps_four_tensors_each_way() -> None:
    # 1024/4 tokens of 16 query and 8 key-value heads before the swap, 64 wide, 2 bytes; as large after it
    q, k = 2 * 256 * 16 * 64, 2 * 256 * 8 * 64
    found = traffic(split(cp=4, cp_kind="ulysses"))
    expected = {"q": q, "k": k, "v": k, "o": q}
    assert found == {
        f"{name}_all_to_all{suffix}": (nbytes, 1) for suffix in ("", ".grad") for name, nbytes in expected.items()
    }
    kernels = [op for op in fused_core(split(cp=4, cp_kind="ulysses")) if op.kind == "attention" and np.any(op.count)]
    assert [(float(k.dims["q_len"][0]), float(k.dims["n_heads"][0]), float(k.dims["n_kv_heads"][0]))
            for k in kernels] == [(1024.0, 4.0, 2.0)] * 2  # fmt: skip


def test_hierarchical_swaps_between_neighbours_and_sends_between_groups() -> None:
    lay = LayoutBatch.of([Layout(tp=2, cp=8, cp_kind="hierarchical", cp_ulysses=2)])
    assert [tuple(int(v[0]) for v in lay.axis(name)) for name in ("cp_inner", "cp_outer")] == [(2, 2), (4, 4)]
    found = traffic(split(tp=2, cp=8, cp_kind="hierarchical", cp_ulysses=2))
    # 128 tokens of 4 key-value heads become 256 tokens of 2
    assert found["k_all_to_all"] == (2 * 128 * 4 * 64, 1) and found["kv_send"] == (2 * 256 * 2 * 128, 2)


def test_all_gather_moves_the_whole_sequence_three_times() -> None:
    whole = 2 * 1024 * 8 * 128
    assert traffic(split(cp=4, cp_kind="all-gather")) == {
        "kv_all_gather": (whole, 1),
        "kv_all_gather.again": (whole, 1),
        "kv_grad_reduce_scatter": (whole, 1),
    }


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([(2, 0), (4, 0), (8, 0), (4, 2), (8, 2), (8, 4)]),
    st.sampled_from(["ring", "all-gather", "ulysses"]),
)
def test_every_kind_computes_the_same_pairs(degrees: tuple[int, int], kind: str) -> None:
    """Half of the square over cp, and the same FLOPs whatever travels."""
    cp, inner = degrees
    of = split(cp=cp, cp_kind="hierarchical" if inner else kind, cp_ulysses=inner)
    flops = sum(float(np.max(op.flops() * op.count)) for op in fused_core(of)
                if op.phase == "forward")  # fmt: skip
    assert flops == pytest.approx(2 * 16 * (1024**2 / 2) * 128 / cp)


def halo_tokens(cp: int, chunk: int, window: int, rank: int) -> int:
    """Tokens that a rank fetches, counted token by token: those in the window before each of its chunks."""
    owner = [c if c < cp else 2 * cp - 1 - c for c in range(2 * cp)]
    fetched = 0
    for mine in (rank, 2 * cp - 1 - rank):
        first = max(mine * chunk - window, 0)
        fetched += sum(owner[token // chunk] != rank for token in range(first, mine * chunk))
    return fetched


@pytest.mark.parametrize(("cp", "window"), [(4, 100), (4, 128), (4, 200), (8, 64)])
def test_a_window_fetches_what_transformer_engine_fetches(cp: int, window: int) -> None:
    of, chunk = split(windowed(window), cp=cp), 1024 // cp // 2
    most = max(halo_tokens(cp, chunk, window, rank) for rank in range(cp))
    assert traffic(of) == dict.fromkeys(("halo", "halo_grad"), (2 * most * 8 * 128, 1))
    # a kernel for each chunk over the window and itself
    lengths = [float(op.dims["kv_len"][0]) for op in fused_core(of) if op.kind == "attention" and np.any(op.count)]
    assert lengths == [chunk + window] * 4
    assert float(of.halo_bytes[0]) == 2 * most * 8 * 128  # kept for the backward


def test_a_wide_window_is_gathered() -> None:
    # 3 chunks of 128 are the most that a ring of 4 fetches (use_p2p_swa)
    assert "halo" in traffic(split(windowed(384), cp=4))
    assert set(traffic(split(windowed(385), cp=4))) == {
        "kv_all_gather", "kv_all_gather.again", "kv_grad_reduce_scatter"
    }  # fmt: skip


def test_what_is_saved_and_held() -> None:
    def layer(**degrees: object) -> Block:
        batch = LayoutBatch.of([Layout(cp=4, **degrees)])  # type: ignore[arg-type]
        return lower(MODEL, WORK, batch, get("megatron")).layers[0]

    q, kv = 2 * 256 * 16 * 64, 2 * 256 * 8 * 128
    ring, swapped = layer(), layer(cp_kind="ulysses")
    # what comes back from head shards is another tensor than the core's output
    assert float(swapped.saved_bytes[0] - ring.saved_bytes[0]) == q
    # three received pairs and four outputs; a copy each of q, k and v; four pairs
    assert [float(b.exchange_bytes[0]) for b in (ring, swapped, layer(cp_kind="all-gather"))] == [
        3 * kv + 4 * q, q + kv, 4 * kv
    ]  # fmt: skip


def test_each_send_lies_beside_one_step() -> None:
    """Two sends of twice a step's length beside two of three steps: the third step hides nothing."""
    cluster, lay = clusters.load("dgx-h100:2"), LayoutBatch.of([Layout(cp=16, cp_kind="ring")])
    count = np.asarray([3.0])
    step = Op("step", "gemm", "forward", {"m": 512.0, "n": 512.0, "k": 512.0}, count=count, impl="vidur")
    send = Op("hop", "collective", "forward", {"nbytes": np.asarray([5e7])}, group="cp_outer", collective="send_recv",
              count=np.asarray([2.0]), behind="step")  # fmt: skip
    seconds = [float(price_op(op, cluster, lay).mid[0]) for op in (step, send)]
    assert seconds[1] / 2 > seconds[0] / 3
    found = price_block(Block("b", (step, send)), cluster, lay, get("generic"), ()).forward
    least = seconds[1] - 2 * seconds[0] / 3
    assert least <= float(found.comm_s["cp"][0]) <= seconds[1]
    assert float(found.comm_s["cp"][0] + found.hidden_s["cp"][0]) == pytest.approx(seconds[1])
