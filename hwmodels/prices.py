"""$/GPU-hour by device: an input, with dated defaults in ``catalog/prices.yaml``.

The file holds offers as they were made (low, high, kind, date, source). A device that has none has no price: that is
said, never guessed from another device. Prices moved 40% in six months (data/README, trap 9), which is the least
half-width that a default carries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from hwmodels import yamlfile
from hwmodels.device import Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate
from hwmodels.records import dataclass

KINDS = ("median", "specialty", "hyperscaler", "long-tail", "cloud", "index", "spot")
"""In the order in which a default is taken: the median over providers, then kinds of providers from the usual to the
cheap, one provider's list price (``cloud``), a rental index, and what can be taken away at any time (``spot``)."""

MOVED = 0.40
"""Relative half-width of any default: by so much prices moved in six months."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a device cost somewhere at some time.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    low, high : float
        $/GPU-hour.
    date : str
        ``2026``, ``2026-05`` or ``2026-05-20``.
    terms, source : str
    """

    kind: str
    low: float
    high: float
    date: str
    terms: str
    source: str

    @property
    def price(self) -> Coefficient:
        """The middle of the offer with its source, date and half-width (at least `MOVED`)."""
        mid = (self.low + self.high) / 2.0
        shown = f"{self.low:g}" if self.low == self.high else f"{self.low:g}-{self.high:g}"
        source = f"{self.kind}, {self.terms}: {shown} $/GPU-hour, {self.date}, {self.source}"
        return Coefficient(mid, source, 0, max((self.high - self.low) / (self.high + self.low), MOVED))


@cache
def _offers() -> dict[str, tuple[Offer, ...]]:
    """Device -> its offers, in the order of the file."""
    from hwmodels.price_schema import PricesFile

    name = "catalog/prices.yaml"
    text = (Path(__file__).parent / "catalog" / "prices.yaml").read_text(encoding="utf-8")
    data, marks = yamlfile.parse(text, name)
    found: dict[str, tuple[Offer, ...]] = {}
    for entry in yamlfile.validate(PricesFile, data, name, marks).prices:
        for device in entry.devices:
            found[device] = (*found.get(device, ()), *(offer.build() for offer in entry.offers))
    return found


def _name(device: Device | str) -> str:
    return device if isinstance(device, str) else device.name


def offers_of(device: Device | str) -> tuple[Offer, ...]:
    """Offers of a device (or its catalog name), cheapest kind last; none where nobody's price is known."""
    return tuple(sorted(_offers().get(_name(device), ()), key=lambda offer: KINDS.index(offer.kind)))


def default_price(device: Device | str) -> Coefficient | None:
    """$/GPU-hour of the first kind in `KINDS` that the device has an offer of, the latest one; None without any."""
    return price_of(device) if offers_of(device) else None


def price_of(device: Device | str, kind: str = "") -> Coefficient:
    """$/GPU-hour of a device.

    Parameters
    ----------
    device : Device or str
        A device, or the name of one in the catalog.
    kind : str
        One of `KINDS`; empty for the default (`default_price`). Of several offers of a kind the latest is taken.

    Returns
    -------
    Coefficient
        Value in $/GPU-hour, with kind, terms, date and source in words, and a relative half-width.

    Raises
    ------
    InputError
        For a device without a price, or without one of that kind.
    """
    name = _name(device)
    if kind and kind not in KINDS:
        raise InputError(Fault(f"kind of price {kind!r} is unknown", name, fix="one of " + ", ".join(KINDS)))
    known = offers_of(name)
    fix = "price: {usd_per_gpu_hour: ..., source: ...} in the cluster file"
    if not known:
        raise InputError(Fault(f"no price of {name} is known", "catalog/prices.yaml", "no source quotes one", fix))
    if not kind:
        kind = known[0].kind
    chosen = [offer for offer in known if offer.kind == kind]
    if not chosen:
        have = ", ".join(dict.fromkeys(offer.kind for offer in known))
        raise InputError(Fault(f"{name} has no price of kind {kind!r}", "catalog/prices.yaml", fix=f"one of {have}"))
    return max(chosen, key=lambda offer: offer.date).price


def mixed_price(pools: Iterable[tuple[Device | str, float]]) -> Coefficient | None:
    """$/GPU-hour of a cluster of (device, GPUs) pools: the mean over its GPUs; None where any device has no price."""
    parts = [(default_price(device), count, _name(device)) for device, count in pools]
    if not parts or any(price is None for price, _, _ in parts):
        return None
    known = [(price, count) for price, count, _ in parts if price is not None]
    if len({name for _, _, name in parts}) == 1:
        return known[0][0]
    gpus = sum(count for _, count in known)
    mean = sum(price.value * count for price, count in known) / gpus
    source = "mean over the GPUs of the pools: " + "; ".join(price.source for price, _ in known)
    return Coefficient(mean, source, 0, max(price.residual for price, _ in known))


def cost_usd(price: Coefficient | float, gpus: ArrayLike, seconds: ArrayLike | Estimate) -> Estimate:
    """Dollars for `gpus` GPUs during `seconds`.

    Parameters
    ----------
    price : Coefficient or float
        $/GPU-hour: `price_of`, a cluster's price, or a number of one's own (then without a spread of its own).
    gpus : array_like
    seconds : array_like or Estimate
        Broadcast against `gpus`; the spread of an estimate adds to that of the price.

    Returns
    -------
    Estimate
        Dollars: ``price x gpus x seconds / 3600``.

    Raises
    ------
    InputError
        For negative or non-finite numbers.
    """
    value, width = (price.value, price.residual) if isinstance(price, Coefficient) else (float(price), 0.0)
    time = seconds if isinstance(seconds, Estimate) else Estimate.of(seconds)
    count = np.asarray(gpus, np.float64)
    faults = []
    for name, array in (("gpus", count), ("seconds", time.mid)):
        bad = ~(np.isfinite(array) & (array >= 0))
        if bad.any():
            faults.append(Fault(f"{name} is {np.asarray(array)[bad].flat[0]:g}", "cost", fix="0 or more"))
    if not (math.isfinite(value) and value >= 0):
        faults.append(Fault(f"the price is {value} $/GPU-hour", "cost", fix="0 or more"))
    if faults:
        raise InputError(faults)
    return Estimate.of(value * count * time.mid / 3600.0, np.asarray(time.spread + width))
