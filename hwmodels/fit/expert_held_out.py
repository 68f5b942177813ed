"""How the law of expert dispatch and combine predicts rows that its fit did not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.expert import ASSUMED_BETWEEN
from hwmodels.collectives.expert_law import Exchange, law_seconds
from hwmodels.estimate import FloatArray
from hwmodels.fit.expert import Found, Numbers, fit_batches, nearest
from hwmodels.fit.expert_rows import Batch
from hwmodels.validation.scored import HeldOut

FOLDS = 5


def terms_for(part: Batch, done: dict[str, Found]) -> Numbers | None:
    """Numbers of the law for a batch from what a fit found, by the rule of `hwmodels.collectives.expert.terms_of`."""
    names = [f"{name}.{part.phase}" for name in (part.entry.base, part.entry.key) if name]
    known = [done[name] for name in names if name in done]
    if not known:
        return None
    numbers: Numbers = {} if any(found.between for found in known) else dict(ASSUMED_BETWEEN)
    for found in known:
        numbers |= found.inside[nearest(found.inside, part.fabric.intra)]
    for found in known:
        if found.between and part.fabric.inter is not None:
            numbers |= found.between[nearest(found.between, part.fabric.inter)]
    return numbers


def taken(part: Batch, keep: NDArray[np.bool_]) -> Batch:
    """The rows of a batch where `keep` is true."""
    x = Exchange(*(getattr(part.x, f.name)[keep] for f in fields(Exchange)))
    return replace(part, index=part.index[keep], x=x, seconds=part.seconds[keep])


def shape_of(part: Batch) -> list[tuple[float, ...]]:
    """What makes a shape: all inputs but the number of tokens."""
    x = part.x
    per_token = np.round(x.copies / x.tokens, 6)
    return list(zip(x.width, per_token, x.shared, x.sms, x.size, x.nodes, strict=True))


def left_out(parts: Sequence[Batch], out: Callable[[Batch], NDArray[np.bool_]]) -> FloatArray:
    """Relative errors of the rows that `out` selects, by a fit on all others.

    Rows of a library or phase that no other row tells of are not among them.
    """
    masks = [out(part) for part in parts]
    done = fit_batches([taken(p, ~m) for p, m in zip(parts, masks, strict=True) if (~m).any()])
    errors = []
    for part, mask in zip(parts, masks, strict=True):
        terms = terms_for(part, done) if mask.any() else None
        if terms is not None:
            its = taken(part, mask)
            errors.append(law_seconds(its.x, terms) / its.seconds - 1.0)
    return np.concatenate([np.zeros(0), *errors])


def result(what: str, errors: FloatArray) -> HeldOut:
    """The errors as they are printed."""
    size = 100.0 * np.abs(errors)
    return HeldOut(what, int(size.size), float(np.median(size)), float(np.quantile(size, 0.9)))


def held_out(parts: Sequence[Batch]) -> list[HeldOut]:
    """Rows by a fit without a fifth of the shapes (each in turn), and without their whole device."""
    shapes = sorted({shape for part in parts for shape in shape_of(part)})
    folds = np.random.default_rng(0).permutation(len(shapes)) % FOLDS
    fold = {shape: int(i) for shape, i in zip(shapes, folds, strict=True)}

    def in_fold(part: Batch, wanted: int) -> NDArray[np.bool_]:
        return np.asarray([fold[shape] == wanted for shape in shape_of(part)], dtype=np.bool_)

    def on_device(part: Batch, device: str) -> NDArray[np.bool_]:
        return np.full(part.seconds.size, part.system.device == device)

    errors = [left_out(parts, partial(in_fold, wanted=i)) for i in range(FOLDS)]
    found = [result(f"a fifth of the shapes, by the others ({FOLDS} folds)", np.concatenate(errors))]
    for device in sorted({part.system.device for part in parts}):
        its = left_out(parts, partial(on_device, device=device))
        if its.size:
            found.append(result(f"{device}, by the other devices", its))
    return found
