"""The newest release of each run."""

from __future__ import annotations

import pytest

from planner.compare.releases import newest, newest_scores, release
from planner.compare.rows import Row
from planner.compare.scoring import RowResult
from planner.layout import Layout
from planner.results import Interval

A, B = Layout(dp=8), Layout(tp=2, dp=4)


def run(name: str, source: str, measured: float, predicted: float, layout: Layout | None = A, **more: str) -> RowResult:
    row = Row(id=name, group=more.pop("group", "g"), source=source, model="m", gpu="H100", step_time_s=measured, **more)
    return RowResult(row, True, layout=layout, step_s=Interval(predicted, predicted, predicted), verdict="fits")


@pytest.mark.parametrize(
    ("source", "versions"),
    [
        ("summary, NeMo container 26.04.01", ((26, 4, 1),)),
        ("NeMo docs v2.1.0 (container 24.07)", ((2, 1, 0), (24, 7))),
        ("MLPerf Training v4.1, lora NVIDIA (eos_ngc24.09_nemo)", ((4, 1), (24, 9))),
        ("SC21 paper, 8xH100-SXM", ()),
    ],
)
def test_versions_of_a_source(source: str, versions: tuple[tuple[int, ...], ...]) -> None:
    assert release(source) == versions


def test_a_later_release_supersedes_the_same_run() -> None:
    rows = [
        run("old", "summary 25.11", 10.0, 10.0),
        run("new", "summary 26.04.01", 10.0, 11.0, precision=""),
        run("twin", "summary 26.04.01", 10.0, 9.0),
        run("other layout", "summary 25.09", 10.0, 10.0, B),
        run("other source", "another 25.09", 10.0, 10.0),
        run("unread", "summary 25.09", 10.0, 10.0, None),
    ]
    assert [r.row.id for r in newest(rows)] == ["new", "twin", "other layout", "other source", "unread"]


def test_spellings_of_a_precision_are_one() -> None:
    rows = [run("a", "s 1.0", 1.0, 1.0, precision="mxfp8"), run("b", "s 1.1", 1.0, 1.0, precision="fp8-mx")]
    assert [r.row.id for r in newest(rows)] == ["b"]


def test_groups_that_repeat_runs_are_scored_twice() -> None:
    # newest of g: +10% and -30%; h repeats nothing
    rows = [
        run("a", "s 1.0", 10.0, 20.0),
        run("b", "s 1.1", 10.0, 11.0),
        run("c", "s 1.0", 10.0, 7.0, B),
        run("d", "s 1.0", 10.0, 20.0, group="h"),
    ]
    (found,) = newest_scores(rows)
    assert (found.group, found.n) == ("g:newest", 2)
    assert (found.mean_abs_pct, found.bias_pct) == (pytest.approx(20.0), pytest.approx(-10.0))
