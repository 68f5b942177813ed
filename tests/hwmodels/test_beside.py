"""A collective beside compute: what stays exposed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import cluster as clusters
from hwmodels.collectives import Beside, beside
from hwmodels.device import Coefficient


def both(a: float, b: float) -> Beside:
    return Beside(np.asarray(a), np.asarray(b))


def test_by_hand() -> None:
    # Compute at 1/1.25, the collective at 1/1.1 of their rates. 2 s of it run 2.2 s beside 10 s of compute, of which
    # 2.2/1.25 = 1.76 s get done: 2.2 + 8.24 = 10.44, exposed 0.44.
    assert float(both(1.25, 1.1).exposed(2.0, 10.0)) == pytest.approx(0.44)
    assert float(both(1.25, 1.1).taken(2.0)) == pytest.approx(0.44)
    # 10 s beside 2 s: compute ends after 2.5 s, when 2.5/1.1 = 2.2727 s of the collective are done: 10.2273 in all.
    assert float(both(1.25, 1.1).exposed(10.0, 2.0)) == pytest.approx(2.5 + 10 - 2.5 / 1.1 - 2.0)


def test_a_measured_overlap_is_the_symmetric_case() -> None:
    cluster = replace(clusters.load("dgx-h100:2"), overlap=Coefficient(0.7, "measured", 3, 0.1))
    found = beside(cluster, "all_reduce", 2)
    # both = longer + 0.3 x shorter: 10 + 0.6 and 10 + 0.6.
    assert float(found.exposed(2.0, 10.0)) == pytest.approx(0.6)
    assert float(found.exposed(10.0, 2.0)) == pytest.approx(10.6 - 2.0)


def test_links_take_sms_without_a_measurement() -> None:
    cluster = clusters.load("dgx-h100:2")
    near, far = beside(cluster, "all_reduce", np.array([1, 2])).compute
    assert near > 1.0 and far > 1.0
    assert float(beside(clusters.load("cpu-local"), "all_reduce", 1).compute) > 1.0  # its file states an overlap


def test_a_group_holds_channels_for_its_own_ports_alone() -> None:
    # 16 channels for the 8 ports of a node: 16 of 132 SMs for a group of 8 ranks a node, 2 for one of a single rank.
    cluster = clusters.load("dgx-h100:2")
    whole, one = beside(cluster, "all_gather", 2, np.array([8, 1])).compute
    assert whole == pytest.approx(1.05 * 132 / 116)
    assert one == pytest.approx(1.05 * 132 / 130)
    assert float(beside(cluster, "all_gather", 2).compute) == pytest.approx(whole)
    # Inside a node the link's channels are those of every group.
    inside = beside(cluster, "all_gather", 1, np.array([8, 2])).compute
    assert inside[0] == inside[1] == pytest.approx(1.05 * 132 / 108)


@settings(deadline=None, max_examples=60)
@given(st.floats(1.0, 3.0), st.floats(1.0, 3.0), st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_between_the_longer_and_one_after_the_other(a: float, b: float, c: float, k: float) -> None:
    exposed = float(both(a, b).exposed(c, k))
    assert max(c - k, 0.0) - 1e-9 <= exposed <= c + 1e-9
    assert exposed <= float(both(a, b).exposed(c + 1.0, k)) + 1e-9
