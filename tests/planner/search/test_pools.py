"""Search over pools of unlike devices: bounds that hold whatever is found, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels import cluster as clusters
from hwmodels.cluster import Cluster
from hwmodels.errors import InfeasibleError
from hwmodels.pools import subcluster
from planner import model as models
from planner.plan import Workload
from planner.search import Space, search
from planner.search.pools.bases import bases_of
from tests.planner.mixed.test_pricing import ISLANDS

MODEL = models.load("llama-3.2-1b")[0]
WORK = Workload(2048, 48, framework="megatron")
SPACE = Space(tp=(1, 2), pp=(1, 2, 4), mbs=(1, 2), recompute=("none",))


def islands(bandwidth: str = "200Gb/s", latency: str = "1ms") -> Cluster:
    text = ISLANDS.replace("nodes: 2", "nodes: 1").replace("200Gb/s", bandwidth).replace("1ms", latency)
    return clusters.parse(text, "islands.yaml")


def test_no_slower_than_a_pool_alone_and_no_faster_than_all_together() -> None:
    cluster = islands()
    found = search(MODEL, cluster, WORK, SPACE)
    alone = [search(MODEL, subcluster(cluster, i), WORK, SPACE).rows[0].step.step_s.mid for i in (0, 1)]
    best = found.rows[0]
    assert best.step.step_s.mid <= min(alone)
    # the best of each pool alone runs 1/t batches a second: together no more than the sum, compute being additive
    assert best.step.step_s.mid > 0.9 / sum(1.0 / t for t in alone)
    assert best.use is not None and set(best.use.nodes) == {"h100", "edge"}
    assert all(sum(kind["replicas"] * kind["batch_share"] for kind in row.use.replicas) == WORK.gbs
               for row in found.rows if row.use is not None)  # fmt: skip
    values = [row.step.step_s.mid for row in found.rows]
    assert values == sorted(values)


def test_faster_devices_get_more_of_the_batch() -> None:
    found = search(MODEL, islands("10Tb/s", "1us"), WORK, replace(SPACE, pp=(1,)))
    both = next(row for row in found.rows if row.use is not None and all(row.use.nodes.values()))
    assert both.use is not None
    of = {str(kind["stage_pools"]): kind["batch_share"] for kind in reversed(both.use.replicas)}
    fast, slow = of["['h100']"], of["['edge']"]
    assert fast > 1.5 * slow  # type: ignore[operator]


def test_the_order_of_the_pools_does_not_matter() -> None:
    cluster = islands()
    one = search(MODEL, cluster, WORK, SPACE).rows[0].step.step_s.mid
    other = search(MODEL, replace(cluster, pools=cluster.pools[::-1]), WORK, SPACE).rows[0].step.step_s.mid
    assert one == pytest.approx(other, rel=1e-9)


def test_a_region_behind_a_slow_link_stays_idle_and_the_answer_says_why() -> None:
    found = search(MODEL, islands("1Gb/s", "30ms"), WORK, SPACE)
    best = found.rows[0]
    assert best.use is not None and best.use.nodes == {"h100": 1, "edge": 0}
    said = next(note for note in found.notes if note.startswith("edge: 1 of 1 nodes idle"))
    assert "slower" in said and "GB cross between the pools" in said


def test_fewer_nodes_are_tried() -> None:
    cheap = search(MODEL, islands(), WORK, SPACE, objective="usd_per_mtoken", top=20)
    values = [row.step.usd_per_mtoken for row in cheap.rows]
    assert values == sorted(values)
    assert len({row.layout.world for row in cheap.rows}) > 1


def test_pools_that_nothing_fits_are_refused_with_what_each_lacks() -> None:
    with pytest.raises(InfeasibleError) as caught:
        search(models.load("llama-3-70b")[0], islands(), replace(WORK, gbs=2), replace(SPACE, tp=(1,), pp=(1,)))
    said = str(caught.value)
    assert "h100 alone:" in said and "edge alone:" in said and "more nodes" in said


def test_pools_without_a_link_are_used_one_at_a_time() -> None:
    found = search(MODEL, replace(islands(), links=()), WORK, SPACE)
    assert all(row.use is not None and sum(n > 0 for n in row.use.nodes.values()) == 1 for row in found.rows)


TWIN = """
name: twin
pools:
- {name: a, device: h100-sxm-80gb, gpus_per_node: 8, nodes: 1}
- {name: b, device: h100-sxm-80gb, gpus_per_node: 8, nodes: 1, price: {usd_per_gpu_hour: 9.0, source: x, residual: 0.1}}
fabric: {intra_node: nvlink4, inter_node: {link: infiniband-ndr, ports_per_node: 8, topology: rail-fat-tree}}
context: 0.8GiB
context_source: stated
"""


def test_pools_that_differ_in_price_alone_are_as_fast_as_the_one_cluster_that_they_are() -> None:
    mixed = clusters.parse(TWIN, "twin.yaml")
    assert mixed.mixed
    plain = clusters.load("dgx-h100:2")
    model, work = models.load("llama-3-8b")[0], Workload(4096, 256, framework="megatron")
    space = Space(tp=(1, 2), cp=(1,), pp=(1,), recompute=("none",), mbs=(1,))
    best = search(model, plain, work, space).rows[0]
    found = search(model, mixed, work, space).rows[0]
    assert best.layout.zero_stage == 2  # the gradients of 8B in fp32 on 16 GPUs: what ZeRO-1 has no room for
    assert found.layout.zero_stage == 2 and found.use is not None and all(found.use.nodes.values())
    assert found.step.step_s.mid == pytest.approx(best.step.step_s.mid, rel=1e-9)


def test_pipelines_over_pools_take_the_least_sharding_that_their_framework_has() -> None:
    found, _, _ = bases_of(Space(), MODEL, islands(), WORK)
    assert set(found.zero_stage[found.pp == 1]) == {0, 1, 2} and set(found.zero_stage[found.pp > 1]) == {0, 1}
    given, _, _ = bases_of(Space(zero_stage=(2,)), MODEL, islands(), WORK)
    assert (given.pp > 1).any()
