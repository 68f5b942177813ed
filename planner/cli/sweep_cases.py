"""The cases of a sweep: scenarios or one search, times models, clusters and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmodels.errors import Fault, InfeasibleError, InputError
from planner.cli import inputs
from planner.cli.problem import Problem, problem_of_scenario

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.model.spec import ModelSpec
    from planner.scenario import Scenario
    from planner.sweep import Case, Outcome

Built = Callable[..., Problem]
"""A search with other fields (model, config, cluster, cluster_name, workload) in the place of its own."""


@dataclass(frozen=True, slots=True)
class Axes:
    """What a sweep varies; an axis that is empty keeps what each search has.

    Attributes
    ----------
    sizes : tuple of int
        Numbers of GPUs.
    models, clusters : tuple of str
        As ``--model`` and ``--cluster`` take them; a preset without a count gets as many GPUs as the search has.
    share : Fraction or None
        Sequences a GPU of a step, for weak scaling; None keeps the batch: strong scaling.
    """

    sizes: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    share: Fraction | None = None

    def policy(self) -> str:
        """How the batch follows the size, in words."""
        if self.share is not None:
            return f"weak scaling: {self.share} sequences a GPU"
        return "strong scaling: the batch of each search at every size"


@dataclass(frozen=True, slots=True)
class Source:
    """A search that is varied: its name, itself, and how it is made anew with other fields."""

    name: str
    model: ModelSpec
    config: dict[str, Any]
    cluster: Cluster
    cluster_name: str
    gbs: int
    build: Built
    workload: Any


def axes_of(gpus: str | None, models: str | None, clusters: str | None, gbs_per_gpu: str | None) -> Axes:
    """The axes that options describe; all their faults at once."""
    from planner.sweep.sizes import parse_share, parse_sizes

    faults: list[Fault] = []
    found: dict[str, Any] = {}
    for name, text, read in (
        ("sizes", gpus, parse_sizes), ("models", models, _names), ("clusters", clusters, _names),
        ("share", gbs_per_gpu, parse_share),
    ):  # fmt: skip
        if text is None:
            continue
        try:
            found[name] = read(text)
        except InputError as error:
            faults.extend(error.faults)
    if faults:
        raise InputError(faults)
    return Axes(**found)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        what, where = f"{text!r} names nothing", "--models or --clusters"
        raise InputError(Fault(what, where, "", "two names with a comma between"))
    return names


def files_of(paths: Sequence[str]) -> list[str]:
    """Scenarios by file or shipped name, and those of a folder in the order of their names.

    Raises
    ------
    InputError
        For a folder without any.
    """
    found: list[str] = []
    for text in paths:
        path = Path(text)
        if not path.is_dir():
            found.append(text)
            continue
        inside = sorted(str(file) for file in path.iterdir() if file.suffix in (".yaml", ".yml"))
        if not inside:
            raise InputError(Fault("there is no scenario in this folder", text, "", "a folder of YAML files"))
        found += inside
    return list(dict.fromkeys(found))


def source_of_scenario(scenario: Scenario, name: str) -> Source:
    """A scenario: its ranges are worked out anew for each model and cluster."""

    def build(**fields: Any) -> Problem:
        return problem_of_scenario(replace(scenario, **fields))

    return Source(
        name, scenario.model, scenario.config, scenario.cluster, scenario.cluster_name, scenario.workload.gbs, build,
        scenario.workload,
    )  # fmt: skip


def source_of_problem(problem: Problem) -> Source:
    """A search that options describe, on top of a scenario where one was given."""
    if problem.scenario is not None:
        return source_of_scenario(problem.scenario, problem.name)

    def build(**fields: Any) -> Problem:
        return replace(problem, **fields)

    return Source(
        problem.name, problem.model, problem.config, problem.cluster, problem.cluster_name, problem.workload.gbs,
        build, problem.workload,
    )  # fmt: skip


def cases_of(sources: Sequence[Source], axes: Axes) -> list[Case | Outcome]:
    """Every combination; one whose constraints leave nothing to search is an outcome at once.

    Raises
    ------
    InputError
        With the faults of all combinations: unknown names, sizes that are no whole nodes, batches that are not whole.
    """
    found: list[Case | Outcome] = []
    faults: list[Fault] = []
    models = [_attempt(partial(_model, text), faults) for text in axes.models]
    for source in sources:
        for model in models or [(source.model, source.config)]:
            for cluster, label in _clusters(source, axes, faults):
                for size in axes.sizes or (cluster.n_ranks,):
                    made = _attempt(partial(_case, source, model, cluster, label, size, axes), faults)
                    found += [made] if made is not None else []
    if faults:
        raise InputError(list(dict.fromkeys(faults)))
    return found


def _attempt(build: Callable[[], Any], faults: list[Fault]) -> Any:
    try:
        return build()
    except InputError as error:
        faults.extend(error.faults)
        return None


def _model(text: str) -> tuple[ModelSpec, dict[str, Any]]:
    from planner import model as models

    return models.load(text)


def _clusters(source: Source, axes: Axes, faults: list[Fault]) -> list[tuple[Cluster, str]]:
    """Clusters and what they are called in tables."""
    from planner.sweep.sizes import sized

    if not axes.clusters:
        return [(source.cluster, source.cluster_name.partition(":")[0])]

    def load(text: str) -> Cluster:
        cluster = inputs.load_cluster(text)
        counted = ":" in text or text.endswith((".yaml", ".yml"))
        return cluster if counted or axes.sizes else sized(cluster, source.cluster.n_ranks, "--clusters")

    found = [(_attempt(partial(load, text), faults), text.partition(":")[0]) for text in axes.clusters]
    return [(cluster, label) for cluster, label in found if cluster is not None]


def _case(
    source: Source, chosen: tuple[ModelSpec, dict[str, Any]] | None, cluster: Cluster, label: str, size: int, axes: Axes
) -> Case | Outcome | None:
    """One combination; None where its model could not be read, which is said elsewhere."""
    from planner.sweep import Case, Outcome
    from planner.sweep.case import INFEASIBLE
    from planner.sweep.sizes import batch_of, sized

    if chosen is None:
        return None
    model, config = chosen
    where = sized(cluster, size)
    gbs = batch_of(axes.share, size) if axes.share is not None else source.gbs
    workload = replace(source.workload, gbs=gbs)
    labels: dict[str, str | int] = {
        "scenario": source.name, "model": model.name, "cluster": label, "gpus": size, "gbs": gbs,
    }  # fmt: skip
    case = Case(" ".join(map(str, labels.values())), model, where, workload, {}, labels)
    fields = {"model": model, "config": config, "cluster": where, "cluster_name": label, "workload": workload}
    try:
        problem = source.build(**fields)
    except InfeasibleError as error:
        why = {"status": INFEASIBLE, "why": str(error), "binding": error.binding, "nearest": error.nearest}
        return Outcome(case, why)
    objective = problem.pareto or problem.objective
    keywords = {"space": problem.space, "objective": objective, "top": problem.top, **problem.limits}
    return replace(case, keywords=keywords)
