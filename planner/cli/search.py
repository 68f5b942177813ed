"""``search``: the legal layouts of a model on a cluster, ranked, or the front of several objectives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs
from planner.cli import inputs_training as training
from planner.cli import search_options as opt
from planner.cli.search_sweep import answered, sweeping, with_sweeps

if TYPE_CHECKING:
    from planner.cli.problem import Problem
    from planner.search import SearchResult


PLAYED = 3
"""Best rows that the event engine plays with contention for links."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("search", help="Legal layouts of a model on a cluster, ranked.")(with_sweeps(search))


def search(
    scenario: opt.Scenario = None,
    model: inputs.ModelName = None,
    cluster: inputs.ClusterName = None,
    seq_len: inputs.SeqLen = None,
    gbs: inputs.Gbs = None,
    precision: opt.Precision = None,
    optimizer: inputs.MaybeOptimizer = None,
    framework: inputs.MaybeFramework = None,
    kind: training.Kind = None,
    lora: training.LoraText = None,
    documents: training.DocumentsText = None,
    grad_dtype: training.GradDtype = None,
    main_dtype: training.MainDtype = None,
    switch: training.Switch = None,
    vary_switch: opt.VarySwitch = None,
    routing: training.RoutingText = None,
    mtp: training.Mtp = None,
    flops: training.Flops = None,
    images: training.Images = None,
    tp: opt.Tp = None,
    sp: opt.Sp = None,
    cp: opt.Cp = None,
    pp: opt.Pp = None,
    vpp: opt.Vpp = None,
    dp: opt.Dp = None,
    ep: opt.Ep = None,
    etp: opt.Etp = None,
    zero_stage: opt.ZeroStage = None,
    fsdp: opt.Fsdp = None,
    mbs: opt.Mbs = None,
    recompute: opt.Recompute = None,
    recompute_modules: opt.RecomputeModules = None,
    recompute_layers: opt.RecomputeLayers = None,
    offload_optimizer: opt.OffloadOptimizer = None,
    offload_parameters: opt.OffloadParameters = None,
    offload_activations: opt.OffloadActivations = None,
    schedule: opt.Schedule = None,
    cp_kind: opt.CpKind = None,
    reshard: opt.Reshard = None,
    order: opt.Order = None,
    cp_ulysses: opt.CpUlysses = None,
    stages: opt.Stages = None,
    where: opt.Where = None,
    objective: opt.Objective = None,
    pareto: opt.Pareto = None,
    why: opt.Why = None,
    tokens: opt.Tokens = None,
    deadline: opt.Deadline = None,
    grid: opt.Grid = None,
    pue: opt.Pue = None,
    top: opt.Top = None,
    save: opt.Save = None,
    contended: opt.Contended = None,
    place: opt.Place = None,
    out: opt.Out = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Search the layouts of a scenario, or of the options; options override the scenario."""
    answer_options(dict(locals()))


def answer_options(given: dict[str, Any]) -> None:
    """Answer what the options of ``search`` ask, by name."""
    why, deadline, json = given["why"], given["deadline"], given["json"]
    problem = problem_of_options(given)
    until = inputs.duration(deadline, "--deadline") if deadline is not None else problem.deadline_s
    _one_answer(given)
    if why is not None:
        from planner.cli.search_why import answer_why

        answer_why(problem, why, json)
    elif until is not None and not sweeping():
        from planner.cli.search_deadline import answer_deadline

        answer_deadline(problem, until, json)
    else:
        played = PLAYED if given["contended"] is None else given["contended"]
        answer(problem, given["out"], given["save"] or [], json, given["place"] or 0, played)


def _one_answer(given: dict[str, Any]) -> None:
    """Refuse options that answer something else than the rest asks for."""
    for name in ("why", "deadline", "save", "place", "contended") if sweeping() else ():
        if given[name] is not None:
            what, why_not = f"a sweep has no --{name}", "it is about the answer of one search"
            raise InputError(Fault(what, "search", why_not, "the case that it is about, without the sweep"))
    alone = [f"--{name}" for name in ("why", "deadline") if given[name] is not None]
    beside = [f"--{name}" for name in ("save", "out", "place", "contended") if given[name]]
    if alone and (beside or len(alone) > 1):
        what = f"{alone[0]} beside {', '.join([*alone[1:], *beside])}"
        raise InputError(Fault(what, "search", "it answers one question and makes no plans", f"{alone[0]} alone"))


def problem_of_options(given: dict[str, Any]) -> Problem:
    """The problem of the options of ``search``, by name; None where one was not given."""
    from planner.cli.problem import problem_of

    varied, precision = opt.varied_of(given["precision"], given["vary_switch"])
    stated = {name: given[name] for name in ("seq_len", "gbs", "optimizer", "framework")} | {"precision": precision}
    stated |= training.stated(
        given["kind"], given["lora"], given["documents"], given["grad_dtype"], given["main_dtype"], given["switch"],
        given["routing"], given["mtp"], given["flops"], given["images"],
    )  # fmt: skip
    asked = opt.asked_of(*(given[name] for name in ("where", "objective", "pareto", "tokens", "grid", "pue")))
    space = opt.space_of({name: given[name] for name in opt.FIELDS}) | varied
    return problem_of(given["scenario"], given["model"], given["cluster"], stated, space, asked, given["top"])


def answer(problem: Problem, out: Path | None, save: list[int], json: bool, place: int = 0, played: int = 0) -> None:
    """Search, write what is asked for, and print; or a sweep in its place."""
    if answered(problem, out, json):
        return
    if not problem.pareto:
        _no_such_rows([number for number in save if not 1 <= number <= problem.top], problem.top)
    result = find(problem, played)
    if place:
        from planner.cli.search_place import with_places

        result = with_places(result, problem, place)
    files = write(result, problem, out, save)
    if json:
        from planner.cli.output import print_json

        print_json(result.to_dict())
    else:
        show(result, problem)
    if files:
        from planner.cli.output import note

        note("written: " + ", ".join(map(str, files)))


def find(problem: Problem, played: int = 0) -> SearchResult:
    """Search with progress on stderr; the best `played` rows with contention for links."""
    from planner.cli.progress import Progress

    with Progress() as progress:
        progress.stage(f"search the layouts of {problem.model.name} on {problem.cluster.n_ranks} ranks")
        return problem.search(progress=progress.log, contended=played)


def write(result: SearchResult, problem: Problem, out: Path | None, save: list[int]) -> list[Path]:
    """Write ``layouts.csv`` and the plans of the chosen rows (all of them with `out` alone).

    Raises
    ------
    InputError
        Where `save` names a row that the answer does not have.
    """
    _no_such_rows([number for number in save if not 1 <= number <= len(result.rows)], len(result.rows))
    if out is None and not save:
        return []
    from planner.cli.plans import plan_of_row
    from planner.files import write_text
    from planner.plan_io import save_plan

    folder = inputs.out_folder(out, problem.name)
    files = [write_text(folder / "layouts.csv", result.to_frame().to_csv(index=False))]
    chosen = [row for row in result.rows if not save or row.rank in save]
    files += [save_plan(plan_of_row(problem, row), folder / f"plan-{row.rank}.json") for row in chosen]
    return files


def _no_such_rows(absent: list[int], last: int) -> None:
    """Raise `InputError` for rows that an answer of `last` rows does not have."""
    if absent:
        raise InputError([Fault(f"there is no row {n}", "--save", "", f"1 to {last}") for n in absent])


def show(result: SearchResult, problem: Problem) -> None:
    """Print the answer for people."""
    from planner.cli.search_table import show as show_table

    show_table(result, problem)
