"""`validate`: published measurements against predictions, scored per group."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmodels.errors import Fault, InfeasibleError, InputError
from planner import frameworks
from planner.compare import regression
from planner.compare.measurements import Case, UnreadableRowError, enough, framework_of, to_case
from planner.compare.releases import newest_scores
from planner.compare.rows import Row, read_rows
from planner.compare.scoring import GroupScore, RowResult, memory_kind, oom_counts, score
from planner.files import write_text
from planner.layout import Layout
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.results import StageMemory, Step

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster

SCHEMA = 1

FACTS = Path(__file__).resolve().parents[2] / "tests" / "validation"
"""Published measurements that are kept with the tests, in a checkout."""

PUBLISHED, LIMITS, TRAINING = "published.csv", "regression.json", "training_measurements.csv"

Predict = Callable[[ModelSpec, "Cluster", Workload, Layout], Step]

OUT_COLUMNS: tuple[str, ...] = (
    "id", "group", "kind", "trust", "source", "model", "gpu", "n_gpus", "framework", "layout", "oom",
    "metric", "measured", "predicted", "error_pct", "predicted_step_s", "step_low_s", "step_high_s",
    "measured_peak_bytes", "predicted_peak_bytes", "memory_error_pct", "verdict", "enough_configuration",
    "assumed", "skipped",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Scores and rows of one validation.

    Attributes
    ----------
    results : tuple of RowResult
        One a row, in the order of the file.
    groups : tuple of GroupScore
    oom : dict
        See `planner.compare.scoring.oom_counts`.
    regressions : tuple of str
        Sentences about groups whose error grew; filled for the published facts only.
    """

    results: tuple[RowResult, ...]
    groups: tuple[GroupScore, ...]
    oom: dict[str, int]
    regressions: tuple[str, ...] = ()

    @property
    def skipped(self) -> list[RowResult]:
        """Rows without a prediction."""
        return [r for r in self.results if r.reason]

    @property
    def predicted(self) -> int:
        """Rows with a prediction."""
        return len(self.results) - len(self.skipped)

    @property
    def missed(self) -> list[RowResult]:
        """Skipped rows that state enough configuration: each counts as a miss."""
        return [r for r in self.skipped if r.enough]

    def group(self, name: str, metric: str | None = None) -> GroupScore:
        """Score of one group (in one metric, or its first)."""
        for found in self.groups:
            if found.group == name and metric in (None, found.metric):
                return found
        raise KeyError(f"{name} {metric or ''}".strip())

    def to_json(self) -> dict[str, Any]:
        """The object that ``validate --json`` prints."""
        return {
            "schema": SCHEMA,
            "rows": len(self.results),
            "predicted": self.predicted,
            "skipped": [{"id": r.row.id, "reason": r.reason, "enough_configuration": r.enough} for r in self.skipped],
            "groups": [group.to_json() for group in self.groups],
            "oom": self.oom,
            "enough_configuration": sum(r.enough for r in self.results),
        }

    def to_records(self) -> list[dict[str, Any]]:
        """One dict a row with the keys of `OUT_COLUMNS`; blanks are None."""
        return [_record(result) for result in self.results]

    def write_csv(self, path: str | Path) -> Path:
        """Every row with its prediction and interval as CSV, written atomically."""
        text = io.StringIO()
        writer = csv.DictWriter(text, OUT_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.to_records())
        return write_text(path, text.getvalue())


def _record(result: RowResult) -> dict[str, Any]:
    row = result.row
    found: dict[str, Any] = dict.fromkeys(OUT_COLUMNS)
    for name in ("id", "group", "kind", "trust", "source", "model", "gpu", "n_gpus"):
        found[name] = getattr(row, name)
    found |= {"framework": result.framework, "layout": result.layout.label() if result.layout else None,
              "oom": "yes" if row.oom else "no", "verdict": result.verdict or None, "skipped": result.reason or None,
              "enough_configuration": "yes" if result.enough else "no", "assumed": "; ".join(result.assumed) or None,
              "measured_peak_bytes": row.measured_peak_bytes, "predicted_peak_bytes": result.peak_bytes}  # fmt: skip
    if row.measured is not None:
        found["metric"], found["measured"] = row.measured
    if (pair := result.time_pair) is not None:
        found["predicted"] = pair[2]
        found["error_pct"] = (pair[2] / pair[1] - 1.0) * 100.0
    if result.step_s is not None:
        step = result.step_s
        found |= {"predicted_step_s": step.mid, "step_low_s": step.low, "step_high_s": step.high}
    if (memory := result.memory_pair) is not None:
        found["memory_error_pct"] = (memory[1] / memory[0] - 1.0) * 100.0
    return found


