"""`Policy`: how a run writes checkpoints, notices failures and starts again."""

from __future__ import annotations

import math
from typing import Literal

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass

Mode = Literal["sync", "async"]
MODES: tuple[Mode, ...] = ("sync", "async")

DETECT_S = 600.0
"""Until a hung collective is given up: PyTorch's default of NCCL process groups is 10 minutes (pytorch/pytorch#110947).
A rank that ends with an error is noticed sooner, so this is the long case."""
RESCHEDULE_S = 120.0
"""Until all ranks run again once nodes are there: assumed."""
WARM_UP_S = 60.0
"""Of the first steps after a restart (communicators, compilation, caches): assumed."""
STRAGGLER_FACTOR = 1.2
"""Step time with a straggler over step time without: assumed."""
STRAGGLER_DETECT_S = 3600.0
"""Until a straggler is found: assumed."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a run meets failures. Checked when built.

    Attributes
    ----------
    mode : {'sync', 'async'}
        sync: the step waits until a checkpoint is in storage. async: it waits for the copy to host memory, from where
        the checkpoint is written while training goes on; the next copy waits until the one before is in storage.
    sharded : bool
        Every rank writes its share; otherwise one replica writes everything, and every rank reads all that it holds.
    detect_s, reschedule_s, warm_up_s : float
        Seconds from a failure until it is noticed, until ranks start again, and of the first steps after that.
    weibull_shape : float
        Shape of the time to failure of a component in a simulation: 1 is exponential, below 1 fails early.
    straggler_node_s : float
        Mean seconds until a node becomes a straggler; infinite for none.
    straggler_factor : float
        Step time with a straggler over step time without.
    straggler_detect_s : float
        Seconds until a straggler is found; a checkpoint is written, and its node replaced by a spare.
    elastic : bool
        With no spare left, train on with the dp replicas that are whole instead of waiting for a repair.
    """

    mode: Mode = "sync"
    sharded: bool = True
    detect_s: float = DETECT_S
    reschedule_s: float = RESCHEDULE_S
    warm_up_s: float = WARM_UP_S
    weibull_shape: float = 1.0
    straggler_node_s: float = math.inf
    straggler_factor: float = STRAGGLER_FACTOR
    straggler_detect_s: float = STRAGGLER_DETECT_S
    elastic: bool = False

    def __post_init__(self) -> None:
        faults = []
        if self.mode not in MODES:
            faults.append(Fault(f"mode is {self.mode!r}", "policy.mode", "", " or ".join(MODES)))
        for name in ("detect_s", "reschedule_s", "warm_up_s", "straggler_detect_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                what = f"{name} is {getattr(self, name):g}"
                faults.append(Fault(what, f"policy.{name}", "it is a finite time", "0 or more seconds"))
        if not 0.1 <= self.weibull_shape <= 10.0:
            what, why = f"weibull_shape is {self.weibull_shape:g}", "failures have shapes from 0.1 to 10"
            faults.append(Fault(what, "policy.weibull_shape", why, "0.8"))
        if not self.straggler_node_s > 0.0:
            what, why = f"straggler_node_s is {self.straggler_node_s:g}", "a mean time is above zero"
            faults.append(Fault(what, "policy.straggler_node_s", why, "3.6e7 (10,000 hours)"))
        if not 1.0 <= self.straggler_factor < math.inf:
            what, why = f"straggler_factor is {self.straggler_factor:g}", "a straggler is slower"
            faults.append(Fault(what, "policy.straggler_factor", why, "1.2"))
        if faults:
            raise InputError(faults)
