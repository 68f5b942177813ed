"""The number of micro-batches at which two layouts change places."""

from __future__ import annotations

import pytest

from hwmodels import cluster as clusters
from hwmodels.errors import InputError
from planner.cli.app import main
from planner.layout import Layout
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.predict import predict
from planner.search.crossover import MOST, crossover

MODEL = from_shape(name="m", layers=16, hidden=1024, heads=16, vocab=32000, seq_len=512)

def test_blocking_sends_make_interleaving_lose_once_there_are_enough_micro_batches() -> None:
    # sends that hold up compute are paid v times as often by the interleaved pipeline, its bubble only once a step
    workload = Workload(512, 64, framework="generic", switches=(("p2p_overlap", "false"),))
    layouts = [Layout(pp=4, dp=2, mbs=4), Layout(pp=4, dp=2, vpp=4, mbs=4, schedule="interleaved-1f1b")]
    found = crossover(MODEL, clusters.load("dgx-a100"), workload, *layouts)
    assert found.few == layouts[1]
    assert found.flips is not None, found.described()
    for microbatches, ahead in ((found.flips - 4, layouts[1]), (found.flips, layouts[0])):
        batch = Workload(512, 8 * microbatches, framework="generic", switches=(("p2p_overlap", "false"),))
        times = [predict(MODEL, clusters.load("dgx-a100"), batch, layout).step_s.mid for layout in layouts]
        assert times.index(min(times)) == layouts.index(ahead)
    assert f"below {found.flips} micro-batches" in found.described()


def test_what_never_flips_says_so() -> None:
    slow = Layout(pp=4, dp=2, mbs=4, recompute="full")
    found = crossover(MODEL, clusters.load("dgx-a100"), Workload(512, 64), slow, Layout(pp=4, dp=2, mbs=4))
    assert found.flips is None
    assert f"up to {MOST}" in found.described()
    assert found.gap < 0


def test_layouts_of_other_micro_batches_are_refused() -> None:
    with pytest.raises(InputError, match="the same pp, mbs and dp"):
        crossover(MODEL, clusters.load("dgx-a100"), Workload(512, 64), Layout(pp=4, dp=2), Layout(pp=2, dp=4))


def test_predict_says_it_against_another_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "predict --model gpt-neox-20b --cluster dgx-a100 --seq-len 512 --gbs 32 --pp 4 --dp 2 --recompute full"
    assert main([*asked.split(), "--against", "zb-h1"]) in (0, 3)
    assert "1f1b (vpp 1) against zb-h1 (vpp 1)" in capsys.readouterr().out
    assert main([*asked.split(), "--against", "gpipes"]) == 2
