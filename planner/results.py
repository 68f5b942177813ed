"""Plain results that commands hand around: `Step`, `Measurement`, `Comparison`.

Nothing heavy is imported here; the executor, the reports and the comparison all read these.
All times are seconds, all sizes bytes.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from hwmodels.records import dataclass

PHASES: tuple[str, ...] = (
    "forward",
    "backward",
    "recompute",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "pp_comm",
    "dp_comm",
    "optimizer",
    "host",
    "bubble",
)
"""Phases of a step, in the order in which tables show them. Communication phases hold the
exposed part only, so that the phases of one rank add up to its step time."""

MEMORY_CATEGORIES: tuple[str, ...] = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "recompute",
    "temporary",
    "logits",
    "gathered",
    "comm_buffers",
    "workspace",
    "allocator",
    "nccl",
    "context",
)
"""Categories of memory, in the order in which tables show them. ``temporary``: gradients of activations and buffers
of the optimizer; ``gathered``: unsharded parameters and their gradients; ``allocator``: free blocks that it holds."""

OUTSIDE_CATEGORIES: tuple[str, ...] = ("nccl", "context")
"""Those that PyTorch's allocator does not see."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted value with its bounds."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """Bytes that a GPU sends: to GPUs of its own node, and over the network between nodes."""

    intra_node: float
    inter_node: float


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One bar of a timeline (predicted or measured).

    Attributes
    ----------
    rank : int
        Pipeline rank (prediction) or world rank (measurement).
    stream : str
        ``"compute"``, ``"tp"``, ``"dp"``, ``"pp"`` …
    name : str
        Action text or op name, e.g. ``"0F3"``.
    kind : str
        F, B, I, W, SEND, RECV, UNSHARD, REDUCE_GRAD, OPTIMIZER …
    start_s, end_s : float
    args : dict
        Anything worth showing on hover (bytes, micro-batch, stage).
    """

    rank: int
    stream: str
    name: str
    kind: str
    start_s: float
    end_s: float
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Memory of one pipeline rank at its peak, and what fits.

    Attributes
    ----------
    stage : int
    by_category : dict
        Category of `MEMORY_CATEGORIES` -> bytes at the peak.
    capacity_bytes : int
    moment : str
        What sets the peak: ``"load"``, ``"optimizer"``, ``"save"``, or what runs in the step at it (``"forward"``,
        ``"loss"``, ``"loss backward"``, ``"backward"``).
    by_moment : dict
        Moment (``"load"``, ``"step"``, ``"optimizer"``, ``"save"``) -> bytes on the device.
    interval : Interval or None
        Bytes on the device at the peak, least and most that is likely; None in results of old.
    """

    stage: int
    by_category: dict[str, int]
    capacity_bytes: int
    moment: str = ""
    by_moment: dict[str, int] = field(default_factory=dict)
    interval: Interval | None = None

    @property
    def peak_bytes(self) -> int:
        """Sum over the categories: what the device must have."""
        return sum(self.by_category.values())

    @property
    def reserved_bytes(self) -> int:
        """What PyTorch's allocator holds of the device."""
        return self.peak_bytes - sum(self.by_category.get(name, 0) for name in OUTSIDE_CATEGORIES)

    @property
    def allocated_bytes(self) -> int:
        """What tensors take of that."""
        return self.reserved_bytes - self.by_category.get("allocator", 0)

    @property
    def category(self) -> str:
        """The category that takes most at the peak."""
        return max(self.by_category, key=lambda name: self.by_category[name], default="")


