"""The page that ``validate --markdown`` writes: how far predictions of training steps are off, by group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from reports.text import markdown_table

Record = Mapping[str, Any]

_TIME_HEADER = (
    "group", "trust", "metric", "n", "mean", "median", "p90", "worst", "bias", "τ", "regret", "families", "one MFU",
    "inside",
)  # fmt: skip
_MEMORY_HEADER = ("group", "counts", "n", "mean", "median", "p90", "worst", "bias")
_TEXT = (
    "`mean`, `median`, `p90` and `worst` are of |predicted / measured - 1|, `bias` is the mean of predicted / measured",
    "- 1, all in per cent: of seconds for `step_time`, of a rate for `tokens_per_s`, whose positive bias is a",
    "prediction that is too fast. `τ` is Kendall's τ-b and `regret` what the layout predicted best costs beyond the",
    "layout measured best, both within families of at least four layouts that differ in nothing else",
    "(`planner/compare/scoring.py`). `one MFU` is the mean error of the best single MFU for that very group: a figure",
    "that does not beat it says nothing. `inside` is the share of rows whose measured time lies in the predicted",
    "interval. `trust` is what the file says of the source, A best; times of trust C say little. `GROUP:newest` keeps",
    "of runs that a source repeats over releases the newest alone.",
)


def training_page(content: Mapping[str, Any], records: Sequence[Record], command: str, margin: str) -> str:
    """Markdown of one validation: times, ranking, memory, verdicts, devices, and what was not predicted.

    Parameters
    ----------
    content : mapping
        What ``validate --json`` prints.
    records : sequence of mapping
        What ``validate --out`` writes, one a row of the measurements.
    command : str
        What makes the page again.
    margin : str
        Sentence on the width of the interval behind a verdict.
    """
    times = [group for group in content["groups"] if not _of_memory(group)]
    memory = [group for group in content["groups"] if _of_memory(group)]
    inside, trust = _inside(records), _trust(records)
    said = f"{content['predicted']} of {content['rows']} rows are predicted"
    missed = sum(row["enough_configuration"] for row in content["skipped"])
    enough = content["enough_configuration"]
    if enough:
        share = 100.0 * (enough - missed) / enough
        said += f"; {enough - missed} of the {enough} that state enough configuration ({share:.0f} %)"
    lines = [
        "# How far predicted training steps are off", "",
        f"Made by `{command}`; do not edit. {said}.", "",
        *_TEXT, "",
        "## Time", "",
        *markdown_table(_TIME_HEADER, [_time_cells(group, trust, inside) for group in times], left=3), "",
        "## Memory", "",
        "A figure is compared with what it counts, of the rank it speaks of: `allocated` and `reserved` as PyTorch",
        "reports them, `unstated` what the framework's own log prints, `one kind` where all rows of a group agree.", "",
        *markdown_table(_MEMORY_HEADER, [_memory_cells(group) for group in memory], left=2), "",
        "## Verdicts", "",
        margin, "",
        *_verdicts(content["oom"], records), "",
        "## Bias by device", "",
        "Of the time of all rows that a source measured with full configuration (trust A), in the direction of a step",
        "time: positive is a prediction that is too slow.", "",
        *markdown_table(("device", "n", "bias", "median error"), _by_device(records)), "",
        "## Rows that are not predicted", "",
        *markdown_table(("rows", "why"), _reasons(content["skipped"]), left=2), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _of_memory(group: Mapping[str, Any]) -> bool:
    return str(group["metric"]).startswith("peak_memory")


def _number(figure: float | None, pattern: str = "{:.1f}") -> str:
    return "–" if figure is None else pattern.format(figure)


def _errors(group: Mapping[str, Any]) -> list[str]:
    """n, mean, median, p90, worst, bias."""
    sizes = [_number(group[f"{name}_abs_pct"]) for name in ("mean", "median", "p90", "max")]
    return [str(group["n"]), *sizes, _number(group["bias_pct"], "{:+.1f}")]


def _time_cells(group: Mapping[str, Any], trust: Mapping[str, str], inside: Mapping[str, str]) -> list[str]:
    return [
        group["group"], trust.get(group["group"], "–"), group["metric"], *_errors(group),
        _number(group["kendall_tau"], "{:.2f}"), _number(group["regret_pct"]), str(group["families"] or "–"),
        _number(group["baseline_mean_abs_pct"]), inside.get(group["group"], "–"),
    ]  # fmt: skip


def _memory_cells(group: Mapping[str, Any]) -> list[str]:
    return [group["group"], str(group["metric"]).partition(":")[2] or "one kind", *_errors(group)]


def _step_ratio(record: Record) -> float | None:
    """Predicted over measured step time; None where the row has no pair. A rate is the inverse of a time."""
    error = record["error_pct"]
    if error is None:
        return None
    ratio = 1.0 + float(error) / 100.0
    return ratio if record["metric"] == "step_time" else 1.0 / ratio


def _trust(records: Iterable[Record]) -> dict[str, str]:
    """Trust of the rows of each group that have a time."""
    found: dict[str, set[str]] = {}
    for record in records:
        if record["error_pct"] is not None:
            found.setdefault(record["group"], set()).add(str(record["trust"]))
    return {group: ", ".join(sorted(letters)) for group, letters in found.items()}


def _inside(records: Iterable[Record]) -> dict[str, str]:
    """Share of rows by group whose measured step time lies within the predicted interval."""
    found: dict[str, list[bool]] = {}
    for record in records:
        if (ratio := _step_ratio(record)) is not None:
            measured = record["predicted_step_s"] / ratio
            within = record["step_low_s"] <= measured <= record["step_high_s"]
            found.setdefault(record["group"], []).append(within)
    return {group: f"{100.0 * fmean(hits):.0f}%" for group, hits in found.items()}


def _verdicts(oom: Mapping[str, int], records: Iterable[Record]) -> list[str]:
    """Verdicts of runs that ran out of memory, and of those that worked."""
    ran_out = oom["true_oom"]
    judged = sum(bool(record["verdict"]) for record in records)
    worked = judged - ran_out
    called, risk = oom["called_oom"], oom["called_at_risk"]
    rows = [
        ("ran out of memory", called, risk, ran_out - called - risk),
        ("worked", oom["false_oom"], oom["at_risk_of_worked"], worked - oom["false_oom"] - oom["at_risk_of_worked"]),
    ]
    header = ("run", "called out of memory", "called at risk", "called fitting")
    return markdown_table(header, [(name, *(str(count) for count in counts)) for name, *counts in rows])


def _by_device(records: Iterable[Record]) -> list[list[str]]:
    found: dict[str, list[float]] = {}
    for record in records:
        if record["trust"] == "A" and (ratio := _step_ratio(record)) is not None:
            found.setdefault(str(record["gpu"]), []).append(100.0 * (ratio - 1.0))
    return [
        [name, str(len(errors)), f"{fmean(errors):+.1f}", f"{median(map(abs, errors)):.1f}"]
        for name, errors in sorted(found.items())
    ]


def _reasons(skipped: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """How many rows were skipped, by reason, the most frequent first."""
    found: dict[str, int] = {}
    for row in skipped:
        found[row["reason"]] = found.get(row["reason"], 0) + 1
    return [(str(count), why) for why, count in sorted(found.items(), key=lambda item: (-item[1], item[0]))]
