"""Options of ``search``: the values to try for each field, what is asked of the answer, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs

if TYPE_CHECKING:
    from planner.search.constraints import Constraint
    from planner.search.question import Target


def _range(name: str, about: str) -> Any:
    return Annotated[str | None, typer.Option(name, metavar="4 | 1,2,4 | 1..8", help=about)]


def _names(name: str, about: str, metavar: str = "NAME,...") -> Any:
    return Annotated[str | None, typer.Option(name, metavar=metavar, help=about)]


Scenario = Annotated[str | None, typer.Argument(metavar="[SCENARIO]", help="A scenario YAML, or a shipped one.")]
Tp = _range("--tp", "Tensor parallel degrees to try.")
Sp = _range("--sp", "Sequence parallelism: 0, 1 or 0,1.")
Cp = _range("--cp", "Context parallel degrees to try.")
Pp = _range("--pp", "Pipeline stages to try.")
Vpp = _range("--vpp", "Virtual stages per pipeline rank.")
Dp = _range("--dp", "Data parallel degrees to keep.")
Ep = _range("--ep", "Expert parallel degrees to try.")
Etp = _range("--etp", "Tensor parallel degrees of the experts (1 if not given).")
ZeroStage = _range("--zero-stage", "ZeRO stages to try.")
Fsdp = _range("--fsdp", "Shard degrees; 0 is all of dp.")
Mbs = _range("--mbs", "Sequences per micro-batch.")
Recompute = _names("--recompute", "none, selective, full, block, every, op.")
RecomputeModules = _names("--recompute-modules", "Sets of modules of a selective policy.", "A+B,...")
RecomputeLayers = _range("--recompute-layers", "Of a chunk or block, or the frequency.")
OffloadOptimizer = _range("--offload-optimizer", "Per cent of the optimizer on the host.")
OffloadParameters = _range("--offload-parameters", "ZeRO-3 shards on the host: 0, 1.")
OffloadActivations = _range("--offload-activations", "Layers whose activations leave.")
Schedule = _names("--schedule", "See: list schedules.")
CpKind = _names("--cp-kind", "Kinds of context parallelism (the framework's).")
Reshard = _names("--reshard", "default, always, never.")
Order = _names("--order", "Orders of the axes, or any that the framework has.")
CpUlysses = _range("--cp-ulysses", "Inner degrees of hierarchical context parallelism.")

Precision = Annotated[
    str | None,
    typer.Option("--precision", metavar="NAME,...", help="bf16 (default); several are searched; see: list precisions."),
]
VarySwitch = Annotated[
    list[str] | None,
    typer.Option("--vary-switch", metavar="NAME=A,B", help="Try these values of a switch (repeatable)."),
]
Stages = _names("--stages", "even (the default), best, balanced, fit.")
Contended = Annotated[
    int | None,
    typer.Option("--contended", min=0, help="How many of the best rows are played with contention for links (3)."),
]
Place = Annotated[
    int | None, typer.Option("--place", min=0, help="Place the ranks of this many of the best rows.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help='What every layout must satisfy, as "tp <= 8" or "peak_memory <= 70GiB" (repeatable; docs/search.md).',
    ),
]
Objective = Annotated[
    str | None, typer.Option("--objective", metavar="NAME", help="step_time (default); see: list objectives.")
]
Pareto = Annotated[
    str | None,
    typer.Option("--pareto", metavar="A,B[,C]", help="The front of two or three objectives in the place of a ranking."),
]
Why = Annotated[
    str | None,
    typer.Option("--why", metavar='"tp=8 pp=4"', help="Why layouts with these values are not the answer."),
]
Tokens = Annotated[
    str | None, typer.Option("--tokens", metavar="15T", help="Tokens of the run that train_time, train_usd ... are of.")
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="30d", help="The fewest nodes of the cluster that train --tokens in time."),
]
Grid = Annotated[
    str | None, typer.Option("--grid", metavar="0.2kg/kWh", help="CO2 of the site's electricity (a world mean).")
]
Pue = Annotated[
    float | None, typer.Option("--pue", metavar="1.1", help="Power of the building over that of its machines (1.2).")
]
Top = Annotated[int | None, typer.Option("--top", min=1, help="Rows to show (10).")]

Save = Annotated[list[int] | None, typer.Option("--save", help="Write the plan of this row (repeatable).")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write the table and the plans of all rows.")]

FIELDS = (
    "tp", "sp", "cp", "pp", "vpp", "dp", "ep", "etp", "zero_stage", "fsdp", "mbs", "recompute", "recompute_modules",
    "recompute_layers", "offload_optimizer", "offload_parameters", "offload_activations", "schedule", "cp_kind",
    "reshard", "order", "cp_ulysses", "stages",
)  # fmt: skip
"""Fields of a layout that have an option."""
WORDS = ("recompute", "recompute_modules", "schedule", "cp_kind", "reshard", "order", "stages")
"""Fields whose values are words."""


def space_of(options: dict[str, str | None]) -> dict[str, tuple[Any, ...]]:
    """The ranges that were given; all faults of all of them at once."""
    found: dict[str, tuple[Any, ...]] = {}
    faults: list[Fault] = []
    for name, text in options.items():
        if text is None:
            continue
        if name in WORDS:
            found[name] = tuple(part.strip() for part in text.split(","))
            continue
        try:
            found[name] = inputs.parse_values(text, inputs.option(name))
        except InputError as error:
            faults.extend(error.faults)
    if faults:
        raise InputError(faults)
    return found


def varied_of(precision: str | None, switches: list[str] | None) -> tuple[dict[str, Any], str | None]:
    """Ranges of precisions and switches that were given, and the one precision of the workload.

    Raises
    ------
    InputError
        Where a switch to vary has no values.
    """
    found: dict[str, Any] = {}
    names = [part.strip() for part in (precision or "").split(",")]
    if len(names) > 1:
        found["precision"], precision = tuple(dict.fromkeys(names)), names[0]
    faults, varied = [], {}
    for text in switches or []:
        name, _, words = text.partition("=")
        values = tuple(word.strip() for word in words.split(",") if word.strip())
        if not values:
            why = "a name and the values to try"
            faults.append(Fault(f"{text!r} names no values", "--vary-switch", why, f"--vary-switch {name}=true,false"))
        varied[name.strip()] = values
    if faults:
        raise InputError(faults)
    return (found | {"switches": varied} if varied else found), precision


def asked_of(
    where: list[str] | None,
    objective: str | None,
    pareto: str | None,
    tokens: str | None,
    grid: str | None,
    pue: float | None,
) -> dict[str, Any]:
    """What was asked of the answer, read; only what was given.

    Returns
    -------
    dict
        ``where``, ``objective``, ``pareto`` as in `planner.cli.problem.Problem`, ``target`` as fields of `Target`.

    Raises
    ------
    InputError
        With every fault of all of them.
    """
    from dataclasses import replace

    from hwmodels.units import parse_count, parse_grid
    from planner.search import objectives

    found: dict[str, Any] = {}
    target: dict[str, float] = {}
    faults: list[Fault] = []

    def read(into: dict[str, Any], name: str, option: str, what: Any) -> None:
        try:
            into[name] = what()
        except InputError as error:
            faults.extend(fault if fault.where else replace(fault, where=option) for fault in error.faults)

    if where:
        from planner.search.constraints import parse_all

        read(found, "where", "--where", lambda: parse_all(where))
    if objective is not None:
        read(found, "objective", "--objective", lambda: objectives.get(objective, "--objective").name)
    if pareto is not None:
        read(found, "pareto", "--pareto", lambda: front_of(pareto))
    if tokens is not None:
        read(target, "tokens", "--tokens", lambda: parse_count(tokens, "tokens"))
    if grid is not None:
        read(target, "kg_per_kwh", "--grid", lambda: parse_grid(grid))
    if pue is not None:
        if not 1.0 <= pue < float("inf"):
            faults.append(Fault(f"{pue:g} is no PUE", "--pue", "a building takes what its machines take", "1 to 2"))
        target["pue"] = pue
    if objective is not None and pareto is not None:
        why = "a front has no single objective"
        faults.append(Fault("--objective and --pareto are both given", "search", why, "one of the two"))
    if faults:
        raise InputError(faults)
    return {**found, **({"target": target} if target else {})}


def front_of(text: str) -> tuple[str, ...]:
    """Two or three objectives, each once; `InputError` otherwise."""
    from planner.search import objectives

    words = [word.strip() for word in text.split(",") if word.strip()]
    names: list[str] = []
    faults: list[Fault] = []
    for word in words:
        try:
            names.append(objectives.get(word, "--pareto").name)
        except InputError as error:
            faults.extend(error.faults)
    if not faults and not 2 <= len(set(names)) <= 3:
        what = f"{len(set(names))} different objectives"
        faults.append(Fault(what, "--pareto", "a front is of two or three", "--pareto step_time,peak_memory"))
    if faults:
        raise InputError(faults)
    return tuple(dict.fromkeys(names))


def target_of(given: dict[str, float], before: Target | None = None) -> Target:
    """The run and the site: what options say in the place of what a scenario says."""
    from dataclasses import replace

    from planner.search.question import Target

    return replace(before or Target(), **given)


def together(before: tuple[Constraint, ...], given: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
    """Constraints of a scenario and of options, each text once."""
    return tuple({constraint.text: constraint for constraint in (*before, *given)}.values())
