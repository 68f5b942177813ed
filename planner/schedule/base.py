"""The contract of a pipeline schedule: an ordered list of actions for each rank.

A schedule knows neither times nor layouts nor models. The simulator times its list, the
memory model counts in-flight activations from it, and the executor runs that very list.
Actions are written in the notation of PyTorch's pipelining runtime (``"3F7"`` is the forward
of micro-batch 7 on stage 3), so the same text goes there.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from hwmodels.errors import Fault


class Kind(StrEnum):
    """What an action does. Values are PyTorch's own letters and words."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"


COMPUTE_KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
_TEXT = re.compile(r"^(\d+)(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)(\d*)$")


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one rank.

    Attributes
    ----------
    stage : int
        Global virtual stage, 0 .. pp*vpp - 1 (PyTorch's stage index).
    kind : Kind
    microbatch : int or None
        None for actions that concern parameters (UNSHARD, RESHARD, REDUCE_GRAD).
    """

    stage: int
    kind: Kind
    microbatch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{'' if self.microbatch is None else self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read the notation back; raises `ValueError` on anything else."""
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not an action such as '0F3' or '2UNSHARD'")
        stage, kind, microbatch = match.groups()
        return cls(int(stage), Kind(kind), int(microbatch) if microbatch else None)


class Schedule(ABC):
    """A pipeline schedule, one subclass a file, found by its `name`.

    Class attributes
    ----------------
    name : str
        The name in layouts, YAML and on screen.
    interleaved : bool
        Whether it needs vpp > 1 (True) or vpp == 1 (False).
    split_backward : bool
        Whether it runs I and W instead of B.
    torch_class : str
        The class of `torch.distributed.pipelining.schedules` with the same semantics.
    """

    name: ClassVar[str]
    interleaved: ClassVar[bool] = False
    split_backward: ClassVar[bool] = False
    torch_class: ClassVar[str] = ""

    @abstractmethod
    def actions(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[Action]]:
        """Compute actions of every rank, in order.

        Returns
        -------
        list of list of Action
            ``[rank][i]``; only kinds of `COMPUTE_KINDS`.

        Raises
        ------
        hwmodels.errors.InputError
            If `check` finds faults.
        """

    @abstractmethod
    def in_flight(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """Peak number of (micro-batch, virtual stage) activations that each rank holds.

        Closed form; a test holds it equal to the count over `actions`.
        """

    def held(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[tuple[int, ...]]]:
        """What each rank holds at the moments that can be its peak.

        Returns
        -------
        list of list of tuple of int
            ``[rank][moment][chunk]``: activations of each virtual stage of the rank. The peak in bytes
            is the largest sum over these moments, whatever a virtual stage saves.
        """
        return [[(count,)] for count in self.in_flight(pp, microbatches, vpp)]

    def check(self, pp: int, microbatches: int, vpp: int = 1) -> list[Fault]:
        """What keeps the schedule from running with these degrees; empty if nothing does."""
        found = []
        for label, value in (("pp", pp), ("micro-batches", microbatches), ("vpp", vpp)):
            if value < 1:
                found.append(Fault(f"{label} is {value}", "", "at least 1 is needed", f"{label}=1", "degrees-positive"))
        if not found and self.interleaved and vpp < 2:
            why = "it interleaves virtual stages"
            found.append(Fault(f"{self.name} with vpp={vpp}", "", why, "vpp=2", "vpp-needs-pp"))
        if not found and not self.interleaved and vpp != 1:
            found.append(Fault(f"{self.name} with vpp={vpp}", "", "it has one stage a rank", "vpp=1", "vpp-needs-pp"))
        return found

    def rank_of(self, stage: int, pp: int) -> int:
        """Rank that holds a global virtual stage (loop placement unless overridden)."""
        return stage % pp

    def chunk_of(self, stage: int, pp: int) -> int:
        """Local index of the virtual stage on its rank."""
        return stage // pp

    def microbatch_multiple(self, pp: int) -> int:
        """Micro-batches must come in multiples of this."""
        return 1
