"""Options, output and progress that the commands share."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwmodels.errors import InputError
from planner.cli import inputs, output, progress
from planner.cli import inputs_training as training
from planner.plan import Documents, Lora, Routing


@pytest.mark.parametrize(
    ("text", "values"),
    [("4", (4,)), ("1,2,4", (1, 2, 4)), ("1..4", (1, 2, 3, 4)), ("8, 1..2,2", (1, 2, 8)), ("0,1", (0, 1))],
)
def test_ranges(text: str, values: tuple[int, ...]) -> None:
    assert inputs.parse_values(text, "--tp") == values


@pytest.mark.parametrize("text", ["", "a", "1..", "..4", "4..1", "1;2", "1..99999", "1.5"])
def test_a_bad_range_names_its_option(text: str) -> None:
    with pytest.raises(InputError, match="--tp"):
        inputs.parse_values(text, "--tp")


def test_all_faults_of_a_range_at_once() -> None:
    with pytest.raises(InputError) as caught:
        inputs.parse_values("x,2,y", "--pp")
    assert [fault.what.split()[0] for fault in caught.value.faults] == ["'x'", "'y'"]


@settings(suppress_health_check=[HealthCheck.too_slow])  # how long a draw takes is the machine's load
@given(st.sets(st.integers(0, 500), min_size=1, max_size=20))
def test_ranges_read_back_what_was_written(values: set[int]) -> None:
    assert inputs.parse_values(",".join(map(str, values)), "--tp") == tuple(sorted(values))


def test_missing_options_are_named_together() -> None:
    with pytest.raises(InputError) as caught:
        inputs.required(model=None, cluster="x", seq_len=None)
    assert [fault.what for fault in caught.value.faults] == ["missing option --model", "missing option --seq-len"]


def test_workload_faults_come_together() -> None:
    with pytest.raises(InputError) as caught:
        inputs.workload(-1, 0, "bf17", "adam", "generic")
    assert [fault.where for fault in caught.value.faults] == ["--seq-len", "--gbs", "--precision", "--optimizer"]


def test_training_options_come_together_and_are_read() -> None:
    found = training.stated(None, "rank=8,modules=qkv+up,dropout=0.1", "200,60000", "bf16", None)
    assert found["kind"] == "lora" and found["lora"] == Lora(8, ("qkv", "up"), 0.1)
    assert found["documents"] == Documents(200.0, 60000.0)
    assert found["grad_dtype"] == "bf16" and found["main_dtype"] is None
    load = training.stated(None, None, None, None, None, None, "skew=1.3,capacity=1.25,pad")["routing"]
    assert load == Routing(1.3, 1.25, True)
    with pytest.raises(InputError) as caught:
        training.stated(None, None, None, None, None, None, "skew=much,drop=1")
    assert [fault.where for fault in caught.value.faults] == ["--routing", "--routing"]
    with pytest.raises(InputError) as caught:
        training.stated(None, "rank=many,size=3", "long", None, None)
    assert [fault.where for fault in caught.value.faults] == ["--lora", "--lora", "--documents"]
    with pytest.raises(InputError) as caught:
        inputs.workload(64, 8, "bf16", "adamw", "generic", kind="rlhf", grad_dtype="fp4", main_dtype="fp64")
    assert [fault.where for fault in caught.value.faults] == ["--kind", "--grad-dtype", "--main-dtype"]


@pytest.mark.parametrize(("text", "seconds"), [("300s", 300.0), ("250ms", 0.25)])
def test_durations(text: str, seconds: float) -> None:
    assert math.isclose(inputs.duration(text, "--timeout"), seconds)


def test_a_duration_without_its_unit_is_refused() -> None:
    with pytest.raises(InputError, match="--timeout"):
        inputs.duration("300", "--timeout")


@dataclass(frozen=True)
class _Point:
    x: float
    y: tuple[int, ...]


def test_json_takes_dataclasses_and_numpy_and_has_no_nan(capsys) -> None:
    output.print_json(
        {"p": _Point(1.5, (1, 2)), "a": np.arange(3), "n": np.float64(2.0), "bad": float("nan"), "inf": math.inf}
    )
    assert json.loads(capsys.readouterr().out) == {
        "p": {"x": 1.5, "y": [1, 2]}, "a": [0, 1, 2], "n": 2.0, "bad": None, "inf": None,
    }  # fmt: skip


def test_a_table_on_a_pipe_is_one_row_a_line_uncut(capsys) -> None:
    output.print_table("title", ("name", "value"), [("x" * 120, "1"), ("y", "22")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "title" and lines[1].split() == ["name", "value"]
    assert lines[2].split() == ["x" * 120, "1"] and lines[3].split() == ["y", "22"]
    assert len(lines) == 4


def test_markup_in_a_cell_is_printed_as_it_is(capsys) -> None:
    output.print_table("", ("a",), [("[red]x[/red]",)])
    assert "[red]x[/red]" in capsys.readouterr().out


def test_plain_progress_says_start_and_end_on_stderr(capsys) -> None:
    with progress.Progress() as shown:
        shown.stage("search", total=2)
        shown.update(1, 2)
        shown.log("half way")
        shown.stage("run")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "search ..." and lines[1] == "  half way" and lines[2].startswith("search: done in")
    assert lines[3] == "run ..." and lines[4].startswith("run: done in")


def test_a_failed_stage_is_not_called_done(capsys) -> None:
    with pytest.raises(ValueError, match="x"), progress.Progress() as shown:
        shown.stage("search")
        raise ValueError("x")
    assert "done" not in capsys.readouterr().err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_live_progress_on_a_terminal(monkeypatch) -> None:
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.Progress() as shown:
        shown.stage("search", total=2)
        shown.update(1, 2, "layouts")
        shown.stage("run")
        shown.log("[0] rank started")
    text = stream.getvalue()
    assert "search" in text and "run" in text and "[0] rank started" in text and "done" in text


def test_quiet_progress_is_silent(capsys) -> None:
    with progress.Progress(quiet=True) as shown:
        shown.stage("search")
        shown.log("x")
    assert capsys.readouterr() == ("", "")
