"""Measured CSV files against the laws: error per group (`python -m hwmodels validate`)."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog, measured, refit, refit_collectives
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.kernels.gemm import gemm_seconds
from hwmodels.measured import Rows

FILES = ("gemm_measured.csv", "attention_measured.csv", "collectives_measured.csv")


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Predictions beside the measured times of one file.

    Attributes
    ----------
    group : ndarray of str
        Group of each row; empty where it was skipped.
    reason : ndarray of str
        Why a row was skipped.
    predicted_s, measured_s : ndarray
    line : ndarray of int
    file : str
    """

    group: NDArray[np.str_]
    reason: NDArray[np.str_]
    predicted_s: FloatArray
    measured_s: FloatArray
    line: NDArray[np.int64]
    file: str


def _empty(rows: Rows, file: str) -> tuple[NDArray[Any], NDArray[Any], FloatArray, FloatArray]:
    size = len(rows)
    return np.full(size, "", object), np.full(size, "", object), np.zeros(size), rows.numbers["time_us"] * 1e-6


def score_gemm(path: Path) -> Scored:
    """GEMM rows; groups are device, dtype, implementation and size class (`refit.large`)."""
    rows = measured.gemm(path)
    group, reason, predicted, actual = _empty(rows, str(path))
    w, n = rows.words, rows.numbers
    for device_name, dtype, impl in {(d, t, i) for d, t, i in zip(w["device"], w["law_dtype"], w["impl"], strict=True)}:
        its = (w["device"] == device_name) & (w["law_dtype"] == dtype) & (w["impl"] == impl)
        if not device_name or not dtype:
            reason[its] = "device not in the catalog" if not device_name else "no law for this number format"
            continue
        device = catalog.device(str(device_name))
        if dtype not in device.peak_flops:
            reason[its] = f"{device_name} has no {dtype} peak"
            continue
        seconds = gemm_seconds(device, n["m"][its], n["n"][its], n["k"][its], dtype=str(dtype), impl=str(impl)).mid
        predicted[its] = seconds
        size = np.where(refit.large(rows.take(its), device.l2_bytes, str(dtype)), "large", "small")
        group[its] = [f"gemm {device_name} {dtype} {impl or 'unstated'} {s}" for s in size]
    return Scored(group, reason, predicted, actual, rows.line, str(path))


def score_attention(path: Path) -> Scored:
    """Attention rows; groups are device, phase, direction, kernel and length class."""
    rows = measured.attention(path)
    group, reason, predicted, actual = _empty(rows, str(path))
    w, n = rows.words, rows.numbers
    keys = list(zip(w["device"], w["kernel"], w["law_dtype"], strict=True))
    for device_name, kernel, dtype in set(keys):
        its = (w["device"] == device_name) & (w["kernel"] == kernel) & (w["law_dtype"] == dtype)
        if device_name not in refit.REFERENCE_KERNELS:
            reason[its] = "attention was not fitted on this device"
            continue
        if dtype not in ("bf16", "fp16"):
            reason[its] = "the attention law is for 16-bit formats"
            continue
        impl = "flash" if kernel in refit.REFERENCE_KERNELS[str(device_name)] else str(kernel)
        predicted[its] = refit.attention_predict(catalog.device(str(device_name)), rows.take(its), impl)
        length = np.where(n["q_len"][its] >= 1024, ">=1k", "<1k")
        phase = w["phase"][its]
        direction = w["direction"][its]
        group[its] = [
            f"attention {device_name} {p} {d} {kernel}{'' if p == 'decode' else ' ' + s}"
            for p, d, s in zip(phase, direction, length, strict=True)
        ]
    return Scored(group, reason, predicted, actual, rows.line, str(path))


def score_collectives(path: Path) -> Scored:
    """Collective rows; groups are system, op, nodes and size class."""
    rows = measured.collectives(path)
    group, reason, predicted, actual = _empty(rows, str(path))
    n = rows.numbers
    usable = {int(line) for line in refit_collectives.usable(rows).line}
    custom = refit_collectives.is_custom(rows)
    kept = np.asarray([int(line) in usable for line in rows.line])
    reason[~kept] = "system or network not in the catalog, or a declared outlier"
    reason[custom] = "custom all-reduce kernel, not a collective of NCCL"
    for op in set(rows.words["op"][kept]):
        its = kept & (rows.words["op"] == op)
        part = rows.take(its)
        predicted[its] = refit_collectives.predict(part, refit_collectives.OPS[str(op)], {})
        size = np.where(part.numbers["bytes"] >= 2.0**26, ">=64MiB", "<64MiB")
        where = np.where(part.numbers["n_nodes"] > 1, "2 nodes", "1 node")
        group[its] = [
            f"collective {s[:36].strip()} {refit_collectives.OPS[str(op)]} {x} {z}"
            for s, x, z in zip(part.words["system"], where, size, strict=True)
        ]
    del n
    return Scored(group, reason, predicted, actual, rows.line, str(path))


def score(path: Path) -> Scored:
    """Rows of a file of any of the three formats, told apart by its columns.

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
        return score_gemm(path)
    if "q_len" in columns:
        return score_attention(path)
    if {"op", "n_nodes"} <= columns:
        return score_collectives(path)
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
        kept = part.group != ""
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
