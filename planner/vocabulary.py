"""Rows of the vocabulary that a framework keeps: padded so that every tensor-parallel rank has an aligned share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.frameworks.base import FrameworkPreset
from planner.model.spec import ModelSpec


def padded_vocab(model: ModelSpec, preset: FrameworkPreset, tp: ArrayLike) -> NDArray[np.float64]:
    """Rows of the embedding and columns of the head over all tp ranks, padding included.

    ``ceil(V / (m tp)) m tp`` with m the preset's `vocab_multiple`: Megatron-LM's ``_vocab_size_with_padding``
    (megatron/tokenizer/tokenizer.py, ``--make-vocab-size-divisible-by`` 128), so that the products of the head stay
    aligned. A framework that pads nothing has m = 0.

    Parameters
    ----------
    tp : array_like
        Tensor-parallel degrees.

    Returns
    -------
    ndarray of float64, shape of `tp`
    """
    degrees = np.asarray(tp, dtype=np.float64)
    if not preset.vocab_multiple:
        return np.full(degrees.shape, float(model.vocab))
    step = preset.vocab_multiple * degrees
    return np.asarray(np.ceil(model.vocab / step) * step)