def predicted_peak(stages: list[StageMemory], row: Row) -> float | None:
    """Predicted bytes of the rank, and in the sense, that the row's memory figure speaks of.

    Allocated and reserved are PyTorch's; a figure whose kind is not stated counts what the framework's own
    log prints (`FrameworkPreset.logs_memory`). "last rank" is the last pipeline stage, "first/last" the larger of
    the two ends, anything else the maximum.
    """
    if not stages:
        return None
    kind = memory_kind(row)
    kind = frameworks.get(framework_of(row)).logs_memory if kind == "unstated" else kind
    name = {"allocated": "allocated_bytes", "reserved": "reserved_bytes", "device": "peak_bytes"}[kind]
    sizes = [float(getattr(stage, name)) for stage in stages]
    scope = row.mem_scope.lower()
    if scope.startswith("last rank"):
        return sizes[-1]
    if scope.startswith("first/last"):
        return max(sizes[0], sizes[-1])
    return max(sizes)


def _default_predict() -> Predict:
    from planner.predict import predict

    return predict


def _result(row: Row, predict: Predict) -> RowResult:
    known, framework = enough(row), framework_of(row)
    try:
        case: Case = to_case(row)
        step = predict(case.model, case.cluster, case.workload, case.layout)
    except UnreadableRowError as reason:
        return RowResult(row, known, reason=str(reason), framework=framework)
    except (InputError, InfeasibleError) as error:
        return RowResult(row, known, reason=str(error).replace("\n", "; "), framework=framework)
    return RowResult(
        row, known, framework=framework, layout=case.layout, assumed=case.assumed, step_s=step.step_s,
        tokens_per_s_per_gpu=step.tokens_per_s_per_gpu, mfu=step.mfu, peak_bytes=predicted_peak(step.memory, row),
        verdict=step.verdict,
    )  # fmt: skip


def errors_by_group(rows: Iterable[Row], predict_fn: Predict | None = None) -> dict[str, float]:
    """Mean absolute error of the times in per cent, by group; rows that cannot be predicted take no part."""
    predict = predict_fn or _default_predict()
    errors: dict[str, list[float]] = {}
    for row in rows:
        if (pair := _result(row, predict).time_pair) is not None:
            errors.setdefault(row.group, []).append(abs(math.log(pair[2] / pair[1])) * 100.0)
    return {group: sum(found) / len(found) for group, found in errors.items()}


def summarise(results: Iterable[RowResult]) -> ValidationResult:
    """Score results that are already predicted: every group, then the newest releases of those that repeat runs."""
    found = tuple(results)
    return ValidationResult(found, (*score(found), *newest_scores(found)), oom_counts(found))


def _locate(path: str | Path | None) -> tuple[Path, Path | None]:
    """The CSV to read, and the limits that its errors are held to (published facts only)."""
    if path is None:
        if not (FACTS / PUBLISHED).exists():
            why = "the published facts come with a checkout only"
            raise InputError(Fault("no measurements are given", "validate", why, "--data FILE.csv"))
        return FACTS / PUBLISHED, FACTS / LIMITS
    found = Path(path)
    return (found / TRAINING if found.is_dir() else found), None


def validate(
    path: str | Path | None = None,
    predict_fn: Predict | None = None,
    groups: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ValidationResult:
    """Predict every row of a measurements CSV that can be, and score the predictions.

    Parameters
    ----------
    path : str or Path, optional
        A CSV with the columns of `planner.compare.rows.Row`, or a folder that holds a
        ``training_measurements.csv``. The published facts kept with the tests when left out;
        their errors may only shrink, and `regressions` says which grew.
    predict_fn : callable, optional
        ``(model, cluster, workload, layout) -> Step``; `planner.predict.predict` by default.
    groups : collection of str, optional
        Only rows of these groups.
    progress : callable, optional
        Called with (rows done, rows in all).

    Raises
    ------
    hwmodels.errors.InputError
        Where the file is malformed, or names none of `groups`.
    """
    file, limits = _locate(path)
    rows = read_rows(file)
    if groups:
        known = sorted({row.group for row in rows})
        absent = [name for name in groups if name not in known]
        if absent:
            fix = "one of " + ", ".join(known)
            raise InputError([Fault(f"no group {name!r}", str(file), "", fix) for name in absent])
        rows = [row for row in rows if row.group in groups]
    predict = predict_fn or _default_predict()
    results = []
    for done, row in enumerate(rows, start=1):
        results.append(_result(row, predict))
        if progress is not None:
            progress(done, len(rows))
    found = summarise(results)
    if limits is None or not limits.exists():
        return found
    grown = regression.check(found.groups, {row.group for row in rows}, limits)
    return replace(found, regressions=tuple(grown))
