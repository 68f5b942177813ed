"""Attention laws: hand calculation, bounds, monotony, fallbacks, and the errors on published rows."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog, laws
from hwmodels.device import TRANSFER_SPREAD, Coefficient, Device
from hwmodels.errors import InputError
from hwmodels.implementations import implementation
from hwmodels.kernels import attention_seconds
from hwmodels.kernels.attention import coefficients, visible_pairs

CARDS = ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "l40s-48gb", "mi300x-192gb", "arc-pro-b60")


def device(kind: str = "gpu", **numbers: float) -> Device:
    """100 TFLOP/s, 1 TB/s, 100 SMs, 1 MB of cache, and only the coefficients that are given."""
    found = {"attention." + name.replace("__", "."): Coefficient(v, "test", 1, 0.1) for name, v in numbers.items()}
    return Device(
        "toy", "test", kind, "toy", {"bf16": 100e12, "fp8": 200e12}, 8e9, 1e12, 1e6, 100, 100.0, 5e-6, found, {}, "B"
    )


# Only the tensor cores: no launch, no start of blocks, no tail, no traffic, no width.
BARE = {
    "forward__efficiency": 0.5, "forward__half_dim": 1e-9, "forward__block": 0.0, "forward__tail": 0.0,
    "forward__q_traffic": 0.0, "forward__kv_traffic": 0.0, "forward__launch": 5e-6, "backward__ratio": 0.5,
    "backward__half_dim": 1e-9, "backward__tail": 0.0, "forward__packed": 0.0,
}  # fmt: skip
STEP = {
    "decode__efficiency": 0.5, "decode__launch": 1e-5, "decode__block": 1e-12, "decode__key": 1e-15,
    "decode__waves": 0.0, "decode__cache_speed": 1.0, "decode__splits": 1.0, "decode__group": 0.0,
    "decode__rows": 0.0,
}  # fmt: skip


def call(card: Device, **changes: Any) -> float:
    sizes = {"batch": 2, "q_len": 4096, "kv_len": 4096, "n_heads": 16, "n_kv_heads": 4, "qk_dim": 128, "v_dim": 128,
             "causal": False, "direction": "forward"}  # fmt: skip
    return float(attention_seconds(card, **{**sizes, **changes}).mid)


# --- pairs


def test_visible_pairs_by_hand() -> None:
    # 4 queries, 4 keys: full 16, causal 1+2+3+4 = 10, window of 2: 1+2+2+2 = 7.
    assert float(visible_pairs(4, 4, False, None)) == 16
    assert float(visible_pairs(4, 4, True, None)) == 10
    assert float(visible_pairs(4, 4, True, 2)) == 7
    # The last 2 of 6 positions see 5 + 6 = 11 keys; with a window of 3: 3 + 3 = 6.
    assert float(visible_pairs(2, 6, True, None)) == 11
    assert float(visible_pairs(2, 6, True, 3)) == 6


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 40))
def test_visible_pairs_against_counting(q: int, more: int, window: int) -> None:
    kv = q + more
    counted = sum(1 for i in range(kv - q, kv) for j in range(kv) if i - window < j <= i)
    assert float(visible_pairs(q, kv, True, window)) == counted


# --- many queries


def test_forward_by_hand() -> None:
    # 4 x 128 x 4096^2 x 16 x 2 = 2.7488e11 flop at 50e12: 5.49756e-3 s.
    assert call(device(**BARE)) == pytest.approx(5e-6 + 5.497558e-3, rel=1e-6)


def test_backward_by_hand() -> None:
    # 2.5 times the work at half the rate of the forward: 5 times the compute.
    assert call(device(**BARE), direction="backward") == pytest.approx(5e-6 + 5 * 5.497558e-3, rel=1e-6)


def test_causal_computes_whole_tiles_of_the_diagonal() -> None:
    # 32 blocks of 128 queries; block i needs keys up to 128 (i + 1): 2 (i + 1) tiles of 64, 2 x 528 = 1056 in all
    # where the full square has 32 x 64 = 2048. Half a query of the mean pair is less than a tile: 1056.25 by area.
    full = call(device(**BARE)) - 5e-6
    assert call(device(**BARE), causal=True) - 5e-6 == pytest.approx(full * 1056.25 / 2048, rel=1e-6)


def test_width_is_the_time_of_the_exponentials() -> None:
    # half_dim 32: a pair costs 128 + 32 at head dim 128 (the efficiency is quoted there) and 64 + 32 at 64.
    wide, narrow = (call(device(**{**BARE, "forward__half_dim": 32.0}), qk_dim=d, v_dim=d) - 5e-6 for d in (128, 64))
    assert narrow / wide == pytest.approx(96 / 160, rel=1e-9)


def test_traffic_and_cache_by_hand() -> None:
    # Q and O: 2 B x 2 x 16 x 4096 x 256 = 67.1 MB, K and V a quarter. 2 passes and 4 passes: 201.3 MB at 1 TB/s,
    # all of it beyond a cache of 1 MB.
    heavy = device(**{**BARE, "forward__q_traffic": 2.0, "forward__kv_traffic": 4.0})
    assert call(heavy) - call(device(**BARE)) == pytest.approx(201.326592e-6, rel=1e-6)
    # A cache of 10 GB serves it twice as fast.
    roomy = replace(heavy, l2_bytes=1e10)
    assert call(roomy) - call(device(**BARE)) == pytest.approx(201.326592e-6 / 2, rel=1e-5)


def test_longest_block_and_start_by_hand() -> None:
    # One block: 1 x 64 tiles of 4 x 128 x 64 x 128 flop = 4.194e6 at 0.5e12 an SM = 8.3886e-6 s each.
    # Mean load over 100 SMs 5.3687e-6 s; half of the longest block 64 x 8.3886e-6 / 2 = 2.68435e-4 s; start 1 us / 100.
    one = device(**{**BARE, "forward__tail": 0.5, "forward__block": 1e-6})
    seconds = call(one, batch=1, q_len=128, n_heads=1, n_kv_heads=1)
    assert seconds == pytest.approx(5e-6 + 5.36870912e-6 + 2.68435456e-4 + 1e-8, rel=1e-6)


def test_packed_heads_share_a_tile() -> None:
    # 16 queries of 16 heads on 4 KV heads: apart 16 tiles of 16 rows, packed 4 tiles of 64 rows: the same rows.
    # (A cache that holds everything: otherwise reading K and V is the bound.)
    apart, packed = (replace(device(**{**BARE, "forward__packed": p}), l2_bytes=1e12) for p in (0.0, 1.0))
    assert call(packed, q_len=16) == pytest.approx(call(apart, q_len=16), rel=1e-9)
    # One query: 16 tiles of 16 rows (15 of them idle) against 4 tiles of 16.
    kwargs = {"q_len": 1, "phase": "prefill"}
    assert call(packed, **kwargs) - 5e-6 == pytest.approx((call(apart, **kwargs) - 5e-6) / 4, rel=1e-9)


def test_power_limit_slows_long_kernels_only() -> None:
    limited = device(**{**BARE, "forward__sustained": 0.5})
    # 5.5 ms is half of 10.5 ms: (0.524)^8 = 0.0057 of the loss; 80 times as long: all of it.
    assert call(limited) == pytest.approx(call(device(**BARE)), rel=0.01)
    assert call(limited, batch=160) == pytest.approx(2 * call(device(**BARE), batch=160), rel=0.01)


def test_chunk_of_a_prefill_and_window() -> None:
    whole = call(device(**BARE), causal=True)
    parts = sum(call(device(**BARE), causal=True, q_len=1024, kv_len=kv) for kv in (1024, 2048, 3072, 4096))
    assert parts - 4 * 5e-6 == pytest.approx(whole - 5e-6, rel=1e-3)
    # A window of 1024 over 4096 queries: 4096 x 1024 - 1024 x 1023 / 2 = 3.67e6 pairs, against 8.39e6: and its two
    # edges cost half a tile of 128 queries each.
    seen, causal = 4096 * 1024 - 1024 * 1023 / 2, 4096 * 4097 / 2
    windowed = call(device(**BARE), causal=True, window=1024) - 5e-6
    assert windowed / (whole - 5e-6) == pytest.approx((seen + 4096 * 128) / (causal + 4096 * 64), rel=1e-6)


# --- a decode step


def test_decode_reads_the_cache_by_hand() -> None:
    # 32 x 8 KV heads x 8192 keys x 256 x 2 B = 1.073742e9 B and Q and O of 64 heads 1.048576e6 B, at 0.5 TB/s.
    step = {"batch": 32, "q_len": 1, "kv_len": 8192, "n_heads": 64, "n_kv_heads": 8, "causal": True}
    assert call(device(**STEP), **step) == pytest.approx(1e-5 + 1.074790e9 / 0.5e12, rel=1e-5)
    # An fp8 cache is half of that; Q and O stay in 16 bits.
    halved = call(device(**STEP), **step, kv_dtype="fp8")
    assert halved == pytest.approx(1e-5 + (0.536871e9 + 1.048576e6) / 0.5e12, rel=1e-5)
    # Absorbed latent attention: one KV head of 576 whose first 512 are the values: read once.
    latent = {**step, "n_kv_heads": 1, "qk_dim": 576, "v_dim": 512, "shared_kv": True}
    read = 32 * 8192 * 576 * 2 + 32 * 64 * (576 + 512) * 2
    assert call(device(**STEP), **latent) == pytest.approx(1e-5 + read / 0.5e12, rel=1e-5)
    # A window of 1024 keys hides seven eighths of the cache.
    short = call(device(**STEP), **step, window=1024)
    assert short == pytest.approx(1e-5 + (1.073742e9 / 8 + 1.048576e6) / 0.5e12, rel=1e-5)


def test_decode_starts_of_blocks_by_hand() -> None:
    # 2048 x 64 blocks of 2 us of an SM over 100 SMs = 2.62144e-3 s, where the read takes a hundredth of that.
    step = {"batch": 2048, "q_len": 1, "kv_len": 2, "n_heads": 64, "n_kv_heads": 64, "causal": True}
    blocky = {**STEP, "decode__block": 2e-6, "decode__single__block": 1.0}
    assert call(device(**blocky), **step) == pytest.approx(1e-5 + 2.62144e-3, rel=2e-3)
    # Head dim 256 doubles the cost of a block where block_dim is 2.
    assert call(device(**{**blocky, "decode__block_dim": 2.0}), **step, qk_dim=256, v_dim=256) == pytest.approx(
        1e-5 + 2 * 2.62144e-3, rel=2e-3
    )


def test_decode_chain_of_one_sequence_by_hand() -> None:
    # 131072 keys of 50 ns on 8 parts: 8.192e-4 s; the read of 67 MB at 0.5 TB/s takes 1.34e-4 s (0.07% in the sum).
    chained = {**STEP, "decode__key": 5e-8, "decode__splits": 8.0}
    step = {"batch": 1, "q_len": 1, "kv_len": 131072, "n_heads": 2, "n_kv_heads": 1, "causal": True}
    assert call(device(**chained), **step) == pytest.approx(1e-5 + 8.192e-4, rel=1e-3)


def test_groups_too_large_to_share_read_apart() -> None:
    apart = {**STEP, "decode__block": 2e-5, "decode__grouped_to": 32.0}
    step = {"batch": 1000, "q_len": 1, "kv_len": 2, "n_kv_heads": 1, "causal": True}
    # 32 heads share a block: 1000 blocks of 20 us on 100 SMs = 200 us; 64 heads: 64000 blocks = 12.8 ms.
    assert call(device(**apart), **step, n_heads=32) == pytest.approx(1e-5 + 200e-6, rel=0.01)
    assert call(device(**apart), **step, n_heads=64) == pytest.approx(1e-5 + 12.8e-3, rel=0.01)


def test_a_few_queries_take_the_faster_kernel() -> None:
    card = catalog.device("h100-sxm-80gb")
    few = {"batch": 8, "q_len": 4, "kv_len": 16384, "causal": True}
    auto = call(card, **few)
    faster = min(call(card, **few, phase="prefill"), call(card, **few, phase="decode"))
    # No less than the step of one query: the prefill law would undercut it.
    assert auto == max(faster, call(card, **{**few, "q_len": 1}, phase="decode"))


# --- invariants on the catalog


SIZES = st.integers(1, 20000)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(CARDS), st.integers(1, 64), SIZES, st.integers(0, 20000), st.sampled_from([1, 4, 8]),
    st.sampled_from([1, 2, 8]), st.sampled_from([64, 96, 128, 192, 256]), st.booleans(), st.booleans(),
    st.sampled_from(["forward", "backward"]),
)  # fmt: skip
def test_never_under_the_datasheet(
    name: str, batch: int, q: int, more: int, kv_heads: int, group: int, dim: int, causal: bool, step: bool, way: str
) -> None:
    card, q = catalog.device(name), 1 if step else q
    seconds = attention_seconds(
        card, batch=batch, q_len=q, kv_len=q + more, n_heads=kv_heads * group, n_kv_heads=kv_heads, qk_dim=dim,
        v_dim=dim, causal=causal, direction=way,
    )  # fmt: skip
    flop = 4.0 * dim * float(visible_pairs(q, q + more, causal, None)) * batch * kv_heads * group
    assert float(seconds.mid) >= flop * (2.5 if way == "backward" else 1.0) / card.peak("bf16")
    read = 2.0 * batch * kv_heads * (q + more) * 2 * dim
    if read > 2 * 128 * 2**20:  # beyond every cache
        assert float(seconds.mid) >= 0.99 * read / card.memory_bandwidth
    assert np.isfinite(seconds.spread).all() and float(seconds.spread) > 0


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(CARDS), st.integers(1, 200), st.integers(1, 30000), st.integers(1, 2000))
def test_decode_grows_with_batch_and_keys(name: str, batch: int, keys: int, more: int) -> None:
    step = {"q_len": 1, "n_heads": 32, "n_kv_heads": 8, "causal": True}
    one = call(catalog.device(name), batch=batch, kv_len=keys, **step)
    assert call(catalog.device(name), batch=batch, kv_len=keys + more, **step) >= one * (1 - 1e-9)
    # A wave that fills up costs nothing, so a larger batch is never cheaper by more than what waves cost.
    assert call(catalog.device(name), batch=2 * batch, kv_len=keys, **step) >= one * (1 - 1e-9)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(CARDS), st.integers(1, 50), st.integers(17, 20000))
def test_prefill_grows_with_batch_and_length(name: str, batch: int, length: int) -> None:
    card = catalog.device(name)
    one = call(card, batch=batch, q_len=length, kv_len=length, causal=True)
    assert call(card, batch=batch + 1, q_len=length, kv_len=length, causal=True) >= one * (1 - 1e-9)
    assert call(card, batch=batch, q_len=2 * length, kv_len=2 * length, causal=True) >= one * (1 - 1e-9)
    assert call(card, batch=batch, q_len=length, kv_len=length + 500, causal=True) >= one * (1 - 1e-9)


def test_nothing_takes_no_time_and_shapes_broadcast() -> None:
    card = catalog.device("h100-sxm-80gb")
    for nothing in ("batch", "q_len", "kv_len", "n_heads"):
        assert call(card, **{nothing: 0}) == 0.0
    price = attention_seconds(
        card, batch=np.array([[1], [2]]), q_len=[1, 512, 2048], kv_len=4096, n_heads=32, n_kv_heads=8, qk_dim=128,
        v_dim=128, causal=True, direction="forward",
    )  # fmt: skip
    assert price.mid.shape == (2, 3) and (price.mid > 0).all() and price.spread.shape == (2, 3)
    single = call(card, batch=2, q_len=512, kv_len=4096, n_heads=32, n_kv_heads=8, causal=True)
    assert price.mid[1, 1] == single


def test_slices_do_not_show() -> None:
    card = catalog.device("h100-sxm-80gb")
    lengths = np.arange(1, 20001)
    sizes = {"batch": 1, "n_heads": 8, "n_kv_heads": 8, "qk_dim": 128, "v_dim": 128, "causal": True}
    whole = attention_seconds(card, **sizes, q_len=lengths, kv_len=lengths, direction="forward").mid
    for at in (0, 15, 16, 8191, 8192, 19999):
        one = attention_seconds(card, **sizes, q_len=at + 1, kv_len=at + 1, direction="forward").mid
        assert float(one) == whole[at]


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf")])
def test_bad_sizes_are_named(bad: float) -> None:
    with pytest.raises(InputError, match="batch is"):
        call(catalog.device("h100-sxm-80gb"), batch=bad)


def test_bad_words_are_named() -> None:
    card = catalog.device("a100-sxm-80gb")
    with pytest.raises(InputError, match=r"direction is 'sideways'.*\n?.*phase is 'lunch'"):
        call(card, direction="sideways", phase="lunch")
    with pytest.raises(InputError, match="no fp8 peak"):
        call(card, dtype="fp8")


def test_a_million_shapes_in_one_call() -> None:
    card = catalog.device("h100-sxm-80gb")
    q = np.random.default_rng(0).integers(17, 8192, 1_000_000)
    sizes = {"batch": 4, "n_heads": 32, "n_kv_heads": 8, "qk_dim": 128, "v_dim": 128, "causal": True}
    attention_seconds(card, **sizes, q_len=q[:1000], kv_len=q[:1000], direction="forward")
    start = time.perf_counter()
    mid = attention_seconds(card, **sizes, q_len=q, kv_len=q, direction="forward").mid
    # 2-3 million a second on one quiet core; a loop over elements would take a minute.
    assert time.perf_counter() - start < 10.0 and mid.shape == q.shape


# --- which coefficients


def test_modes() -> None:
    assert [coefficients.mode_of(*pair) for pair in (("bf16", "bf16"), ("fp16", "fp8"), ("fp8", "fp8"))] == [
        "", "kv8", "fp8",
    ]  # fmt: skip


def test_nearest_kernel() -> None:
    known = ["sglang-fa3", "sglang-triton", "trtllm-fmha", "vllm-fa", "vllm-triton"]
    assert coefficients.nearest("vllm-fa-0.20", known) == "vllm-fa"
    assert coefficients.nearest("vllm-fa3", known) == "sglang-fa3"
    assert coefficients.nearest("lmdeploy-triton", known) == "sglang-triton"
    assert coefficients.nearest("somebody-else", known) == ""
    assert coefficients.nearest("flash", known) == ""


def test_chain_of_blocks() -> None:
    card = device(
        forward__efficiency=0.6, forward__launch=1e-5, forward__tail=0.3, kv8__forward__efficiency=0.5,
        kv8__forward__launch=1e-5, **{"vllm-fa3__forward__efficiency": 0.7, "vllm-fa3__forward__launch": 2e-5,
        "vllm-fa3__fp8__forward__efficiency": 0.4, "vllm-fa3__fp8__forward__launch": 3e-5},
    )  # fmt: skip

    def efficiency(impl: str, mode: str) -> tuple[float, float]:
        found = coefficients.choose(card, impl, mode, "forward")
        assert found.values["tail"] == 0.3  # nobody moved it
        return found.values["efficiency"], found.spread

    assert efficiency("flash", "") == (0.6, 0.1)
    assert efficiency("vllm-fa3", "") == (0.7, 0.1)
    assert efficiency("vllm-fa3", "fp8") == (0.4, 0.1)
    # Its own kernel in 16 bits rather than another's on an fp8 cache, and less sure.
    assert efficiency("vllm-fa3", "kv8") == (0.7, pytest.approx(0.1 + 0.15))
    assert efficiency("flash", "kv8") == (0.5, 0.1)
    # Leaving frameworks out: 12-15% off where the library is the same, 14-46% where it is not.
    assert efficiency("sglang-fa3", "") == (0.7, pytest.approx(0.1 + 0.15))
    assert efficiency("nobody", "") == (0.6, pytest.approx(0.1 + 0.35))
    assert efficiency("", "") == (0.6, pytest.approx(0.1 + 0.35))


def test_transferred_device_is_less_sure() -> None:
    sizes = {"batch": 4, "q_len": 4096, "kv_len": 4096, "n_heads": 32, "n_kv_heads": 8, "qk_dim": 128, "v_dim": 128,
             "causal": True, "direction": "forward"}  # fmt: skip
    mine = attention_seconds(catalog.device("h100-sxm-80gb"), **sizes)  # type: ignore[arg-type]
    theirs = attention_seconds(catalog.device("h200-sxm-141gb"), **sizes)  # type: ignore[arg-type]
    assert float(theirs.spread) == pytest.approx(float(mine.spread) + TRANSFER_SPREAD)
    assert float(theirs.mid) == pytest.approx(float(mine.mid), rel=0.05)  # the same compute die
    # Decode follows the memory: 4.8 against 3.35 TB/s.
    step = {**sizes, "q_len": 1, "kv_len": 65536, "batch": 64}
    mine, theirs = (attention_seconds(catalog.device(n), **step) for n in ("h100-sxm-80gb", "h200-sxm-141gb"))  # type: ignore[arg-type]
    assert float(mine.mid / theirs.mid) == pytest.approx(4.8 / 3.35, rel=0.08)


@pytest.mark.parametrize("name", catalog.device_names())
@pytest.mark.parametrize("impl", ["flash", "vllm-fa3", "trtllm-fmha", "unheard-of"])
def test_every_device_has_a_price(name: str, impl: str) -> None:
    card = catalog.device(name)
    dtypes = [d for d in ("bf16", "fp16", "fp8") if d in card.peak_flops] or list(card.peak_flops)
    for dtype in dtypes:
        for q in (1, 64, 2048):
            assert call(card, q_len=q, kv_len=4096, causal=True, dtype=dtype, impl=impl) > 0


def test_every_section_is_whole() -> None:
    # The reference kernels of a generation carry every coefficient that a kernel's block may leave out.
    for name, section in laws.sections("attention").items():
        if name == "gb200-186gb":  # only what differs from its generation
            continue
        held = set(laws.named("attention", section, section.measured[0]))
        wanted = {f"attention.{c}" for c in coefficients.ATTENTION_DEFAULTS if c.startswith(("forward.", "decode."))}
        assert wanted <= held, name


def test_implementations_of_attention_rows() -> None:
    lead = "aiconfigurator-core 0.12.0 h100_sxm/attention/"
    cases = {
        ("trtllm/1.3.0rc20/context_attention_perf", "torch_flow"): "trtllm-fmha",
        ("sglang/0.5.14/generation_attention_perf", "fa3"): "sglang-fa3",
        ("vllm/0.24.0/context_attention_perf", "vllm_flash_attn_fa3"): "vllm-fa3",
        ("vllm/0.24.0/context_attention_perf", "vllm_flashinfer_trtllmprefill"): "vllm-trtllm",
        ("vllm/0.24.0/context_attention_perf", "vllm_flashinfer_fidecode"): "vllm-flashinfer",
        ("vllm/0.20.0/context_attention_perf", "vllm_flash_attn"): "vllm-fa-0.20",
        ("vllm/0.26.0/context_attention_perf", "vllm_flash_attn"): "vllm-fa",
    }
    for (source, kernel), key in cases.items():
        assert implementation(lead + source, "", kernel).key == key
    found = implementation("Dao-AILab/flash-attention assets/flash3_fp16_fwd.png", "", "FlashAttention-3")
    assert found.key == "flashattn-fa3"
