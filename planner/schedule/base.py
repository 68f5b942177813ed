"""The contract of a pipeline schedule: an ordered list of actions for each rank.

A schedule knows neither times nor layouts nor models. The simulator times its list, the
memory model counts in-flight activations from it, and the executor runs that very list.
Actions are written in the notation of PyTorch's pipelining runtime (``"3F7"`` is the forward
of micro-batch 7 on stage 3), so the same text goes there.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar

import numpy as np

from hwmodels.errors import Fault
from hwmodels.records import dataclass
from planner.schedule.arrays import ActionArrays


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

    The contract covers the order of actions *and* where virtual stages lie. A rank holds `chunks`
    virtual stages; `rank_of` and `chunk_of` say which. Loop placement (stage s on rank s mod pp) is
    the default; `VSchedule` folds the pipeline back instead. A bidirectional schedule
    (`directions` = 2) runs two whole copies of the pipeline: stages 0 .. L-1 and L .. 2L-1 with
    L = pp*vpp, the second copy holding the same layers as the first and taking the second half of
    the micro-batches.

    Class attributes
    ----------------
    name : str
        The name in layouts, YAML and on screen.
    interleaved : bool
        Whether it needs vpp > 1 (True) or vpp == 1 (False).
    vpp_only : int
        The one vpp that it runs with; 0 where `interleaved` says all.
    split_backward : bool
        Whether it runs I and W in the place of some or all B.
    directions : int
        Copies of the pipeline that run against each other.
    pp_multiple : int
        pp must be a multiple of this.
    falling : bool
        No rank holds more than the one before it does: for every moment of a rank that holds neither end of the
        pipeline, one before it has a moment with the same action at which it holds as much of each chunk or more.
    torch_class : str
        The class of `torch.distributed.pipelining.schedules` with the same semantics; empty where
        PyTorch has none.
    """

    name: ClassVar[str]
    interleaved: ClassVar[bool] = False
    vpp_only: ClassVar[int] = 0
    split_backward: ClassVar[bool] = False
    directions: ClassVar[int] = 1
    pp_multiple: ClassVar[int] = 1
    falling: ClassVar[bool] = False
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

    def actions_of(self, rank: int, pp: int, microbatches: int, vpp: int = 1) -> list[Action]:
        """Those of one rank, for those who need few of many ranks."""
        return self.actions(pp, microbatches, vpp)[rank]

    def arrays(self, pp: int, microbatches: int, vpp: int = 1) -> ActionArrays:
        """`actions` as arrays. A schedule that can write them down at once overrides it; a test holds both equal."""
        lists = self.actions(pp, microbatches, vpp)
        flat = [action for order in lists for action in order]
        number = {kind: i for i, kind in enumerate(COMPUTE_KINDS)}
        return ActionArrays(
            np.repeat(np.arange(pp), [len(order) for order in lists]),
            np.fromiter((a.stage for a in flat), np.int64, len(flat)),
            np.fromiter((a.microbatch for a in flat), np.int64, len(flat)),
            np.fromiter((number[a.kind] for a in flat), np.int64, len(flat)),
        )

    def in_flight(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """Peak number of (micro-batch, virtual stage) activations that each rank holds.

        An activation counts until its B or W has run. Counted over `actions`; a schedule with a
        closed form overrides it, and a test holds both equal.
        """
        return [count.most for count in self._counted(pp, microbatches, vpp)]

    def held(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[tuple[int, ...]]]:
        """What each rank holds at the moments that can be its peak.

        Returns
        -------
        list of list of tuple of int
            ``[rank][moment]``: first, for each virtual stage of the rank, activations that wait for
            their B or I; then, where the backward is split, for each what waits for its W alone. The
            peak in bytes is the largest sum over these moments, whatever a virtual stage saves.
        """
        return [count.moments for count in self._counted(pp, microbatches, vpp)]

    def at_loss(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """Most micro-batches of each rank between the forward and the backward of a last stage."""
        return [count.at_loss for count in self._counted(pp, microbatches, vpp)]

    def _counted(self, pp: int, microbatches: int, vpp: int) -> list[Held]:
        length = pp * vpp
        return [
            count_held(order, {s: self.chunk_of(s, pp) for s in range(self.n_stages(pp, vpp))}, length)
            for order in self.actions(pp, microbatches, vpp)
        ]

    def check(self, pp: int, microbatches: int, vpp: int = 1) -> list[Fault]:
        """What keeps the schedule from running with these degrees; empty if nothing does."""
        found = []
        for label, value in (("pp", pp), ("micro-batches", microbatches), ("vpp", vpp)):
            if value < 1:
                found.append(Fault(f"{label} is {value}", "", "at least 1 is needed", f"{label}=1", "degrees-positive"))
        if vpp > 0 and not self.takes_vpp(vpp):
            why = self.vpp_reason()
            fix = f"vpp={self.vpp_only or (2 if self.interleaved else 1)}"
            found.append(Fault(f"{self.name} with vpp={vpp}", "", why, fix, "vpp-needs-pp"))
        if pp > 0 and pp % self.pp_multiple:
            why = f"{self.name} pairs rank r with rank pp-1-r"
            found.append(Fault(f"{self.name} with pp={pp}", "", why, f"pp={pp + 1}", "schedule-pp"))
        if pp > 0 and microbatches > 0:
            found += self._check_microbatches(pp, microbatches)
        return found

    def _check_microbatches(self, pp: int, microbatches: int) -> list[Fault]:
        least, multiple = self.least_microbatches(pp), self.microbatch_multiple(pp)
        what = f"{microbatches} micro-batches with pp={pp}"
        if microbatches < least:
            why = f"{self.name} fills its pipeline with {least}"
            return [Fault(what, "", why, f"{least} micro-batches", "schedule-microbatches")]
        if microbatches % multiple:
            near = max(multiple, round(microbatches / multiple) * multiple)
            why = f"{self.name} runs half of the micro-batches in each direction"
            return [Fault(what, "", why, f"{near} micro-batches", "schedule-microbatches")]
        return []

    def takes_vpp(self, vpp: int) -> bool:
        """Whether it runs with this many virtual stages a rank."""
        if self.vpp_only:
            return vpp == self.vpp_only
        return vpp > 1 if self.interleaved else vpp == 1

    def vpp_reason(self) -> str:
        """Why it takes the vpp that it takes."""
        if self.vpp_only:
            return f"it folds the pipeline into {self.vpp_only} stages a rank"
        return "it interleaves virtual stages" if self.interleaved else "it has one stage a rank"

    def n_stages(self, pp: int, vpp: int = 1) -> int:
        """Virtual stages of all ranks, both copies of a bidirectional pipeline counted."""
        return pp * vpp * self.directions

    def chunks(self, vpp: int = 1) -> int:
        """Virtual stages that each rank holds."""
        return vpp * self.directions

    def layers_of(self, stage: int, pp: int, vpp: int = 1) -> int:
        """Position in the model of what a stage holds: 0 .. pp*vpp - 1, the same for both copies."""
        return stage % (pp * vpp)

    def microbatches_of(self, stage: int, pp: int, microbatches: int, vpp: int = 1) -> range:
        """Micro-batches that a stage runs: all, or its direction's part of them."""
        share = microbatches // self.directions
        direction = stage // (pp * vpp)
        return range(direction * share, (direction + 1) * share)

    def rank_of(self, stage: int, pp: int) -> int:
        """Rank that holds a global virtual stage (loop placement unless overridden)."""
        return stage % pp

    def chunk_of(self, stage: int, pp: int) -> int:
        """Local index of the virtual stage on its rank."""
        return stage // pp

    def microbatch_multiple(self, pp: int) -> int:
        """Micro-batches must come in multiples of this."""
        return 1

    def least_microbatches(self, pp: int) -> int:
        """Fewest micro-batches that it runs with."""
        return 1


class VSchedule(Schedule):
    """V placement: rank r holds the stages r (chunk 0) and 2*pp-1-r (chunk 1).

    The pipeline runs down the ranks and back up, so the first and the last stage are on rank 0, and
    the turn on rank pp-1 needs no transfer (Qi et al., arXiv:2405.15362, section 4).
    """

    def rank_of(self, stage: int, pp: int) -> int:
        """Down the ranks, then up again."""
        return stage if stage < pp else 2 * pp - 1 - stage


@dataclass(frozen=True, slots=True)
class Held:
    """What one rank holds, counted over its list; see `Schedule.in_flight`, `held` and `at_loss`."""

    most: int
    moments: list[tuple[int, ...]]
    at_loss: int


def count_held(order: Sequence[Action], chunk_of: Mapping[int, int], length: int) -> Held:
    """Play a rank's list and count what it keeps.

    Parameters
    ----------
    order : sequence of Action
    chunk_of : mapping of int to int
        Stage -> position on its rank.
    length : int
        Stages of one copy of the pipeline; the last of each computes the loss.

    Returns
    -------
    Held
        Moments that hold no more than another one in every entry are left out.
    """
    chunks = 1 + max((chunk_of[action.stage] for action in order), default=0)
    split = any(action.kind is Kind.BACKWARD_WEIGHT for action in order)
    now = [0] * (chunks * (2 if split else 1))
    total = most = losses = at_loss = 0
    seen: set[tuple[int, ...]] = set()
    for action in order:
        chunk, kind = chunk_of[action.stage], action.kind
        last = action.stage % length == length - 1
        if kind is Kind.FORWARD:
            now[chunk] += 1
            total, losses = total + 1, losses + last
        elif kind is Kind.BACKWARD_WEIGHT:
            now[chunks + chunk] -= 1
            total -= 1
        else:
            now[chunk] -= 1
            losses -= last
            if kind is Kind.BACKWARD_INPUT:
                now[chunks + chunk] += 1
            else:
                total -= 1
        if total > most or losses > at_loss:
            most, at_loss = max(most, total), max(at_loss, losses)
        seen.add(tuple(now))
    return Held(most, _largest(seen), at_loss)


def _largest(moments: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those that no other one equals or exceeds in every entry, sorted."""
    kept: list[tuple[int, ...]] = []
    for one in sorted(moments, key=lambda m: (-sum(m), m)):
        if not any(all(a >= b for a, b in zip(other, one, strict=True)) for other in kept):
            kept.append(one)
    return sorted(kept)
