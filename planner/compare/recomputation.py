"""What a published row's `recompute` cell means: kind, modules and numbers of layers of a `Layout`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from planner import frameworks
from planner.layout import Layout, LayoutBatch, RuleContext, faults
from planner.layout.recompute import MODULES, OUTPUT_DISCARDING

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.model.spec import ModelSpec
    from planner.plan import Workload

_LAYERS = re.compile(r"(\d+)\s+layers?")
_EVERY = re.compile(r"every\s+(\d+)")
_WORD = re.compile(r"[a-z_]+")
_UNSAID = "not stated"


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A policy as a `Layout` states it, and what had to be assumed of it."""

    kind: str
    modules: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    assumed: str = ""

    def on(self, layout: Layout) -> Layout:
        """The layout with this policy."""
        return replace(layout, recompute=self.kind, recompute_modules=self.modules, recompute_layers=self.layers)


def stated(text: str, selective: str) -> Recomputation | None:
    """The policy that a cell states; None where it is not understood.

    ``none``; ``full``; ``full (uniform, 1 layers)`` and ``full (block, 2 layers)`` in Megatron's words; ``selective``
    with ``(attention)``, a list of Megatron-Core's modules, or torchtitan's ``(op)``, ``(every 2nd layer)``,
    ``(layer)``; ``modules:a+b``.

    Parameters
    ----------
    selective : str
        Kind that the framework means by selective recomputation where the row does not say of what.
    """
    words, number = text.strip().lower(), _LAYERS.search(text.lower())
    if words.startswith("none"):
        return Recomputation("none")
    if words.startswith("full"):
        layers = (int(number[1]),) if number else ()
        if "block" in words:
            return Recomputation("block", layers=layers)
        return Recomputation("full", layers=layers if layers > (1,) else ())
    if words.startswith("modules:"):
        return _modules(words.removeprefix("modules:"))
    if not words.startswith("selective"):
        return None
    inside = words.removeprefix("selective").strip(" ()[]")
    if found := _EVERY.search(inside):
        return Recomputation("every", layers=(int(found[1]),))
    if not inside or _UNSAID in inside:
        return Recomputation(selective, assumed=f"recompute={selective}" if _UNSAID in inside else "")
    if inside in ("op", "per op"):
        return Recomputation("op")
    if inside == "layer":
        return Recomputation("every", assumed="recompute every 2nd layer")
    return Recomputation("selective") if inside.startswith("attention") else _modules(inside)


def _modules(text: str) -> Recomputation | None:
    """A list of Megatron-Core's modules in any punctuation."""
    names = _WORD.findall(text)
    if not names or any(name not in MODULES for name in names):
        return None
    return Recomputation("selective", tuple(name for name in MODULES if name in names))


_LADDER: tuple[Recomputation, ...] = (
    Recomputation("none"),
    Recomputation("selective", OUTPUT_DISCARDING),
    Recomputation("selective", (*OUTPUT_DISCARDING, "mlp", "shared_experts")),
    Recomputation("full"),
)
"""Policies from the one that costs least time to the one that saves most."""

_BY_OP: tuple[Recomputation, ...] = (Recomputation("none"), Recomputation("op"), Recomputation("full"))
"""The same where selective recomputation is by op (torchtitan)."""


def mildest(
    model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout, known: tuple[str, ...]
) -> Recomputation:
    """The mildest policy under which a layout fits the memory: what a run that says nothing of it will have used.

    The last one where none fits. Modules that the model does not have are left out.

    Parameters
    ----------
    known : tuple of str
        Kinds that the framework has.
    """
    from planner.priced import price_model
    from planner.search.least import peak_bytes

    context = RuleContext.of(model, workload, layout.world)
    ladder = _BY_OP if frameworks.get(workload.framework).selective == "op" else _LADDER
    steps = [ladder[0]]
    for step in ladder[1:]:
        fit = tuple(m for m in step.modules if not faults(replace(step, modules=(m,)).on(layout), context))
        if step.kind in known and (fit or not step.modules) and replace(step, modules=fit) not in steps:
            steps.append(replace(step, modules=fit))
    priced = price_model(model, workload, LayoutBatch.of([step.on(layout) for step in steps]), cluster)
    fits = np.flatnonzero(peak_bytes(priced) <= cluster.device.memory_bytes)
    chosen = steps[int(fits[0]) if len(fits) else -1]
    words = " ".join((chosen.kind, *chosen.modules))
    return replace(chosen, assumed=f"recompute={words} (not stated: the mildest that fits)")
