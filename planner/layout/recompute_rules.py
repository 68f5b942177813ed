"""Rules about recomputation: which kinds a framework has, which modules a model, how many layers a stage."""

from __future__ import annotations

import numpy as np

from planner.layout.degrees import BoolArray, Layout, LayoutBatch
from planner.layout.recompute import DEFAULT_MODULES, MODULES, RECOMPUTE, modules_code
from planner.layout.remedies import RuleContext
from planner.layout.splits import split_layers, split_of
from planner.model.spec import LatentAttention, Moe

_NUMBERED = tuple(RECOMPUTE.index(kind) for kind in ("full", "block", "every"))


def kind_known(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether the framework has the kind of recomputation."""
    kinds = ctx.framework.recomputes if ctx.framework else RECOMPUTE
    return np.asarray(np.asarray([name in kinds for name in RECOMPUTE])[b.recompute])


def explain_kind(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``framework-recompute``, why, and what would work."""
    preset = ctx.framework
    name, kinds = (preset.name, preset.recomputes) if preset else ("the framework", RECOMPUTE)
    what = f"recompute={lay.recompute} with framework {name}"
    return what, f"{name} does not have it", f"recompute={' or '.join(kinds)}"


def _absent(ctx: RuleContext) -> dict[str, str]:
    """Modules that the model does not have -> why."""
    layers = ctx.model.layers
    found = {}
    if not any(isinstance(layer.attention, LatentAttention) for layer in layers):
        found["mla_up_proj"] = "has no latent attention"
    experts = [layer.ffn for layer in layers if isinstance(layer.ffn, Moe)]
    if not experts:
        found |= dict.fromkeys(("moe", "moe_act"), "has no experts")
    if not any(ffn.shared_ffn_hidden for ffn in experts):
        found["shared_experts"] = "has no shared experts"
    return found


def modules_fit(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether modules are named for a selective policy alone, and the model has them."""
    wrong = modules_code(_absent(ctx))
    selective = b.recompute == RECOMPUTE.index("selective")
    return np.asarray((b.recompute_modules == 0) | (selective & (b.recompute_modules & wrong == 0)))


def explain_modules(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``recompute-modules``, why, and what would work."""
    named = ",".join(lay.recompute_modules)
    if lay.recompute != "selective":
        why = "modules are what a selective policy recomputes"
        return f"recompute_modules={named} with recompute={lay.recompute}", why, "recompute=selective, or no modules"
    absent = _absent(ctx)
    why = "; ".join(f"{ctx.model.name} {absent[m]} ({m})" for m in lay.recompute_modules if m in absent)
    fit = [m for m in MODULES if m not in absent]
    return f"recompute_modules={named}", why, "recompute_modules out of " + ", ".join(fit or DEFAULT_MODULES)


def _shares(lay_split: int, n_layers: int, stages: int) -> tuple[int, ...] | None:
    return split_of(lay_split) or split_layers(n_layers, stages)


def layers_fit(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether numbers of recomputed layers suit the kind and the layers of the stages."""
    given = np.atleast_1d(b.recompute_layers) > 0
    if not given.any():
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    columns = [np.atleast_1d(v) for v in (b.recompute, b.recompute_layers, b.stage_layers, b.pp * b.vpp)]
    keys = np.stack(columns, axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    held = np.asarray([
        not _misfit(int(kind), split_of(int(numbers)), _shares(int(split), ctx.model.n_layers, int(stages)))
        for kind, numbers, split, stages in unique
    ])
    return np.asarray(held[inverse.reshape(-1)].reshape(np.shape(b.tp)))


def _misfit(kind: int, numbers: tuple[int, ...], shares: tuple[int, ...] | None) -> str:
    """Why numbers of layers do not suit; empty where they do, or where the stages themselves are at fault."""
    if not numbers:
        return ""
    if kind not in _NUMBERED:
        return f"recompute={RECOMPUTE[kind]} counts no layers"
    if shares is None or len(numbers) not in (1, len(shares)):
        return "" if shares is None else f"one number, or one for each of {len(shares)} virtual stages"
    least = 0 if RECOMPUTE[kind] == "block" else 1
    each = numbers * len(shares) if len(numbers) == 1 else numbers
    if any(n < least for n in each):
        return "a chunk holds at least one layer"
    if len(numbers) == 1:
        return "" if numbers[0] <= max(shares) else f"a virtual stage holds {max(shares)} layers"
    return "" if all(n <= max(s, least) for n, s in zip(each, shares, strict=True)) else "a stage holds fewer layers"


def explain_layers_fit(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``recompute-layers``, why, and what would work."""
    b = LayoutBatch.of(lay)
    shares = _shares(int(b.stage_layers), ctx.model.n_layers, lay.pp * lay.vpp)
    why = _misfit(int(b.recompute), lay.recompute_layers, shares)
    what = f"recompute_layers={','.join(map(str, lay.recompute_layers))} with recompute={lay.recompute}"
    if int(b.recompute) not in _NUMBERED:
        return what, why, "recompute=full, block or every, or no recompute_layers"
    return what, why, f"recompute_layers 1 to {max(shares or (1,))}"


RULES = (
    ("framework-recompute", "The framework has the kind of recomputation.", kind_known, explain_kind, ()),
    ("recompute-modules", "Recomputed modules belong to a selective policy, and the model has them.", modules_fit,
     explain_modules, ()),
    ("recompute-layers",
     "Numbers of recomputed layers belong to full, block or every, and a virtual stage holds as many.", layers_fit,
     explain_layers_fit, ("degrees-positive", "layers-stages")),
)  # fmt: skip
"""Identifier, sentence, test, explanation and needs of each rule, as `planner.layout.rules.Rule` takes them."""
