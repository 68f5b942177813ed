"""Expert dispatch and combine: what moves and how long it takes, against hand calculation and published figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog
from hwmodels import cluster as clusters
from hwmodels.collectives.expert import EVIDENCE_NODES, expert_bound, expert_seconds, expert_sms, terms_of
from hwmodels.collectives.expert_implementations import IMPLEMENTATIONS, find
from hwmodels.collectives.expert_law import exchange, law_seconds, message_bytes
from hwmodels.collectives.expert_traffic import LOW_LATENCY, LOW_LATENCY_RDMA, NORMAL, expected_ranks, traffic
from hwmodels.device import Device
from hwmodels.errors import InputError
from hwmodels.network import Fabric, Link
from hwmodels.topology import GroupShape

PRESETS = ("dgx-a100:32", "dgx-h100:32", "hgx-b200:32", "hgx-h800:32", "gb200-nvl72:2", "mi300x:32", "aws-p5:32")


def shape(ranks: Any, nodes: Any = 1) -> GroupShape:
    r, n = np.broadcast_arrays(np.asarray(ranks, np.int64), np.asarray(nodes, np.int64))
    return GroupShape(r, n, np.ones_like(r))


def price(preset: str = "dgx-h100:32", **changes: Any) -> Any:
    """Seconds of DeepSeek-V3's dispatch of 1024 tokens over 8 ranks, with changes."""
    where = clusters.load(preset)
    arguments = {
        "phase": "dispatch", "tokens_per_rank": 1024, "hidden": 7168, "topk": 8, "experts": 256, "shape": shape(8),
        "dtype": "fp8",
    } | changes  # fmt: skip
    return expert_seconds(where, where.device, **arguments)


def device() -> Device:
    """10 SMs and 1 TB/s."""
    return Device("toy", "none", "gpu", "toy", {"bf16": 1e15}, 1e11, 1e12, 0.0, 10, 0.0, 0.0)


def fabric() -> Fabric:
    """100 GB/s inside nodes of 4 and one port of 10 GB/s a GPU."""
    intra = Link("toy-wire", "nvlink", 100e9, 0.0, "test")
    return Fabric(4, 8, intra, Link("toy-port", "infiniband", 10e9, 0.0, "test"), 4, topology="rail-fat-tree")


# What moves


def test_distinct_ranks_by_hand() -> None:
    # One expert is on one rank, whatever the rest.
    assert expected_ranks(1, 256, 8) == pytest.approx(1.0)
    # 2 of 4 experts, 2 on each of 2 ranks: both on one rank in 2 of C(4,2) = 6 draws, so 2 x 4/6 + 1 x 2/6 = 5/3.
    assert expected_ranks(2, 4, 2) == pytest.approx(5 / 3)
    # As many ranks as experts: every expert is another rank.
    assert expected_ranks(6, 64, 64) == pytest.approx(6.0)
    # All experts drawn: every rank is hit.
    assert expected_ranks(8, 8, 4) == pytest.approx(4.0)


def test_distinct_ranks_of_a_limited_router_by_hand() -> None:
    # The one group allowed of 2 lies on one rank.
    assert expected_ranks(2, 8, 2, groups=2, group_limit=1) == pytest.approx(1.0)
    # 2 of 4 groups of 2 experts, 2 groups on each of 2 ranks. Both groups on one rank: 2 of 6 draws, D = 1. Else one
    # group a rank, 2 of 4 experts: both of one group in 2 of 6 draws, D = 2 x 4/6 + 1 x 2/6 = 5/3.
    # Together 1/3 + 2/3 x 5/3 = 13/9.
    assert expected_ranks(2, 8, 2, groups=4, group_limit=2) == pytest.approx(13 / 9)
    # 8 ranks, 2 to a group: the group is drawn with 1/2; then of 4 experts in play one rank holds 1, taken by the
    # 2 draws with 1 - 3/4 x 2/3 = 1/2. 8 x 1/2 x 1/2 = 2: the two experts drawn are two ranks.
    assert expected_ranks(2, 8, 8, groups=4, group_limit=2) == pytest.approx(2.0)


