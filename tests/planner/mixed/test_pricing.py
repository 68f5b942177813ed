"""Arrangements: equal to the uniform price where nothing is mixed, and what unlike pools add."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hwmodels import cluster as clusters
from hwmodels.cluster import Cluster
from hwmodels.errors import InputError
from planner import mixed
from planner import model as models
from planner.layout import Layout
from planner.mixed import Arrangement, Mixture, Replicas
from planner.plan import Workload
from planner.predict import predict
from planner.replay import replay
from planner.why.sensitivity import sensitivity
from tests.hwmodels.test_pools import TWO

MODEL = models.load("llama-3-8b")[0]
WORK = Workload(4096, 64, framework="megatron")
ISLANDS = TWO.replace("l40s-48gb", "a100-sxm-80gb").replace("gpus_per_node: 4", "gpus_per_node: 8").replace(
    "{intra_node: pcie4}", "{intra_node: nvlink3, inter_node: {link: infiniband-hdr, ports_per_node: 8}}"
).replace("nodes: 1", "nodes: 2").replace("10Gb/s", "200Gb/s").replace("30ms", "1ms")  # fmt: skip


def islands() -> Cluster:
    return clusters.parse(ISLANDS, "islands.yaml")


def halves(cluster: Cluster) -> Cluster:
    """The same cluster written as two pools."""
    pool = cluster.pools[0]
    return replace(cluster, pools=tuple(replace(pool, nodes=pool.nodes // 2, name=name) for name in ("one", "two")))


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=4, sp=1, pp=2, dp=4, zero_stage=1),
        Layout(tp=2, sp=1, pp=4, dp=4, stage_layers=(7, 8, 9, 8)),
        Layout(tp=2, sp=1, pp=2, vpp=2, schedule="interleaved-1f1b", dp=8, zero_stage=1, recompute="full"),
        Layout(dp=32, zero_stage=3),
        Layout(tp=8, sp=1, pp=4, schedule="gpipe"),
    ],
    ids=Layout.label,
)
def test_two_equal_pools_give_the_numbers_of_one(layout: Layout) -> None:
    cluster = clusters.load("dgx-h100:4")
    whole, two = predict(MODEL, cluster, WORK, layout), halves(cluster)
    found = mixed.predict(MODEL, two, WORK, mixed.in_order(two, layout, WORK.gbs))
    for f in fields(whole):
        one, other = getattr(whole, f.name), getattr(found, f.name)
        if f.name in ("step_s", "phases", "traffic"):
            continue
        if isinstance(one, float):
            assert other == pytest.approx(one, rel=1e-12), f.name
        elif f.name != "notes":
            assert other == one, f.name
    assert found.step_s.mid == pytest.approx(whole.step_s.mid, rel=1e-13)
    for mine, theirs in zip(whole.phases, found.phases, strict=True):
        assert theirs == pytest.approx(mine, rel=1e-9, abs=1e-12)


def test_equal_pools_that_a_user_wrote_are_predicted_as_one_cluster() -> None:
    cluster, layout = clusters.load("dgx-h100:4"), Layout(tp=4, sp=1, pp=2, dp=4, zero_stage=1)
    assert predict(MODEL, halves(cluster), WORK, layout) == predict(MODEL, cluster, WORK, layout)


def test_the_replica_with_most_micro_batches_governs() -> None:
    cluster, layout = clusters.load("dgx-h100:2"), Layout(tp=4, sp=1, pp=2, dp=2, zero_stage=1)
    def seconds(*counts: int) -> float:
        shares = tuple(Replicas(1, (0, 0), count) for count in counts)
        work = replace(WORK, gbs=sum(counts))
        return mixed.predict(MODEL, cluster, work, Arrangement(layout, shares)).step_s.mid

    assert seconds(40, 24) == pytest.approx(seconds(40, 40), rel=1e-12)
    assert seconds(24, 40) == seconds(40, 24)
    assert seconds(40, 24) > seconds(32, 32)


def test_a_stage_takes_the_time_of_its_own_pool() -> None:
    cluster, layout = islands(), Layout(tp=4, sp=1, pp=2, dp=4)
    both = mixed.predict(MODEL, cluster, WORK, Arrangement(layout, (Replicas(4, (0, 1), 16),)))
    for stage in (0, 1):
        alone = mixed.predict(MODEL, cluster, replace(WORK, gbs=32), Arrangement(
            replace(layout, dp=2), (Replicas(2, (stage, stage), 16),)))  # fmt: skip
        assert both.phases[stage]["forward"] == pytest.approx(alone.phases[stage]["forward"])
        assert both.phases[stage]["tp_comm"] == pytest.approx(alone.phases[stage]["tp_comm"])
        assert both.memory[stage].capacity_bytes == cluster.pools[stage].device.memory_bytes


def test_gradients_between_islands_take_at_least_the_wire() -> None:
    cluster, layout = islands(), Layout(tp=4, sp=1, pp=2, dp=4)
    split = Arrangement(layout, (Replicas(2, (0, 0), 16), Replicas(2, (1, 1), 16)))
    step = mixed.predict(MODEL, cluster, WORK, split)
    # fp32 gradients of 8.03 billion parameters, once each way over 2 x 25 GB/s
    wire = 4 * MODEL.parameters / 50e9
    assert max(row["dp_comm"] for row in step.phases) > wire
    assert step.traffic["dp_comm"].inter_node * 32 / 2 >= 4 * MODEL.parameters * 0.99


def test_swapping_the_pools_changes_nothing() -> None:
    cluster = islands()
    swapped = replace(cluster, pools=cluster.pools[::-1])
    layout = Layout(tp=4, sp=1, pp=2, dp=4, zero_stage=1)
    one = mixed.predict(
        MODEL, cluster, WORK, Arrangement(layout, (Replicas(2, (0, 0), 20), Replicas(2, (1, 1), 12)))
    )
    other = mixed.predict(
        MODEL, swapped, WORK, Arrangement(layout, (Replicas(2, (1, 1), 20), Replicas(2, (0, 0), 12)))
    )
    assert one.step_s.mid == pytest.approx(other.step_s.mid, rel=1e-12)
    assert one.usd_per_mtoken == pytest.approx(other.usd_per_mtoken, rel=1e-12)


def test_dollars_are_those_of_each_pool_and_of_the_link() -> None:
    cluster, layout = islands(), Layout(tp=8, sp=1, pp=2, dp=2)
    step = mixed.predict(MODEL, cluster, WORK, Arrangement(layout, (Replicas(2, (0, 1), 32),)))
    # 16 GPUs at 3 $ and 16 at 1 $ an hour; boundaries of 64 sequences forward and back, from each of 8 ranks a piece
    hours, moved = step.step_s.mid / 3600, 2 * 64 * 4096 * MODEL.hidden * 2
    expected = ((16 * 3 + 16 * 1) * hours + moved / 1e9 * 0.02) / (64 * 4096) * 1e6
    assert step.usd_per_mtoken == pytest.approx(expected, rel=1e-9)


def test_both_engines_agree_on_an_arrangement() -> None:
    cluster, layout = islands(), Layout(tp=4, sp=1, pp=2, dp=4, zero_stage=1)
    for arrangement in (
        Arrangement(layout, (Replicas(2, (0, 0), 20), Replicas(2, (1, 1), 12))),
        Arrangement(layout, (Replicas(4, (0, 1), 16),)),
    ):
        step = predict(MODEL, cluster, WORK, layout, arrangement=arrangement)
        played = replay(MODEL, cluster, WORK, layout, arrangement=arrangement)
        assert played.step_s == pytest.approx(step.step_s.mid, rel=1e-9)
        slow = replay(MODEL, cluster, WORK, layout, arrangement=arrangement, stragglers={0: 2.0})
        assert slow.step_s > played.step_s * 1.01
        for row in step.phases:
            assert sum(row.values()) == pytest.approx(step.step_s.mid, rel=1e-9)


def test_a_pool_of_one_node_needs_no_network_of_its_own() -> None:
    """Stages in one node send over NVLink, however far apart a uniform layout would put them."""
    text = ISLANDS.replace("nodes: 2", "nodes: 1").replace(
        "{intra_node: nvlink3, inter_node: {link: infiniband-hdr, ports_per_node: 8}}", "{intra_node: nvlink3}"
    )
    cluster, layout = clusters.parse(text, "x.yaml"), Layout(tp=2, sp=1, pp=6)
    priced = mixed.mixture(mixed.Pieces(MODEL, cluster, WORK), Arrangement(layout, (
        Replicas(1, (1, 1, 1, 0, 0, 0), 64),)))  # fmt: skip
    sends = priced.kinds[0].costs.send_forward_s[0, :, 0]
    boundary = 4096 * MODEL.hidden * 2 / 2  # bytes that each of two sequence-parallel ranks sends
    # 300 GB/s of NVLink 3 in a direction, within a factor of three for a pair; 50 GB/s for two ranks, and 1 ms, between
    for stage in (0, 1):
        assert boundary / 300e9 < sends[stage] < 3 * boundary / 300e9
    assert sends[2] > 1e-3 + boundary / 25e9
    assert all(boundary / 450e9 < sends[stage] < 3 * boundary / 450e9 for stage in (3, 4))
    with pytest.raises(InputError, match="nothing joins"):
        mixed.predict(MODEL, replace(cluster, links=()), WORK, Arrangement(layout, (
            Replicas(1, (1, 1, 1, 0, 0, 0), 64),)))  # fmt: skip


def test_what_pools_cannot_do_is_said_once_with_a_way_out() -> None:
    cluster, layout = islands(), Layout(tp=8, sp=1, pp=2, dp=4)
    with pytest.raises(InputError) as caught:
        mixed.predict(MODEL, replace(cluster, links=()), WORK, Arrangement(layout, (
            Replicas(3, (0, 0), 16), Replicas(1, (1, 1), 8))))  # fmt: skip
    said = str(caught.value)
    assert "48 ranks on pool h100" in said and "sum to 56 sequences" in said and "nothing joins h100 and edge" in said
    with pytest.raises(InputError, match="ZeRO-3 gathers parameters in every micro-batch"):
        mixed.predict(MODEL, cluster, WORK, Arrangement(Layout(dp=2, zero_stage=3), (
            Replicas(1, (0,), 40), Replicas(1, (1,), 24))))  # fmt: skip
    with pytest.raises(InputError, match="do not lie in one pool"):
        mixed.in_order(replace(cluster, pools=(replace(cluster.pools[0], nodes=1, fabric=None), cluster.pools[1])),
                       Layout(tp=16, dp=1), WORK.gbs)  # fmt: skip


def test_sensitivity_of_unlike_pools_is_refused_with_what_would_work() -> None:
    with pytest.raises(InputError, match=r"has unlike pools.*why A.json B.json"):
        sensitivity(MODEL, islands(), WORK, Layout(tp=4, sp=1, pp=2, dp=4))


def test_a_step_ends_with_the_latest_meeting_and_the_longest_work_behind_it() -> None:
    # ready after 10 and 8 s, 1 and 4 s of optimizer behind: the second waits for the first, 10 + 4
    kinds: Any = [SimpleNamespace(met=met, step_s=np.array([end])) for met, end in ((10.0, 11.0), (8.0, 12.0))]
    for kind in kinds:
        kind.meeting = lambda timing: timing.met
    unused: Any = None
    seconds, last, _ = Mixture(unused, kinds, unused).seconds(lambda kind: kind)  # type: ignore[arg-type, return-value]
    assert (seconds, last) == (14.0, 0)


def test_nodes_count_over_all_pools_and_each_pool_is_filled_in_order() -> None:
    # twelve ranks of a stage on nodes of eight: the second stage starts on node 2
    arrangement = Arrangement(Layout(tp=4, pp=2, dp=3), (Replicas(3, (0, 1), 1),))
    seats = [(seat.node, seat.gpu) for seat in arrangement.seats(islands())]
    assert seats[:12] == [(n // 8, n % 8) for n in range(12)]
    assert seats[12:] == [(2 + n // 8, n % 8) for n in range(12)]
