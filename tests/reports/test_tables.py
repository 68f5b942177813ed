"""Console tables: what they show, with units, and text that is not taken for markup."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from planner.results import Interval, StageMemory
from reports import tables
from reports.text import label, value

_spec = importlib.util.spec_from_file_location("report_samples", Path(__file__).with_name("samples.py"))
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)


def printed(table, width=200):
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return out.getvalue()


@pytest.mark.parametrize(
    ("key", "item", "text"),
    [
        ("step_s", 0.0125, "12.5 ms"),
        ("peak_bytes", 3 * 2**30, "3.00 GiB"),
        ("mfu", 0.4251, "42.5%"),
        ("error_pct", 4.25, "+4.2%"),
        ("tokens_per_s_per_gpu", 1234.4, "1,234"),
        ("n", 12345, "12,345"),
        ("x", None, "–"),
        ("x", float("nan"), "–"),
        ("ok", True, "yes"),
        ("x", "[bold]", "[bold]"),
        ("x", [1, 2], "1, 2"),
        ("usd_per_mtoken", 12.34, "$12.34"),
    ],
)
def test_values_carry_their_units(key, item, text):
    assert value(key, item) == text


def test_labels():
    assert [label(k) for k in ("step_s", "peak_bytes", "mfu", "tokens_per_s_per_gpu", "zero_stage")] == [
        "step",
        "peak",
        "MFU",
        "tokens/s/GPU",
        "zero stage",
    ]


def test_ranked_shows_the_first_and_counts_the_rest():
    text = printed(tables.ranked([{**row, "note": "[red]not markup[/red]"} for row in samples.rows(30)], most=10))
    assert "tp1 pp1 dp8 mbs1" in text and "10.0 s" in text and "20 more" in text
    assert "[red]not markup[/red]" in text


def test_breakdown_and_memory():
    text = printed(tables.breakdown(samples.step(4)))
    assert "25.8%" in text  # forward: 8 of 31 s
    assert "28.0 s to 34.0 s" in text and "1.50 s" in text  # hidden dp_comm
    text = printed(tables.memory(samples.step(4)))
    # stage 0: 12 + 12 + 9 + 40 + 0 + 1 + 1 = 75 GiB of 80: 6.2 % free (rounded half to even of 6.25)
    assert "75.0 GiB" in text and "6.2%" in text


def test_the_memory_sentence_says_what_sets_the_peak():
    gib = 2**30
    stages = [
        StageMemory(0, {"activations": 30 * gib, "context": gib}, 80 * gib, "backward", {}, Interval(29e9, 33e9, 36e9)),
        StageMemory(
            1, {"parameters": 10 * gib, "logits": 20 * gib, "allocator": 2 * gib, "nccl": gib}, 80 * gib, "loss", {},
            Interval(30.0 * gib, 33.0 * gib, 36.0 * gib),
        ),
    ]  # fmt: skip
    text = tables.memory_peak(replace(samples.step(2), memory=stages, verdict="fits"))
    assert text.startswith("fits: 33.0 GiB (30.0 GiB .. 36.0 GiB) of 80.0 GiB on stage 1 at loss, most of it logits")
    assert text.endswith("30.0 GiB allocated, 32.0 GiB reserved")
    assert tables.memory_peak(samples.step(2)) == samples.step(2).verdict


def test_comparison_and_validation():
    text = printed(tables.comparison(samples.comparison()))
    assert "-4.2% (within the interval)" in text and "+20.0%" in text
    assert "not comparable" in printed(tables.comparison(samples.comparison(comparable=False)))
    group = {
        "group": "g",
        "metric": "step_time",
        "n": 8,
        "mean_abs_pct": 4.44,
        "median_abs_pct": 4.0,
        "p90_abs_pct": 8.0,
        "max_abs_pct": 8.9,
        "bias_pct": -2.1,
        "kendall_tau": None,
        "regret_pct": None,
        "baseline_mean_abs_pct": 14.87,
    }
    text = printed(tables.validation({"rows": 9, "predicted": 8, "groups": [group]}))
    assert "8 of 9 rows predicted" in text and "4.4" in text and "-2.1" in text and "14.9" in text


def test_importing_reports_loads_nothing_heavy():
    heavy = ("jinja2", "rich", "pandas", "torch")
    code = "import sys, reports.html, reports.perfetto, reports.tables; "
    code += f"print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.stdout.strip() == "[]"
