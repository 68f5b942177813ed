"""``calibrate``: microbenchmarks of this machine, fitted, as a cluster YAML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.cli.progress import Progress


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate", help="Measure this machine and write a cluster YAML.")(calibrate)


def calibrate(
    cluster: Annotated[
        str,
        typer.Option("--cluster", metavar="NAME|PATH", help="What this machine is; its measured figures are replaced."),
    ] = "cpu-local",
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=1, help="Processes, all busy at once; the ranks of the cluster by default."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="More sizes and rounds: minutes in the place of seconds.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="CLUSTER.yaml", help="Where the cluster goes.")] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Run the microbenchmarks, fit the laws, write the cluster with its residuals, and the rows beside it."""
    from hwmodels import cluster as clusters
    from planner.cli.output import note, print_json
    from planner.cli.progress import Progress

    base = sized(clusters.load(cluster), ranks)
    path = out if out is not None else Path("out") / "calibrate" / "cluster.yaml"
    with Progress() as progress:
        found = measure(base, path, quick=not full, progress=progress)
    if json:
        print_json({"schema": 1, "cluster": str(path), "coefficients": figures(found)})
    else:
        show(found)
    note(f"cluster written to {path}; use it as --cluster {path}")


def sized(cluster: Cluster, ranks: int | None) -> Cluster:
    """The cluster with `ranks` processes in its only node.

    Raises
    ------
    InputError
        For a cluster of several nodes: one machine is measured.
    """
    from dataclasses import replace

    if cluster.nodes != 1:
        what = f"{cluster.name} has {cluster.nodes} nodes"
        raise InputError(Fault(what, "--cluster", "this machine is one node", "a preset without :NODES"))
    if ranks is None or ranks == cluster.n_ranks:
        return cluster
    return replace(cluster, pools=(replace(cluster.pools[0], gpus_per_node=ranks),))


def measure(base: Cluster, path: Path, *, quick: bool, progress: Progress) -> Cluster:
    """Measure this machine as `base`, write the calibrated cluster and the rows, return the cluster.

    Raises
    ------
    RunError
        Where torch or SciPy is missing, or a rank fails.
    """
    from hwmodels import cluster as clusters
    from planner.cli.run import executor_module
    from planner.files import write_text

    need_scipy()
    benchmarks = executor_module("calibrate")
    progress.stage(f"measure this machine with {base.n_ranks} ranks")
    rows = benchmarks.measure(base.n_ranks, quick=quick, on_progress=progress.log)
    progress.stage("fit")
    found = fitted(base, rows)
    benchmarks.save(rows, path.with_suffix(".rows.json"))
    write_text(path, clusters.to_yaml(found))
    return found


def need_scipy() -> None:
    """Raise `RunError` saying what to install where SciPy is missing."""
    import importlib.util

    from hwmodels.errors import RunError

    if importlib.util.find_spec("scipy") is None:
        raise RunError("fitting needs SciPy, which is not installed. Try: pip install 'meshwright[executor,fit]'")


def fitted(base: Cluster, rows: Any) -> Cluster:
    """The cluster with what `rows` (`executor.calibrate.CalibrationRows`) say in the place of its assumptions."""
    from hwmodels import fit
    from hwmodels.cluster import with_calibration
    from hwmodels.device import Coefficient

    seen = rows.environment
    source = (
        f"calibrate on this machine: {base.n_ranks} ranks, torch {seen.get('torch', '?')}, {seen.get('backend', '?')}"
    )
    tables, residual = fit.fit_collectives(rows.collectives)
    return with_calibration(
        base,
        device_coefficients=fit.fit_device(base.device, rows.gemm, rows.memory, rows.attention, source=source),
        collective_tables=tables,
        overlap=fit.fit_overlap(rows.overlap, source=source),
        skew=Coefficient(rows.skew, source, len(rows.gemm) + len(rows.memory) + len(rows.attention), 0.5),
        source=source,
        residual=residual,
        launch_s=rows.launch_s,
    )


def figures(found: Cluster) -> dict[str, Any]:
    """Name -> value, rows and residual of everything that was fitted."""
    shown = dict(found.device.coefficients)
    if found.overlap is not None:
        shown["overlap"] = found.overlap
    if found.skew is not None:
        shown["skew"] = found.skew
    if found.fabric.tables_source is not None:
        shown["collectives"] = found.fabric.tables_source
    return {name: {"value": c.value, "rows": c.rows, "residual": c.residual} for name, c in sorted(shown.items())}


def show(found: Cluster) -> None:
    """The fitted coefficients with their residuals."""
    from planner.cli.output import print_table

    rows = [
        (name, f"{c['value']:.4g}", str(c["rows"]), f"{100 * c['residual']:.1f}")
        for name, c in figures(found).items()
    ]  # fmt: skip
    print_table(f"{found.name}: fitted", ("coefficient", "value", "rows", "residual %"), rows)