@dataclass(frozen=True, slots=True)
class Step:
    """Predicted time and memory of one training step.

    Attributes
    ----------
    step_s : Interval
        Seconds a step, with the spread of the prices.
    lower_bound_s, upper_bound_s : float
        Every transfer hidden behind compute (and compute alone where it is longer); no transfer hidden.
    phases : list of dict
        Per pipeline rank, phase -> exposed seconds; the values of a rank sum to its step time.
    hidden_comm_s : dict
        Communication phase -> seconds hidden behind compute (critical rank).
    bubble_fraction : float
        Share of the step in the phase ``bubble``, mean over ranks.
    memory : list of StageMemory
    model_flops : float
        FLOPs of the step by the stated formula, all ranks.
    hardware_flops : float
        With recomputation.
    mfu, hfu : float
    tokens_per_s_per_gpu : float
    usd_per_mtoken : float or None
    verdict : {'fits', 'at risk', 'out of memory'}
    timeline : list of TimelineEvent
        Empty unless asked for.
    notes : list of str
        Assumptions, defaults taken, features without measured evidence.
    explain : list of dict
        Rows of the chain from the step time down to datasheet figures and coefficients.
    energy_kwh_per_mtoken, co2_kg_per_mtoken : float or None
        For a million tokens, at the meter; None where the device's power is not known.
    traffic : dict of str to LinkBytes
        Communication phase -> what a GPU sends in a step, mean over the ranks (`planner.step.link_traffic`).
    """

    step_s: Interval
    lower_bound_s: float
    upper_bound_s: float
    phases: list[dict[str, float]]
    hidden_comm_s: dict[str, float]
    bubble_fraction: float
    memory: list[StageMemory]
    model_flops: float
    hardware_flops: float
    mfu: float
    hfu: float
    tokens_per_s_per_gpu: float
    usd_per_mtoken: float | None
    verdict: str
    timeline: list[TimelineEvent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    explain: list[dict[str, Any]] = field(default_factory=list)
    energy_kwh_per_mtoken: float | None = None
    co2_kg_per_mtoken: float | None = None
    traffic: dict[str, LinkBytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpRecord:
    """What the executor saw of one op kind, shape and group on one rank in one phase.

    Attributes
    ----------
    rank : int
        World rank.
    phase : str
        One of `PHASES`.
    op : str
        ``"forward"``, ``"all_reduce"``, ``"adamw"`` …
    group : str
        Axis (``"tp"``, ``"dp"``, ``"pp"``) or empty.
    shape : str
        Printable shape or byte count that tells this record from its siblings.
    count : int
        Occurrences in a step.
    nbytes : int
        Bytes of one occurrence (nccl-tests convention), 0 for compute.
    median_s, p10_s, p90_s : float
        Seconds **per step** (all occurrences together), over the repeats.
    """

    rank: int
    phase: str
    op: str
    group: str
    shape: str
    count: int
    nbytes: int
    median_s: float
    p10_s: float
    p90_s: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """The content of measured.json.

    Attributes
    ----------
    schema : int
    plan_name, plan_hash : str
    environment : dict
        torch version, backend, device, cores, hostname-free facts.
    step_s : list of float
        Every timed step (max over ranks), in order.
    median_step_s, cv, drift : float
        Median; coefficient of variation; relative change between first and second half.
    stable : bool
        False when the run drifted by more than 10 %: not compared.
    records : list of OpRecord
    phases : list of dict
        Per world rank, phase -> median seconds; sums to the step time of that rank.
    peak_bytes : list of int
        Per world rank.
    correctness : dict
        ``{"loss_rel_err": …, "grad_rel_err": …, "tolerance": …, "passed": bool}`` against a
        single process.
    losses : list of float
    timeline : list of TimelineEvent
        Last timed step.
    """

    schema: int
    plan_name: str
    plan_hash: str
    environment: dict[str, Any]
    step_s: list[float]
    median_step_s: float
    cv: float
    drift: float
    stable: bool
    records: list[OpRecord]
    phases: list[dict[str, float]]
    peak_bytes: list[int]
    correctness: dict[str, Any]
    losses: list[float]
    timeline: list[TimelineEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PhaseComparison:
    """One phase, measured against predicted (mean over ranks), signed error in per cent."""

    phase: str
    predicted_s: float
    measured_s: float
    error_pct: float | None
    share_of_step_pct: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measured against predicted for one plan.

    `error_pct` is (predicted - measured) / measured * 100 of the step time.
    """

    plan: str
    predicted_s: float
    measured_s: float
    error_pct: float
    within_interval: bool
    phases: list[PhaseComparison]
    memory_predicted_bytes: list[int]
    memory_measured_bytes: list[int]
    comparable: bool
    notes: list[str] = field(default_factory=list)
