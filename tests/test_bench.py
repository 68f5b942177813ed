"""The bench says "missing" and ends with 1 where a scenario is not there, and holds figures against targets."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    for name in ("bench", "rows", "processes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import bench as found

    monkeypatch.setattr(found, "PACKAGES", ())
    return found


def test_what_is_dropped_for_memory_is_legal_and_what_breaks_a_rule_is_not(bench: Any) -> None:
    content = {"considered": 100, "dropped": {"memory": 50, "bound": 10, "zero-needs-dp": 7, "gbs-microbatch": 3}}
    assert bench.counted(json.dumps(content)) == {"considered": 100, "legal": 90}


def test_a_figure_that_a_process_prints(bench: Any) -> None:
    from rows import number

    assert number(r"([\d,]+) layouts priced")("312,400 layouts priced and sized a second (...)") == 312400.0
    with pytest.raises(ValueError, match="no "):
        number(r"max-plus ([\d.]+) ms")("nothing")


def test_a_row_is_measured_with_its_memory_and_held_against_its_target(bench: Any) -> None:
    from rows import Row

    code = ("-c", "held = bytearray(64 * 2**20); print('12 a second')")
    found = bench.measured(Row("x", code, target=30.0), runs=1)
    assert found["ok"] and 0 < found["figure"] < 30 and found["peak_bytes"] > 64 * 2**20 and found["numpy_s"] > 0
    small = bench.measured(Row("x", code, target=30.0, peak_bytes=2**20), runs=1)
    assert not small["ok"]
    from rows import number

    rate = Row("x", code, 13, number(r"(\d+) a second"), "/s", at_least=True)
    assert not bench.measured(rate, 1)["ok"] and bench.measured(replace(rate, target=12), 1)["ok"]


def test_a_missing_scenario_is_said_and_exits_1(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from rows import Row, search

    monkeypatch.setattr(bench, "chosen", lambda names: [Row("gone", search("no-such-scenario"), 1.0)])
    monkeypatch.setattr(sys, "argv", ["bench.py", "--only", "gone", "--runs", "1", "--keep", str(tmp_path / "h")])
    assert bench.main() == 1
    assert "missing   scenarios/no-such-scenario.yaml is not there" in capsys.readouterr().out
    assert json.loads((tmp_path / "h").read_text())["rows"]["gone"]["ok"] is False
