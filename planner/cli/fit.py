"""``fit``: host constants of a framework preset from its measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs

if TYPE_CHECKING:
    from planner.compare.host_fit import HostFit


def register(app: typer.Typer) -> None:
    """Add the command."""
    about = "Fit host constants of framework presets (seconds a kernel, micro-batch and step) to measured runs."
    app.command("fit", help=about)(fit)


def fit(
    data: Annotated[Path, typer.Option("--data", metavar="CSV|DIR", help="Measurements, one run a row.")],
    preset: Annotated[
        list[str] | None, typer.Option("--preset", help="Only this preset (repeatable); all with rows if not given.")
    ] = None,
    json: inputs.JsonFlag = False,
) -> int:
    """Refit seconds a kernel, a micro-batch and a step of each preset; prints them with rows and residual."""
    from planner.cli.output import print_json
    from planner.cli.progress import Progress
    from planner.compare.host_fit import fit_host, fitted_presets, measurements
    from planner.compare.validation import errors_by_group

    file = measurements(data)
    names = preset or fitted_presets(file)
    if not names:
        raise InputError(Fault("no row names a framework that has a preset", str(file), fix="another file"))
    found = []
    with Progress() as progress:
        for done, name in enumerate(names):
            progress.stage(f"fit the host constants of {name}")
            found.append(fit_host(file, name, errors_by_group))
            progress.update(done + 1, len(names))
    if json:
        print_json({"schema": 1, "presets": [record(one) for one in found]})
    else:
        show(found)
    return 0


def record(found: HostFit) -> dict[str, Any]:
    """One preset for machines: constants in seconds, errors in per cent."""
    return {
        "preset": found.preset,
        "rows": next(iter(found.constants.values())).rows,
        "residual": next(iter(found.constants.values())).residual,
        "constants": {name: constant.value for name, constant in found.constants.items()},
        "before_pct": found.before_pct,
        "after_pct": found.after_pct,
    }


def show(found: list[HostFit]) -> None:
    """One row a preset and group."""
    from planner.cli.output import say, show_table
    from reports.tables import host_fit

    show_table(host_fit([record(one) for one in found]))
    say()
    say("errors are mean absolute logarithms: without host constants, and with those fitted")
