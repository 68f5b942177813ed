"""Order of prices: more work never takes less time, and a device that is at least as good is never slower."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog
from hwmodels.device import Coefficient, Device
from hwmodels.kernels import attention_seconds, gemm_seconds
from hwmodels.kernels.units import units_of

DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "l40s-48gb", "arc-pro-b60", "mi300x-192gb")
SLACK = 0.9
"""A tile of 64 rows or 128, and the seam of the laws at 128 queries, may save up to this share."""

sizes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 200), "q_len": st.integers(1, 300), "more_keys": st.integers(0, 20_000),
        "n_kv_heads": st.sampled_from([1, 2, 8, 16]), "group": st.sampled_from([1, 4, 8, 12]),
        "dim": st.sampled_from([64, 96, 128, 192, 256]),
    }
)  # fmt: skip


def seconds(card: Device, *, batch: float, q_len: float, more_keys: float, n_kv_heads: float, group: float,
            dim: float, dtype: str = "bf16") -> float:  # fmt: skip
    """Forward, causal; which kernel runs is not said."""
    heads = n_kv_heads * group
    return float(
        attention_seconds(
            card, batch=batch, q_len=q_len, kv_len=q_len + more_keys, n_heads=heads, n_kv_heads=n_kv_heads,
            qk_dim=dim, v_dim=dim, causal=True, direction="forward", dtype=dtype,
        ).mid
    )  # fmt: skip


@pytest.mark.parametrize("name", DEVICES)
@settings(deadline=None, max_examples=40)
@given(call=sizes, factor=st.sampled_from([1, 2]), dtype=st.sampled_from(["bf16", "fp8"]))
def test_attention_grows_with_every_size(name: str, call: dict[str, float], factor: int, dtype: str) -> None:
    card = catalog.device(name)
    dtype = dtype if dtype in card.peak_flops else "bf16"
    base = seconds(card, **call, dtype=dtype)
    # Of one more (factor 1), or of twice as many (factor 2).
    more = {key: call[key] * factor + (1 if factor == 1 else 0) for key in ("batch", "q_len", "more_keys")}
    for key, value in more.items():
        assert seconds(card, **{**call, key: value}, dtype=dtype) >= SLACK * base, key
    # As many keys, more of them queries.
    chunk = min(more["q_len"] - call["q_len"], call["more_keys"])
    longer = {**call, "q_len": call["q_len"] + chunk, "more_keys": call["more_keys"] - chunk}
    assert seconds(card, **longer, dtype=dtype) >= SLACK * base
    assert seconds(card, **{**call, "n_kv_heads": call["n_kv_heads"] * 2}, dtype=dtype) >= (1 - 1e-9) * base
    # A library may have another kernel for one query head a KV head, so heads that share keys are compared.
    if call["group"] > 1:
        assert seconds(card, **{**call, "group": call["group"] * 2}, dtype=dtype) >= (1 - 1e-9) * base


@pytest.mark.parametrize("name", DEVICES)
def test_a_key_or_a_query_more_at_the_seam_of_the_laws(name: str) -> None:
    call = {"batch": 87, "n_kv_heads": 32, "group": 12, "dim": 256}
    card = catalog.device(name)
    # 16 queries over 16, 17 and 24 keys: the decode kernel may serve all of them.
    times = [seconds(card, q_len=16, more_keys=more, **call) for more in (0, 1, 8)]
    assert times == sorted(times)
    # 1, 2, 4 ... queries over 300 keys.
    times = [seconds(card, q_len=q, more_keys=300 - q, **call) for q in (1, 2, 4, 8, 16, 17, 32, 64, 128)]
    assert all(b >= SLACK * a for a, b in pairwise(times))
    assert times[0] == min(times)


@settings(deadline=None, max_examples=60)
@given(
    call=sizes, name=st.sampled_from(["h100-sxm-80gb", "b200-sxm-180gb", "l40s-48gb"]),
    peak=st.floats(1, 3), bandwidth=st.floats(1, 3), cache=st.floats(1, 3), stated=st.booleans(),
    product=st.tuples(*[st.integers(1, 8192)] * 3),
)  # fmt: skip
def test_a_better_device_is_never_slower(
    call: dict[str, float], name: str, peak: float, bandwidth: float, cache: float, stated: bool,
    product: tuple[int, int, int],
) -> None:  # fmt: skip
    card = catalog.device(name)
    better = replace(
        card, peak_flops={key: value * peak for key, value in card.peak_flops.items()},
        memory_bandwidth=card.memory_bandwidth * bandwidth, l2_bytes=card.l2_bytes * cache if stated else 0,
        n_sm=card.n_sm if stated else 0,
    )  # fmt: skip
    # SMs are whole: their number may be off by half of one, and so may a wave of tiles.
    assert seconds(better, **call) <= 1.02 * seconds(card, **call)
    ours, theirs = (float(gemm_seconds(on, *product).mid) for on in (card, better))
    assert theirs <= 1.02 * ours


def test_blackwell_ultra_is_as_fast_as_blackwell() -> None:
    # B300's datasheet has B200's 16-bit peak and bandwidth and does not say how many SMs it has.
    old, new = catalog.device("b200-sxm-180gb"), catalog.device("b300-sxm-288gb")
    assert (new.n_sm, units_of(new, "attention"), units_of(new, "gemm")) == (0, 148, 148)
    for q_len, more_keys, batch in ((193, 0, 6), (1, 74, 81)):
        call = {"batch": batch, "q_len": q_len, "more_keys": more_keys, "n_kv_heads": 8, "group": 8, "dim": 256}
        assert seconds(new, **call) == pytest.approx(seconds(old, **call), rel=1e-3)


def test_units_come_from_the_datasheet_then_from_the_laws() -> None:
    card = replace(catalog.device("b300-sxm-288gb"), coefficients={})
    assert units_of(card, "gemm") == 0
    # 2,250 TFLOP/s over 10 TFLOP/s a unit.
    made = replace(card, coefficients={"gemm.unit_peak": Coefficient(10e12, "test")})
    assert units_of(made, "gemm") == 225
    assert units_of(made, "attention") == 0
    assert units_of(replace(made, n_sm=7), "gemm") == 7
    # Arc Pro B60 states none, and was fitted without: it does not take over those of the section beneath its own.
    assert units_of(catalog.device("arc-pro-b60"), "attention") == 0
