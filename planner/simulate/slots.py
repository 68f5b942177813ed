"""The flat vector of durations: which entry holds what, and how `StageCosts` fills it.

A node of a DAG stores the index of its duration (its *slot*), so thousands of nodes share one
number and a DAG is the same object for every candidate.
"""

from __future__ import annotations

import numpy as np

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.simulate.costs import FloatArray, StageCosts

# Classes of durations in the order in which they lie in the vector. "_sum" is the whole virtual
# stage in one node; "_sync" has the slow-down of an overlapped reduction added.
_COMPUTE = ("forward", "backward", "input", "weight")
_PER_BUCKET = (*_COMPUTE, "backward_sync", "weight_sync", "unshard", "reduce")
_PER_CHUNK = (*(f"{name}_sum" for name in _COMPUTE), "send_forward", "send_backward")
_PER_RANK = ("optimizer", "gather", "mirror")
_SCALAR = ("zero", "sync", "tied", "step")


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Where each class of durations lies in the flat vector.

    Attributes
    ----------
    pp, vpp, buckets : int
        `vpp` counts the virtual stages of a rank (both copies of a bidirectional pipeline).
    """

    pp: int
    vpp: int
    buckets: int

    def offset(self, name: str) -> int:
        """First slot of a class; within it, rank-major, then chunk, then bucket."""
        at = 0
        chunks = self.pp * self.vpp
        for names, width in (
            (_SCALAR, 1), (_PER_RANK, self.pp), (_PER_CHUNK, chunks), (_PER_BUCKET, chunks * self.buckets),
        ):
            if name in names:
                return at + names.index(name) * width
            at += len(names) * width
        raise KeyError(name)

    @property
    def size(self) -> int:
        """Length of the vector."""
        per_chunk = len(_PER_CHUNK) + len(_PER_BUCKET) * self.buckets
        return len(_SCALAR) + self.pp * (len(_PER_RANK) + self.vpp * per_chunk)

    def fill(self, costs: StageCosts) -> FloatArray:
        """The vectors of B candidates.

        Parameters
        ----------
        costs : StageCosts
            Of exactly this pp, vpp and number of buckets.

        Returns
        -------
        ndarray (B, size)
            Seconds. A full backward is input plus weight gradient.

        Raises
        ------
        hwmodels.errors.InputError
            If a shape differs; all wrong shapes at once.
        """
        self._check(costs)
        backward = costs.backward_input_s + costs.backward_weight_s
        extra = costs.backward_sync_extra_s
        compute = (costs.forward_s, backward, costs.backward_input_s, costs.backward_weight_s)
        batch = costs.batch
        parts: list[FloatArray] = [np.zeros(batch), costs.sync_s, costs.tied_s, costs.step_s]
        parts += [costs.optimizer_s, costs.gather_s, costs.mirror_s]
        parts += [value.sum(axis=3) for value in compute] + [costs.send_forward_s, costs.send_backward_s]
        parts += [*compute, backward + extra, costs.backward_weight_s + extra, costs.unshard_s, costs.reduce_s]
        return np.concatenate([np.reshape(part, (batch, -1)) for part in parts], axis=1)

    def _check(self, costs: StageCosts) -> None:
        chunk = (costs.batch, self.pp, self.vpp)
        compute = ("forward_s", "backward_input_s", "backward_weight_s", "backward_sync_extra_s")
        per_bucket = (*chunk, self.buckets)
        expected: dict[str, tuple[int, ...]] = dict.fromkeys((*compute, "unshard_s", "reduce_s"), per_bucket)
        expected |= dict.fromkeys(("send_forward_s", "send_backward_s"), chunk)
        expected |= dict.fromkeys(("optimizer_s", "gather_s", "mirror_s"), chunk[:2])
        expected |= dict.fromkeys(("sync_s", "tied_s", "step_s"), chunk[:1])
        faults = [
            Fault(f"shape {np.shape(getattr(costs, name))}", f"StageCosts.{name}", "", f"shape {shape}")
            for name, shape in expected.items()
            if np.shape(getattr(costs, name)) != shape
        ]
        if faults:
            raise InputError(faults)
