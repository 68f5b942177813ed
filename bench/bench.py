"""``make bench``: what this project must reach, measured here and now, kept in bench/history.jsonl.

Every figure is the median of five runs of a fresh process. Beside it stand the medians of three fixed commands run in
turn with it (start of Python, ``import numpy``, a NumPy loop), the peak resident memory, the target, and whether
it was reached. A row whose scenario or script is not there is ``missing``; missed and missing rows end with exit 1.

    python bench/bench.py [--runs N] [--only NAME]... [--keep FILE]
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import json
import math
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from processes import ROOT, Run, run
from rows import BASE, GROWTH, GROWTH_SLACK, Row, chosen, counted, search

HISTORY = ROOT / "bench" / "history.jsonl"
PACKAGES = ("hwmodels", "planner", "executor", "reports", "scenarios")
HEAD = f"{'':26}{'median':>11}{'min':>9}{'max':>9}{'peak MiB':>10}{'numpy s':>9}{'loop s':>8}   target"


def measured(row: Row, runs: int) -> dict[str, Any]:
    """Figures of one row, with those of the fixed commands in the same minutes.

    Raises
    ------
    SystemExit
        Where a process fails: there is nothing to measure then.
    """
    beside: dict[str, list[float]] = {base.name: [] for base in BASE}
    found: list[float] = []
    done: list[Run] = []
    run(list(row.arguments))  # warms the disk cache
    for _ in range(runs):
        for base in BASE:
            beside[base.name].append(run(list(base.arguments)).wall_s)
        last = run(list(row.arguments))
        if last.code != 0:
            raise SystemExit(f"python {' '.join(row.arguments)} ended with {last.code}:\n{last.err}")
        found.append(last.wall_s if row.figure is None else row.figure(last.out))
        done.append(last)
    counts = counted(done[-1].out) if row.counts else {}
    median, peak = statistics.median(found), max(one.peak_bytes for one in done)
    enough = all(counts[name] >= least for name, least in row.counts.items())
    return {
        "figure": median,
        "unit": row.unit,
        "min": min(found),
        "max": max(found),
        "peak_bytes": peak,
        **{f"{name}_s": round(statistics.median(values), 4) for name, values in beside.items()},
        **counts,
        "target": row.target if math.isfinite(row.target) else None,
        "ok": row.holds(median) and peak <= row.peak_bytes and enough,
    }


def growth(runs: int) -> dict[str, Any]:
    """Time against the number of layouts: the search's own seconds on a part of a space and on all of it."""
    name, small, full = GROWTH
    found: dict[str, list[float]] = {"small": [], "full": []}
    layouts: dict[str, int] = {}
    for _ in range(runs):
        for label, options in (("small", small), ("full", full)):
            last = run(list(search(name, *options)))
            if last.code != 0:
                raise SystemExit(f"the search of {name} ended with {last.code}:\n{last.err}")
            content = json.loads(last.out)
            found[label].append(content["wall_s"])
            layouts[label] = content["considered"]
    seconds = {label: statistics.median(values) for label, values in found.items()}
    times, more = seconds["full"] / seconds["small"], layouts["full"] / layouts["small"]
    return {
        "figure": times, "unit": "x", "layouts": layouts, "seconds": seconds, "target": round(more * GROWTH_SLACK, 3),
        "ok": times <= more * GROWTH_SLACK,
    }  # fmt: skip


def shown(name: str, row: Row | None, found: dict[str, Any]) -> str:
    """One line of the table."""
    if "missing" in found:
        return f"{name:26}{'missing':>11}   {found['missing']} is not there"
    unit = found["unit"]
    digits = 0 if found["figure"] >= 1000 else 3
    figures = f"{found['figure']:>{11 - len(unit)},.{digits}f}{unit}"
    verdict = "ok" if found["ok"] else "MISSED"
    if row is None:
        counts = " ".join(f"{label} {found['layouts'][label]:,} in {found['seconds'][label]:.2f} s;"
                          for label in ("small", "full"))  # fmt: skip
        return f"{name:26}{figures}   {counts} at most {found['target']:.2f}x: {verdict}"
    figures += f"{found['min']:>9,.{digits}f}{found['max']:>9,.{digits}f}{found['peak_bytes'] / 2**20:>10,.0f}"
    figures += f"{found['numpy_s']:>9.3f}{found['numpy_loop_s']:>8.3f}"
    wanted = [] if found["target"] is None else [f"{'>=' if row.at_least else '<='} {row.target:,g} {row.unit}"]
    wanted += [f"<= {row.peak_bytes / 2**20:,.0f} MiB"] if math.isfinite(row.peak_bytes) else []
    wanted += [f"{found[count]:,} {count} (>= {least:,})" for count, least in row.counts.items()]
    return f"{name:26}{figures}   {', '.join(wanted)}: {verdict}" if wanted else f"{name:26}{figures}"


def main() -> int:
    """Measure, print, append to the history; 1 where a target is missed or a row cannot be run."""
    options = argparse.ArgumentParser(description="Measure what this project must reach.")
    options.add_argument("--runs", type=int, default=5, help="runs of each process (5)")
    options.add_argument("--only", action="append", default=[], metavar="NAME", help="this row (repeatable)")
    options.add_argument("--keep", type=Path, default=HISTORY, help="file that the figures are appended to")
    given = options.parse_args()
    for package in PACKAGES:  # as an installation does: nobody pays for compiling in every run
        compileall.compile_dir(ROOT / package, quiet=2)
    found: dict[str, dict[str, Any]] = {}
    print(HEAD, flush=True)
    for row in chosen(given.only):
        absent = row.absent(ROOT)
        found[row.name] = {"missing": absent, "ok": False} if absent else measured(row, given.runs)
        print(shown(row.name, row, found[row.name]), flush=True)
    if not given.only:
        scenario = f"scenarios/{GROWTH[0]}.yaml"
        there = (ROOT / scenario).exists()
        found["growth"] = growth(given.runs) if there else {"missing": scenario, "ok": False}
        print(shown("time against layouts", None, found["growth"]), flush=True)
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "runs": given.runs,
        "rows": found,
    }
    with given.keep.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
    print(f"kept in {given.keep}")
    failed = [name for name, one in found.items() if not one["ok"]]
    if failed:
        print(f"missed or missing: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
