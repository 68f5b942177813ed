"""Libraries that dispatch and combine, and the algorithm that each name stands for.

A name is the ``key`` of `hwmodels.implementations.Implementation`. Entries with a `base` are the same kernels
measured elsewhere: they take what they have no coefficient of their own for from the base.
"""

from __future__ import annotations

from dataclasses import replace

from hwmodels.collectives.expert_traffic import (
    DENSE,
    LOW_LATENCY,
    LOW_LATENCY_RDMA,
    NORMAL,
    ONE_SIDED,
    TWO_SIDED,
    Algorithm,
)
from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass

PHASES = ("dispatch", "combine", "combine_low_precision", "prepare")
"""``combine_low_precision`` sends quantised results back; ``prepare`` exchanges counts before a dispatch."""

REFERENCE = "deepep-normal"
"""What ``impl=""`` stands for: DeepEP's normal kernels, as training and prefill use them."""

V2 = replace(NORMAL, name="v2", sms=24.0)
"""DeepEP V2 reaches the rate of V1 with fewer SMs: 24 inside a node, 6-12 across (its README, 2026)."""


@dataclass(frozen=True, slots=True)
class ExpertImplementation:
    """One entry of `IMPLEMENTATIONS`.

    Attributes
    ----------
    key : str
    algorithm : Algorithm
    base : str
        Key of the entry whose coefficients fill the gaps; empty for none.
    phases : tuple of str
        What it can do.
    """

    key: str
    algorithm: Algorithm
    base: str = ""
    phases: tuple[str, ...] = ("dispatch", "combine")


IMPLEMENTATIONS: dict[str, ExpertImplementation] = {
    entry.key: entry
    for entry in (
        ExpertImplementation("sglang-deepep-normal", NORMAL),
        ExpertImplementation("sglang-deepep-low-latency", LOW_LATENCY),
        ExpertImplementation("vllm-deepep-normal", NORMAL),
        ExpertImplementation("vllm-deepep-low-latency", LOW_LATENCY),
        ExpertImplementation("vllm-deepep-v2-normal", replace(V2, sms=64.0)),
        ExpertImplementation("vllm-deepep-v2-low-latency", replace(V2, sms=64.0)),
        ExpertImplementation("trtllm-deepep-normal", NORMAL),
        ExpertImplementation(
            "trtllm-deepep-low-latency", LOW_LATENCY, phases=("dispatch", "combine", "combine_low_precision")
        ),
        ExpertImplementation("trtllm-nvlink-one-sided", ONE_SIDED),
        ExpertImplementation("trtllm-nvlink-two-sided", TWO_SIDED, phases=PHASES),
        ExpertImplementation("deepep-normal", NORMAL, "sglang-deepep-normal"),
        ExpertImplementation("deepep-v2-normal", V2, "sglang-deepep-normal"),
        ExpertImplementation("deepep-low-latency", LOW_LATENCY, "sglang-deepep-low-latency"),
        ExpertImplementation("deepep-low-latency-rdma", LOW_LATENCY_RDMA, "sglang-deepep-low-latency"),
        ExpertImplementation("uccl-normal", NORMAL, "sglang-deepep-normal"),
        ExpertImplementation("pplx-low-latency", LOW_LATENCY_RDMA, "sglang-deepep-low-latency"),
        ExpertImplementation("torch-dense", DENSE, "sglang-deepep-low-latency"),
    )
}


def find(impl: str, phase: str) -> ExpertImplementation:
    """The entry of a name (empty: `REFERENCE`), able to do `phase`.

    Raises
    ------
    InputError
        For an unknown name, or a phase that it does not have.
    """
    key = impl or REFERENCE
    if key not in IMPLEMENTATIONS:
        raise InputError(
            Fault(f"impl {impl!r} is unknown", "expert exchange", fix="one of " + ", ".join(IMPLEMENTATIONS))
        )
    entry = IMPLEMENTATIONS[key]
    if phase not in entry.phases:
        raise InputError(
            Fault(f"{key} has no phase {phase!r}", "expert exchange", fix="one of " + ", ".join(entry.phases))
        )
    return entry
