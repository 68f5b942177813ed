"""`Question`: what all layouts of a search share, and the run that figures of a whole training are about."""

from __future__ import annotations

from dataclasses import field

from hwmodels import energy
from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.model.spec import ModelSpec
from planner.plan import Workload


@dataclass(frozen=True, slots=True)
class Target:
    """The run and the site that figures beyond one step are about. Checked when built.

    Attributes
    ----------
    tokens : float or None
        Tokens to train on; None where no run is asked about.
    kg_per_kwh : float
        Carbon dioxide of the site's grid.
    pue : float
        Power of the building over that of its machines.
    """

    tokens: float | None = None
    kg_per_kwh: float = energy.GRID_KG_PER_KWH.value
    pue: float = energy.PUE.value

    def __post_init__(self) -> None:
        faults = []
        if self.tokens is not None and not 0.0 < self.tokens < float("inf"):
            faults.append(Fault(f"a run of {self.tokens:g} tokens", "tokens", "a run has some", "15T"))
        if not 0.0 <= self.kg_per_kwh < float("inf"):
            faults.append(Fault(f"{self.kg_per_kwh:g} kg CO2 per kWh", "grid", "no grid takes any out", "0.02 to 0.8"))
        if not 1.0 <= self.pue < float("inf"):
            faults.append(Fault(f"the PUE is {self.pue:g}", "pue", "a building takes what its machines take", "1 to 2"))
        if faults:
            raise InputError(faults)


@dataclass(frozen=True, slots=True)
class Question:
    """One search: what is trained, where, and how far.

    Attributes
    ----------
    model : ModelSpec
    cluster : Cluster
    workload : Workload
    target : Target
    """

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    target: Target = field(default_factory=Target)

    @property
    def step_tokens(self) -> float:
        """Tokens of one step."""
        return float(self.workload.gbs * self.workload.tokens_per_sequence)

    @property
    def steps(self) -> float:
        """Steps of the run, whole ones; 0 where no run is asked about."""
        tokens = self.target.tokens or 0.0
        return float(-(-tokens // self.step_tokens))
