"""What a search is about, from a scenario, from options, or from a scenario that options change."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from hwmodels.records import dataclass
from planner.cli import inputs
from planner.cli.inputs_layout import Case

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.layout import Layout
    from planner.model.spec import ModelSpec
    from planner.plan import Workload
    from planner.scenario import Scenario
    from planner.search import Row, SearchResult, Space

OBJECTIVE = "step_time"
TOP = 10


@dataclass(frozen=True, slots=True)
class Problem:
    """One search: what is trained, on what, which layouts, and how they are ranked.

    Attributes
    ----------
    name : str
        Name of the scenario, or ``"search"``; files are named after it.
    limits : dict
        Constraints and the run that is asked about, as the keywords of `planner.search.search`.
    pareto : tuple of str
        Objectives whose front is asked for; empty for a ranking by `objective`.
    deadline_s : float or None
        Seconds that the run may take.
    scenario : Scenario or None
        What it was made of; its ranges are worked out anew for another model or cluster.
    """

    name: str
    model: ModelSpec
    config: dict[str, Any]
    cluster: Cluster
    cluster_name: str
    workload: Workload
    space: Space
    objective: str
    limits: dict[str, Any]
    top: int
    scenario: Scenario | None = None
    pareto: tuple[str, ...] = ()
    deadline_s: float | None = None

    def search(self, **changes: Any) -> SearchResult:
        """Search, with other keywords of `planner.search.search` where they are given."""
        from planner.search import search

        asked = {"space": self.space, "objective": self.pareto or self.objective, "top": self.top, **self.limits}
        return search(self.model, self.cluster, self.workload, **(asked | changes))

    def case(self, layout: Layout) -> Case:
        """One layout of this search."""
        return Case(self.model, self.config, self.cluster, self.cluster_name, self.workload, layout, None)

    def case_of_row(self, row: Row) -> Case:
        """One row of its answer, in what it trains in and with the pools that it uses."""
        arrangement = row.use.arrangement if row.use is not None else None
        return replace(self.case(row.layout), workload=row.workload, arrangement=arrangement)

    def echo(self) -> list[tuple[str, str]]:
        """What was resolved, as name and text, so that a wrong default is seen at once."""
        from hwmodels.pools import described

        work, cluster = self.workload, self.cluster
        active = ""
        if self.model.active_parameters != self.model.parameters:
            active = f", {self.model.active_parameters:,} active"
        trained = f"seq_len {work.seq_len}, gbs {work.gbs}, {work.precision}, {work.optimizer}"
        trained = ", ".join(filter(None, (trained, work.described())))
        return [
            ("model", f"{self.model.name}: {self.model.parameters:,} parameters{active}, {self.model.n_layers} layers"),
            ("cluster", f"{self.cluster_name}: {described(cluster)}"),
            ("workload", f"{trained}, framework {work.framework}"),
            ("limits", ", ".join(self._limits())),
        ]

    def _limits(self) -> list[str]:
        """Constraints and the run that is asked about, in words."""
        found = [str(constraint) for constraint in self.limits.get("where", ())]
        if "memory_headroom" in self.limits:
            found.append(f"memory_headroom {self.limits['memory_headroom']}")
        target = self.limits.get("target")
        if target is not None:
            found += [f"{target.tokens:,.0f} tokens"] if target.tokens else []
            found += [f"{target.kg_per_kwh:g} kg CO2 per kWh", f"PUE {target.pue:g}"]
        return found


def problem_of(
    scenario: str | None,
    model: str | None,
    cluster: str | None,
    stated: dict[str, Any],
    ranges: dict[str, Any],
    asked: dict[str, Any] | None = None,
    top: int | None = None,
) -> Problem:
    """The problem that options describe, on top of a scenario where one is given.

    Parameters
    ----------
    scenario : str or None
        A YAML file, or the name of a shipped one.
    stated : dict
        seq_len, gbs, precision, optimizer, framework and the other fields of a workload; None where not given.
    ranges : dict
        Layout field -> values to search.
    asked : dict, optional
        As `planner.cli.search_options.asked_of` gives it.

    Raises
    ------
    InputError
        With every fault of the options, or of the file.
    """
    asked = asked or {}
    if scenario is not None:
        return problem_of_scenario(changed(scenario, model, cluster, stated, ranges, asked, top))
    from planner.cli.search_options import target_of
    from planner.search import Space

    inputs.required(model=model, cluster=cluster, seq_len=stated["seq_len"], gbs=stated["gbs"])
    work = inputs.workload(**inputs.with_defaults(stated))
    spec, config, loaded = inputs.model_and_cluster(str(model), str(cluster))
    space = Space.of(ranges)
    limits = {"where": asked["where"]} if "where" in asked else {}
    if "target" in asked:
        limits["target"] = target_of(asked["target"])
    return Problem(
        "search", spec, config, loaded, str(cluster), work, space, asked.get("objective", OBJECTIVE), limits,
        top or TOP, pareto=asked.get("pareto", ()),
    )  # fmt: skip


def problem_of_scenario(scenario: Scenario, cluster: Cluster | None = None) -> Problem:
    """The search of a scenario, on its own cluster or on a calibrated one in its place."""
    return Problem(
        name=scenario.name,
        model=scenario.model,
        config=scenario.config,
        cluster=cluster or scenario.cluster,
        cluster_name=scenario.cluster_name,
        workload=scenario.workload,
        space=scenario.space(cluster),
        objective=scenario.objective,
        limits=scenario.limits,
        top=scenario.top,
        scenario=scenario,
        pareto=scenario.pareto,
        deadline_s=scenario.deadline_s,
    )


def changed(
    name: str,
    model: str | None,
    cluster: str | None,
    stated: dict[str, Any],
    ranges: dict[str, Any],
    asked: dict[str, Any],
    top: int | None,
) -> Scenario:
    """A scenario with what the options say in the place of what the file says."""
    from planner import model as models
    from planner.scenario import load_scenario
    from planner.search import Space

    Space.of(ranges)  # its faults name the option's field, whatever the file says
    found = load_scenario(name)
    if model is not None:
        spec, config = models.load(model)
        found = replace(found, model=spec, config=config)
    if cluster is not None:
        found = replace(found, cluster=inputs.load_cluster(cluster), cluster_name=cluster)
    given = {key: value for key, value in stated.items() if value is not None}
    if given:
        found = replace(found, workload=inputs.workload(**{**_fields(found.workload), **given}))
    from planner.cli.search_options import target_of, together

    front = () if "objective" in asked else found.pareto  # an objective of its own stands for a ranking
    return replace(
        found,
        ranges={**found.ranges, **ranges},
        where=together(found.where, asked.get("where", ())),
        objective=asked.get("objective", found.objective),
        pareto=asked.get("pareto", front),
        target=target_of(asked.get("target", {}), found.target),
        top=top or found.top,
    )


def _fields(workload: Workload) -> dict[str, Any]:
    """Fields of a workload, those that hold a value of their own as they are."""
    return {field.name: getattr(workload, field.name) for field in fields(workload)}
