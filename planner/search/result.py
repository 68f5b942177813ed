"""`SearchResult`: ranked layouts, and what happened to all the others."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from hwmodels.records import dataclass
from planner.frameworks.switches import described
from planner.layout import Layout, split_text
from planner.plan import Workload
from planner.results import Step

if TYPE_CHECKING:
    import pandas

    from planner.mixed.arrangement import Use


@dataclass(frozen=True, slots=True)
class Row:
    """One ranked layout.

    Attributes
    ----------
    rank : int
        From 1.
    layout : Layout
    step : Step
    microbatches : int
    workload : Workload
        What this row trains in: its precision and switches are the search's own where it varies them.
    pareto : bool
        Whether no other row of the answer beats it in every objective (time and memory of a single one).
    contended_s : float or None
        Seconds of the event engine with contention for links, where it has played the row.
    use : Use or None
        Which pools, on a cluster of unlike ones.
    figures : dict of str to float
        What the search was asked for: objective -> value, in the unit of its name or SI base units.
    """

    rank: int
    layout: Layout
    step: Step
    microbatches: int
    workload: Workload
    pareto: bool = False
    contended_s: float | None = None
    use: Use | None = None
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The outcome of a search.

    Attributes
    ----------
    considered : int
        Distinct candidates enumerated.
    dropped : dict of str to int
        Rule (or ``"memory"``, ``"constraint:…"``) -> candidates it dropped; ``"bound"``: those that a bound kept out of
        the answer before they were priced.
    screened : int
        Legal candidates, each with a lower bound of its time and its memory.
    sized : int
        Candidates whose memory was found on every rank.
    priced : int
        Candidates that fit and whose step was priced whole.
    simulated : int
        Candidates timed exactly, by the max-plus engine.
    contended : int
        Rows played by the event engine with contention.
    wall_s : float
    rows : list of Row
        Best first.
    optimal : bool
        True where the order of `rows` is proven within the model: every candidate that was not
        timed has a lower bound above the worst row.
    objectives : tuple of str
        What the rows are ranked by; with several, the rows are their Pareto front.
    notes : list of str
    values : tuple of float
        Costs of the answer by its first objective (less is better), of rows that are not predicted in full as well.
    """

    considered: int
    dropped: dict[str, int]
    screened: int
    sized: int
    priced: int
    simulated: int
    contended: int
    wall_s: float
    rows: list[Row]
    optimal: bool
    objectives: tuple[str, ...] = ("step_time",)
    notes: list[str] = field(default_factory=list)
    values: tuple[float, ...] = ()

    def records(self) -> list[dict[str, Any]]:
        """One flat dict a row: degrees, then figures with units in their names."""
        found = []
        for row in self.rows:
            step = row.step
            tight = max(step.memory, key=lambda m: m.peak_bytes / m.capacity_bytes)
            found.append(
                {
                    "rank": row.rank,
                    **{name: value for name, value in asdict(row.layout).items() if name != "placement"},
                    "placed": bool(row.layout.placement),
                    "precision": row.workload.precision,
                    "switches": dict(row.workload.switches),
                    "microbatches": row.microbatches,
                    "step_s": step.step_s.mid,
                    "step_low_s": step.step_s.low,
                    "step_high_s": step.step_s.high,
                    "contended_s": row.contended_s,
                    "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
                    "mfu": step.mfu,
                    "usd_per_mtoken": step.usd_per_mtoken,
                    "peak_bytes": tight.peak_bytes,
                    "capacity_bytes": tight.capacity_bytes,
                    "bubble_fraction": step.bubble_fraction,
                    "exposed_comm_fraction": exposed_fraction(step),
                    "verdict": step.verdict,
                    "pareto": row.pareto,
                    **({"use": row.use.record()} if row.use is not None else {}),
                    **row.figures,
                }
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``search --json``."""
        return {
            "schema": 1,
            "considered": self.considered,
            "dropped": self.dropped,
            "screened": self.screened,
            "sized": self.sized,
            "priced": self.priced,
            "simulated": self.simulated,
            "contended": self.contended,
            "wall_s": self.wall_s,
            "objectives": list(self.objectives),
            "optimal": self.optimal,
            "notes": self.notes,
            "plans": self.records(),
        }

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a pandas frame."""
        import pandas

        def flat(record: dict[str, Any]) -> dict[str, Any]:
            words = {name: split_text(record[name]) for name in ("stage_layers", "recompute_layers")}
            words |= {"recompute_modules": "+".join(record["recompute_modules"])}
            return {**record, **words, "switches": described(tuple(record["switches"].items()))}

        return pandas.DataFrame([flat(record) for record in self.records()])


def exposed_fraction(step: Step) -> float:
    """Share of the step that waits for communication, mean over pipeline ranks."""
    names = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm")
    return sum(p[n] for p in step.phases for n in names) / (len(step.phases) * step.step_s.mid)
