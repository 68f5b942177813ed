"""`Scored`: predictions beside the measured times of one file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog
from hwmodels.estimate import FloatArray
from hwmodels.measured import Rows

TAGS = (
    "device", "generation", "dtype", "framework", "implementation", "size", "op", "phase", "direction", "system",
    "link", "source", "custom",
)  # fmt: skip
"""Words by which targets and plots select rows; an empty word where a kind has no use for one.

``size`` is the size class (GEMM ``large`` or ``small``; prefill ``>=1k`` or ``<1k`` tokens; collectives ``>=64MiB`` or
``<64MiB``), ``op`` the op of a collective or the phase of an expert exchange, ``link`` the catalog's link that
carries a collective (of the network for several nodes), ``custom`` is ``custom`` for custom all-reduce kernels."""

AMOUNTS = ("flops", "bytes", "n_gpus", "n_nodes")
"""Sizes of the work of a row: FLOP, bytes moved (of a collective: as in the file), ranks and nodes; 0 = no use."""

_WORDS_OF_ROWS = {
    "device": "device", "law_dtype": "dtype", "impl": "implementation", "op": "op", "phase": "phase",
    "direction": "direction", "system": "system", "source": "source",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Predictions beside the measured times of one file, one element a row.

    Attributes
    ----------
    file, kind : str
        Path of the file; ``gemm``, ``attention``, ``collective`` or ``expert``.
    line : ndarray of int
    group : ndarray of str
        Device or system, dtype, op, implementation and size class; empty where the row was skipped.
    pool : ndarray of str
        The same without the implementation.
    key : ndarray of str
        Everything that the law knows of a row: rows of equal key differ by noise or by what no column states.
    reason : ndarray of str
        Why a row was skipped.
    measured_s, predicted_s, spread : ndarray
        Seconds, seconds, relative.
    x : ndarray
        Size for plots and for the baseline (a single rate): FLOP (gemm, attention prefill), bytes (collective,
        expert, attention decode).
    tags : dict[str, ndarray of str]
        `TAGS`, each one word a row.
    amounts : dict[str, ndarray]
        `AMOUNTS`, each one number a row.
    """

    file: str
    kind: str
    line: NDArray[np.int64]
    group: NDArray[np.object_]
    pool: NDArray[np.object_]
    key: NDArray[np.object_]
    reason: NDArray[np.object_]
    measured_s: FloatArray
    predicted_s: FloatArray
    spread: FloatArray
    x: FloatArray
    tags: dict[str, NDArray[np.object_]] = field(default_factory=dict)
    amounts: dict[str, FloatArray] = field(default_factory=dict)

    @classmethod
    def empty(cls, file: str, kind: str, rows: Rows, measured_s: FloatArray) -> Scored:
        """Nothing predicted yet; the arrays are filled in place.

        Tags and amounts that are columns of `rows` are taken over, the framework is what comes before the first dash
        of the implementation, the generation that of the catalog's device. The others stay empty for the kind to fill.
        """

        def words() -> NDArray[np.object_]:
            return np.full(len(rows), "", object)

        def zeros() -> FloatArray:
            return np.zeros(len(rows))

        tags = {name: words() for name in TAGS}
        for column, tag in _WORDS_OF_ROWS.items():
            if column in rows.words:
                tags[tag][:] = [str(cell) for cell in rows.words[column]]
        tags["framework"][:] = [str(key).partition("-")[0] for key in tags["implementation"]]
        tags["generation"][:] = [_generation(str(name)) for name in tags["device"]]
        amounts = {name: zeros() for name in AMOUNTS}
        for name in AMOUNTS:
            if name in rows.numbers:
                amounts[name][:] = rows.numbers[name]
        return cls(
            file, kind, rows.line, words(), words(), words(), words(), measured_s, zeros(), zeros(), zeros(), tags,
            amounts,
        )  # fmt: skip

    @property
    def predicted(self) -> NDArray[np.bool_]:
        """Rows that were predicted: they have a group and a time (a group of one rank exchanges nothing)."""
        return np.asarray((self.group != "") & (self.predicted_s > 0), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Error on rows that took no part in the fit which predicts them.

    Attributes
    ----------
    what : str
        What was left out, and what predicted it.
    n : int
        Rows.
    median_pct, p90_pct : float
        Of the absolute relative error, per cent.
    limit_pct : float or None
        What the median must not exceed; None where it is printed only.
    why : str
        Why it is printed only; "" where it is judged or nothing more is known than that it has no limit.
    """

    what: str
    n: int
    median_pct: float
    p90_pct: float
    limit_pct: float | None = None
    why: str = ""


def _generation(device: str) -> str:
    return catalog.device(device).generation if device in catalog.device_names() else ""


def keys(*columns: Iterable[object]) -> list[str]:
    """One text a row of the columns given (arrays of equal length)."""
    return ["|".join(str(cell) for cell in row) for row in zip(*columns, strict=True)]
