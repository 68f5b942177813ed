"""The page of `validate --markdown`: figures by hand from rows, tables that Markdown reads."""

from __future__ import annotations

from typing import Any

import pytest

from reports.accuracy import training_page
from reports.text import markdown_table

MARGIN = "Five per cent each way."


def record(**given: Any) -> dict[str, Any]:
    blank = dict.fromkeys((
        "metric", "error_pct", "predicted_step_s", "step_low_s", "step_high_s", "verdict",
    ))  # fmt: skip
    return blank | {"group": "g", "trust": "A", "gpu": "A100"} | given


TIMED = {"predicted_step_s": 1.0, "step_low_s": 0.9, "step_high_s": 1.1, "verdict": "fits"}
RECORDS = [
    record(metric="step_time", error_pct=5.0, **TIMED),  # measured 1 / 1.05 = 0.952 s: inside
    record(metric="step_time", error_pct=-20.0, **TIMED),  # measured 1 / 0.8 = 1.25 s: outside
    # a rate predicted 25 % too high is a time 20 % too low: measured 1.25 s, outside
    record(group="h", gpu="H100", metric="tokens_per_s", error_pct=25.0, **TIMED),
    record(group="h", gpu="H100", trust="B", metric="tokens_per_s", error_pct=900.0, **TIMED),  # not of trust A
    record(verdict="at risk"),
    record(verdict="out of memory"),
    record(group="skipped"),
]


def group(name: str, metric: str, **given: Any) -> dict[str, Any]:
    sizes = {"n": 2, "mean_abs_pct": 12.5, "median_abs_pct": 12.5, "p90_abs_pct": 18.5, "max_abs_pct": 20.0,
             "bias_pct": -7.5, "kendall_tau": None, "regret_pct": None, "baseline_mean_abs_pct": None,
             "families": 0}  # fmt: skip
    return {"group": name, "metric": metric} | sizes | given


CONTENT = {
    "rows": 7, "predicted": 6, "enough_configuration": 5,
    "skipped": [{"id": "x", "reason": "n_gpus not stated", "enough_configuration": True}],
    "groups": [
        group("g", "step_time", kendall_tau=0.875, regret_pct=1.25, families=3, baseline_mean_abs_pct=30.0),
        group("h", "tokens_per_s"), group("g", "peak_memory:reserved"), group("h", "peak_memory"),
    ],
    "oom": {"true_oom": 1, "called_oom": 1, "called_at_risk": 0, "false_oom": 0, "at_risk_of_worked": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> list[str]:
    return training_page(CONTENT, RECORDS, "python -m planner validate t.csv", MARGIN).splitlines()


def test_it_says_how_it_was_made_and_how_much_was_read(page: list[str]) -> None:
    text = "\n".join(page)
    assert "`python -m planner validate t.csv`" in text and MARGIN in page
    assert "6 of 7 rows are predicted; 4 of the 5 that state enough configuration (80 %)" in text


@pytest.mark.parametrize(
    "line",
    [
        "| g | A | step_time | 2 | 12.5 | 12.5 | 18.5 | 20.0 | -7.5 | 0.88 | 1.2 | 3 | 30.0 | 50% |",
        "| h | A, B | tokens_per_s | 2 | 12.5 | 12.5 | 18.5 | 20.0 | -7.5 | – | – | – | – | 0% |",
        "| g | reserved | 2 | 12.5 | 12.5 | 18.5 | 20.0 | -7.5 |",
        "| h | one kind | 2 | 12.5 | 12.5 | 18.5 | 20.0 | -7.5 |",
        "| ran out of memory | 1 | 0 | 0 |",
        "| worked | 0 | 1 | 4 |",  # six verdicts, one of them of the run that ran out
        "| A100 | 2 | -7.5 | 12.5 |",
        "| H100 | 1 | -20.0 | 20.0 |",  # 1 / 1.25 - 1 of the trust A row alone
        "| 1 | n_gpus not stated |",
    ],
)
def test_figures_are_those_of_the_rows(page: list[str], line: str) -> None:
    assert line in page


def test_every_row_of_a_table_has_the_columns_of_its_head(page: list[str]) -> None:
    width = 0
    for line in page:
        if not line.startswith("|"):
            width = 0
        else:
            width = width or line.count("|")
            assert line.count("|") == width


def test_a_table_escapes_bars_and_says_when_it_is_empty() -> None:
    assert markdown_table(("a", "b"), [("x|y", "1")]) == ["| a | b |", "| :-- | --: |", "| x\\|y | 1 |"]
    assert markdown_table(("a", "b"), [], left=2)[-1] == "| – | – |"
