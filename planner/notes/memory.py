"""What a prediction of memory takes for granted, and what it would be otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from hwmodels.units import format_bytes
from planner.layout import Layout, LayoutBatch, divisors
from planner.model.spec import Moe
from planner.priced import PricedModel
from planner.results import StageMemory
from planner.state import local_parameters
from planner.vocabulary import padded_vocab


def memory_notes(priced: PricedModel, layout: Layout, memory: Sequence[StageMemory]) -> list[str]:
    """Notes about the attention kernel behind the activations, the vocabulary, and the peak while a model is loaded."""
    return [
        *_attention_notes(priced, layout),
        *_vocabulary_notes(priced, layout),
        *_load_notes(priced, layout, memory),
    ]


PADDING = 64
"""Rows a rank to which engines that pad a vocabulary align it (vLLM ``DEFAULT_VOCAB_PADDING_SIZE``)."""


def _vocabulary_notes(priced: PricedModel, layout: Layout) -> list[str]:
    """The padded vocabulary and its bytes, or that it does not divide where the framework pads nothing."""
    model, tp = priced.model, layout.tp
    rows = int(padded_vocab(model, priced.preset, tp))
    ends = 1 if model.tied_embeddings and layout.pp == 1 else 2
    if rows != model.vocab:
        more = format_bytes(2.0 * ends * (rows - model.vocab) * model.hidden / tp)
        return [f"vocabulary: {model.vocab:,} rows padded to {rows:,} for tp {tp}, {more} of weights a rank more"]
    if model.vocab % tp == 0:
        return []
    step = PADDING * tp
    rows = -(-model.vocab // step) * step
    more = format_bytes(2.0 * ends * (rows - model.vocab) * model.hidden / tp)
    degrees = ", ".join(str(d) for d in divisors(model.vocab, 64))
    said = f"vocabulary: {model.vocab:,} rows do not divide by tp {tp} (remainder {model.vocab % tp}); equal shares are"
    pads = f"A framework that pads needs {rows:,} rows (a multiple of {PADDING} x tp), {more} of 16-bit weights a rank"
    return [f"{said} assumed. {pads} more; one that does not takes tp in {degrees}"]


def _attention_notes(priced: PricedModel, layout: Layout) -> list[str]:
    """Whether scores are stored; a kernel that no run stated is named as assumed, with the way to state another."""
    heads = max((layer.softmax.n_heads for layer in priced.model.layers if layer.softmax), default=0)
    if not heads:
        return []
    tokens = priced.workload.seq_len
    nbytes = 2.0 * layout.mbs * heads / layout.tp * tokens * tokens / layout.cp
    size = f"{format_bytes(nbytes)} a layer for one 16-bit matrix of them, four times as much at twice the length"
    if priced.preset.attention.startswith("unfused"):
        return [f"attention: scores are stored, {size}; a fused kernel stores none: --switch attention=flash"]
    if "attention" in dict(priced.workload.switches):
        return []
    said = "attention: a fused kernel is assumed, which stores no scores. Memory that grows three- to fourfold when"
    return [f"{said} seq_len doubles means that they are stored ({size}): --switch attention=unfused"]


def _load_notes(priced: PricedModel, layout: Layout, memory: Sequence[StageMemory]) -> list[str]:
    """The peak while the model is loaded, which decides on small devices, and what other loaders would need."""
    most = max(memory, key=lambda m: m.by_moment["load"])
    took = format_bytes(most.by_moment["load"])
    found = [f"loading: the model and its optimizer take {took} while they are built (rank {most.stage})"]
    batch = LayoutBatch.of(layout)
    if layout.zero_stage >= 3 and not priced.preset.loads_whole:
        whole = 4.0 * priced.model.parameters / layout.pp
        fits = "" if whole <= most.capacity_bytes else ", which the device does not have"
        found.append(
            "parameters are taken as sharded before they reach the device; a run that builds the model there first "
            f"holds all of it in fp32, {format_bytes(whole)}{fits}: --switch loads_whole=true"
        )
    experts = [layer for layer in priced.model.layers if isinstance(layer.ffn, Moe)]
    if experts:
        each = sum(float(local_parameters(layer.parameters(priced.model.hidden), batch).expert) for layer in experts)
        found.append(
            f"experts of a rank: {format_bytes(2.0 * each / layout.pp)} in 16 bits; a loader that merges or converts "
            "them in one buffer needs as much again beside them while it loads"
        )
    return found
