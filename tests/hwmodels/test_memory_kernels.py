"""The stream law, what memory-bound kernels move, and launches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog
from hwmodels.device import Coefficient, Device
from hwmodels.errors import InputError
from hwmodels.kernels import (
    epilogue_seconds,
    kernel_bytes,
    kernel_seconds,
    launch_seconds,
    memory_seconds,
    run_seconds,
)
from hwmodels.kernels.gemm import gemm_coefficient
from hwmodels.kernels.launch import launch_coefficient
from hwmodels.kernels.memory import MEMORY_DEFAULTS
from hwmodels.kernels.traffic import KINDS, Moved, kind, moved


def device(**numbers: float) -> Device:
    """1 TB/s, 10 MB of cache, 5 us an eager launch, and only the coefficients that are given."""
    found = {name.replace("__", "."): Coefficient(v, "test", 1, 0.1) for name, v in numbers.items()}
    return Device(
        "toy", "test", "gpu", "toy", {"bf16": 100e12}, 8e9, 1e12, 1e7, 100, 100.0, 5e-6, found, {"launch": "toy"}, "B"
    )


STREAM = {"memory__efficiency": 0.8, "memory__launch": 2e-6, "memory__ramp_s": 1e-6}


def test_stream_by_hand() -> None:
    # 80 MB at 0.8 TB/s = 100 us, and 3 us of launch and ramp.
    assert float(memory_seconds(device(**STREAM), 80e6).mid) == pytest.approx(103e-6, rel=1e-12)
    assert float(memory_seconds(device(**STREAM), 0).mid) == 0.0


def test_cached_stream_by_hand() -> None:
    # 1 MB in a cache of 10 MB: (0.1)^8 of it misses: 1.25 us at 0.8 TB/s, a third of that where L2 is 3 times as fast.
    card = device(**STREAM, memory__cache_speed=3.0)
    assert float(memory_seconds(card, 1e6, resident=True).mid) == pytest.approx(3e-6 + 1.25e-6 / 3, rel=1e-6)
    # 10 MB: half of it hits: 12.5 us / (1 + 0.5 x 2).
    assert float(memory_seconds(card, 1e7, resident=True).mid) == pytest.approx(3e-6 + 12.5e-6 / 2, rel=1e-9)
    # 100 MB: nothing does, and without the word nothing is taken from the cache.
    assert float(memory_seconds(card, 1e8, resident=True).mid) == pytest.approx(128e-6, rel=1e-6)
    assert float(memory_seconds(card, 1e6).mid) == pytest.approx(4.25e-6, rel=1e-12)


def test_the_share_fitted_on_training_rows_is_kept() -> None:
    stored = MEMORY_DEFAULTS["efficiency"]
    assert (stored.value, stored.rows) == (0.65, 18)


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf")])
def test_bad_sizes_are_named(bad: float) -> None:
    with pytest.raises(InputError, match="nbytes is"):
        memory_seconds(device(), bad)
    with pytest.raises(InputError, match="kernels is"):
        launch_seconds(device(), bad)
    with pytest.raises(InputError, match="busy_s is"):
        run_seconds(device(), 3, bad)


# --- traffic


def test_bytes_by_hand() -> None:
    # 8192 tokens x 4096: a fused RMS norm reads and writes 2 B each: 134,217,728 B; backward 3 passes.
    n = 8192 * 4096
    assert float(kernel_bytes("rmsnorm", n)) == 134_217_728
    assert float(kernel_bytes("rmsnorm", n, backward=True)) == 201_326_592
    assert float(kernel_bytes("rmsnorm", n, dtype="fp32")) == 268_435_456
    # SwiGLU of 14336: gate and up read, result written: 6 B an element; eager 5 passes.
    assert float(kernel_bytes("silu_mul", 8192 * 14336)) == 6 * 8192 * 14336
    assert float(kernel_bytes("silu_mul", 8192 * 14336, fused=False)) == 10 * 8192 * 14336
    # Adam on 1e9 parameters: gradient 2 B, weight and moments 3 x 8 B, copy 2 B: 28 GB.
    assert float(kernel_bytes("adamw", 1e9)) == 28e9
    # Quantising to fp8 by blocks of 128: 2 B in, 1 B and 4/128 B out.
    assert float(kernel_bytes("quantise_block", 128)) == 128 * 3 + 4
    # NVFP4: 2 B in, half a byte and 1/16 B out.
    assert float(kernel_bytes("quantise_fp4", 16)) == 16 * 2 + 8 + 1


def test_seconds_are_launches_and_bytes() -> None:
    card = device(**STREAM)
    # Eager SwiGLU: 2 kernels, 10 B an element at 0.8 TB/s.
    price = kernel_seconds(card, "silu_mul", 8e6, fused=False)
    assert float(price.mid) == pytest.approx(2 * 3e-6 + 80e6 / 0.8e12, rel=1e-12)
    # A calibrated operator's own share counts for it alone, forward and backward apart.
    own = device(**STREAM, memory__rmsnorm_backward__efficiency=0.4)
    slow = kernel_seconds(own, "rmsnorm", 8e6, backward=True)
    assert float(slow.mid) == pytest.approx(3e-6 + 48e6 / 0.4e12, rel=1e-12)
    assert float(kernel_seconds(own, "rmsnorm", 8e6).mid) == pytest.approx(3e-6 + 32e6 / 0.8e12, rel=1e-12)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_fusing_never_moves_more(name: str) -> None:
    one = kind(name)
    assert one.source and one.element
    for fused, apart in ((one.fused, one.unfused), (one.backward_fused, one.backward_unfused)):
        if fused is None or apart is None:
            assert fused is apart  # neither or both
            continue
        assert fused.words * 2 + fused.extra <= apart.words * 2 + apart.extra
        assert fused.kernels <= apart.kernels


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(KINDS)), st.floats(0, 1e10), st.booleans(), st.sampled_from(["bf16", "fp32"]))
def test_time_is_over_the_bandwidth_bound(name: str, elements: float, fused: bool, dtype: str) -> None:
    card = catalog.device("h100-sxm-80gb")
    nbytes = float(kernel_bytes(name, elements, dtype=dtype, fused=fused))
    seconds = float(kernel_seconds(card, name, elements, dtype=dtype, fused=fused).mid)
    assert seconds >= nbytes / card.memory_bandwidth
    assert (seconds == 0) == (elements == 0)
    assert float(kernel_seconds(card, name, elements * 2, dtype=dtype, fused=fused).mid) >= seconds


def test_unknown_kinds_are_named_with_near_ones() -> None:
    with pytest.raises(InputError, match="rmsnorm"):
        kernel_bytes("rms_norm", 1)
    with pytest.raises(InputError, match="adamw has no backward"):
        kernel_bytes("adamw", 1, backward=True)
    with pytest.raises(InputError, match="dtype 'bf17' is unknown"):
        kernel_bytes("add", 1, dtype="bf17")
    with pytest.raises(InputError, match="moves something"):
        Moved(0.0)
    assert moved("add").words == 3


def test_operators_that_training_names_are_kinds_that_move_the_same() -> None:
    from planner.frameworks import get
    from planner.layout import Layout, LayoutBatch
    from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec
    from planner.plan import Workload
    from planner.workload.lower import lower

    model = ModelSpec("toy", "llama", 512, 1000, (DecoderLayer(Attention(8, 2, 64), Mlp(1024)),) * 2)
    lowered = lower(model, Workload(256, 8, "bf16", "adamw", "megatron"), LayoutBatch.of(Layout()), get("megatron"))
    ops = [op for block in (*lowered.layers, lowered.head) for op in block.ops if op.kind == "memory"]
    named = {op.name: op for op in ops if op.impl}
    assert {op.impl.removesuffix("_backward") for op in named.values()} <= set(KINDS)
    # 256 tokens: a norm over 512, a SwiGLU of 1024 and a loss over 1000 words, fused.
    for name, kind_, elements in (
        ("final_norm", "rmsnorm", 256 * 512), ("mlp.activation", "silu_mul", 256 * 1024),
    ):  # fmt: skip
        assert float(named[name].dims["nbytes"]) == float(kernel_bytes(kind_, elements)), name
    back = named["final_norm.grad"]
    assert float(back.dims["nbytes"]) == float(kernel_bytes("rmsnorm", 256 * 512, backward=True))
    assert back.kernels == 2.0 and back.impl == "rmsnorm_backward"


# --- launches


def test_eager_launches_by_hand() -> None:
    card = device(launch__gap=1e-6)
    assert float(launch_seconds(card, 100).mid) == pytest.approx(500e-6)
    # 100 kernels of 2 us: the host needs 500 us, the device 300: 500 and the last kernel's 3.
    assert float(run_seconds(card, 100, 200e-6).mid) == pytest.approx(503e-6, rel=1e-12)
    # Of 50 us: the device needs 5.1 ms, and waits 5 us for the first.
    assert float(run_seconds(card, 100, 5e-3).mid) == pytest.approx(5.105e-3, rel=1e-12)


def test_graphs_by_hand() -> None:
    card = device(launch__graph=8e-6, launch__node=1e-6)
    assert float(launch_seconds(card, 100, mode="graph").mid) == pytest.approx(8e-6)
    assert float(launch_seconds(card, 100, mode="graph", graphs=2).mid) == pytest.approx(16e-6)
    assert float(run_seconds(card, 100, 200e-6, mode="graph").mid) == pytest.approx(308e-6, rel=1e-12)
    with pytest.raises(InputError, match="launch mode is 'magic'"):
        launch_seconds(card, 1, mode="magic")
    with pytest.raises(InputError, match="launch cost 'rocket' is unknown"):
        launch_coefficient(card, "rocket")


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 5000), st.floats(0, 1.0), st.sampled_from(["eager", "graph"]))
def test_runs_are_never_shorter_than_their_kernels(kernels: int, busy: float, mode: str) -> None:
    card = catalog.device("h100-sxm-80gb")
    price = run_seconds(card, kernels, busy, mode=mode)
    assert float(price.mid) >= busy * (kernels > 0)
    assert (float(price.mid) == 0) == (kernels == 0)
    assert float(run_seconds(card, kernels + 1, busy, mode=mode).mid) > 0
    assert price.spread.shape == () and np.isfinite(price.spread)


def test_a_launch_has_a_source() -> None:
    for name in ("eager", "graph", "node", "gap"):
        found = launch_coefficient(catalog.device("h100-sxm-80gb"), name)
        assert found.source and found.value > 0


def test_an_epilogue_is_exposed_where_accumulators_fill_the_registers() -> None:
    # 1 GB at 0.8733 of 3.35 TB/s on Hopper; hidden behind other main loops on Ampere and Blackwell
    hopper = catalog.device("h100-sxm-80gb")
    share = gemm_coefficient(hopper, "bf16", "memory_efficiency").value
    assert float(epilogue_seconds(hopper, 1e9).mid) == pytest.approx(1e9 / (3.35e12 * share))
    for name in ("a100-sxm-80gb", "b200-sxm-180gb"):
        assert float(epilogue_seconds(catalog.device(name), 1e9).mid) == 0.0
    with pytest.raises(InputError):
        epilogue_seconds(hopper, -1.0)
