"""Rules about parts that only some models have: recurrent mixers, prediction layers, images."""

from __future__ import annotations

import numpy as np

from planner.layout.degrees import BoolArray, Layout, LayoutBatch, divisors
from planner.layout.remedies import RuleContext, choices
from planner.model.spec import Mamba1, Mamba2, Recurrent


def _mixers(ctx: RuleContext) -> list[Recurrent]:
    """The distinct recurrent mixers of the model."""
    return list(dict.fromkeys(layer.recurrent for layer in ctx.model.layer_kinds() if layer.recurrent))


def recurrent_split(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether tp divides every count that a mixer is split by (Megatron-Core ``MambaMixer``: heads and groups)."""
    kept = np.ones(np.shape(b.tp), dtype=np.bool_)
    for mixer in _mixers(ctx):
        for n in mixer.split:
            kept &= n % np.maximum(b.tp, 1) == 0
    return kept


def explain_recurrent_split(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``tp-recurrent``, why, and what would work."""
    counts = sorted({n for mixer in _mixers(ctx) for n in mixer.split})
    fit = [d for d in divisors(min(counts)) if all(n % d == 0 for n in counts)]
    return (
        f"tp={lay.tp} does not divide {' and '.join(str(n) for n in counts)}",
        "each rank takes whole heads, and whole groups of heads, of the recurrent mixer",
        choices(fit, "tp") + "; pp, cp or ZeRO for more ranks",
    )


def recurrent_context(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether heads split over cp: those of a tp shard, with groups split or copied whole.

    Source: Megatron-Core ``MambaContextParallel.__init__``.
    """
    kept = np.ones(np.shape(b.tp), dtype=np.bool_)
    for mixer in _mixers(ctx):
        if isinstance(mixer, Mamba1):
            kept &= b.cp == 1
            continue
        if isinstance(mixer, Mamba2):
            groups = np.maximum(mixer.n_groups // np.maximum(b.tp, 1), 1)
            kept &= (mixer.n_heads % np.maximum(b.tp * b.cp, 1) == 0) & (
                (groups % np.maximum(b.cp, 1) == 0) | (b.cp % groups == 0)
            )
            continue
        for n in mixer.split:
            kept &= n % np.maximum(b.tp * b.cp, 1) == 0
    return kept


def explain_recurrent_context(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``cp-recurrent``, why, and what would work."""
    if any(isinstance(mixer, Mamba1) for mixer in _mixers(ctx)):
        why = "the scan of Mamba passes its state from token to token, and no framework here splits it over ranks"
        return f"cp={lay.cp} with {ctx.model.name}", why, "cp=1; tp or pp for longer sequences"
    heads = min(n for mixer in _mixers(ctx) for n in (mixer.split[:1] if isinstance(mixer, Mamba2) else mixer.split))
    return (
        f"tp*cp = {lay.tp * lay.cp} does not split the heads of the recurrent mixer",
        "context parallelism runs the whole sequence over a share of the heads on each rank",
        choices(divisors(max(heads // lay.tp, 1), 64), "cp"),
    )


def vision_split(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether tp divides heads and feed-forward width of a vision tower, where images come in."""
    tower = ctx.model.vision
    if tower is None or ctx.workload is None or not ctx.workload.images:
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    tp = np.maximum(b.tp, 1)
    return np.asarray((tower.attention.n_heads % tp == 0) & (tower.ffn.ffn_hidden % tp == 0))


def explain_vision_split(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``tp-vision``, why, and what would work."""
    tower = ctx.model.vision
    heads, width = (tower.attention.n_heads, tower.ffn.ffn_hidden) if tower is not None else (1, 1)
    return (
        f"tp={lay.tp} does not divide the vision tower's {heads} heads and width of {width}",
        "the tower is split over tp like any encoder",
        choices([d for d in divisors(heads) if width % d == 0], "tp"),
    )
