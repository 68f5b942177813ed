"""Rules about what lies in host memory."""

from __future__ import annotations

import numpy as np

from planner.layout.degrees import BoolArray, Layout, LayoutBatch
from planner.layout.remedies import RuleContext
from planner.layout.splits import split_layers, split_of


def amounts(b: LayoutBatch, _: RuleContext) -> BoolArray:
    """Whether shares are per cent, parameters are there or not, and layers are counted from 0."""
    share = (b.offload_optimizer >= 0) & (b.offload_optimizer <= 100)
    return np.asarray(share & np.isin(b.offload_parameters, (0, 1)) & (b.offload_activations >= 0))


def explain_amounts(lay: Layout, _: RuleContext) -> tuple[str, str, str]:
    """What breaks ``offload-amounts``, why, and what would work."""
    names = ("offload_optimizer", "offload_parameters", "offload_activations")
    what = ", ".join(f"{name}={getattr(lay, name)}" for name in names)
    return what, "per cent of the optimizer, parameters or not, and layers", "0 to 100, 0 or 1, 0 or more"


def parameters(b: LayoutBatch, _: RuleContext) -> BoolArray:
    """Parameters are offloaded as the shards of ZeRO-3 (DeepSpeed ``offload_param``, FSDP ``CPUOffloadPolicy``)."""
    return np.asarray((b.offload_parameters == 0) | (b.zero_stage >= 3))


def explain_parameters(lay: Layout, _: RuleContext) -> tuple[str, str, str]:
    """What breaks ``offload-parameters``, why, and what would work."""
    why = "what lies in host memory is the shard of ZeRO-3, which is gathered before use"
    return f"offload_parameters=1 with zero_stage={lay.zero_stage}", why, "zero_stage=3, or offload_parameters=0"


def _most(b: LayoutBatch, n_layers: int) -> BoolArray:
    """Whether each layout leaves a layer of every virtual stage on the device."""
    columns = [np.atleast_1d(v) for v in (b.stage_layers, b.pp * b.vpp, b.offload_activations)]
    unique, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    held = [
        not number or number < max(split_of(int(split)) or split_layers(n_layers, int(stages)) or (1,))
        for split, stages, number in unique
    ]
    return np.asarray(np.asarray(held)[inverse.reshape(-1)].reshape(np.shape(b.tp)))


def activations(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Activations are offloaded of fewer layers than a stage has, and instead of being recomputed.

    Megatron-Core ``transformer_config.py``: ``cpu_offloading_num_layers`` below the layers, no recomputation.
    """
    if not np.any(b.offload_activations):
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    return np.asarray((b.offload_activations == 0) | ((b.recompute == 0) & _most(b, ctx.model.n_layers)))


def explain_activations(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``offload-activations``, why, and what would work."""
    shares = lay.stage_layers or split_layers(ctx.model.n_layers, lay.pp * lay.vpp) or (1,)
    what = f"offload_activations={lay.offload_activations} with recompute={lay.recompute}"
    why = f"a stage has {max(shares)} layers, the last of which stays; what is recomputed is not saved"
    return what, why, f"offload_activations 0 to {max(shares) - 1} with recompute=none"


RULES = (
    ("offload-amounts", "Per cent of the optimizer, parameters or not, and layers of activations lie in host memory.",
     amounts, explain_amounts, ()),
    ("offload-parameters", "Parameters in host memory are the shards of ZeRO-3.", parameters, explain_parameters,
     ("degrees-positive",)),
    ("offload-activations",
     "A virtual stage offloads the activations of fewer layers than it has, and recomputes none.", activations,
     explain_activations, ("degrees-positive", "layers-stages", "offload-amounts")),
)  # fmt: skip
"""Identifier, sentence, test, explanation and needs of each rule, as `planner.layout.rules.Rule` takes them."""
