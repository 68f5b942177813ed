"""The table of what the laws must reach, as data, and how far they are from it.

A target selects rows by tags and amounts of `Scored`, takes a metric of their absolute relative errors, and has a
limit. Every limit is read as the larger of the figure given and the floor that rows which are equal in all inputs
leave, where enough rows have twins (`floor.Floor.speaks`). Selections of fewer than `MIN_ROWS` rows are printed, not
judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels import laws
from hwmodels.validation.cases import Cases
from hwmodels.validation.scored import HeldOut

MIN_ROWS = 10
FEW = f"fewer than {MIN_ROWS} rows"
NO_LIMIT = "it has no limit"
FITTED_ROWS = 20
"""Rows of a law's block from which a device that it names counts as fitted (one anchor row is no fit)."""

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the table.

    Attributes
    ----------
    name, what : str
        Identifier, and the words for people.
    kind : str
        ``gemm``, ``attention``, ``collective`` or ``expert``.
    limits : Mapping[str, float]
        ``median``, ``p90``, ``worst`` -> per cent.
    tags : Mapping[str, tuple of str]
        Tag -> words that a row may have there.
    amounts : Mapping[str, tuple of float]
        Amount -> smallest and largest.
    by : str
        Tag whose every word is judged by itself; empty for all rows together.
    fitted : bool
        Only devices that the fit of this law saw (`fitted_devices`).
    exceptions : Mapping[str, Mapping[str, float]]
        Word of `by` -> limits of its own.
    """

    name: str
    what: str
    kind: str
    limits: Mapping[str, float]
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NOTHING)
    amounts: Mapping[str, tuple[float, float]] = field(default_factory=lambda: NOTHING)
    by: str = ""
    fitted: bool = False
    exceptions: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: NOTHING)

    def rows(self, cases: Cases) -> NDArray[np.bool_]:
        """Which of `cases` it selects."""
        keep = cases.kind == self.kind
        for name, words in self.tags.items():
            keep = keep & np.isin(cases.tags[name].astype(str), words)
        for name, (least, most) in self.amounts.items():
            keep = keep & (cases.amounts[name] >= least) & (cases.amounts[name] <= most)
        if self.fitted:
            keep = keep & np.isin(cases.tags["device"].astype(str), sorted(fitted_devices(self.kind)))
        return np.asarray(keep, np.bool_)

    def limit(self, member: str, metric: str) -> float:
        """Limit of a metric for a word of `by`."""
        return self.exceptions.get(member, NOTHING).get(metric, self.limits[metric])


SIXTEEN_BIT = ("bf16", "fp16")
EIGHT_BIT = ("fp8", "fp8_block", "fp4")

TARGETS = (
    Target(
        "gemm-16bit", "GEMM bf16/fp16, dims >= 256, bytes > 4x L2 or flop > 1e10, fitted devices", "gemm",
        {"median": 4.0, "p90": 22.0}, {"dtype": SIXTEEN_BIT, "size": ("large",)}, by="device", fitted=True,
        exceptions={
            "a100-sxm-80gb": {"p90": 15.0}, "h100-sxm-80gb": {"p90": 15.0}, "b200-sxm-180gb": {"median": 5.0},
            "gb200-186gb": {"median": 5.0}, "l40s-48gb": {"median": 8.0},
        },
    ),
    Target(
        "gemm-8bit-trtllm", "GEMM fp8, fp8_block, nvfp4, large, TRT-LLM", "gemm", {"median": 6.0, "p90": 26.0},
        {"dtype": EIGHT_BIT, "size": ("large",), "framework": ("trtllm",)}, fitted=True,
    ),
    Target(
        "gemm-8bit", "GEMM fp8, fp8_block, nvfp4, large, all frameworks", "gemm", {"median": 9.0, "p90": 40.0},
        {"dtype": EIGHT_BIT, "size": ("large",)}, fitted=True,
    ),
    Target(
        "attention-prefill", "attention prefill >= 1k tokens", "attention", {"median": 8.0},
        {"phase": ("prefill",), "size": (">=1k",)},
    ),
    Target("attention-decode", "attention decode", "attention", {"median": 10.0}, {"phase": ("decode",)}),
    Target(
        "attention-training", "attention forward + backward, A100 and H100", "attention", {"median": 10.0},
        {"direction": ("fwd+bwd", "bwd"), "device": ("a100-sxm-80gb", "h100-sxm-80gb")},
    ),
    Target(
        "collectives-1-node", "single-node collectives 1 KiB-16 GiB, NCCL, per source", "collective",
        {"median": 4.0, "p90": 16.0, "worst": 35.0}, {"custom": ("",)},
        {"n_nodes": (1, 1), "bytes": (KIB, 16 * GIB)}, by="source",
    ),
    Target(
        "collectives-custom", "single-node custom all-reduce 1 KiB-16 GiB, per source", "collective",
        {"median": 4.0, "p90": 16.0, "worst": 35.0}, {"custom": ("custom",)},
        {"n_nodes": (1, 1), "bytes": (KIB, 16 * GIB)}, by="source",
    ),
    Target(
        "collectives-nodes-large", "multi-node collectives >= 64 MiB", "collective", {"median": 12.0},
        amounts={"n_nodes": (2, np.inf), "bytes": (64 * MIB, np.inf)},
    ),
    Target(
        "collectives-nodes-small", "multi-node collectives < 64 MiB", "collective", {"median": 30.0},
        amounts={"n_nodes": (2, np.inf), "bytes": (0.0, 64 * MIB - 1)},
    ),
    Target(
        "expert", "MoE dispatch and combine", "expert", {"median": 12.0},
        {"op": ("dispatch", "combine", "combine_low_precision")},
    ),
)  # fmt: skip
"""The measured part of the table; leaving out a generation or system, and speed, come from `held_out` and `speed`."""

PRICES_PER_S = 2e6


@dataclass(frozen=True, slots=True)
class Reached:
    """A target beside what was found.

    Attributes
    ----------
    target, what, member, metric : str
        ``member`` is the device, source ... that is judged by itself.
    n : int
        Rows.
    figure, floor, limit : float or None
        In `unit`; the floor of the selection, and the limit as given.
    allowed : float or None
        The limit as read: the larger of limit and floor where the floor speaks.
    met : bool or None
        None where nothing is judged: too few rows, or a figure without a limit.
    unit : str
        ``%`` or ``prices/s``.
    why : str
        Why nothing is judged; "" where something is.
    """

    target: str
    what: str
    member: str
    metric: str
    n: int
    figure: float
    floor: float | None
    limit: float | None
    allowed: float | None
    met: bool | None
    unit: str = "%"
    why: str = ""

    @property
    def name(self) -> str:
        """Identifier of the line: target, member and metric."""
        return ":".join(part for part in (self.target, self.member, self.metric) if part)

    def content(self) -> dict[str, Any]:
        """As in ``validate --json``."""
        short = {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(self).items()}
        return {"name": self.name, **short}


def fitted_devices(kind: str) -> frozenset[str]:
    """Devices that a law's fit saw with at least `FITTED_ROWS` rows in a block."""
    return frozenset(
        name
        for section in laws.sections(kind).values()
        if any(block.rows >= FITTED_ROWS for block in section.blocks)
        for name in section.measured
    )


