"""``report``: results as one self-contained HTML page and one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.results import Measurement


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help="Results as one HTML page and one trace.")(report)


@dataclass(slots=True)
class Results:
    """What was found in the files: plans by their hash, and measurements."""

    plans: dict[str, Plan] = field(default_factory=dict)
    measured: dict[str, Measurement] = field(default_factory=dict)


def report(
    sources: Annotated[
        list[Path], typer.Argument(metavar="PLAN.json|MEASURED.json|DIR...", help="Files, or folders that hold them.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of report.html and trace.json.")
    ] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Compare what belongs together and write the page and the trace."""
    from planner.cli.output import print_json, say

    found = read(sources)
    files = write(found, inputs.out_folder(out, "report"))
    if json:
        print_json({"schema": 1, "plans": len(found.plans), "measured": len(found.measured), "files": files})
        return
    say(f"{len(found.plans)} plans, {len(found.measured)} of them measured")
    for path in files:
        say(f"wrote {path}")


def read(sources: Sequence[Path]) -> Results:
    """Read plans and measurements; folders are searched for ``plan*.json`` and ``measured*.json``.

    Raises
    ------
    InputError
        With the faults of all files, and where there is no plan at all.
    """
    from planner.files import read_json
    from planner.plan_io import load_plan
    from planner.results_io import load_measurement

    found = Results()
    faults: list[Fault] = []
    for path in _files(sources):
        try:
            content = read_json(path)
            if isinstance(content, dict) and "plan_hash" in content:
                seen = load_measurement(path)
                found.measured[seen.plan_hash] = seen
            else:
                plan = load_plan(path)
                found.plans.setdefault(plan.digest(), plan)
        except InputError as error:
            faults.extend(error.faults)
    lost = [m.plan_name for key, m in found.measured.items() if key not in found.plans]
    faults += [
        Fault(f"the plan {name!r} of a measurement is missing", "report", "", "its plan.json too") for name in lost
    ]
    if not faults and not found.plans:
        names = ", ".join(map(str, sources))
        faults.append(Fault("holds no plan", names, "", "a folder that search, run or scenario wrote"))
    if faults:
        raise InputError(faults)
    return found


def _files(sources: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for source in sources:
        if source.is_dir():
            found += sorted({*source.rglob("plan*.json"), *source.rglob("measured*.json")})
        else:
            found.append(source)
    return found


def write(found: Results, folder: Path) -> list[Path]:
    """The page and the trace: of the fastest plan that ran, or of the fastest one predicted."""
    from planner.cli.inputs_layout import case_of
    from planner.cli.reporting import Page, write_page
    from planner.compare import compare
    from planner.predict import predict

    ran = [key for key in found.measured if found.plans[key].predicted is not None]
    comparisons = [compare(found.plans[key], found.measured[key]) for key in ran]
    order = sorted(found.plans, key=lambda key: _seconds(found.plans[key]))
    shown = min(ran, key=lambda key: found.measured[key].median_step_s) if ran else order[0]
    best = found.plans[shown]
    case = case_of(best)
    step = predict(case.model, case.cluster, case.workload, case.layout, arrangement=case.arrangement, timeline=True)
    asked = {
        "model": best.model_name,
        "cluster": best.cluster,
        "seq_len": best.workload.seq_len,
        "gbs": best.workload.gbs,
    }
    page = Page(
        best.name,
        {**asked, "precision": best.workload.precision, "framework": best.workload.framework},
        [_row(found.plans[key]) for key in order],
        chosen=best.name,
        step=step,
        comparisons=comparisons,
        measured=found.measured[shown].timeline if ran else (),
    )
    return write_page(folder, page)


def _seconds(plan: Plan) -> float:
    return plan.predicted.step_s if plan.predicted is not None else float("inf")


def _row(plan: Plan) -> dict[str, Any]:
    row: dict[str, Any] = {"plan": plan.name, "layout": plan.layout.label()}
    if plan.predicted is not None:
        found = plan.predicted
        row |= {"step_s": found.step_s, "step_low_s": found.step_low_s, "step_high_s": found.step_high_s}
        row |= {"tokens_per_s_per_gpu": found.tokens_per_s_per_gpu, "mfu": found.mfu}
        row |= {"usd_per_mtoken": found.usd_per_mtoken, "peak_bytes": max(found.peak_bytes), "verdict": found.verdict}
    return row
