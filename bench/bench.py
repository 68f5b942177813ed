"""``make bench``: seconds of whole processes, kept in bench/history.jsonl.

Each figure is the median of five runs of a fresh process, wall clock. The first two commands
measure the machine (start of Python; NumPy on top of it), so figures of different machines can
be told apart: the ratios to them are printed and kept as well.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HISTORY = ROOT / "bench" / "history.jsonl"
RUNS = 5
COMMANDS: dict[str, list[str]] = {
    "python": ["-c", "pass"],
    "numpy": ["-c", "import numpy"],
    "help": ["-m", "planner", "--help"],
    "gemm_prices_2m": ["bench/gemm_prices.py", "1"],
    "layouts_209k": ["bench/layouts.py", "1"],
    "search_llama3_70b": ["-m", "planner", "search", "scenarios/llama3-70b-128xh100.yaml", "--json"],
}
LIMITS_S = {"help": 0.5, "gemm_prices_2m": 1.6, "layouts_209k": 8.0, "search_llama3_70b": 5.0}


def seconds_of(arguments: list[str]) -> list[float]:
    """Wall seconds of `RUNS` runs, after one that warms the disk cache."""
    found = []
    for run in range(RUNS + 1):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            print(f"python {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}", file=sys.stderr)
            raise SystemExit(1)
        if run:
            found.append(seconds)
    return found


def main() -> int:
    """Measure, print, append to the history; 1 when a limit is passed."""
    medians: dict[str, float] = {}
    print(f"{'':20}{'median':>9}{'min':>9}{'max':>9}{'/python':>9}{'/numpy':>9}   limit", flush=True)
    for name, arguments in COMMANDS.items():
        runs = seconds_of(arguments)
        medians[name] = statistics.median(runs)
        ratios = "".join(
            f"{medians[name] / medians[base]:9.1f}" if base in medians else f"{'':9}" for base in ("python", "numpy")
        )
        limit = f"{LIMITS_S[name]:.1f} s" if name in LIMITS_S else ""
        print(f"{name:20}{medians[name]:8.3f}s{min(runs):8.3f}s{max(runs):8.3f}s{ratios}   {limit}", flush=True)
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "seconds": {name: round(value, 4) for name, value in medians.items()},
        "per_python": {name: round(value / medians["python"], 2) for name, value in medians.items()},
        "per_numpy": {name: round(value / medians["numpy"], 2) for name, value in medians.items()},
    }
    with HISTORY.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
    print(f"kept in {HISTORY.relative_to(ROOT)}")
    over = [name for name, limit in LIMITS_S.items() if medians[name] > limit]
    for name in over:
        print(f"{name}: {medians[name]:.2f} s is over its limit of {LIMITS_S[name]:.1f} s", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
