"""``validate``: published measurements against predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs

if TYPE_CHECKING:
    from planner.compare import ValidationResult


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate", help="Score predictions against measurements: errors in per cent, by group.")(validate)


def validate(
    table: Annotated[Path | None, typer.Argument(metavar="[CSV|DIR]", help="Measurements, one run a row.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="CSV|DIR", help="The same; a checkout's own facts if not given.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option("--group", help="Only this group of rows (repeatable).")] = None,
    tighten: Annotated[
        bool, typer.Option("--tighten", help="Lower the limits of the checkout's own facts to the errors found.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="One row a case: prediction and interval.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE.md", help="Errors, ranking, memory, verdicts as a page.")
    ] = None,
    json: inputs.JsonFlag = False,
) -> int:
    """Predict every row that says enough and print the error of each group; 1 where an error has grown, or
    no row at all was predicted.
    """
    from planner import compare as comparing
    from planner.cli.output import note, print_json, say_error
    from planner.cli.progress import Progress

    if table is not None and data is not None:
        raise InputError(Fault(f"both {table} and --data {data}", "validate", "one table is scored", "one of them"))
    given = table if table is not None else data
    if tighten and (given is not None or group):
        why = "limits are kept for all of the checkout's own facts"
        raise InputError(Fault("--tighten with other measurements", "validate", why, "validate --tighten"))
    with Progress() as progress:
        progress.stage(f"predict the runs of {given or 'the published facts'}")
        result = comparing.validate(given, groups=group or None, progress=progress.update)
    if out is not None:
        result.write_csv(out)
        note(f"predictions written to {out}")
    if markdown is not None:
        note(f"page written to {write_page(markdown, result, command_line(given, group or [], markdown))}")
    if json:
        print_json(result.to_json())
    else:
        show(result)
    if result.regressions:
        say_error("\n".join(result.regressions))
    elif tighten:
        note(f"limits lowered in {lower_limits(result)}")
    if not result.predicted:
        say_error(f"no row was predicted, of {len(result.results)} in {given or 'the published facts'}")
    return 1 if result.regressions or not result.predicted else 0


def write_page(path: Path, result: ValidationResult, command: str) -> Path:
    """The page of `reports.accuracy`, written atomically."""
    from planner.files import write_text
    from planner.memory.allocator import FRAGMENTATION_RANGE, MODEL_ERROR
    from reports.accuracy import training_page

    low, high = FRAGMENTATION_RANGE
    margin = (
        f"A verdict rests on what is allocated, {MODEL_ERROR.value:.0%} less and more, with {low:.0%} to {high:.0%} of "
        "it in fragments: at risk where that interval holds the device's memory."
    )
    return write_text(path, training_page(result.to_json(), result.to_records(), command, margin))


def command_line(data: Path | None, groups: list[str], page: Path) -> str:
    """What makes the page again; paths as seen from the working folder, so that it names no machine."""
    import shlex

    given = [] if data is None else [_seen(data)]
    chosen = [word for name in groups for word in ("--group", name)]
    return shlex.join(["python", "-m", "planner", "validate", *given, *chosen, "--markdown", _seen(page)])


def _seen(path: Path) -> str:
    """A path relative to the working folder; of one that lies further off than beside it, the last two parts."""
    import os

    near = os.path.relpath(path)
    return near if not near.startswith("../..") else str(Path(*path.resolve().parts[-2:]))


def lower_limits(result: ValidationResult) -> Path:
    """Write the errors of `result` as the new limits of the checkout's own facts."""
    from planner.compare import regression, validation

    return regression.tighten(result.groups, validation.FACTS / validation.LIMITS)


def show(result: ValidationResult) -> None:
    """One row a group and metric, then what was skipped and how out-of-memory was called."""
    from planner.cli.output import say, show_table
    from reports.tables import validation

    show_table(validation(result.to_json()))
    say()
    say(f"{len(result.results)} rows, {result.predicted} predicted, {len(result.missed)} missed")
    reasons: dict[str, int] = {}
    for skipped in result.skipped:
        reasons[skipped.reason] = reasons.get(skipped.reason, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:12]:
        say(f"  skipped {count}: {reason}")
    if result.oom.get("true_oom"):
        say("out of memory: " + ", ".join(f"{name} {count}" for name, count in result.oom.items()))
