"""What Python code states of a run in other types: refused by name and value, with a number that works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hwmodels.errors import InputError
from planner.layout import Layout, LayoutBatch
from planner.training import Documents, Lora, Workload


@pytest.mark.parametrize(
    ("build", "given", "what", "where", "fix"),
    [
        (Workload, {"seq_len": "8192", "gbs": 64}, "seq_len is '8192'", "workload.seq_len", "seq_len=8192"),
        (Workload, {"seq_len": None, "gbs": 64}, "seq_len is None", "workload.seq_len", "seq_len=4096"),
        (Workload, {"seq_len": 8, "gbs": True}, "gbs is True", "workload.gbs", "gbs=1024"),
        (Workload, {"seq_len": 8, "gbs": 64.0}, "gbs is 64.0", "workload.gbs", "gbs=64"),
        (Workload, {"seq_len": 8, "gbs": 8, "mtp_layers": "1"}, "mtp_layers is '1'", "workload.mtp_layers",
         "mtp_layers=1"),
        (Workload, {"seq_len": 8, "gbs": 8, "images": "1.5"}, "images is '1.5'", "workload.images", "images=1.5"),
        (Workload, {"seq_len": 8, "gbs": 8, "switches": "abc"}, "switches is 'abc'", "workload.switches",
         '(("cuda_graphs", "true"),)'),
        (Lora, {"rank": "8"}, "rank is '8'", "workload.lora.rank", "rank=8"),
        (Lora, {"dropout": None}, "dropout is None", "workload.lora.dropout", "dropout=0.1"),
        (Documents, {"mean_tokens": "512", "mean_square_tokens2": 512.0**2}, "mean_tokens is '512'",
         "workload.documents.mean_tokens", "mean_tokens=512"),
        (Layout, {"tp": "2"}, "tp is '2'", "layout.tp", "tp=2"),
        (Layout, {"tp": 2.0}, "tp is 2.0", "layout.tp", "tp=2"),
        (Layout, {"tp": True}, "tp is True", "layout.tp", "tp=1"),
        (Layout, {"sp": True}, "sp is True", "layout.sp", "sp=0"),
        (Layout, {"mbs": 1.5}, "mbs is 1.5", "layout.mbs", "mbs=1"),
        (Layout, {"stage_layers": "abc"}, "stage_layers is 'abc'", "layout.stage_layers", "stage_layers=(8, 8)"),
        (Layout, {"stage_layers": (8, "8")}, "stage_layers is (8, '8')", "layout.stage_layers", "stage_layers=(8, 8)"),
        (Layout, {"recompute_layers": "ab"}, "recompute_layers is 'ab'", "layout.recompute_layers",
         "recompute_layers=(2,)"),
        (Layout, {"recompute_layers": 2}, "recompute_layers is 2", "layout.recompute_layers", "recompute_layers=(2,)"),
        (Layout, {"recompute_modules": "mlp"}, "recompute_modules is 'mlp'", "layout.recompute_modules",
         'recompute_modules=("core_attn",)'),
    ],
)  # fmt: skip
def test_another_type_is_refused_by_name(build: Any, given: dict[str, Any], what: str, where: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        build(**given)
    (fault,) = error.value.faults
    assert (fault.what, fault.where, fault.fix) == (what, where, fix) and fault.why


def test_all_fields_of_another_type_come_together() -> None:
    with pytest.raises(InputError) as error:
        Layout(tp="2", pp=None, stage_layers="abc")  # type: ignore[arg-type]
    assert [fault.where for fault in error.value.faults] == ["layout.tp", "layout.pp", "layout.stage_layers"]


def test_whole_numbers_of_numpy_and_lists_become_pythons_own() -> None:
    made = Layout(tp=np.int64(2), pp=2, stage_layers=[3, 2])  # type: ignore[arg-type]
    same = Layout(tp=2, pp=2, stage_layers=(3, 2))
    assert made == same and hash(made) == hash(same)
    assert type(Workload(np.int32(8), 8).seq_len) is int  # type: ignore[arg-type]
    assert type(made.tp) is int and LayoutBatch.of(made).layout(0) == made
