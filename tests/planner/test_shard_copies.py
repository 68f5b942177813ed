"""Copies between FSDP's buffers and parameters, against hand calculation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels import catalog
from hwmodels.cluster import load as load_cluster
from planner.layout import Layout
from planner.model import load as load_model
from planner.plan import Workload
from planner.predict import predict
from planner.shard_copies import copy_in_seconds, copy_out_seconds

A100 = catalog.device("a100-sxm-80gb")
BANDWIDTH = 2039e9 * 0.65
START = 2.0e-6 + 1.5e-6


def test_a_gathered_buffer_is_read_and_written() -> None:
    # 1e9 parameters in bf16: 2 GB in, 2 GB out at 0.65 of 2,039 GB/s
    assert float(copy_out_seconds(A100, np.asarray(2e9))) == pytest.approx(4e9 / BANDWIDTH + START)
    assert float(copy_out_seconds(A100, np.asarray(0.0))) == 0.0


def test_gradients_are_cast_to_the_dtype_of_the_reduction() -> None:
    # 1e9 gradients: 2 GB read, 4 GB written
    assert float(copy_in_seconds(A100, np.asarray(1e9), 2.0, 4.0)) == pytest.approx(6e9 / BANDWIDTH + START)


def test_a_step_is_longer_by_its_copies() -> None:
    # Llama-3-8B: two copies out of 2 x 2 bytes and one copy in of 6, a parameter: 14 bytes, and little else changes.
    model, cluster = load_model("llama-3-8b")[0], load_cluster("dgx-a100:1")
    workload, layout = Workload(8192, 8, "bf16", "adamw", "fsdp2"), Layout(dp=8, zero_stage=3, mbs=1)
    with_copies = predict(model, cluster, workload, layout).step_s.mid
    views = replace(workload, switches=(("shard_copies", "false"),))
    without = predict(model, cluster, views, layout).step_s.mid
    assert with_copies - without == pytest.approx(14 * model.parameters / BANDWIDTH, rel=0.05)
    # ZeRO-1 gathers nothing before use, so nothing is copied.
    sharded = replace(layout, zero_stage=1)
    assert predict(model, cluster, workload, sharded).step_s.mid == predict(model, cluster, views, sharded).step_s.mid


def test_gradients_of_views_are_joined_into_that_of_the_flat_parameter() -> None:
    # FSDP1: nothing is copied out; bf16 gradients are read and written once: 4 bytes a parameter
    model, cluster = load_model("llama-3-8b")[0], load_cluster("dgx-a100:1")
    workload, layout = Workload(8192, 8, "bf16", "adamw", "generic"), Layout(dp=8, zero_stage=3, mbs=1)
    flat = replace(workload, switches=(("flat_parameters", "true"),))
    gained = predict(model, cluster, flat, layout).step_s.mid - predict(model, cluster, workload, layout).step_s.mid
    assert gained == pytest.approx(4 * model.parameters / BANDWIDTH, rel=0.05)
