"""``fit``: host constants of presets, and numbers that presets share, from measured runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs

if TYPE_CHECKING:
    from planner.cli.progress import Progress
    from planner.compare.fit_rows import Errors, FitRow
    from planner.compare.host_fit import HostFit
    from planner.compare.rows import Row
    from planner.compare.scan_fit import ScanFit


def register(app: typer.Typer) -> None:
    """Add the command."""
    about = "Fit host constants of framework presets (seconds a kernel, micro-batch and step), and numbers they share."
    app.command("fit", help=about)(fit)


def fit(
    data: Annotated[Path, typer.Option("--data", metavar="CSV|DIR", help="Measurements, one run a row.")],
    preset: Annotated[
        list[str] | None, typer.Option("--preset", help="Only this preset (repeatable); all with rows if not given.")
    ] = None,
    sustained: Annotated[
        list[str] | None,
        typer.Option("--sustained", metavar="GENERATION:FORMAT", help="FLOPs a joule of tensor cores (repeatable)."),
    ] = None,
    corner: Annotated[bool, typer.Option("--corner", help="The corner between kernels and launches.")] = False,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of a group that are looked at.")] = 48,
    json: inputs.JsonFlag = False,
) -> int:
    """Refit seconds a kernel, a micro-batch and a step of each preset, or what presets share.

    Prints values with rows and residual, and the error of each group with the number fitted on the others.
    """
    from planner.cli.output import print_json
    from planner.cli.progress import Progress
    from planner.compare.host_fit import fitted_presets, measurements

    file = measurements(data)
    shared = bool(sustained or corner)
    names = preset or ([] if shared else fitted_presets(file))
    if not names and not shared:
        raise InputError(Fault("no row names a framework that has a preset", str(file), fix="another file"))
    with Progress() as progress:
        hosts = [_host(file, name, rows, progress) for name in names]
        scans = [_sustained(file, words, rows, progress) for words in sustained or []]
        scans += [_corner(file, rows, progress)] if corner else []
    if json:
        content = {"schema": 2, "presets": [record(one) for one in hosts], "shared": [scanned(one) for one in scans]}
        print_json(content)
    else:
        show(hosts, scans)
    return 0


def _price(rows: list[Row], most: int, progress: Progress) -> list[FitRow]:
    """An even sample of each group, priced once."""
    from planner.compare.fit_rows import priced_rows, sampled

    return priced_rows(sampled(rows, most), lambda done, of: progress.update(done, of, "rows priced"))


def _counted(score: Callable[..., Errors], progress: Progress) -> Callable[..., Errors]:
    """`score`, saying how many trials there were."""
    done = 0

    def counted(values: Any) -> Errors:
        nonlocal done
        done += 1
        progress.update(done, detail="trials")
        return score(values)

    return counted


def _host(file: Path, name: str, most: int, progress: Progress) -> HostFit:
    from planner.compare.fit_rows import counts, host_errors
    from planner.compare.host_fit import fit_host, preset_rows

    progress.stage(f"fit the host constants of {name}")
    priced = _price(preset_rows(file, name), most, progress)
    if not priced:
        raise InputError(Fault(f"no row of {name} can be predicted", str(file), fix="another preset or file"))
    return fit_host(name, counts(priced), _counted(lambda values: host_errors(priced, values), progress))


def _sustained(file: Path, words: str, most: int, progress: Progress) -> ScanFit:
    from hwmodels.kernels.sustained import power_name
    from planner.compare.fit_rows import counts, device_errors
    from planner.compare.scan_fit import FINER, SHARES, powered_rows, scan

    generation, _, dtype = words.partition(":")
    if not generation or not dtype:
        raise InputError(Fault(f"{words!r} names no generation and format", "--sustained", fix="hopper:bf16"))
    progress.stage(f"fit what {generation} gets out of a joule in {dtype}")
    rows, largest = powered_rows(file, generation, dtype)
    priced, name = _price(rows, most, progress), power_name(dtype)
    values = [float(f"{share * largest:.3g}") for share in SHARES]
    score = _counted(lambda value: device_errors(priced, {name: value}), progress)
    return scan(f"{generation}.{name}", values, counts(priced), score, FINER)


def _corner(file: Path, most: int, progress: Progress) -> ScanFit:
    from planner.compare.fit_rows import counts, host_errors
    from planner.compare.host_fit import usable
    from planner.compare.scan_fit import CORNERS, scan

    progress.stage("fit the corner between kernels and launches")
    priced = _price(usable(file), most, progress)
    if not priced:
        raise InputError(Fault("no row can be predicted", str(file), fix="another file"))
    score = _counted(lambda value: host_errors(priced, {}, corner=value), progress)
    return scan("planner.price.CORNER", CORNERS, counts(priced), score)


def record(found: HostFit) -> dict[str, Any]:
    """One preset for machines: constants in seconds, errors in per cent."""
    return {
        "preset": found.preset,
        "rows": next(iter(found.constants.values())).rows,
        "residual": next(iter(found.constants.values())).residual,
        "constants": {name: constant.value for name, constant in found.constants.items()},
        "source": {name: constant.source for name, constant in found.constants.items()},
        "before_pct": found.before_pct,
        "after_pct": found.after_pct,
        "left_out_pct": found.left_out_pct,
        "left_out": found.left_out,
    }


def scanned(found: ScanFit) -> dict[str, Any]:
    """One shared number for machines, in SI units; errors in per cent by value and group."""
    return {
        "name": found.name, "value": found.value, "step": found.step, "rows": found.rows, "residual": found.residual,
        "errors_pct": {f"{value:g}": errors for value, errors in found.errors_pct.items()},
        "left_out": found.left_out, "left_out_pct": found.left_out_pct,
    }  # fmt: skip


def show(hosts: list[HostFit], scans: list[ScanFit]) -> None:
    """One row a preset or number and group."""
    from planner.cli.output import say, show_table
    from reports.tables import host_fit, scan_fit

    if hosts:
        show_table(host_fit([record(one) for one in hosts]))
        say()
    for one in scans:
        show_table(scan_fit(scanned(one)))
        say()
    say("errors are mean absolute logarithms, in the sample that was fitted; left out: fitted on the other groups")
