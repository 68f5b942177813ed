"""What a recompute policy is: its kind, the modules it names, and on how many layers it works.

Kinds, in the words of the frameworks that have them:

* ``selective``: parts of every layer (Megatron-Core ``--recompute-granularity selective`` with
  ``--recompute-modules``; Korthikanti et al., arXiv 2205.05198, section 5, for the attention core);
* ``full``: whole layers, one saved input for every chunk of `n` layers (``--recompute-method uniform
  --recompute-num-layers n``);
* ``block``: whole layers, the first `n` of every virtual stage (``--recompute-method block``);
* ``every``: whole layers, each `n`-th of a stage (torchtitan ``selective_ac_option = "n"``);
* ``op``: whole layers, but attention, every second matrix product and reduce-scatters keep what they made
  (torchtitan ``selective_ac_option = "op"``; `torchtitan/distributed/activation_checkpoint.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass

IntArray = NDArray[np.int64]

RECOMPUTE: tuple[str, ...] = ("none", "selective", "full", "block", "every", "op")
SEARCHED: tuple[str, ...] = ("none", "selective", "full")
"""Kinds that a search tries where it is not told which: those that every framework has."""

MODULES: tuple[str, ...] = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""Megatron-Core's ``--recompute-modules`` (`megatron/core/transformer/transformer_config.py`)."""

OUTPUT_DISCARDING: tuple[str, ...] = ("moe_act", "layernorm", "mla_up_proj")
"""Modules that drop their output once the next op has used it (`CheckpointWithoutOutput` of
`megatron/core/tensor_parallel/random.py`); the others are plain checkpoints, which keep their input."""

DEFAULT_MODULES: tuple[str, ...] = ("core_attn",)
"""What ``selective`` means where no module is named (Megatron-Core's default)."""

DEFAULT_EVERY = 2
"""Frequency of ``every`` where none is given (torchtitan's ``selective_ac_option`` of "2")."""

NONE, SELECTIVE, FULL, BLOCK, EVERY, OP = range(len(RECOMPUTE))
WHOLE_LAYERS: tuple[int, ...] = (FULL, BLOCK, EVERY)


@dataclass(frozen=True, slots=True)
class Policy:
    """What recomputation does to one layer that it works on.

    Attributes
    ----------
    kind : str
        One of `RECOMPUTE`; ``full`` also stands for ``block`` and ``every``, which differ in the layers they
        work on.
    modules : tuple of str
        Of a selective policy.
    """

    kind: str
    modules: tuple[str, ...] = ()


def modules_code(modules: Iterable[str]) -> int:
    """The number that stands for a set of modules in arrays: one bit each; 0 is the default."""
    return sum(1 << MODULES.index(name) for name in set(modules))


def modules_of(code: int) -> tuple[str, ...]:
    """The modules that a number of `modules_code` stands for."""
    return tuple(name for i, name in enumerate(MODULES) if code >> i & 1)


def policies(kinds: IntArray, modules: IntArray) -> tuple[tuple[Policy, ...], IntArray]:
    """The distinct policies of many layouts, and the position of each layout's own.

    Parameters
    ----------
    kinds, modules : ndarray (n,)
        `LayoutBatch.recompute` and `LayoutBatch.recompute_modules`.
    """
    whole = np.where(np.isin(kinds, WHOLE_LAYERS), FULL, kinds)
    named = np.where(modules == 0, modules_code(DEFAULT_MODULES), modules)
    keys = whole + len(RECOMPUTE) * np.where(whole == SELECTIVE, named, 0)
    unique, inverse = np.unique(keys, return_inverse=True)
    found = tuple(Policy(RECOMPUTE[k % len(RECOMPUTE)], modules_of(k // len(RECOMPUTE))) for k in map(int, unique))
    return found, np.asarray(inverse.reshape(-1), dtype=np.int64)


def parse_modules(text: str, where: str) -> tuple[str, ...]:
    """Modules from ``"layernorm,moe_act"`` (commas, blanks or plus signs between).

    Raises
    ------
    hwmodels.errors.InputError
        Naming `where` and every word that is no module.
    """
    words = text.replace(",", " ").replace("+", " ").split()
    unknown = [word for word in words if word not in MODULES]
    if unknown:
        known = ", ".join(MODULES)
        raise InputError([Fault(f"{word!r} is no module", where, "it is not a known name", known) for word in unknown])
    return tuple(name for name in MODULES if name in words)


def parse_layers(text: str, where: str) -> tuple[int, ...]:
    """Numbers of layers from ``"4"`` (every stage) or ``"4,2,1,0"`` (stage by stage).

    Raises
    ------
    hwmodels.errors.InputError
        Naming `where` and every part that is no number.
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not part.isdecimal()]
    if wrong:
        why = "a number of layers, or one for each virtual stage, is expected"
        raise InputError([Fault(f"{part!r} is no number", where, why, f"{where} 4") for part in wrong])
    return tuple(int(part) for part in parts)


def stage_words(kind: str, modules: tuple[str, ...], layers: tuple[int, ...], n_stages: int) -> list[str]:
    """What a plan says of each virtual stage: ``"none"``, ``"full"``, ``"block 2"``, ``"selective mlp"`` ..."""
    found = []
    for stage in range(n_stages):
        n = layers_at(layers, stage)
        if kind == "block" and layers and not n:
            found.append("none")
            continue
        words = [kind, *(modules if kind == "selective" else ())]
        if n and kind in ("full", "block", "every"):
            words.append(str(n))
        found.append(" ".join(words))
    return found


def layers_at(layers: tuple[int, ...], stage: int) -> int:
    """The number of layers that holds for one virtual stage; 0 where none is given."""
    if not layers:
        return 0
    return layers[0] if len(layers) == 1 else layers[stage % len(layers)]


def is_stage_word(text: str) -> bool:
    """Whether a plan's word for a stage is one that `stage_words` writes."""
    kind, *rest = text.split() or [""]
    if kind not in RECOMPUTE:
        return False
    if kind == "selective":
        return all(word in MODULES for word in rest)
    return not rest or (kind in ("full", "block", "every") and len(rest) == 1 and rest[0].isdecimal())


def recomputed_layers(kind: str, n: int, length: int) -> list[list[int]]:
    """Chunks of layers that are rebuilt together, of a virtual stage of `length` layers.

    Parameters
    ----------
    kind : {'full', 'block', 'every'}
    n : int
        Layers of a chunk, of a block, or the frequency; 0 is the default.
    """
    if kind == "every":
        return [[i] for i in range(length) if (i + 1) % (n or DEFAULT_EVERY) == 0]
    if kind == "block":
        return [[i] for i in range(min(n or length, length))]
    return [list(range(i, min(i + (n or 1), length))) for i in range(0, length, n or 1)]


def recomputes_layer(kind: str, layers: tuple[int, ...], shares: Sequence[int]) -> list[bool]:
    """Whether the policy works on each layer of the model, dealt to virtual stages as `shares`."""
    found: list[bool] = []
    for stage, length in enumerate(shares):
        inside = {"none": False, "selective": True, "op": True}.get(kind)
        if inside is not None:
            found += [inside] * length
        elif kind == "block" and layers and not layers_at(layers, stage):
            found += [False] * length
        else:
            chosen = {i for chunk in recomputed_layers(kind, layers_at(layers, stage), length) for i in chunk}
            found += [i in chosen for i in range(length)]
    return found
