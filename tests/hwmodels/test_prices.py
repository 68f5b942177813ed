"""Prices: dated offers of the catalog, what is chosen of them, and dollars."""

from __future__ import annotations

import csv
import typing
from pathlib import Path

import numpy as np
import pytest

from hwmodels import catalog, prices
from hwmodels import cluster as clusters
from hwmodels.declared import read
from hwmodels.device import Coefficient
from hwmodels.errors import InputError
from hwmodels.estimate import Estimate
from hwmodels.price_schema import Kind, OfferFile, PricesFile

OF_FILE = {
    "A100-80GB": "a100-sxm-80gb", "H100-SXM": "h100-sxm-80gb", "H200-SXM": "h200-sxm-141gb",
    "B200-SXM": "b200-sxm-180gb", "GB200 (per GPU)": "gb200-186gb",
}  # fmt: skip


def test_every_offer_of_the_price_list_is_in_the_catalog(shared_data: Path) -> None:
    with (shared_data / "hw_prices.csv").open(newline="") as stream:
        listed = [
            (
                OF_FILE[r["device"]],
                float(r["usd_per_gpu_hour_low"]),
                float(r["usd_per_gpu_hour_high"]),
                r["date"],
                r["source"],
            )
            for r in csv.DictReader(stream)
        ]
    assert len(listed) == 17
    kept = [(device, o.low, o.high, o.date, o.source) for device in OF_FILE.values() for o in prices.offers_of(device)]
    assert sorted(kept) == sorted(listed)


def test_the_kinds_of_the_file_are_those_of_the_prices() -> None:
    assert typing.get_args(Kind) == prices.KINDS


def test_the_default_is_the_median_over_providers() -> None:
    found = prices.price_of("h100-sxm-80gb")
    assert found.value == 2.95
    assert "2026-05-20" in found.source
    assert "aimultiple" in found.source
    assert found.residual == prices.MOVED
    assert found == prices.default_price(catalog.device("h100-sxm-80gb"))


def test_a_kind_is_the_middle_of_its_range() -> None:
    # 3.5 to 5.0 at hyperscalers: 4.25, half-width 0.75 / 4.25 = 0.18, but prices moved by 0.4.
    assert prices.price_of("h100-sxm-80gb", "hyperscaler").value == pytest.approx(4.25)
    # 4.5 to 7.0: 5.75. One provider's list: the latest of two.
    assert prices.price_of("h200-sxm-141gb", "hyperscaler").value == pytest.approx(5.75)
    assert prices.price_of("h200-sxm-141gb", "cloud").value == pytest.approx(7.91)
    assert prices.price_of("h200-sxm-141gb", kind="spot").value == pytest.approx(3.32)
    wide = prices.Offer("cloud", 1.0, 9.0, "2026", "on demand", "test").price
    assert wide.residual == pytest.approx(0.8)


def test_a_device_without_a_price_says_so() -> None:
    assert prices.default_price("mi300x-192gb") is None
    assert prices.offers_of("mi300x-192gb") == ()
    with pytest.raises(InputError, match=r"no price of mi300x-192gb is known.*usd_per_gpu_hour"):
        prices.price_of("mi300x-192gb")
    with pytest.raises(InputError, match=r"no price of kind .spot.*cloud"):
        prices.price_of("b200-sxm-180gb", "spot")
    with pytest.raises(InputError, match="kind of price 'cheap' is unknown"):
        prices.price_of("b200-sxm-180gb", "cheap")


def test_dollars_by_hand() -> None:
    # 8 GPUs at $3 for 30 minutes: 8 x 3 x 0.5 = 12; 16 of them 24.
    price = Coefficient(3.0, "test", 0, 0.2)
    found = prices.cost_usd(price, [8, 16], Estimate.of(1800.0, 0.1))
    assert found.mid.tolist() == [12.0, 24.0]
    assert float(found.spread) == pytest.approx(0.3)
    assert float(prices.cost_usd(3.0, 8, 1800).spread) == 0.0
    assert prices.cost_usd(price, np.ones((3, 1)), np.ones(4)).mid.shape == (3, 4)
    with pytest.raises(InputError) as caught:
        prices.cost_usd(-1.0, -8, np.nan)
    assert len(caught.value.faults) == 3


def mixture(*pools: tuple[str, float]) -> Coefficient | None:
    return prices.mixed_price(pools)


def test_pools_of_several_devices_cost_their_mean() -> None:
    # 8 H100 at 2.95 and 24 A100 at 1.3: (23.6 + 31.2) / 32 = 1.7125
    found = mixture(("h100-sxm-80gb", 8), ("a100-sxm-80gb", 24))
    assert found is not None
    assert found.value == pytest.approx(1.7125)
    assert "aimultiple" in found.source
    assert "mercatus" in found.source
    assert mixture(("h100-sxm-80gb", 8), ("mi300x-192gb", 8)) is None
    assert mixture() is None


YAML = """
name: mine
pools: [{device: DEVICE, gpus_per_node: 8, nodes: 1}]
fabric: {intra_node: nvlink4}
context: 1GiB
context_source: test
"""


def test_a_cluster_without_a_price_takes_that_of_the_catalog() -> None:
    cluster = clusters.parse(YAML.replace("DEVICE", "h200-sxm-141gb"), "mine.yaml")
    assert cluster.usd_per_gpu_hour is not None
    assert cluster.usd_per_gpu_hour.value == 4.0
    assert "2026-05" in cluster.usd_per_gpu_hour.source
    assert clusters.parse(YAML.replace("DEVICE", "mi300x-192gb"), "mine.yaml").usd_per_gpu_hour is None
    own = YAML.replace("DEVICE", "h200-sxm-141gb") + "price: {usd_per_gpu_hour: 1.5, source: my contract}\n"
    priced = clusters.parse(own, "mine.yaml").usd_per_gpu_hour
    assert priced is not None
    assert (priced.value, priced.source) == (1.5, "my contract")


@pytest.mark.parametrize("preset", ["dgx-a100", "dgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72"])
def test_presets_agree_with_the_catalog(preset: str) -> None:
    cluster = clusters.load(preset)
    assert cluster.usd_per_gpu_hour is not None
    assert cluster.usd_per_gpu_hour.value == prices.price_of(cluster.device).value


@pytest.mark.parametrize(
    "change", [{"low": 3.0}, {"low": 0.0}, {"date": "May 2026"}, {"kind": "cheap"}, {"source": ""}, {"colour": "red"}]
)
def test_a_broken_offer_is_refused(change: dict[str, object]) -> None:
    good = {"kind": "cloud", "low": 1.0, "high": 2.0, "date": "2026-05", "terms": "on demand", "source": "test"}
    assert read(OfferFile, good).build().price.value == 1.5
    with pytest.raises(ValueError, match="validation error"):
        PricesFile.pydantic_model().model_validate({"prices": [{"devices": ["x"], "offers": [good | change]}]})
