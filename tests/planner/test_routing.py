"""Load of expert ranks: arithmetic by hand, and faults."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels.errors import InputError
from planner.cli.inputs import load_cluster
from planner.layout import Layout
from planner.model import load as load_model
from planner.predict import predict
from planner.routing import Routing
from planner.training import Workload


def test_balanced_routing_changes_nothing() -> None:
    plain = Routing()
    assert (plain.load, plain.sent, plain.exchange_skew, plain.described()) == (1.0, 1.0, 1.0, "")
    assert Workload(512, 8).routing == plain


def test_dropping_caps_the_busiest_rank() -> None:
    assert Routing(skew=1.7).load == 1.7
    assert Routing(1.7, 1.25).load == 1.25  # what goes over the capacity is dropped
    assert Routing(1.1, 1.25).load == 1.1  # nothing to drop
    assert Routing(1.7, 1.25).exchange_skew == 1.25  # beside a mean of 1


def test_padding_makes_every_rank_alike() -> None:
    padded = Routing(1.7, 1.5, pad_to_capacity=True)
    assert (padded.load, padded.sent, padded.exchange_skew) == (1.5, 1.5, 1.0)


def test_a_capacity_under_the_mean_drops_from_everyone() -> None:
    # Each expert takes half of its mean: a rank sends half of its copies and gets half.
    assert (Routing(1.0, 0.5).load, Routing(1.0, 0.5).sent, Routing(1.0, 0.5).exchange_skew) == (0.5, 0.5, 1.0)


def test_a_histogram_gives_the_skew() -> None:
    # Ranks of two experts get 10 + 30, 20 + 20, 5 + 5, 5 + 5: 40 of 100, where the mean is 25.
    assert Routing.of_counts([10, 30, 20, 20, 5, 5, 5, 5], 4).skew == pytest.approx(1.6)
    assert Routing.of_counts([7] * 8, 2).skew == 1.0


def test_zipf() -> None:
    # Exponent 1 over 4 experts: 1, 1/2, 1/3, 1/4 = 25/12 in all. Two ranks: 1 + 1/3 = 16/12 is the busiest.
    assert Routing.zipf(4, 2, 1.0).skew == pytest.approx(2 * 16 / 25)
    assert Routing.zipf(64, 8, 0.0).skew == pytest.approx(1.0)


@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8).filter(any), st.sampled_from([1, 2, 4, 8]))
def test_skew_grows_with_ranks_and_stays_in_bounds(counts: list[int], ep: int) -> None:
    skew = Routing.of_counts(counts, ep).skew
    assert 1.0 <= skew <= ep + 1e-9  # one rank gets everything at most
    assert Routing.of_counts(counts, 1).skew == 1.0


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"skew": 0.9}, "skew"),
        ({"skew": float("nan")}, "skew"),
        ({"capacity_factor": -1.0}, "capacity_factor"),
        ({"pad_to_capacity": True}, "capacity"),
    ],
)
def test_faults(bad: dict[str, float], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Routing(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("counts", "ep"), [([1, 2, 3], 2), ([], 1), ([0, 0], 1), ([1, -1], 1)])
def test_histograms_that_cannot_be(counts: list[float], ep: int) -> None:
    with pytest.raises(InputError):
        Routing.of_counts(counts, ep)


def test_a_dense_model_routes_nothing() -> None:
    model, cluster = load_model("llama-3.2-1b")[0], load_cluster("dgx-a100:1")
    with pytest.raises(InputError, match=r"expert skew 1\.5.*has no experts"):
        predict(model, cluster, Workload(1024, 8, routing=Routing(skew=1.5)), Layout(dp=8))
