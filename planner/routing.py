"""`Routing`: how unevenly tokens fall on expert ranks, and what a capacity does about it.

A dropless layer runs as fast as its busiest rank: every rank waits in the combine for the one that got most
tokens. `Routing.skew` is that load over the mean. A capacity factor `c` cuts what an expert takes to ``c`` times the
mean (Switch Transformer, arXiv 2101.03961, section 2.2; Megatron-Core ``--moe-expert-capacity-factor``), and with
padding every expert takes exactly that (``--moe-pad-expert-input-to-capacity``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass

MOST = 1024.0
"""Largest skew or capacity factor: more than the experts of any model."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Load of expert ranks. Checked when built; the defaults are perfectly balanced, dropless routing.

    Attributes
    ----------
    skew : float
        Routed rows of the busiest expert-parallel rank over the mean, at least 1.
    capacity_factor : float
        Rows that an expert takes at most, over the mean; 0 drops nothing.
    pad_to_capacity : bool
        Experts with fewer rows are padded to the capacity: every shape is known beforehand, no rank waits.
    """

    skew: float = 1.0
    capacity_factor: float = 0.0
    pad_to_capacity: bool = False

    def __post_init__(self) -> None:
        faults, where = [], "workload.routing"
        if not 1.0 <= self.skew <= MOST:
            why = "the busiest rank has at least the mean"
            faults.append(Fault(f"skew is {self.skew:g}", f"{where}.skew", why, f"1 (balanced) to {MOST:g}"))
        if not 0.0 <= self.capacity_factor <= MOST:
            what, why = f"capacity_factor is {self.capacity_factor:g}", "a share of the mean load"
            faults.append(Fault(what, f"{where}.capacity_factor", why, "0 (none) or 1.25"))
        if self.pad_to_capacity and not self.capacity_factor:
            why = "there is no capacity to pad to"
            fix = "capacity_factor: 1.0, or no padding"
            faults.append(Fault("pad_to_capacity without capacity_factor", f"{where}.pad_to_capacity", why, fix))
        if faults:
            raise InputError(faults)

    @classmethod
    def of_counts(cls, tokens_per_expert: Sequence[float], ep: int) -> Routing:
        """From a measured histogram: experts lie in their order, the same number on each of `ep` ranks.

        Raises
        ------
        InputError
            Where ep does not divide the experts, a count is negative, or all of them are 0.
        """
        n, total = len(tokens_per_expert), float(sum(tokens_per_expert))
        faults = []
        if ep < 1 or not n or n % ep:
            faults.append(Fault(f"{n} experts on {ep} ranks", "routing", "each rank holds the same number", "ep=1"))
        if min(tokens_per_expert, default=0.0) < 0.0 or not total > 0.0:
            faults.append(Fault("counts are negative or all 0", "routing", "they are tokens of an expert", "[5, 7, 4]"))
        if faults:
            raise InputError(faults)
        each = n // ep
        busiest = max(sum(tokens_per_expert[i : i + each]) for i in range(0, n, each))
        return cls(skew=max(busiest * ep / total, 1.0))

    @classmethod
    def zipf(cls, n_experts: int, ep: int, exponent: float) -> Routing:
        """From popularity of expert i proportional to ``1 / i^exponent``, dealt to the ranks like cards.

        Dealing in turn is a placement that balances neither best nor worst: rank 0 gets experts 1, ep + 1, ….

        Raises
        ------
        InputError
            As `of_counts`, and for an exponent that is negative or not finite.
        """
        if not (math.isfinite(exponent) and exponent >= 0.0):
            raise InputError(Fault(f"exponent is {exponent:g}", "routing", "0 is uniform", "0 or more, as 0.5"))
        weights = [1.0 / i**exponent for i in range(1, n_experts + 1)]
        dealt = [weight for rank in range(max(ep, 1)) for weight in weights[rank :: max(ep, 1)]]
        return cls.of_counts(dealt, ep)

    @property
    def balanced(self) -> bool:
        """Whether every rank gets the same and nothing is dropped or padded."""
        return self == Routing()

    @property
    def load(self) -> float:
        """Rows of the busiest rank's experts over the mean of balanced, dropless routing."""
        if not self.capacity_factor:
            return self.skew
        return self.capacity_factor if self.pad_to_capacity else min(self.skew, self.capacity_factor)

    @property
    def sent(self) -> float:
        """Rows that a rank sends, over those that it routes: padding travels, and what is dropped does not.

        Without padding what is dropped is not known from the busiest rank alone: all rows are counted, but for
        a capacity under the mean.
        """
        if not self.capacity_factor:
            return 1.0
        return self.capacity_factor if self.pad_to_capacity else min(1.0, self.capacity_factor)

    @property
    def exchange_skew(self) -> float:
        """Rows that cross the link of the busiest rank, over the mean that is sent."""
        return max(self.load / self.sent, 1.0)

    def described(self) -> str:
        """In words; blank for balanced routing."""
        found = [f"expert skew {self.skew:g}"] * (self.skew != 1.0)
        found += [f"capacity factor {self.capacity_factor:g}"] * bool(self.capacity_factor)
        found += ["padded to capacity"] * self.pad_to_capacity
        return ", ".join(found)
