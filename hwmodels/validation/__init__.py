"""Measured CSV files against the laws: error per group (`python -m hwmodels validate`)."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.validation import attention, collectives, gemm
from hwmodels.validation.scored import Scored

FILES = ("gemm_measured.csv", "attention_measured.csv", "collectives_measured.csv")


def score(path: Path) -> Scored:
    """Rows of a file of any of the formats, told apart by its columns.

    Raises
    ------
    InputError
        For a file that is missing, broken, or of no known format.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            columns = set(next(csv.reader(stream), []))
    except FileNotFoundError:
        raise InputError(Fault("no such file", str(path), fix="a measured CSV file")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(Fault("cannot be read", str(path), str(error), "a CSV file")) from None
    if {"m", "n", "k"} <= columns:
        return gemm.score(path)
    if "q_len" in columns:
        return attention.score(path)
    if {"op", "n_nodes"} <= columns:
        return collectives.score(path)
    fix = "columns m, n, k (GEMM), q_len (attention) or op, n_nodes (collectives)"
    raise InputError(Fault("is of no known format", f"{path}:1", f"columns: {', '.join(sorted(columns))}", fix))


def _group(name: str, error: FloatArray) -> dict[str, Any]:
    size = np.abs(error)
    return {
        "group": name, "metric": "kernel_time", "n": int(error.size), "mean_abs_pct": round(float(size.mean()), 2),
        "median_abs_pct": round(float(np.median(size)), 2), "p90_abs_pct": round(float(np.quantile(size, 0.9)), 2),
        "max_abs_pct": round(float(size.max()), 2), "bias_pct": round(float(error.mean()), 2), "kendall_tau": None,
        "regret_pct": None, "baseline_mean_abs_pct": None,
    }  # fmt: skip


def summary(scored: Iterable[Scored]) -> dict[str, Any]:
    """The one object that every ``validate --json`` prints; errors are predicted over measured."""
    parts = list(scored)
    groups, skipped, rows, done = [], [], 0, 0
    errors: dict[str, list[FloatArray]] = {}
    for part in parts:
        rows += part.line.size
        kept = part.predicted
        done += int(kept.sum())
        error = 100.0 * (part.predicted_s[kept] / part.measured_s[kept] - 1.0)
        for name in sorted(set(part.group[kept])):
            errors.setdefault(str(name), []).append(error[part.group[kept] == name])
        file = Path(part.file).name
        skipped += [
            {"id": f"{file}:{line}", "reason": str(reason)}
            for line, reason in zip(part.line[~kept], part.reason[~kept], strict=True)
        ]
    groups = [_group(name, np.concatenate(values)) for name, values in errors.items()]
    return {
        "schema": 1, "rows": rows, "predicted": done, "skipped": skipped, "groups": groups,
        "oom": {"true_oom": 0, "called_oom": 0, "called_at_risk": 0, "false_oom": 0, "at_risk_of_worked": 0},
        "enough_configuration": rows,
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """`summary` for people: one line a group."""
    width = max([len(g["group"]) for g in result["groups"]] or [5])
    lines = [f"{'group':<{width}}  {'rows':>5}  {'median %':>8}  {'p90 %':>7}  {'worst %':>8}  {'bias %':>7}"]
    lines += [
        f"{g['group']:<{width}}  {g['n']:>5}  {g['median_abs_pct']:>8.1f}  {g['p90_abs_pct']:>7.1f}"
        f"  {g['max_abs_pct']:>8.1f}  {g['bias_pct']:>+7.1f}"
        for g in result["groups"]
    ]
    reasons: dict[str, int] = {}
    for item in result["skipped"]:
        reasons[item["reason"]] = reasons.get(item["reason"], 0) + 1
    lines.append(f"{result['predicted']} of {result['rows']} rows predicted")
    lines += [f"  skipped {count}: {reason}" for reason, count in sorted(reasons.items(), key=lambda r: -r[1])]
    return "\n".join(lines)
