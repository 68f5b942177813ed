"""Linear layers: what runs inside of their GEMMs."""

from __future__ import annotations

import pytest

from planner import frameworks
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.workload.lower import Lowered, lower
from planner.workload.op import Op

H, FFN, S, TP = 2048, 8192, 4096, 4


def lowered(framework: str, **more: object) -> Lowered:
    model = from_shape(
        name="l", layers=1, hidden=H, heads=16, kv_heads=16, ffn_hidden=FFN, vocab=32000, seq_len=S, gated=False,
        norm="rms", bias=False, learned_positions=False, tied=False,
    )  # fmt: skip
    work = Workload(S, 8, "bf16", "adamw", framework, **more)  # type: ignore[arg-type]
    return lower(model, work, LayoutBatch.of(Layout(tp=TP, sp=1)), frameworks.of(work))


def layer_ops(framework: str, **more: object) -> dict[str, Op]:
    return {op.name: op for op in lowered(framework, **more).layers[0].ops}


def test_a_product_that_adds_into_the_main_gradient_reads_it_and_writes_it_wider() -> None:
    # (4 + 4 - 2) bytes an element in fp32, (2 + 2 - 2) in bf16, without a launch
    elements = H * FFN / TP
    for framework, width in (("megatron", 6.0), ("nemo", 2.0)):
        op = layer_ops(framework)["mlp.up.accumulate"]
        assert (op.within, op.kernels) == ("mlp.up.wgrad", 0.0)
        assert float(op.dims["nbytes"]) == pytest.approx(width * elements)
    apart = layer_ops("primus")["mlp.up.accumulate"]  # a kernel of its own reads the new one, adds and writes
    assert (apart.within, float(apart.dims["nbytes"])) == ("", pytest.approx((2.0 + 4.0 + 4.0) * elements))
