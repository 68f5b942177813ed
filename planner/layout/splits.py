"""How the layers of a model are dealt to the virtual stages of a pipeline.

A split is a tuple with the layers of each virtual stage, in the order of the model; an empty one stands
for the default rule (`split_layers`). Arrays of layouts hold a number for each split (`split_id`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hwmodels.errors import Fault, InputError

Split = tuple[int, ...]

_SPLITS: list[Split] = [()]
_NUMBERS: dict[Split, int] = {(): 0}


def split_id(split: Sequence[int]) -> int:
    """The number that stands for a split in arrays; 0 for the default rule."""
    key = tuple(int(n) for n in split)
    if key not in _NUMBERS:
        _NUMBERS[key] = len(_SPLITS)
        _SPLITS.append(key)
    return _NUMBERS[key]


def split_of(number: int) -> Split:
    """The split that a number of `split_id` stands for."""
    return _SPLITS[number]


def is_even(n_layers: int, n_stages: int) -> bool:
    """Whether stages hold equal shares of the layers, or of them with embedding and head as a layer each."""
    if n_stages > n_layers:
        return n_stages == n_layers + 2
    return n_layers % n_stages == 0 or (n_layers + 2) % n_stages == 0


def split_layers(n_layers: int, n_stages: int) -> Split | None:
    """Layers of each virtual stage by the default rule, or None where a stage between the ends would be empty.

    1. Equal shares where the layers divide.
    2. Else embedding and head count as a layer each, the first and the last stage hold one layer fewer
       (126 layers on 16 stages of Llama 3.1 405B, arXiv 2407.21783, section 3.3.2; Megatron-Core's
       ``account_for_embedding_in_pipeline_split`` and ``account_for_loss_in_pipeline_split``).
    3. What is left over goes to the last stages before the last one, which hold the fewest activations in
       flight and neither embedding nor head; then to the first, then to the last. 61 layers of DeepSeek-V3
       on 16 stages: 3, fourteen times 4, 2.

    4. With one or two stages more than layers the loss, and then the embedding too, stand alone and every other
       stage holds one layer: 126 layers of Llama 3.1 405B on 16 ranks of 8 virtual stages, the only split that
       Megatron-Core (both ends counted as layers), torchtitan (``generate_llm_fqn_per_model_part``, which
       weighs embedding and head as a layer each) and DeepSpeed (``PipelineModule`` deals them like layers) have.

    A rule that would leave the first or last stage without a layer otherwise counts the layers alone.
    """
    if n_stages < 1 or n_stages > n_layers + 2 or n_layers < 1:
        return None
    if n_stages > n_layers:
        return (*(() if n_stages == n_layers + 1 else (0,)), *(1,) * n_layers, 0)
    if n_layers % n_stages == 0:
        return (n_layers // n_stages,) * n_stages
    ends = 1 if (n_layers + 2) // n_stages > 1 else 0
    share, rest = divmod(n_layers + 2 * ends, n_stages)
    shares = [share] * n_stages
    for stage in [*range(n_stages - 2, 0, -1), 0, n_stages - 1][:rest]:
        shares[stage] += 1
    shares[0] -= ends
    shares[-1] -= ends
    return tuple(shares)


def split_faults(split: Split, n_layers: int, n_stages: int) -> list[Fault]:
    """Why a split does not deal `n_layers` to `n_stages`; empty where it does."""
    fits = split_layers(n_layers, n_stages)
    fix = "stage_layers " + ",".join(map(str, fits)) if fits else f"pp*vpp <= {n_layers + 2}"
    found = []
    if len(split) != n_stages:
        found.append(Fault(f"{len(split)} entries", "", f"pp*vpp = {n_stages} virtual stages", fix, "layers-stages"))
    if sum(split) != n_layers:
        why = f"the model has {n_layers}, and each runs once"
        found.append(Fault(f"{sum(split)} layers in all", "", why, fix, "layers-stages"))
    if any(n < 0 for n in split) or any(n < 1 for n in split[1:-1]):
        why = "only the first and the last stage (embedding, loss) may stand without layers"
        found.append(Fault(f"layers {','.join(map(str, split))}", "", why, fix, "layers-stages"))
    return found


def megatron_split(
    n_layers: int,
    pp: int,
    vpp: int = 1,
    *,
    first: int | None = None,
    last: int | None = None,
    embedding: bool = False,
    loss: bool = False,
    where: str = "stage_layers",
) -> Split:
    """The split that Megatron-Core's options give (loop placement).

    Parameters
    ----------
    first, last : int or None
        ``--decoder-first-pipeline-num-layers`` and ``--decoder-last-pipeline-num-layers``: layers of the
        whole first and last pipeline rank; the other ranks share the rest equally.
    embedding, loss : bool
        ``--account-for-embedding-in-pipeline-split`` and ``--account-for-loss-in-pipeline-split``: count
        as a layer, so that the first and last virtual stage hold one fewer.
    where : str
        What faults and their remedies call the split.

    Raises
    ------
    hwmodels.errors.InputError
        Where Megatron-Core refuses: both kinds at once, shares that are not whole.
    """
    if (first is not None or last is not None) and (embedding or loss):
        why = "Megatron-Core takes either the layers of the end ranks or the counted ends"
        raise InputError(Fault("first or last with embedding or loss", where, why, "one of them", "layers-stages"))
    if first is None and last is None:
        counted = n_layers + embedding + loss
        if counted % (pp * vpp):
            why = f"Megatron-Core divides them evenly over {pp * vpp} virtual stages"
            fix = _whole_split(n_layers, pp * vpp, where)
            raise InputError(Fault(f"{counted} layers, counted ends included", where, why, fix, "layers-stages"))
        shares = [counted // (pp * vpp)] * (pp * vpp)
        shares[0] -= embedding
        shares[-1] -= loss
        return tuple(shares)
    others = pp - (first is not None) - (last is not None)
    left = n_layers - (first or 0) - (last or 0)
    if others < 0 or left < 0 or (left and not others) or (others and left % others):
        why = f"{left} layers are left for {others} ranks, which share them equally"
        why = f"the model has {n_layers} layers on {pp} ranks" if left < 0 or others < 0 else why
        fix = _end_ranks(n_layers, pp, vpp, first, last, where)
        raise InputError(Fault(f"{_ends(first, last)} of {n_layers} layers", where, why, fix, "layers-stages"))
    ranks = [left // others if others else 0] * pp
    ranks[0] = first if first is not None else ranks[0]
    ranks[-1] = last if last is not None else ranks[-1]
    if any(n % vpp for n in ranks):
        why = f"vpp={vpp} divides the layers of every rank"
        what, fix = f"ranks of {split_text(tuple(ranks))} layers", _end_ranks(n_layers, pp, vpp, first, last, where)
        raise InputError(Fault(what, where, why, fix, "layers-stages"))
    return tuple(n // vpp for _ in range(vpp) for n in ranks)


def _whole_split(n_layers: int, n_stages: int, where: str) -> str:
    """A split of the layers stage by stage that works, as a remedy."""
    fits = split_layers(n_layers, n_stages)
    return f"{where} {split_text(fits)}" if fits else f"pp*vpp <= {n_layers + 2}"


def _ends(first: int | None, last: int | None) -> str:
    """``first=3,last=2`` of those that are given."""
    return ",".join(f"{name}={n}" for name, n in (("first", first), ("last", last)) if n is not None)


def _end_ranks(n_layers: int, pp: int, vpp: int, first: int | None, last: int | None, where: str) -> str:
    """The nearest layers of the given end ranks that leave the others equal shares, and a split stage by stage."""
    others = pp - (first is not None) - (last is not None)

    def works(ends: int) -> bool:
        left = n_layers - ends
        return left == 0 if others == 0 else others > 0 and left > 0 and left % (others * vpp) == 0

    held = range(vpp, n_layers + 1, vpp)  # a whole number of layers for each virtual stage
    pairs = ((a, b) for a in (held if first is not None else (0,)) for b in (held if last is not None else (0,)))
    fit = min(
        (pair for pair in pairs if works(sum(pair))),
        key=lambda pair: (abs(pair[0] - (first or 0)) + abs(pair[1] - (last or 0)), -sum(pair)),
        default=None,
    )
    whole = _whole_split(n_layers, pp * vpp, where)
    if fit is None:
        return whole
    return f"{where} {_ends(fit[0] if first is not None else None, fit[1] if last is not None else None)}, or {whole}"


def megatron_layout(text: str) -> Split:
    """Layers of each virtual stage of a Megatron-Core ``--pipeline-model-parallel-layout``.

    ``"Et*3|(tt|)*2tmL"`` is embedding and three layers, twice two layers, then a layer, a prediction
    layer and the loss: (3, 2, 2, 1).

    Raises
    ------
    hwmodels.errors.InputError
        For anything but E, t, m, L, bars, brackets and repetitions.
    """
    flat = text.replace(" ", "")
    for pattern in (r"([Etm])\*(\d+)", r"\(([EtmL|]*)\)\*(\d+)"):
        flat = re.sub(pattern, lambda found: found[1] * min(int(found[2]), MOST_REPEATS), flat)
    if not re.fullmatch(r"[EtmL|]+", flat):
        why = "it is no layout of E, t, m and L"
        raise InputError(Fault(f"layout {text!r}", "stage_layers", why, "Et*3|(tt|)*2tL"))
    return tuple(stage.count("t") for stage in flat.split("|"))


MOST_REPEATS = 4096
"""Layers or stages that one repetition of a layout may stand for."""


def split_text(split: Split) -> str:
    """Short text: ``3,14x4,2``."""
    runs: list[tuple[int, int]] = []
    for n in split:
        if runs and runs[-1][1] == n:
            runs[-1] = (runs[-1][0] + 1, n)
        else:
            runs.append((1, n))
    return ",".join(f"{times}x{n}" if times > 1 else str(n) for times, n in runs)


def parse_split(text: str, where: str, n_layers: int, pp: int, vpp: int) -> Split:
    """A split from ``"3,4,4,2"``, ``"3,14x4,2"``, or Megatron's words ``"first=3,last=2"``, ``"embedding,loss"``.

    Raises
    ------
    hwmodels.errors.InputError
        Naming `where` and every part that is none of these, or what Megatron-Core refuses.
    """
    counts: list[int] = []
    words: dict[str, int] = {}
    faults = []
    for part in (piece.strip() for piece in text.split(",")):
        name, given, value = part.partition("=")
        times, crossed, number = part.partition("x")
        if part in ("embedding", "loss"):
            words[part] = 1
        elif given and name in ("first", "last") and value.isdecimal():
            words[name] = int(value)
        elif part.isdecimal():
            counts.append(int(part))
        elif crossed and times.isdecimal() and number.isdecimal() and 0 < int(times) <= max(n_layers, 1):
            counts += [int(number)] * int(times)
        else:
            why = "it is no number of layers, 14x4, first=3, last=2, embedding or loss"
            faults.append(Fault(f"{part!r}", where, why, f"{where} 3,14x4,2"))
    if counts and words:
        why = "layers stage by stage leave nothing to Megatron's words"
        faults.append(Fault(f"{text!r} mixes both", where, why, f"{where} 3,14x4,2 or {where} first=3,last=2"))
    if faults:
        raise InputError(faults)
    if not words:
        return tuple(counts)
    first, last, embedding, loss = (words.get(name) for name in ("first", "last", "embedding", "loss"))
    return megatron_split(
        n_layers, pp, vpp, first=first, last=last, embedding=bool(embedding), loss=bool(loss), where=where
    )
