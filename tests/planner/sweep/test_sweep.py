"""Sweeps: equal answers from every engine, what is kept, lost workers, interruptions."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwmodels.errors import InputError
from planner.plan import Workload
from planner.search import search
from planner.sweep import Case, Outcome, Store, run, solve
from planner.sweep.workers import ATTEMPTS
from tests.conftest import ROOT
from tests.planner.sweep import asking

CASES = [asking.case(name, gbs) for name, gbs in (("a", 8), ("b", 16), ("c", 24), ("d", 32))]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv(asking.NOTES, str(folder))
    return folder


def begun(notes: Path) -> list[str]:
    return sorted(path.name.split(".")[0] for path in notes.iterdir())


def documents(outcomes: list[Outcome]) -> str:
    return json.dumps([outcome.document for outcome in outcomes])


def test_a_case_is_answered_as_the_search_itself_answers() -> None:
    one = CASES[0]
    result = search(one.model, one.cluster, one.workload, **one.keywords)
    direct = result.to_dict()
    direct.pop("wall_s")
    (outcome,) = run([one])
    assert outcome.document == {"status": "done", "answer": direct, "layouts": [result.rows[0].layout.label()]}
    assert outcome.best is not None and outcome.best["rank"] == 1


def test_processes_give_the_bytes_that_one_process_gives() -> None:
    assert documents(run(CASES, workers=2)) == documents(run(CASES, workers=1))


def test_a_digest_is_of_the_question_and_not_of_its_name() -> None:
    one = CASES[0]
    assert replace(one, name="z", labels={"x": 1}).digest() == one.digest()
    others = [
        replace(one, workload=Workload(512, 8, "fp32")),
        replace(one, keywords={**one.keywords, "top": 2}),
        replace(one, cluster=replace(one.cluster, context_bytes=one.cluster.context_bytes + 1)),
        replace(one, model=replace(one.model, name="other")),
    ]
    assert len({one.digest(), *(other.digest() for other in others)}) == 1 + len(others)


def test_a_digest_is_that_of_another_process() -> None:
    code = "from tests.planner.sweep.asking import case; print(case('a', 8).digest())"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
        assert done.stdout.strip() == CASES[0].digest()


def test_cases_that_ask_the_same_are_answered_once(notes: Path) -> None:
    outcomes = run([CASES[0], replace(CASES[0], name="again")], solve=asking.counting)
    assert begun(notes) == ["a"]
    assert outcomes[0].document == outcomes[1].document and outcomes[1].case.name == "again"


def test_an_infeasible_or_wrong_case_is_a_row_that_says_why() -> None:
    nothing = replace(CASES[0], name="odd", workload=Workload(256, 7, "fp32"), keywords={"objective": "step_time"})
    nothing = replace(nothing, keywords={**nothing.keywords, "memory_headroom": 0.999999})
    wrong = replace(CASES[0], name="wrong", keywords={"objective": "beauty"})
    good, odd, refused = run([CASES[0], nothing, wrong])
    assert (good.status, odd.status, refused.status) == ("done", "infeasible", "refused")
    assert odd.best is None and odd.document["why"] and "beauty" in refused.document["why"]


def test_what_is_kept_is_read_and_the_rest_answered(notes: Path, tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = run(CASES[:2], solve=asking.counting, store=store)
    said: list[str] = []
    both = run(CASES, solve=asking.counting, store=store, progress=lambda done, total, what: said.append(what))
    assert begun(notes) == ["a", "b", "c", "d"]
    assert [outcome.kept for outcome in both] == [True, True, False, False]
    assert documents(both[:2]) == documents(first) and said[0] == "2 of 4 are there already"


@pytest.mark.parametrize("damage", ["", "{", '{"schema": 1}', "[1]", '{"schema": 0, "digest": "", "case": {}}'])
def test_a_damaged_file_is_answered_anew(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    before = documents(run(CASES[:1], store=store))
    store.path(CASES[0].digest()).write_text(damage)
    (outcome,) = run(CASES[:1], store=store)
    assert not outcome.kept and documents([outcome]) == before
    assert store.read(CASES[0].digest()) == json.loads(before)[0]


def test_the_case_of_a_killed_worker_is_run_again_and_no_other(notes: Path) -> None:
    outcomes = run(CASES, solve=asking.dying_once, workers=2)
    assert begun(notes) == ["a", "b", "b", "c", "d"]
    assert documents(outcomes) == documents(run(CASES))


def test_a_case_that_kills_every_worker_is_given_up_and_the_others_are_answered(notes: Path, tmp_path: Path) -> None:
    outcomes = run(CASES, solve=asking.dying_always, workers=2, store=Store(tmp_path))
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done", "done"]
    assert begun(notes).count("b") == ATTEMPTS and "signal 9" in outcomes[1].document["why"]
    assert Store(tmp_path).read(CASES[1].digest()) is None  # tried again by the same command


def test_a_failure_is_a_row_and_is_tried_again(notes: Path, tmp_path: Path) -> None:
    store = Store(tmp_path)
    outcomes = run(CASES[:3], solve=asking.failing, workers=2, store=store)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert "the disk is full" in outcomes[1].document["why"]
    (notes / "mended").touch()
    again = run(CASES[:3], solve=asking.failing, store=store)
    assert [(outcome.status, outcome.kept) for outcome in again] == [("done", True), ("done", False), ("done", True)]


def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(notes: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from planner.sweep import Store, run\n"
        "from tests.planner.sweep import asking\n"
        "cases = [asking.case(n, g) for n, g in (('a', 8), ('b', 16), ('c', 24), ('d', 32))]\n"
        f"if __name__ == '__main__': run(cases, solve=asking.slow, workers=2, store=Store(Path({str(tmp_path)!r})))\n"
    )
    script = tmp_path / "sweeping.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while begun(notes) != ["a", "b", "c", "d"] and time.monotonic() < until:  # c and d hang in their workers
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in error
    workers = {int(path.name.split(".")[1]) for path in notes.iterdir()}
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    kept = [one.name for one in CASES if Store(tmp_path).read(one.digest()) is not None]
    assert kept == ["a", "b"]
    assert [outcome.kept for outcome in run(CASES, store=Store(tmp_path))] == [True, True, False, False]


def test_wrong_arguments_are_refused_together() -> None:
    with pytest.raises(InputError) as error:
        run([CASES[0], CASES[0]], engine="spark", workers=0)
    text = str(error.value)
    assert "unknown engine 'spark'" in text and "0 workers" in text and "two cases are called 'a'" in text


def test_without_ray_its_engine_says_what_to_install() -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed here: that its absence is refused cannot be seen")
    with pytest.raises(InputError, match=r"pip install 'meshwright\[ray\]', or --engine local"):
        run(CASES, engine="ray")


@pytest.mark.slow
def test_ray_gives_the_same_bytes_and_runs_a_lost_workers_case_again(notes: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed: pip install 'meshwright[ray]'")
    assert documents(run(CASES, engine="ray", workers=2)) == documents(run(CASES))
    assert documents(run(CASES, solve=asking.dying_once, engine="ray", workers=2)) == documents(run(CASES))
    assert begun(notes).count("b") == 2


def test_what_has_no_content_cannot_be_compared() -> None:
    odd: Any = {"space": object()}
    with pytest.raises(Exception, match="cannot compare object by content"):
        Case("x", asking.MODEL, asking.CLUSTER, asking.Workload(256, 8), odd).digest()
    assert solve(CASES[0])["status"] == "done"
