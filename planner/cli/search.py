"""``search``: the legal layouts of a model on a cluster, ranked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs
from planner.cli import inputs_training as training
from planner.cli.search_sweep import answered, with_sweeps

if TYPE_CHECKING:
    from planner.cli.problem import Problem
    from planner.search import SearchResult

Range = str | None


def _range(name: str, about: str) -> Any:
    return typer.Option(name, metavar="4 | 1,2,4 | 1..8", help=about)


Recompute = Annotated[
    Range, typer.Option("--recompute", metavar="NAME,...", help="none, selective, full, block, every, op.")
]
RecomputeModules = Annotated[
    Range, typer.Option("--recompute-modules", metavar="A+B,...", help="Sets of modules of a selective policy.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("search", help="Legal layouts of a model on a cluster, ranked.")(with_sweeps(search))

Scenario = Annotated[str | None, typer.Argument(metavar="[SCENARIO]", help="A scenario YAML, or a shipped one.")]


def search(
    scenario: Scenario = None,
    model: inputs.ModelName = None,
    cluster: inputs.ClusterName = None,
    seq_len: inputs.SeqLen = None,
    gbs: inputs.Gbs = None,
    precision: Annotated[
        str | None, typer.Option("--precision", metavar="NAME,...", help="bf16 (default), or several to try.")
    ] = None,
    optimizer: inputs.MaybeOptimizer = None,
    framework: inputs.MaybeFramework = None,
    kind: training.Kind = None,
    lora: training.LoraText = None,
    documents: training.DocumentsText = None,
    grad_dtype: training.GradDtype = None,
    main_dtype: training.MainDtype = None,
    switch: training.Switch = None,
    vary_switch: Annotated[
        list[str] | None,
        typer.Option("--vary-switch", metavar="NAME=A,B", help="Try these values of a switch (repeatable)."),
    ] = None,
    routing: training.RoutingText = None,
    mtp: training.Mtp = None,
    flops: training.Flops = None,
    images: training.Images = None,
    tp: Annotated[Range, _range("--tp", "Tensor parallel degrees to try.")] = None,
    sp: Annotated[Range, _range("--sp", "Sequence parallelism: 0, 1 or 0,1.")] = None,
    cp: Annotated[Range, _range("--cp", "Context parallel degrees (1 if not given).")] = None,
    pp: Annotated[Range, _range("--pp", "Pipeline stages to try.")] = None,
    vpp: Annotated[Range, _range("--vpp", "Virtual stages per pipeline rank.")] = None,
    dp: Annotated[Range, _range("--dp", "Data parallel degrees to keep.")] = None,
    ep: Annotated[Range, _range("--ep", "Expert parallel degrees to try.")] = None,
    etp: Annotated[Range, _range("--etp", "Tensor parallel degrees of the experts (1 if not given).")] = None,
    zero_stage: Annotated[Range, _range("--zero-stage", "ZeRO stages to try.")] = None,
    fsdp: Annotated[Range, _range("--fsdp", "Shard degrees; 0 is all of dp.")] = None,
    mbs: Annotated[Range, _range("--mbs", "Sequences per micro-batch.")] = None,
    recompute: Recompute = None,
    recompute_modules: RecomputeModules = None,
    recompute_layers: Annotated[Range, _range("--recompute-layers", "Of a chunk or block, or the frequency.")] = None,
    offload_optimizer: Annotated[Range, _range("--offload-optimizer", "Per cent of the optimizer on the host.")] = None,
    offload_parameters: Annotated[Range, _range("--offload-parameters", "ZeRO-3 shards on the host: 0, 1.")] = None,
    offload_activations: Annotated[Range, _range("--offload-activations", "Layers whose activations leave.")] = None,
    schedule: Annotated[Range, typer.Option("--schedule", metavar="NAME,...", help="See: list schedules.")] = None,
    cp_kind: Annotated[
        Range, typer.Option("--cp-kind", metavar="NAME,...", help="Kinds of context parallelism (the framework's).")
    ] = None,
    reshard: Annotated[Range, typer.Option("--reshard", metavar="NAME,...", help="default, always, never.")] = None,
    order: Annotated[
        Range, typer.Option("--order", metavar="NAME,...", help="Orders of the axes, or any that the framework has.")
    ] = None,
    cp_ulysses: Annotated[Range, _range("--cp-ulysses", "Inner degrees of hierarchical context parallelism.")] = None,
    stages: Annotated[
        Range, typer.Option("--stages", metavar="NAME,...", help="even (the default), best, balanced, fit.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", help="step_time, tokens_per_s_per_gpu or usd_per_mtoken.")
    ] = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="Rows to show (10).")] = None,
    save: Annotated[list[int] | None, typer.Option("--save", help="Write the plan of this row (repeatable).")] = None,
    place: Annotated[int, typer.Option("--place", min=0, help="Place the ranks of this many of the best rows.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the table and the plans of all rows.")
    ] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Search the layouts of a scenario, or of the options; options override the scenario."""
    from planner.cli.problem import problem_of

    space = {
        "tp": tp, "sp": sp, "cp": cp, "pp": pp, "vpp": vpp, "dp": dp, "ep": ep, "etp": etp,
        "zero_stage": zero_stage, "fsdp": fsdp, "mbs": mbs, "recompute": recompute, "schedule": schedule,
        "recompute_modules": recompute_modules, "recompute_layers": recompute_layers,
        "offload_optimizer": offload_optimizer, "offload_parameters": offload_parameters,
        "offload_activations": offload_activations,
        "cp_kind": cp_kind, "cp_ulysses": cp_ulysses, "reshard": reshard, "order": order, "stages": stages,
    }  # fmt: skip
    varied, precision = varied_of(precision, vary_switch)
    stated = {
        "seq_len": seq_len, "gbs": gbs, "precision": precision, "optimizer": optimizer, "framework": framework,
        **training.stated(kind, lora, documents, grad_dtype, main_dtype, switch, routing, mtp, flops, images),
    }  # fmt: skip
    ranges = space_of(space) | varied
    answer(problem_of(scenario, model, cluster, stated, ranges, objective, top), out, save or [], json, place)