@pytest.mark.parametrize(("ranks", "groups", "limit"), [(8, 1, 1), (8, 8, 4), (4, 8, 4), (16, 8, 4), (32, 8, 3)])
def test_distinct_ranks_by_drawing_experts(ranks: int, groups: int, limit: int) -> None:
    draw = np.random.default_rng(1)
    seen = []
    for _ in range(4000):
        chosen = draw.choice(groups, limit, replace=False)
        pool = np.concatenate([np.arange(c * 256 // groups, (c + 1) * 256 // groups) for c in chosen])
        seen.append(len(set(draw.choice(pool, 8, replace=False) // (256 // ranks))))
    # The mean of 4000 draws of a spread of about 1 is known to 0.05 (three standard errors).
    assert expected_ranks(8, 256, ranks, groups=groups, group_limit=limit) == pytest.approx(np.mean(seen), abs=0.05)


@pytest.mark.parametrize(("nodes", "microseconds", "gigabytes_per_s"), [(2, 1196, 50), (3, 1633, 53), (4, 2022, 54)])
def test_bytes_between_nodes_are_those_that_uccl_published(
    nodes: int, microseconds: float, gigabytes_per_s: float
) -> None:
    # UCCL-EP on H200 with EFA: its own bandwidth times its own time is what it counts as sent (rounded to 1 GB/s),
    # with the own node: tokens x distinct nodes x (hidden in fp8 with scales).
    counted = 4096 * expected_ranks(8, 256, nodes) * 7168 * (1 + 4 / 128)
    assert counted == pytest.approx(microseconds * 1e-6 * gigabytes_per_s * 1e9, rel=0.02)


def test_bytes_inside_a_node_are_those_that_uccl_published() -> None:
    # Dispatch over 8 ranks: 500 us at 320 GB/s; combine: 973 us at 319 GB/s in bf16.
    copies = 4096 * expected_ranks(8, 256, 8)
    assert copies * 7168 * (1 + 4 / 128) == pytest.approx(500e-6 * 320e9, rel=0.01)
    assert copies * 7168 * 2 == pytest.approx(973e-6 * 319e9, rel=0.01)


def test_low_latency_bytes_are_those_that_deepep_published() -> None:
    # 128 tokens to 8 experts, EP 8: 77 us at 98 GB/s.
    message = message_bytes(LOW_LATENCY, "dispatch", 7168, 8, "fp8")
    assert 128 * 8 * message == pytest.approx(77e-6 * 98e9, rel=0.01)


def test_message_bytes_by_hand() -> None:
    # fp8: 7168 + 7168/128 scales of 4 bytes = 7392; 8 expert numbers of 8 bytes and 8 weights of 4 = 96.
    assert message_bytes(NORMAL, "dispatch", 7168, 8, "fp8") == pytest.approx(7392 + 96)
    assert message_bytes(NORMAL, "combine", 7168, 8, "bf16") == pytest.approx(14336 + 32)
    # nvfp4: half a byte and a scale byte for 16.
    assert message_bytes(LOW_LATENCY, "dispatch", 7168, 8, "fp4") == pytest.approx(3584 + 448 + 16)
    assert message_bytes(NORMAL, "prepare", 7168, 8, "bf16") == 0.0


def test_copies_by_route() -> None:
    def moved(algorithm: Any, skew: float = 1.0) -> tuple[float, ...]:
        one = [np.asarray(float(v)) for v in (100, 8, 64, 8, 4, skew)]
        found = traffic(algorithm, *one)
        return float(found.copies), float(found.wire), float(found.port)

    # 32 ranks in 4 nodes, 8 of 64 experts. Low latency: 800 copies, 7/32 to the node's other ranks, 24/32 outside.
    assert moved(LOW_LATENCY) == pytest.approx((800, 175, 600))
    assert moved(LOW_LATENCY_RDMA) == pytest.approx((800, 0, 800 * 31 / 32))
    # Normal: 32 (1 - C(62,8)/C(64,8)) = 32 (1 - 56 x 55 / (64 x 63)) = 7.5556 ranks; over the wire 7 in 8 of them.
    # 4 (1 - C(48,8)/C(64,8)) nodes, 3 in 4 of them over the network.
    nodes = 4 * (1 - np.prod([(48 - i) / (64 - i) for i in range(8)]))
    copies = 100 * 32 * (1 - 56 * 55 / (64 * 63))
    assert moved(NORMAL) == pytest.approx((copies, copies * 7 / 8, 100 * nodes * 0.75))
    assert moved(LOW_LATENCY, skew=1.5) == pytest.approx((1200, 262.5, 900))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"routing": "random"}, "routing"), ({"topk": 300}, "topk"), ({"groups": 8, "group_limit": 9}, "group_limit"),
        ({"groups": 256, "group_limit": 4}, "fewer experts"),
    ],
)  # fmt: skip
def test_impossible_routers_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        price(**arguments)


# How long it takes


def test_the_law_by_hand() -> None:
    # 4 ranks in one node, 1000 tokens of 1000 bf16 elements to 1 of 8 experts by NORMAL kernels on 2 SMs:
    # message 1000 x 2 + 12 = 2012 bytes, 1000 copies, 750 of them over 100 GB/s: 15.09 us of wire.
    x = exchange(
        fabric(), device(), NORMAL, phase="dispatch", tokens_per_rank=1000, hidden=1000, topk=1, experts=8,
        shape=shape(4), dtype="bf16", comm_sms=2,
    )  # fmt: skip
    assert float(x.wire) == pytest.approx(750 * 2012 / 100e9)
    terms = {"start": 1e-5, "fill": 1e-9, "token": 2e-8, "copy": 3e-8, "byte": 1e-11, "pace": 2.0}
    # latency 10 + 2.012 us; work 1000 x 2e-8 + 1000 x 3e-8 + 1000 x 2012 x 1e-11 = 70.12 us on 2 SMs, twice: 70.12 us
    assert float(law_seconds(x, terms)) == pytest.approx(12.012e-6 + 70.12e-6)
    # With a knee of 1, latency and work add as squares.
    assert float(law_seconds(x, terms | {"knee": 1.0})) == pytest.approx(np.hypot(12.012e-6, 70.12e-6))
    # 1000 copies in 4 x 2 / 2 = 4 queues of 250: the fullest is 1 + 3/sqrt(250) times as long.
    fullest = (1000 * 3e-8 + 1000 * 2012 * 1e-11) * (1 + 3 / np.sqrt(250))
    assert float(law_seconds(x, terms | {"uneven": 3.0})) == pytest.approx(12.012e-6 + 2e-5 + fullest)
    # Without work, 0.72 of the wire is what is ever reached.
    assert float(law_seconds(x, {"start": 0.0})) == pytest.approx(15.09e-6 / 0.72)


def test_the_law_between_nodes_by_hand() -> None:
    # 2 nodes of 4: every token to 1 of 8 experts; half of the tokens leave the node: 500 x 2012 bytes at 10 GB/s a GPU.
    x = exchange(
        fabric(), device(), NORMAL, phase="dispatch", tokens_per_rank=1000, hidden=1000, topk=1, experts=8,
        shape=shape(4, 2), dtype="bf16", comm_sms=2,
    )  # fmt: skip
    assert float(x.port) == pytest.approx(500 * 2012 / 10e9)
    terms = {"start": 1e-5, "net": 2e-6, "peer": 1e-6, "copy": 4e-8, "relay": 1.5, "port": 1.2, "serial": 0.5}
    # between 100.6 x 1.2 = 120.72 us, inside 1000 x 4e-8 / 2 x 1.5 = 30 us: 120.72 + 15; latency 10 + 2 + 1 us
    assert float(law_seconds(x, terms)) == pytest.approx(13e-6 + 135.72e-6)
    # 8 nodes are one doubling beyond 4: 7/8 of 1000 tokens leave, at (1 + crowd) times the cost.
    y = exchange(
        fabric(), device(), NORMAL, phase="dispatch", tokens_per_rank=1000, hidden=1000, topk=1, experts=32,
        shape=shape(4, 8), dtype="bf16",
    )  # fmt: skip
    assert float(law_seconds(y, {"crowd": 1.0})) == pytest.approx(2 * 875 * 2012 / 10e9)


def test_experts_share_sms() -> None:
    # 25 experts on 10 SMs: 3 to an SM, 9 SMs at work; each further expert on an SM waits 1 us.
    x = exchange(
        fabric(), device(), LOW_LATENCY, phase="dispatch", tokens_per_rank=1, hidden=1000, topk=1, experts=25,
        shape=shape(4), dtype="bf16",
    )  # fmt: skip
    assert (float(x.shared), float(x.sms)) == (3.0, 9.0)
    terms = {"start": 1e-5, "experts": 1e-6, "shared": 5e-6, "copy": 9e-6}
    assert float(law_seconds(x, terms)) == pytest.approx(1e-5 + 2e-6 + 5e-6 + 1e-6)


PUBLISHED = (
    # cluster, library, phase, dtype, tokens, topk, experts, ranks, nodes, SMs, seconds
    ("dgx-h100:32", "sglang-deepep-normal", "dispatch", "fp8", 4096, 8, 256, 8, 1, 20, 492.2e-6),
    ("dgx-h100:32", "sglang-deepep-normal", "combine", "bf16", 1024, 8, 256, 8, 1, 20, 307.2e-6),
    ("hgx-b200:32", "sglang-deepep-normal", "dispatch", "fp8", 8192, 8, 256, 8, 1, 20, 977.1e-6),
    ("dgx-h100:32", "sglang-deepep-low-latency", "combine", "bf16", 128, 8, 256, 8, 1, 0, 67.0e-6),
    ("dgx-h100:32", "sglang-deepep-low-latency", "dispatch", "fp8", 128, 8, 256, 8, 8, 0, 166.8e-6),
    ("hgx-h800:32", "deepep-low-latency", "combine", "bf16", 128, 8, 256, 8, 8, 0, 314e-6),
    ("dgx-h100:32", "sglang-deepep-normal", "dispatch", "fp8", 4096, 8, 256, 8, 4, 24, 1852.8e-6),
    ("gb200-nvl72:2", "sglang-deepep-low-latency", "dispatch", "fp8", 512, 8, 256, 4, 1, 0, 56.6e-6),
)


@pytest.mark.parametrize("row", PUBLISHED)
def test_published_times_are_met(row: tuple[Any, ...]) -> None:
    preset, impl, phase, dtype, tokens, topk, experts, ranks, nodes, sms, seconds = row
    hidden = 6144 if preset.startswith("gb200") else 7168
    found = price(
        preset, impl=impl, phase=phase, dtype=dtype, tokens_per_rank=tokens, topk=topk, experts=experts, hidden=hidden,
        shape=shape(ranks, nodes), comm_sms=sms,
    )  # fmt: skip
    assert float(found.mid) == pytest.approx(seconds, rel=0.15)
    assert 0.01 < float(found.spread) < 0.6


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_library_keeps_the_bounds_on_every_cluster(preset: str, impl: str) -> None:
    where = clusters.load(preset)
    tokens = 2.0 ** np.arange(0, 15)
    for phase in IMPLEMENTATIONS[impl].phases:
        for nodes in (1, 2):
            arguments: dict[str, Any] = {
                "phase": phase, "tokens_per_rank": tokens, "hidden": 7168, "topk": 8, "experts": 256,
                "shape": shape(8, nodes), "impl": impl,
            }  # fmt: skip
            found = expert_seconds(where, where.device, **arguments)
            least = expert_bound(where, where.device, **arguments)
            assert found.mid.shape == (15,)
            assert np.all(found.mid >= least)
            assert np.all(np.diff(found.mid) >= 0)
            assert np.all(found.spread > 0)


@settings(deadline=None, max_examples=60)
@given(
    preset=st.sampled_from(PRESETS), impl=st.sampled_from(sorted(IMPLEMENTATIONS)), tokens=st.integers(1, 20000),
    hidden=st.integers(64, 16384), topk=st.integers(1, 22), experts=st.sampled_from((64, 128, 160, 256, 512)),
    ranks=st.sampled_from((1, 2, 4, 8)), nodes=st.sampled_from((1, 2, 4)), skew=st.floats(1.0, 4.0),
)  # fmt: skip
def test_time_grows_with_everything(
    preset: str, impl: str, tokens: int, hidden: int, topk: int, experts: int, ranks: int, nodes: int, skew: float
) -> None:
    base: dict[str, Any] = {
        "impl": impl, "tokens_per_rank": tokens, "hidden": hidden, "topk": topk, "experts": experts,
        "shape": shape(ranks, 1 if preset.startswith("gb200") else nodes), "skew": skew,
    }  # fmt: skip
    here = float(price(preset, **base).mid)
    for more in ({"tokens_per_rank": tokens + 1}, {"hidden": hidden + 64}, {"topk": topk + 1}, {"skew": skew * 1.1}):
        # Products of ratios lose a few last digits.
        assert float(price(preset, **(base | more)).mid) >= here * (1 - 1e-9)
    if ranks == 1 and base["shape"].nodes == 1:
        assert here == 0.0


def test_nothing_takes_no_time() -> None:
    assert float(price(shape=shape(1)).mid) == 0.0
    assert float(price(tokens_per_rank=0).mid) == 0.0
    assert price(tokens_per_rank=np.zeros(0)).mid.shape == (0,)


def test_arrays_are_priced_in_one_call() -> None:
    tokens, topk = np.arange(1, 5)[:, None], np.asarray([1, 8, 22])
    together = price(tokens_per_rank=tokens, topk=topk, shape=shape([2, 4, 8]))
    assert together.mid.shape == (4, 3)
    one = price(tokens_per_rank=3, topk=8, shape=shape(4))
    assert together.mid[2, 1] == pytest.approx(float(one.mid), rel=1e-12)


def test_balanced_routing_hits_more_ranks() -> None:
    assert float(price(routing="balanced").mid) > float(price().mid)
    assert float(price(groups=8, group_limit=4).mid) < float(price().mid)


def test_more_sms_help_a_normal_dispatch_until_the_network_binds() -> None:
    found = price(impl="sglang-deepep-normal", comm_sms=np.asarray([4, 8, 16, 24, 64]), shape=shape(8, 2)).mid
    assert np.all(np.diff(found) <= 0)
    assert found[0] / found[1] > 1.5


def test_a_link_that_was_not_measured_is_less_sure() -> None:
    assert float(price("dgx-a100:32", impl="sglang-deepep-normal").spread) > float(
        price("dgx-h100:32", impl="sglang-deepep-normal").spread
    )
    # sglang's kernels were measured over up to 8 nodes; vLLM's inside one only, which counts as EVIDENCE_NODES.
    for impl, most in (("sglang-deepep-normal", 8), ("vllm-deepep-normal", EVIDENCE_NODES)):
        far, near, two = (float(price(impl=impl, shape=shape(8, n)).spread) for n in (most + 1, most, 2))
        assert far == pytest.approx(near + 0.2) and near == two


def test_a_library_without_rows_between_nodes_takes_assumed_numbers() -> None:
    where = clusters.load("dgx-h100:4").fabric
    values, spread, wide = terms_of(where, find("vllm-deepep-normal", "dispatch"), "dispatch")
    assert values["relay"] == 1.5
    assert wide > spread


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"impl": "magic"}, "impl 'magic' is unknown"), ({"phase": "prepare"}, "no phase 'prepare'"),
        ({"dtype": "fp7"}, "dtype 'fp7'"), ({"tokens_per_rank": -1}, "tokens_per_rank is -1"),
        ({"skew": 0.5}, "skew is 0.5"), ({"hidden": np.nan}, "hidden is nan"),
        ({"shape": shape(16)}, "16 ranks in a node"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        price(**arguments)


def test_all_bad_numbers_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        price(skew=0.5, hidden=0, comm_sms=-3)
    assert len(caught.value.faults) == 3


def test_sms_taken_from_compute() -> None:
    h100 = catalog.device("h100-sxm-80gb")
    assert float(expert_sms(h100, experts=256, impl="sglang-deepep-normal")) == 20.0
    assert float(expert_sms(h100, experts=256, impl="vllm-deepep-v2-normal")) == 64.0
    assert float(expert_sms(h100, experts=256, impl="deepep-normal", comm_sms=24)) == 24.0
    # Low latency: its receive hook leaves the SMs alone; else 256 experts, 2 to an SM, hold 128 of 132.
    assert float(expert_sms(h100, experts=256, impl="deepep-low-latency")) == 0.0
    assert float(expert_sms(h100, experts=256, impl="deepep-low-latency", overlapped=False)) == 128.0
    assert expert_sms(h100, experts=[8, 64], comm_sms=[[4.0], [1000.0]]).shape == (2, 2)
    assert float(expert_sms(h100, experts=8, comm_sms=1000)) == 132.0
    with pytest.raises(InputError, match="out of range"):
        expert_sms(h100, experts=0)
