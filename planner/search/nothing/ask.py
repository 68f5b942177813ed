"""`Ask`: a request as a whole, so that one thing of it can be changed and asked again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from hwmodels.cluster import Cluster
from hwmodels.pools import with_nodes
from planner.frameworks import of as preset_of
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.search.asked import OnLayouts
from planner.search.axes import axes_of
from planner.search.constraints import Constraint
from planner.search.constraints.clash import DEFAULTS
from planner.search.least import Least, least
from planner.search.question import Question, Target
from planner.search.space import Space
from planner.search.widest import coded, widest

_LEANEST = {"recompute": "full", "schedule": "1f1b"}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a search was asked; fields as the arguments of `planner.search.search`."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    space: Space
    where: tuple[Constraint, ...]
    memory_headroom: float
    target: Target

    @property
    def question(self) -> Question:
        """What all its layouts share."""
        return Question(self.model, self.cluster, self.workload, self.target)

    @property
    def capacity(self) -> float:
        """Bytes that a rank may take."""
        return float(self.cluster.device.memory_bytes * (1.0 - self.memory_headroom))

    @property
    def given(self) -> tuple[str, ...]:
        """Fields whose values were given."""
        return tuple(f.name for f in fields(Space) if getattr(self.space, f.name))

    def constraints(self) -> list[OnLayouts]:
        """The constraints that say something about fields."""
        return [OnLayouts(one, self.question) for one in self.where if one.base]

    def searched(self) -> dict[str, tuple[int, ...]]:
        """Field -> values that are searched, as they stand in arrays; dp follows from the others."""
        work, state = axes_of(self.space, self.model, self.cluster, self.workload)
        return {axis.name: tuple(map(int, axis.values)) for axis in (*work, *state) if axis.name != "dp"}

    def domains(self) -> dict[str, tuple[int, ...]]:
        """Field -> every value that it could have, as they stand in arrays."""
        found = {name: (value,) for name, value in DEFAULTS.items()}
        return found | {
            name: coded(name, values)
            for name, values in widest(self.model, self.cluster, self.workload).items()
            if name in found
        }

    def with_nodes(self, times: float) -> Ask:
        """The same on a cluster with as many times the nodes."""
        nodes = [round(pool.nodes * times) for pool in self.cluster.pools]
        return replace(self, cluster=with_nodes(self.cluster, nodes))

    def smallest(self) -> Least | None:
        """The layout that needs least memory, out of the whole space; None where none is legal."""
        return least(self.space, self.model, self.cluster, self.workload, self.constraints())

    def fits(self) -> Least | None:
        """A layout that fits, out of parts of the space that need little memory; None where there is none.

        One sequence a micro-batch, everything recomputed, one virtual stage, all state sharded: of the values that
        are searched those that keep least. Tried from the leanest part to the whole, so that a yes comes fast; a part
        may have no legal layout where the whole has one.
        """
        for space in self._parts():
            found = least(space, self.model, self.cluster, self.workload, self.constraints())
            if found is not None and found.peak_bytes <= self.capacity:
                return found
        return None

    def _parts(self) -> Iterator[Space]:
        """Parts of the space, the leanest first."""
        space, stages = self.space, preset_of(self.workload).zero_stages
        lean: dict[str, Any] = {"mbs": (min(space.mbs or (1,)),), "fsdp": (min(space.fsdp or (0,)),)}
        words: dict[str, Any] = {
            name: (word,) for name, word in _LEANEST.items() if word in (getattr(space, name) or (word,))
        }
        plain: dict[str, Any] = {"zero_stage": (max(space.zero_stage or stages),)}
        if "schedule" in words:
            plain["vpp"] = (min(space.vpp or (1,)),)
        yield replace(space, **lean, **words, **plain)
        yield replace(space, **lean, **words)
