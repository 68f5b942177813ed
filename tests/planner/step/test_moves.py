"""Moves of many groups cost what the law says of each alone."""

from __future__ import annotations

import numpy as np
import pytest

from hwmodels import cluster as clusters
from hwmodels import collectives
from hwmodels.topology import GroupShape
from planner.step.moves import FEW, Move, price_moves

CLUSTER = clusters.load("dgx-a100:8")


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_groups_that_are_alike_cost_what_each_costs_alone(op: str) -> None:
    rng = np.random.default_rng(5)
    n, kinds = FEW, 3  # with three kinds of stages above the number from which they are looked for
    nodes = rng.choice([1, 2, 8], n)
    shape = GroupShape(rng.choice([1, 2, 8], n), nodes, np.ones(n, dtype=np.int64))
    shape = GroupShape(*(np.broadcast_to(np.asarray(v), (n,)) for v in (
        shape.ranks_per_node, shape.nodes, shape.stride, shape.leaf, shape.pod)))  # fmt: skip
    nbytes = rng.choice([0.0, 1.0, 4096.0, 1e6, 3e9], (n, kinds))
    found = price_moves(CLUSTER, [Move(op, nbytes, shape), Move(op, nbytes[:, :1], shape, times=2.0)])
    for kind in range(kinds):
        alone = collectives.seconds(CLUSTER, op, nbytes[:, kind], shape)
        np.testing.assert_array_equal(found[0].mid[:, kind], alone.mid)
        np.testing.assert_array_equal(found[0].spread[:, kind], np.broadcast_to(alone.spread, (n,)))
    np.testing.assert_array_equal(found[1].mid[:, 0], 2.0 * found[0].mid[:, 0])