def answer(problem: Problem, out: Path | None, save: list[int], json: bool, place: int = 0) -> None:
    """Search, write what is asked for, and print; or a sweep in its place."""
    if answered(problem, out, json):
        return
    _no_such_rows([number for number in save if not 1 <= number <= problem.top], problem.top)
    result = find(problem)
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


def space_of(options: dict[str, str | None]) -> dict[str, tuple[Any, ...]]:
    """The ranges that were given; all faults of all of them at once."""
    found: dict[str, tuple[Any, ...]] = {}
    faults: list[Fault] = []
    for name, text in options.items():
        if text is None:
            continue
        if name in ("recompute", "recompute_modules", "schedule", "cp_kind", "reshard", "order", "stages"):
            found[name] = tuple(part.strip() for part in text.split(","))
            continue
        try:
            found[name] = inputs.parse_values(text, inputs.option(name))
        except InputError as error:
            faults.extend(error.faults)
    if faults:
        raise InputError(faults)
    return found


def find(problem: Problem) -> SearchResult:
    """Search with progress on stderr."""
    from planner.cli.progress import Progress
    from planner.search import search as run

    with Progress() as progress:
        progress.stage(f"search the layouts of {problem.model.name} on {problem.cluster.n_ranks} ranks")
        return run(
            problem.model,
            problem.cluster,
            problem.workload,
            problem.space,
            objective=problem.objective,
            top=problem.top,
            progress=progress.log,
            **problem.limits,
        )


def write(result: SearchResult, problem: Problem, out: Path | None, save: list[int]) -> list[Path]:
    """Write ``layouts.csv`` and the plans of the chosen rows (all of them with `out` alone).

    Raises
    ------
    InputError
        Where `save` names a row that the answer does not have.
    """
    from planner.cli.plans import plan_of_row
    from planner.files import write_text
    from planner.plan_io import save_plan

    _no_such_rows([number for number in save if not 1 <= number <= len(result.rows)], len(result.rows))
    if out is None and not save:
        return []
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
    """What was asked, what was dropped and why, and the ranked table."""
    from planner.cli.output import print_pairs, print_table, say

    print_pairs(problem.echo())
    say()
    dropped = sum(result.dropped.values())
    say(f"{result.considered:,} layouts considered, {dropped:,} dropped, {result.priced:,} priced, "
        f"{result.simulated:,} simulated in {result.wall_s:.2f} s")  # fmt: skip
    reasons = sorted(result.dropped.items(), key=lambda item: -item[1])
    widest = max((count for _, count in reasons), default=1)
    bars = [(rule, "#" * max(1, round(24 * count / widest)), f"{count:,}") for rule, count in reasons]
    print_table("dropped by", ("rule", "", "layouts"), bars, left=2)
    say()
    print_table(f"layouts by {problem.objective.replace('_', ' ')}, best first", RANKED, ranked(result))
    proof = "proven: every other layout is slower by a lower bound" if result.optimal else "not proven"
    say(f"* not beaten in both time and memory. The order is {proof}.")
    if any(row.step.verdict != "fits" for row in result.rows):
        say("at risk: the middle figure fits with the headroom asked for, the high end of its interval does not.")
    for text in result.notes:
        say(f"note: {text}")


RANKED = (
    "layout",
    "#",
    "step ms",
    "+-%",
    "tok/s/GPU",
    "MFU %",
    "$/1M tok",
    "peak GiB",
    "free %",
    "bubble %",
    "comm %",
    "memory",
    "",
)


def ranked(result: SearchResult) -> list[tuple[str, ...]]:
    """The cells of the ranked table, columns as in `RANKED`."""
    rows: list[tuple[str, ...]] = []
    for row, record in zip(result.rows, result.records(), strict=True):
        usd, mid = record["usd_per_mtoken"], record["step_s"]
        rows.append((
            row.layout.label() if row.use is None else f"{row.layout.label()} on {row.use.label}",
            str(row.rank),
            f"{1e3 * mid:,.1f}",
            f"{100 * (record['step_high_s'] / mid - 1):.0f}",
            f"{record['tokens_per_s_per_gpu']:,.0f}",
            f"{100 * record['mfu']:.1f}",
            "-" if usd is None else f"{usd:.3f}",
            f"{record['peak_bytes'] / 2**30:,.1f}",
            f"{100 * (1 - record['peak_bytes'] / record['capacity_bytes']):.0f}",
            f"{100 * record['bubble_fraction']:.1f}",
            f"{100 * record['exposed_comm_fraction']:.1f}",
            row.step.verdict,
            "*" if record["pareto"] else "",
        ))  # fmt: skip
    return rows
