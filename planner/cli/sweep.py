"""``sweep``: many scenarios, or one over models, clusters and sizes, on all cores or a Ray cluster, resumable."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs

if TYPE_CHECKING:
    from planner.cli.sweep_cases import Axes, Source
    from planner.sweep import Outcome

Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus", metavar="64..4096", help="Sizes of the cluster: doubling to 4096, 64..512:64 in steps, or a list."
    ),
]
Models = Annotated[str | None, typer.Option("--models", metavar="A,B", help="Compare models side by side.")]
Clusters = Annotated[
    str | None,
    typer.Option("--clusters", metavar="X,Y", help="Compare clusters; one without :NODES gets as many GPUs."),
]
GbsPerGpu = Annotated[
    str | None,
    typer.Option("--gbs-per-gpu", metavar="2 | 1/4", help="Weak scaling: the batch grows with the GPUs."),
]
Engine = Annotated[
    str, typer.Option("--engine", metavar="local | ray", help="Cores of this machine, or a Ray cluster (extra ray).")
]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Cases at the same time (the cores).")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep", help="Many searches: scenarios, sizes, models, clusters. Resumable.")(sweep)


def sweep(
    cases: Annotated[list[str], typer.Argument(metavar="SCENARIO|DIR...", help="Scenario YAMLs, or folders of them.")],
    gpus: Gpus = None,
    models: Models = None,
    clusters: Clusters = None,
    gbs_per_gpu: GbsPerGpu = None,
    engine: Engine = "local",
    workers: Workers = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Keeps each finished case; the same command goes on there.")
    ] = Path("out/sweep"),
    json: inputs.JsonFlag = False,
) -> int:
    """Search every scenario for every model, cluster and size; what is in DIR already is not searched again."""
    from planner.cli.sweep_cases import axes_of, files_of, source_of_scenario
    from planner.scenario import load_scenario

    axes = axes_of(gpus, models, clusters, gbs_per_gpu)
    faults: list[Fault] = []
    sources: list[Source] = []
    for file in files_of(cases):
        try:
            sources.append(source_of_scenario(load_scenario(file), file))
        except InputError as error:
            faults.extend(error.faults)
    if faults:
        raise InputError(faults)
    return answer(sources, axes, engine, workers, out, json)


def answer(
    sources: Sequence[Source], axes: Axes, engine: str, workers: int | None, out: Path | None, json: bool
) -> int:
    """Run the cases, write and print; the exit code.

    Returns
    -------
    int
        0 where every case could be run and one has an answer, 1 where one failed, else 3: nothing fits anywhere.
    """
    from planner.cli.progress import Progress
    from planner.cli.sweep_cases import cases_of
    from planner.sweep import Case, Outcome, Store, run
    from planner.sweep.case import DONE, FAILED

    made = cases_of(sources, axes)
    asked = [one for one in made if isinstance(one, Case)]
    with Progress() as progress:
        progress.stage(f"search {len(made)} cases", total=len(asked))

        def tell(done: int, total: int, what: str) -> None:
            if sys.stderr.isatty():
                progress.update(done, total)
            progress.log(f"{done}/{total} {what}")

        store = Store(out) if out is not None else None
        answered = iter(run(asked, engine=engine, workers=workers, store=store, progress=tell))
    outcomes = [one if isinstance(one, Outcome) else next(answered) for one in made]
    files = write(outcomes, out) if out is not None else []
    if json:
        from planner.cli.output import print_json

        print_json(document(outcomes, axes))
    else:
        show(outcomes, axes)
    if files:
        from planner.cli.output import note

        note("written: " + ", ".join(map(str, files)))
    states = {outcome.status for outcome in outcomes}
    return 1 if FAILED in states else 0 if DONE in states else 3


def document(outcomes: Sequence[Outcome], axes: Axes) -> dict[str, Any]:
    """What ``--json`` prints: a row a case, with its best plan."""
    from planner.sweep.table import rows

    found = rows(outcomes)
    for row, outcome in zip(found, outcomes, strict=True):
        row["best"] = outcome.best
    return {"schema": 1, "policy": axes.policy(), "cases": found}


def write(outcomes: Sequence[Outcome], out: Path) -> list[Path]:
    """``sweep.csv`` with a row a case; the answers themselves lie in ``cases``."""
    import csv
    import io

    from planner.files import write_text
    from planner.sweep.table import rows

    found = rows(outcomes)
    text = io.StringIO()
    table = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(found)
    return [write_text(out / "sweep.csv", text.getvalue())]


HEADER = (
    "gbs", "step ms", "tok/s", "tok/s/GPU", "eff. %", "MFU %", "$/1M tok", "peak GiB", "memory",
)  # fmt: skip


def show(outcomes: Sequence[Outcome], axes: Axes) -> None:
    """The table of best layouts, the scaling curves, and why a case has none."""
    from planner.cli.output import print_table, say
    from planner.sweep.table import chart, families, rows

    found = rows(outcomes)
    varied = [name for name in ("scenario", "model", "cluster") if len({row[name] for row in found}) > 1]
    if axes.sizes:
        say(axes.policy())
    body = [(*(str(row[name]) for name in varied), row["layout"] or row["status"], *_cells(row)) for row in found]
    print_table("the best layout of each case", (*varied, "layout", "GPUs", *HEADER), body, left=len(varied) + 1)
    for key, group in families(found).items():
        lines = chart(group)
        if lines:
            say()
            say("scaling of " + " on ".join(str(part) for part in key[1:]) + (f" ({key[0]})" if key[0] else ""))
            for line in lines:
                say(line)
    _compare(found, varied)
    for row in found:
        if row["why"]:
            say(f"{row['status']}: {row['case']}: {row['why']}")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """The figures of one row, columns as in `HEADER`."""
    if row["layout"] is None:
        return (f"{row['gpus']:,}", f"{row['gbs']:,}", *["-"] * (len(HEADER) - 1))
    usd, share = row["usd_per_mtoken"], row["efficiency"]
    return (
        f"{row['gpus']:,}", f"{row['gbs']:,}", f"{1e3 * row['step_s']:,.1f}", f"{row['tokens_per_s']:,.0f}",
        f"{row['tokens_per_s_per_gpu']:,.0f}", "-" if share is None else f"{100 * share:.0f}",
        f"{100 * row['mfu']:.1f}", "-" if usd is None else f"{usd:.3f}", f"{row['peak_bytes'] / 2**30:,.1f}",
        row["verdict"],
    )  # fmt: skip


def _compare(found: Sequence[dict[str, Any]], varied: Sequence[str]) -> None:
    """The fastest and the cheapest case, where there is something to compare."""
    from planner.cli.output import say

    answered = [row for row in found if row["layout"] is not None]
    if len(answered) < 2 or not varied:
        return

    def called(row: dict[str, Any]) -> str:
        return ", ".join([*(str(row[name]) for name in varied), f"{row['gpus']:,} GPUs"])

    fastest = max(answered, key=lambda row: row["tokens_per_s"])
    say(f"most tokens a second: {called(fastest)} ({fastest['tokens_per_s']:,.0f})")
    priced = [row for row in answered if row["usd_per_mtoken"] is not None]
    if priced:
        cheapest = min(priced, key=lambda row: row["usd_per_mtoken"])
        say(f"fewest dollars a token: {called(cheapest)} (${cheapest['usd_per_mtoken']:.3f} a million)")