def evaluate(cases: Cases, targets: Iterable[Target] = TARGETS) -> list[Reached]:
    """Every target that `cases` has rows for."""
    found = []
    for target in targets:
        its = cases.take(target.rows(cases))
        if not len(its):
            continue
        members = sorted(set(its.tags[target.by].tolist())) if target.by else [""]
        for member in members:
            part = its.take(np.asarray(its.tags[target.by] == member, np.bool_)) if target.by else its
            found += [_reached(target, str(member), metric, part) for metric in target.limits]
    return found


def _reached(target: Target, member: str, metric: str, part: Cases) -> Reached:
    left, limit, figure = part.floor(), target.limit(member, metric), part.figure(metric)
    own = left.of(metric)
    allowed = max(limit, own) if own is not None and left.speaks else limit
    met = figure <= allowed if len(part) >= MIN_ROWS else None
    why = FEW if met is None else ""
    return Reached(target.name, target.what, member, metric, len(part), figure, own, limit, allowed, met, why=why)


def from_held_out(law: str, found: Iterable[HeldOut]) -> list[Reached]:
    """Lines of rows that took no part in the fit of `law` which predicts it; the median is judged or says why not."""
    name, what = f"held-out-{law}", f"left out of the fit of {law}"
    lines = []
    for item in found:
        limit = item.limit_pct
        met = item.median_pct <= limit if limit is not None and item.n >= MIN_ROWS else None
        why = "" if met is not None else item.why or (NO_LIMIT if limit is None else FEW)
        lines.append(
            Reached(name, what, item.what, "median", item.n, item.median_pct, None, limit, limit, met, why=why)
        )
        lines.append(Reached(name, what, item.what, "p90", item.n, item.p90_pct, None, None, None, None))
    return lines


def speed(rows: int = 200_000, repeats: int = 4) -> Reached:
    """GEMM prices a second on one core: the best of several calls with `rows` random shapes on the first device."""
    import time

    from hwmodels import catalog
    from hwmodels.kernels import gemm_seconds

    draw = np.random.default_rng(0)
    m, n, k = (2.0 ** draw.uniform(4.0, 14.0, rows) for _ in range(3))
    device, best = catalog.device("h100-sxm-80gb"), np.inf
    for _ in range(repeats):
        start = time.process_time()
        gemm_seconds(device, m, n, k, dtype="bf16")
        best = min(best, time.process_time() - start)
    figure = rows / best
    what = "GEMM prices a second on one core"
    return Reached("speed", what, "", "rate", rows, figure, None, PRICES_PER_S, PRICES_PER_S, figure >= PRICES_PER_S,
                   "prices/s")  # fmt: skip
