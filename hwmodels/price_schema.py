"""What ``catalog/prices.yaml`` may say, as declarations (the file boundary only)."""

from __future__ import annotations

from typing import Annotated, Literal

from hwmodels.declared import Field, Strict
from hwmodels.prices import Offer
from hwmodels.schema import Number, Text

Dollars = Annotated[Number, Field(gt=0)]
Day = Annotated[str, Field(strict=True, pattern=r"^20\d\d(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?$")]
Kind = Literal["median", "specialty", "hyperscaler", "long-tail", "cloud", "index", "spot"]


class OfferFile(Strict):
    """What one source asked at one time."""

    kind: Kind
    low: Dollars
    high: Dollars
    date: Day
    terms: Text
    source: Text

    def check_together(self) -> None:
        """The ends of the offer in their order."""
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}")

    def build(self) -> Offer:
        """The domain object."""
        return Offer(self.kind, self.low, self.high, self.date, self.terms, self.source)


class DevicesFile(Strict):
    """Offers that hold for each of `devices`."""

    devices: Annotated[list[Text], Field(min_length=1)]
    offers: Annotated[list[OfferFile], Field(min_length=1)]


class PricesFile(Strict):
    """``catalog/prices.yaml``."""

    notes: str = ""
    prices: list[DevicesFile]
