"""Bytes and seconds of checkpoints by hand, from the models' parameter counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hwmodels import cluster as clusters
from hwmodels import host as hosts
from hwmodels.cluster import Cluster
from hwmodels.reliability import Storage
from planner import model as models
from planner.frameworks import of as preset_of
from planner.goodput.checkpoint import LIMITS, Checkpoints, checkpoints
from planner.goodput.policy import Policy
from planner.layout import Layout, LayoutBatch
from planner.plan import Workload

STORAGE = Storage(2e9, 4e9, 1e15, 1e15, 0.5, "test")


def sized(model: str, layout: Layout, nodes: int = 1, policy: Policy | None = None, storage: Storage = STORAGE,
          **work: Any) -> tuple[Checkpoints, float, Cluster]:  # fmt: skip
    spec, _ = models.load(model)
    cluster = replace(clusters.load(f"dgx-h100:{nodes}"), storage=storage)
    workload = Workload(4096, 256, **work)
    batch = LayoutBatch.of([layout])
    found = checkpoints(spec, workload, cluster, batch, preset_of(workload), policy or Policy())
    return found, float(spec.parameters), cluster


@pytest.mark.parametrize("zero_stage", [0, 1, 2])
def test_a_dense_model_by_hand(zero_stage: int) -> None:
    # bf16 weights, fp32 main weights and two moments: 2 + 4 + 8 bytes a parameter, an eighth of it on each GPU
    found, parameters, cluster = sized("llama-3-8b", Layout(dp=8, zero_stage=zero_stage))
    total = 14.0 * parameters
    assert float(found.total_bytes[0]) == pytest.approx(total)
    assert float(found.node_bytes[0]) == pytest.approx(total)
    assert float(found.rank_bytes[0]) == pytest.approx(total / 8)
    assert float(found.write_s[0]) == pytest.approx(0.5 + total / 2e9)
    assert float(found.load_s[0]) == pytest.approx(0.5 + total / 4e9)
    assert LIMITS[int(found.write_limit[0])] == "storage per node"
    assert float(found.copy_s[0]) == pytest.approx(total / 8 / min(
        hosts.of(cluster).to_host, hosts.of(cluster).memory_bandwidth))  # fmt: skip


def test_two_nodes_write_half_each_and_one_replica_all_of_it() -> None:
    layout = Layout(dp=16, zero_stage=1)
    shared, parameters, _ = sized("llama-3-8b", layout, 2)
    alone, _, _ = sized("llama-3-8b", layout, 2, Policy(sharded=False))
    total = 14.0 * parameters
    assert float(shared.node_bytes[0]) == pytest.approx(total / 2)
    assert float(alone.rank_bytes[0]) == float(alone.node_bytes[0]) == pytest.approx(total)
    # every rank reads the whole state: eight of a node
    assert float(alone.load_s[0]) == pytest.approx(0.5 + 8 * total / 4e9)


def test_writers_of_one_replica_lie_where_ranks_run() -> None:
    # tp4 dp2 pp1 on a node of 8: the four tp ranks of the first replica write a quarter each
    found, parameters, _ = sized("llama-3-8b", Layout(tp=4, dp=2), 1, Policy(sharded=False))
    assert float(found.node_bytes[0]) == pytest.approx(14.0 * parameters, rel=1e-3)  # norms lie on every tp rank
    assert float(found.rank_bytes[0]) == pytest.approx(14.0 * parameters / 4, rel=1e-3)


def test_stages_are_added_up_and_the_largest_bounds_the_node() -> None:
    found, parameters, _ = sized("llama-3-8b", Layout(tp=8, pp=2, dp=1), 2)
    assert float(found.total_bytes[0]) == pytest.approx(14.0 * parameters, rel=1e-3)
    assert float(found.node_bytes[0]) >= 0.5 * float(found.total_bytes[0])


def test_experts_are_saved_once() -> None:
    found, parameters, _ = sized("mixtral-8x7b", Layout(dp=16, ep=8), 2)
    assert float(found.total_bytes[0]) == pytest.approx(14.0 * parameters)
    assert float(found.node_bytes[0]) == pytest.approx(7.0 * parameters)


def test_a_bidirectional_pipeline_saves_one_of_its_copies() -> None:
    found, parameters, _ = sized("llama-3-8b", Layout(pp=2, dp=4, vpp=1, schedule="dualpipe", zero_stage=1))
    assert float(found.total_bytes[0]) == pytest.approx(14.0 * parameters)


@pytest.mark.parametrize(
    ("work", "each"),
    [
        ({"framework": "fsdp2"}, 12.0),  # one fp32 copy and two moments
        ({"optimizer": "sgd-momentum"}, 10.0),
        ({"precision": "fp8"}, 14.0),  # quantised copies are made anew
    ],
)
def test_what_a_parameter_takes(work: dict[str, Any], each: float) -> None:
    found, parameters, _ = sized("llama-3-8b", Layout(dp=8, zero_stage=3), **work)
    assert float(found.total_bytes[0]) == pytest.approx(each * parameters)


def test_adapters_are_saved_and_the_base_is_loaded() -> None:
    found, parameters, _ = sized("llama-3-8b", Layout(dp=8), kind="lora")
    assert float(found.total_bytes[0]) < 0.02 * parameters
    assert float(found.load_s[0]) > 2.0 * parameters / 4e9


def test_an_asynchronous_checkpoint_blocks_for_its_copy() -> None:
    found, _, _ = sized("llama-3-8b", Layout(dp=8))
    policy = Policy(mode="async")
    assert float(found.blocked_s(policy)[0]) == float(found.copy_s[0]) < 1.0
    assert float(found.lag_s(policy)[0]) == float(found.write_s[0])
    assert float(found.lag_s(Policy())[0]) == 0.0 and float(found.blocked_s(Policy())[0]) == float(found.write_s[0])


def test_without_room_in_host_memory_it_is_written_at_once() -> None:
    spec, _ = models.load("llama-3-8b")
    cluster = replace(clusters.load("dgx-h100:1"), host_memory_bytes=50e9)
    work = Workload(4096, 256)
    found = checkpoints(spec, work, cluster, LayoutBatch.of([Layout(dp=8)]), preset_of(work), Policy(mode="async"))
    assert not found.fits_host[0]
    assert float(found.lag_s(Policy(mode="async"))[0]) == 0.0


@pytest.mark.parametrize(
    ("storage", "limit", "seconds"),
    [
        (Storage(1e15, 1e15, 1e9, 1e15), "storage in total", lambda size: size / 1e9),
        (Storage(1e15, 1e15), "network of a node", lambda size: size / (8 * 50e9)),
    ],
)
def test_the_narrowest_way_bounds(storage: Storage, limit: str, seconds: Any) -> None:
    found, parameters, _ = sized("llama-3-8b", Layout(dp=8), storage=storage)
    assert LIMITS[int(found.write_limit[0])] == limit
    assert float(found.write_s[0]) == pytest.approx(seconds(14.0 * parameters), rel=0.02)


def test_many_layouts_are_many_single_ones() -> None:
    layouts = [Layout(dp=8), Layout(tp=2, dp=4, zero_stage=1), Layout(pp=2, dp=4), Layout(tp=8)]
    spec, _ = models.load("llama-3-8b")
    cluster, work = clusters.load("dgx-h100:1"), Workload(4096, 256)
    for policy in (Policy(), Policy(sharded=False)):
        many = checkpoints(spec, work, cluster, LayoutBatch.of(layouts), preset_of(work), policy)
        for i, layout in enumerate(layouts):
            one = checkpoints(spec, work, cluster, LayoutBatch.of([layout]), preset_of(work), policy)
            for name in Checkpoints.__slots__:
                assert float(getattr(many, name)[i]) == pytest.approx(float(getattr(one, name)[0])), name
