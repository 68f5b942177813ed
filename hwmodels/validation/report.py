"""What ``validate`` says: the one JSON object, tables for the screen, predictions as CSV, the page for the docs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hwmodels.validation.cases import Cases, grouped
from hwmodels.validation.scored import Scored
from hwmodels.validation.targets import Reached, evaluate

NO_TIME = "the law gives no time: nothing is done"

BY = {"implementation": "group", "pool": "pool"}
"""``--by``: groups with the implementation, or with all implementations together."""


def summary(scored: Iterable[Scored], by: str = "implementation", extra: Iterable[Reached] = ()) -> dict[str, Any]:
    """The one object that every ``validate --json`` prints; errors are predicted over measured, minus 1.

    Parameters
    ----------
    scored : iterable of Scored
        One for each file.
    by : {'implementation', 'pool'}
    extra : iterable of Reached
        Targets that no row of the files tells: held-out rows, speed.
    """
    parts = list(scored)
    cases = Cases.of(parts)
    skipped = [
        {"id": f"{Path(part.file).name}:{line}", "reason": str(reason) or NO_TIME}
        for part in parts
        for line, reason in zip(part.line[~part.predicted], part.reason[~part.predicted], strict=True)
    ]
    rows = sum(int(part.line.size) for part in parts)
    return {
        "schema": 1, "rows": rows, "predicted": len(cases), "skipped": skipped,
        "groups": grouped(cases, getattr(cases, BY[by])),
        "targets": [line.content() for line in (*evaluate(cases), *extra)],
        "files": [
            {"file": part.file, "kind": part.kind, "rows": int(part.line.size), "predicted": int(part.predicted.sum())}
            for part in parts
        ],
        "oom": {"true_oom": 0, "called_oom": 0, "called_at_risk": 0, "false_oom": 0, "at_risk_of_worked": 0},
        "enough_configuration": rows,
    }  # fmt: skip


GROUP_HEADER = ("group", "rows", "median %", "p90 %", "worst %", "bias %", "one rate %", "floor median, p90 %", "twins",
                "inside")  # fmt: skip
TARGET_HEADER = ("target", "of", "metric", "rows", "figure", "floor", "limit", "met")


def group_cells(group: Mapping[str, Any]) -> list[str]:
    """One line of the table of groups."""
    floors = (group["floor_median_pct"], group["floor_p90_pct"])
    base = group["baseline_mean_abs_pct"]
    return [
        group["group"], str(group["n"]), f"{group['median_abs_pct']:.1f}", f"{group['p90_abs_pct']:.1f}",
        f"{group['max_abs_pct']:.1f}", f"{group['bias_pct']:+.1f}", "-" if base is None else f"{base:.0f}",
        "-" if None in floors else f"{floors[0]:.1f}, {floors[1]:.1f}", str(group["twins"]),
        f"{100 * group['coverage']:.0f}%",
    ]  # fmt: skip


def target_rows(lines: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """The table of targets; what a target is and of which member stand on the first of their lines only."""
    rows, before = [], ("", "")
    for line in lines:
        now = (line["what"], line["member"])
        cells = _target_cells(line)
        if now == before:
            cells[1] = ""
        if now[0] == before[0]:
            cells[0] = ""
        rows.append(cells)
        before = now
    return rows


def _target_cells(line: Mapping[str, Any]) -> list[str]:
    """One line of the table of targets."""

    def said(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.1f}" if line["unit"] == "%" else f"{value:,.0f}"

    raised = line["allowed"] is not None and line["allowed"] != line["limit"]
    limit = said(line["limit"]) + (f" (read as {said(line['allowed'])})" if raised else "")
    verdict = {True: "yes", False: "NO", None: f"not judged: {line['why']}" if line["why"] else "-"}[line["met"]]
    return [
        line["what"], line["member"], line["metric"], str(line["n"]), said(line["figure"]), said(line["floor"]), limit,
        verdict,
    ]  # fmt: skip


def reasons(result: Mapping[str, Any]) -> list[tuple[int, str]]:
    """How many rows were skipped, by reason, the most frequent first."""
    found: dict[str, int] = {}
    for item in result["skipped"]:
        found[item["reason"]] = found.get(item["reason"], 0) + 1
    return [(count, reason) for reason, count in sorted(found.items(), key=lambda item: (-item[1], item[0]))]


def verdict(result: Mapping[str, Any]) -> str:
    """One sentence on the targets."""
    judged = [line for line in result["targets"] if line["met"] is not None]
    met = sum(line["met"] for line in judged)
    return f"{met} of {len(judged)} figures with a limit are met" if judged else "no target has enough rows here"


PREDICTION_COLUMNS = ("id", "kind", "group", "measured_s", "predicted_s", "low_s", "high_s", "error_pct", "reason")


def predictions(parts: Iterable[Scored]) -> str:
    """CSV text: one row a case with its prediction and interval; skipped rows with their reason."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PREDICTION_COLUMNS)
    for part in parts:
        name = Path(part.file).name
        done = part.predicted
        for i in range(part.line.size):
            lead = [f"{name}:{part.line[i]}", part.kind]
            if not done[i]:
                writer.writerow(
                    [*lead, "", f"{part.measured_s[i]:.6g}", "", "", "", "", part.reason[i] or NO_TIME]
                )
                continue
            mid, wide = float(part.predicted_s[i]), 1.0 + float(part.spread[i])
            figures = (part.measured_s[i], mid, mid / wide, mid * wide)
            error = 100.0 * (mid / part.measured_s[i] - 1.0)
            writer.writerow([*lead, part.group[i], *(f"{value:.6g}" for value in figures), f"{error:.2f}", ""])
    return text.getvalue()


def markdown(result: Mapping[str, Any], command: str) -> str:
    """The page ``docs/hardware-accuracy.md``: targets, groups, what was left out, and how to read it."""
    lines = [
        "# How far the hardware models are off", "",
        f"Made by `{command}`; do not edit. Errors are |predicted / measured - 1| in per cent.", "",
        "`floor` is what rows that are equal in every input (shape, device, dtype, op, implementation ...) leave",
        "between them: no function of the inputs can do better (`hwmodels/validation/floor.py` has the definition).",
        "A limit is read as the larger of the figure and that floor where at least half of the rows have such a twin.",
        "`one rate` is the mean error of the best single efficiency or bandwidth for the group, what a one-number",
        "model would reach at best. `inside` is the share of rows whose measured time lies in the predicted interval.",
        "",
        f"{result['predicted']} of {result['rows']} rows are predicted; {verdict(result)}.", "",
        "## Targets", "",
        *_table(TARGET_HEADER, target_rows(result["targets"]), left=3), "",
        "## Groups, all implementations together", "",
        *_table(GROUP_HEADER, [group_cells(group) for group in result["groups"]]), "",
        "## Rows that are not predicted", "",
        *_table(("rows", "why"), [(str(count), reason) for count, reason in reasons(result)], left=0), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table, the first `left` columns flush left and the others right."""
    rule = [":--" if i < left else "--:" for i in range(len(header))]
    cells = [header, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return ["| " + " | ".join(row) + " |" for row in cells]
