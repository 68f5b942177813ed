"""Calibration rows: what is measured, what a file of them may hold."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from executor import calibrate
from executor.benchmarks import collectives
from executor.calibrate import CalibrationRows, CollectiveRow, GemmRow
from hwmodels.errors import InputError

ROWS = CalibrationRows(
    (GemmRow(8, 16, 32, "fp32", "forward", 1e-4),),
    (),
    (),
    (CollectiveRow("all_reduce", 2, 1, 1024, 1e-3),),
    (),
    5e-6,
    0.04,
    {"ranks": 2},
)


def test_file_round_trip(tmp_path: Path) -> None:
    path = calibrate.save(ROWS, tmp_path / "rows.json")
    assert calibrate.load(path) == ROWS


def test_every_fault_of_a_file_is_reported() -> None:
    content = {**asdict(ROWS), "gemm": [{"m": 1}], "collectives": [3], "launch_s": -1, "skew": -0.1}
    with pytest.raises(InputError) as caught:
        calibrate.from_dict(content, "rows.json")
    assert [f.where for f in caught.value.faults] == [
        "rows.json: gemm[0]",
        "rows.json: collectives[0]",
        "rows.json: launch_s",
        "rows.json: skew",
    ]


def test_group_shapes() -> None:
    pytest.importorskip("torch")
    # (size, stride): pairs of neighbours, pairs as far apart as possible, the world.
    assert collectives.groups(2) == [(2, 1)]
    assert collectives.groups(4) == [(2, 1), (2, 2), (4, 1)]
    assert collectives.groups(1) == []
    assert collectives.groups(6) == [(2, 1), (2, 3), (6, 1)]


@pytest.mark.slow
def test_two_ranks_are_measured() -> None:
    pytest.importorskip("torch")
    lines: list[str] = []
    rows = calibrate.measure(2, quick=True, budget_s=1.0, device="cpu", on_progress=lines.append)
    assert lines
    assert {r.orientation for r in rows.gemm} == {"forward", "dgrad", "wgrad"}
    assert {(r.op, r.group_size) for r in rows.collectives} == {(op, 2) for op in collectives.OPS}
    assert {r.direction for r in rows.attention} == {"forward", "backward"}
    assert {"adamw", "rmsnorm", "rmsnorm_backward", "silu_mul", "cross_entropy"} <= {r.name for r in rows.memory}
    every = [*rows.gemm, *rows.memory, *rows.attention, *rows.collectives]
    assert all(r.seconds > 0 for r in every) and 0 < rows.launch_s < 1e-2
    assert all(0 <= r.hidden_share <= 1 for r in rows.overlap) and rows.overlap
    # 16 MiB take longer than 1 KiB for every collective.
    for op in collectives.OPS:
        times = {r.nbytes: r.seconds for r in rows.collectives if r.op == op}
        assert times[max(times)] > times[min(times)]
