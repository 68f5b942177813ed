"""What a sweep says: one flat row a case, the efficiency of each size, and the scaling curve as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.sweep.run import Outcome

FIGURES = ("step_s", "tokens_per_s_per_gpu", "mfu", "usd_per_mtoken", "peak_bytes", "capacity_bytes", "verdict")
HEIGHT = 12


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row a case: its labels, what became of it, and the figures of its best layout.

    ``efficiency`` is tokens/s/GPU over that of the smallest size that has an answer, of the same model on the same
    cluster: 1 there, and below 1 where the larger job loses time. None for cases of one size, and without an answer.
    """
    found = []
    for outcome in outcomes:
        best = outcome.best
        row: dict[str, Any] = {"case": outcome.case.name, **outcome.case.labels, "status": outcome.status}
        row["layout"] = outcome.document["layouts"][0] if best else None
        row |= {name: best[name] if best else None for name in FIGURES}
        rate = row["tokens_per_s_per_gpu"]
        row["tokens_per_s"] = rate * outcome.case.cluster.n_ranks if rate is not None else None
        row["optimal"] = outcome.document["answer"]["optimal"] if best else None
        row["why"] = outcome.document.get("why", "")
        found.append(row)
    _efficiencies(found)
    return found


def families(found: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """Rows that differ in size alone, smallest first."""
    grouped: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in found:
        grouped.setdefault((row.get("scenario"), row.get("model"), row.get("cluster")), []).append(row)
    return {key: sorted(group, key=lambda row: row["gpus"]) for key, group in grouped.items()}


def _efficiencies(found: list[dict[str, Any]]) -> None:
    for group in families(found).values():
        answered = [row for row in group if row["tokens_per_s_per_gpu"] is not None]
        first = answered[0]["tokens_per_s_per_gpu"] if answered else None
        for row in group:
            rate = row["tokens_per_s_per_gpu"]
            alone = len({other["gpus"] for other in group}) == 1
            row["efficiency"] = None if alone or rate is None or first is None else rate / first  # type: ignore[index]


def chart(group: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tokens/s against GPUs, both on logarithmic axes: ``*`` the best layout, ``.`` what linear scaling would give.

    A size without an answer has an ``x`` at the bottom.

    Parameters
    ----------
    group : sequence of rows
        Of one family, smallest first, as `families` gives them.

    Returns
    -------
    list of str
        Lines; empty where fewer than two sizes have an answer.
    """
    answered = [row for row in group if row["tokens_per_s"] is not None]
    if len(answered) < 2:
        return []
    first = answered[0]
    linear = [first["tokens_per_s"] / first["gpus"] * row["gpus"] for row in group]
    values = [row["tokens_per_s"] for row in answered]
    low, high = math.log(min(values)), math.log(max(*values, linear[-1]))
    span = high - low or 1.0
    width = max(8, max(len(f"{row['gpus']:,}") for row in group) + 2)

    def line(value: float) -> int:
        return min(max(round((math.log(value) - low) / span * (HEIGHT - 1)), 0), HEIGHT - 1)

    cells = [[" "] * len(group) for _ in range(HEIGHT)]
    for column, (row, ideal) in enumerate(zip(group, linear, strict=True)):
        if ideal >= min(values):
            cells[line(ideal)][column] = "."
        if row["tokens_per_s"] is None:
            cells[0][column] = "x"
        else:
            cells[line(row["tokens_per_s"])][column] = "*"
    lines = []
    for height in range(HEIGHT - 1, -1, -1):
        at = math.exp(low + span * height / (HEIGHT - 1))
        mark = f"{at:>14,.0f}" if height % 3 == 2 or height == 0 else " " * 14
        lines.append((f"{mark} |" + "".join(f"{cell:^{width}}" for cell in cells[height])).rstrip())
    lines.append(" " * 14 + " +" + "-" * (width * len(group)))
    lines.append((" " * 16 + "".join(f"{row['gpus']:^{width},}" for row in group)).rstrip())
    lines.append(f"{'tokens/s':>14}   GPUs; * best layout, . linear from the smallest, x nothing fits")
    return lines
