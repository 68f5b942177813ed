"""The net around every command: one message, the right exit code, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hwmodels.cli import running
from hwmodels.errors import Fault, InfeasibleError, InputError, RunError
from planner.cli import app
from planner.cli import list as listing
from tests.conftest import ROOT

COMMANDS = (
    "search", "predict", "simulate", "place", "goodput", "why", "sensitivity", "sweep", "scenario", "run", "compare",
    "calibrate", "fit", "validate", "report", "list",
)  # fmt: skip


def test_the_commands_of_this_version_are_there_and_no_others(call) -> None:
    found = call("--help")
    section = found.out.split("Commands:")[1].split("Exit codes")[0]
    assert tuple(line.split()[0] for line in section.strip().splitlines()) == COMMANDS == tuple(app.COMMANDS)
    assert found.code == 0


def test_version(call) -> None:
    assert call("--version").out == "meshwright 0.1.0\n"


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (("serch",), "no such command 'serch'", "Try: search"),
        ((), "no command given", "--help"),
        (("predict", "--modl", "x"), "no such option --modl", "Try: --model"),
        (("predict", "--tp", "two"), "--tp: 'two' is not a whole number", "Try: --tp 4"),
        (("run", "plan.json", "--repeats", "0"), "--repeats: less than 2 is meaningless", "Try: --repeats 2"),
        (("run", "plan.json", "--warmup", "0"), "--warmup: less than 1 is meaningless", "Try: --warmup 1"),
        (("run", "plan.json", "--timeout", "3"), "duration '3' has no unit", "Try: --timeout 3s"),
        (("fit",), "missing option '--data'", "--help"),
        (("compare",), "missing argument 'PLAN.json'", "--help"),
        (("list", "modls"), "cannot list 'modls'", "Try: models"),
        (("list", "models", "devices"), "unexpected extra argument", "--help"),
        (("predict", "--tp"), "option '--tp' requires an argument", "--help"),
    ],
)
def test_a_fault_of_the_command_line_is_one_message_and_exit_2(call, words, what: str, fix: str) -> None:
    found = call(*words)
    assert found.code == 2
    assert found.out == ""
    assert found.err.startswith("error: ") and len(found.err.splitlines()) == 1
    assert what in found.err and fix in found.err


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("bad"), 2), (InfeasibleError("nothing fits", "memory", "tp=8"), 3), (RunError("rank 1 died"), 1)],
)
def test_our_errors_end_with_their_own_exit_codes(call, monkeypatch, error: Exception, code: int) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(listing.KINDS, "rules", fail)
    found = call("list", "rules")
    assert (found.code, found.out, found.err) == (code, "", f"error: {error}\n")


def test_several_faults_are_listed_one_a_line(call, monkeypatch) -> None:
    def fail() -> None:
        raise InputError([Fault("tp is 3", "layout", "8 heads", "tp=2"), Fault("pp is 0", "layout")])

    monkeypatch.setitem(listing.KINDS, "rules", fail)
    assert call("list", "rules").err == (
        "error: 2 faults\n  - layout: tp is 3 (8 heads). Try: tp=2\n  - layout: pp is 0\n"
    )


def test_the_lines_of_one_message_are_no_list_of_faults(call, monkeypatch) -> None:
    def fail() -> None:
        raise RunError("rank 1 died\nits last words")

    monkeypatch.setitem(listing.KINDS, "rules", fail)
    assert call("list", "rules").err == "error: rank 1 died\nits last words\n"


@pytest.mark.parametrize(
    ("error", "code", "faults"),
    [
        (
            InputError([Fault("tp is 3", "layout", "8 heads", "tp=2", "tp-heads"), Fault("pp is 0")]),
            2,
            [("tp is 3", "layout", "8 heads", "tp=2", "tp-heads"), ("pp is 0", "", "", "", "")],
        ),
        (
            InfeasibleError("Nothing fits.", "memory", "tp=8"),
            3,
            [("Nothing fits. Binding constraint: memory. Nearest that fits: tp=8.", "", "memory", "tp=8", "")],
        ),
        (RunError("rank 1 died. Try: again"), 1, [("rank 1 died", "", "", "again", "")]),
    ],
)
def test_json_errors_are_a_document_on_stdout_too(call, monkeypatch, error: Exception, code: int, faults) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(listing.KINDS, "rules", fail)
    found = call("list", "rules", "--json")
    document = json.loads(found.out)
    names = ("what", "where", "why", "fix", "rule")
    assert found.code == code and found.err == f"error: {document['error']['message']}\n"
    assert document == {
        "schema": 1,
        "error": {
            "exit_code": code,
            "message": document["error"]["message"],
            "faults": [dict(zip(names, fault, strict=True)) for fault in faults],
        },
    }


def test_a_usage_fault_is_json_as_well(call) -> None:
    found = call("predict", "--json", "--modl", "x")
    (fault,) = json.loads(found.out)["error"]["faults"]
    assert (found.code, fault["fix"]) == (2, "--model") and "no such option --modl" in fault["what"]


@pytest.mark.parametrize(
    ("redirect", "said"), [(">&-", "stdout is closed"), (">/dev/full", "stdout cannot be written: No space left")]
)
def test_a_stdout_that_takes_nothing_is_one_message(tmp_path: Path, redirect: str, said: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m planner list rules {redirect}', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and said in done.stderr
    assert not (tmp_path / "out").exists()


def test_ctrl_c_during_the_imports_is_one_line_and_130() -> None:
    """The application is replaced by a module whose import is interrupted."""
    script = (
        "import sys, importlib.abc, planner.__main__ as m\n"
        "class Stop(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "m.leave(m.start())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == running.INTERRUPTED
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: interrupted")


def test_an_unexpected_error_leaves_its_traceback_in_a_file(call, monkeypatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    monkeypatch.setitem(listing.KINDS, "rules", fail)
    found = call("list", "rules")
    assert found.code == 1 and found.err.startswith("error: internal error: ValueError: a bug. ")
    kept = list((tmp_path / "out" / "errors").glob("*.txt"))
    assert len(kept) == 1 and str(kept[0].relative_to(tmp_path)) in found.err
    assert "Traceback" in kept[0].read_text() and "ValueError: a bug" in kept[0].read_text()


def test_ctrl_c_is_one_line_and_130(call, monkeypatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(listing.KINDS, "rules", stop)
    found = call("list", "rules")
    assert found.code == 130 and len(found.err.splitlines()) == 1 and "interrupted" in found.err


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    """The pipe is closed before the process writes into it."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "planner", "list", "rules"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (running.BROKEN_PIPE, "")


def test_no_colour_when_not_a_terminal(call) -> None:
    assert "\x1b" not in call("list", "rules").out
    assert "\x1b" not in call("list", "nothing").err
