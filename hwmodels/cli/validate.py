"""``validate``: measured kernels and collectives against the laws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmodels.validation import Scored
    from hwmodels.validation.targets import Reached

FACTS = Path(__file__).resolve().parents[2] / "tests" / "validation" / "kernels"
"""The facts that a checkout keeps, with the limits of these and other known files; not installed with the package."""

LIMITS = FACTS / "regression.json"

HELP = "Score the laws against measured files; exits 1 where an error has grown, or no row at all can be predicted."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate", help=HELP)(validate)


def validate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[CSV]...", help="GEMM, attention, collective or expert rows, told apart by columns."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Every *_measured.csv of it; a checkout's own facts if not given."),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="implementation|pool", help="Groups for each implementation, or pooled.")
    ] = "implementation",
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Also fit without each generation or system and predict it (minutes).")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="One row a case: prediction and interval.")
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option("--plots", metavar="DIR", help="Rooflines and bandwidth curves, measured over predicted."),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE.md", help="Targets and pooled groups as a page.")
    ] = None,
    limits: Annotated[
        Path | None,
        typer.Option("--limits", metavar="FILE.json", help="Errors that may only shrink; the checkout's own."),
    ] = None,
    tighten: Annotated[bool, typer.Option("--tighten", help="Lower the limits to the errors found.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Predict every row that the laws know and print the error of each group and target."""
    from hwmodels import validation
    from hwmodels.cli.output import note, print_json, say_error
    from hwmodels.validation import regression, report

    if by not in report.BY:
        raise InputError(Fault(f"{by!r} is no way to group", "--by", fix=" or ".join(report.BY)))
    if held_out and data is None:
        raise InputError(Fault("--held-out without --data", "validate", "laws are fitted on a folder", "--data DIR"))
    chosen = choose(files or [], data)
    kept = limits or (LIMITS if LIMITS.parent.is_dir() else None)
    if tighten and kept is None:
        raise InputError(Fault("no limits to lower", "--tighten", "this is no checkout", "--limits FILE.json"))
    if limits is not None and not limits.exists() and not tighten:
        raise InputError(Fault("no such file", f"--limits {limits}", fix="--tighten, to make it"))
    parts = [_scored(path, validation.score) for path in chosen]
    extra = _extra(parts, data, held_out)
    result = validation.summary(parts, by, extra)
    _write(parts, result, extra, out=out, plots=plots, markdown=markdown)
    found = [regression.errors_of(part) for part in parts]
    worse = regression.check(found, kept) if kept is not None and kept.exists() else []
    if json:
        print_json({**result, "regressions": worse})
    else:
        show(result)
    for message in blind(result):
        note(message)
    if worse or (result["rows"] and not result["predicted"]):
        say_error("\n".join(worse) or f"none of the {result['rows']} rows can be predicted: nothing was validated")
        return 1
    if tighten and kept is not None:
        note(f"limits lowered in {regression.tighten(found, kept)}")
    return 0


def choose(files: Sequence[Path], data: Path | None) -> list[Path]:
    """The files to score: those named, those of the folder, or the checkout's own facts.

    Raises
    ------
    InputError
        Where there is none, or one is named twice.
    """
    from hwmodels.validation import files_in

    chosen = list(files)
    if data is not None:
        chosen += files_in(data)
    if not chosen:
        if not FACTS.is_dir():
            why = "the facts that a checkout keeps are not installed"
            raise InputError(Fault("no file is named", "validate", why, "--data FOLDER, or the CSV files themselves"))
        chosen = files_in(FACTS)
    seen: dict[Path, Path] = {}
    for path in chosen:
        if path.resolve() in seen:
            raise InputError(
                Fault(f"{path} is named twice", "validate", "its rows would count twice", "naming it once")
            )
        seen[path.resolve()] = path
    return chosen


def _scored(path: Path, score: Any) -> Scored:
    from hwmodels.cli.output import note

    note(f"predict the rows of {path}")
    part: Scored = score(path)
    return part


def _extra(parts: Sequence[Scored], data: Path | None, held_out: bool) -> list[Reached]:
    """Targets that no row tells: the speed where GEMM rows are scored, and rows left out of the fit of their law."""
    from importlib import import_module

    from hwmodels.cli.output import note
    from hwmodels.fit import recording
    from hwmodels.validation import targets

    kinds = {part.kind for part in parts}
    found = [targets.speed()] if "gemm" in kinds else []
    if not held_out:
        return found
    for module in recording.KINDS:
        run = getattr(import_module(f"hwmodels.fit.{module}"), "held_out", None)
        if run is not None and module.removesuffix("s") in kinds:
            note(f"fit {module} without each of its parts on {data}")
            found += targets.from_held_out(module, run(data))
    return found


def _write(
    parts: Sequence[Scored], result: Any, extra: Sequence[Reached], *, out: Path | None, plots: Path | None,
    markdown: Path | None,
) -> None:  # fmt: skip
    """The files that were asked for."""
    from hwmodels.cli.output import note
    from hwmodels.files import write_text
    from hwmodels.validation import report
    from hwmodels.validation.cases import Cases

    if out is not None:
        note(f"predictions written to {write_text(out, report.predictions(parts))}")
    if markdown is not None:
        pooled = report.summary(parts, "pool", extra)
        note(f"page written to {write_text(markdown, report.markdown(pooled, command_line()))}")
    if plots is not None:
        from hwmodels.validation.plots import draw

        note(f"{len(draw(Cases.of(parts), plots))} plots written to {plots}")


def blind(result: Any, most: int = 5) -> list[str]:
    """A warning for each file of which no row is predicted, with the most frequent reasons.

    Parameters
    ----------
    result : dict
        Of `hwmodels.validation.summary`.
    most : int
        Reasons told of each file.
    """
    from hwmodels.validation import report

    found = []
    for entry in result["files"]:
        if entry["predicted"] or not entry["rows"]:
            continue
        name = Path(entry["file"]).name
        its = [item for item in result["skipped"] if item["id"].rpartition(":")[0] == name]
        reasons = report.reasons({"skipped": its})[:most]
        lines = [f"WARNING: {entry['file']}: 0 of {entry['rows']} rows predicted"]
        found.append("\n".join(lines + [f"  {count} rows: {reason}" for count, reason in reasons]))
    return found


def command_line() -> str:
    """What was typed, so that a page says how to make it again."""
    import shlex
    import sys

    return "python -m hwmodels " + shlex.join(sys.argv[1:])


def show(result: Any) -> None:
    """Groups, targets, and what was skipped."""
    from hwmodels.cli.output import print_table, say
    from hwmodels.validation import report

    print_table("", report.GROUP_HEADER, [report.group_cells(group) for group in result["groups"]])
    if result["targets"]:
        say()
        print_table("targets", report.TARGET_HEADER, report.target_rows(result["targets"]), left=3)
    say()
    say(f"{result['predicted']} of {result['rows']} rows predicted; {report.verdict(result)}")
    for count, reason in report.reasons(result)[:20]:
        say(f"  skipped {count}: {reason}")
