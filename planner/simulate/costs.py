"""What the two engines are given: durations (`StageCosts`) and the shape of the communication (`CommPlan`).

Prices are turned into these by `planner.step.assemble`; no layout, model or device reaches the
engines. The leading axis of every array is the candidate, so one DAG times many at once.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CommPlan:
    """Which communication nodes a step has. Hashable: candidates with equal plans share a DAG.

    Attributes
    ----------
    buckets : int
        Pieces K into which a virtual stage is cut for communication (layers, DDP buckets);
        1 when nothing overlaps.
    unshard : {'none', 'once', 'forward', 'each'}
        No parameter gathering (ZeRO <= 2); one gather of each bucket before its first use in
        the step, kept until the end; a gather before every forward, kept until its backward is done
        (forward: reshard_after_forward=False); or a gather before every
        forward and every backward of every micro-batch (ZeRO-3, reshard after forward).
        Gathers run on stream ``"dp_ag"`` in the order of use, at most `prefetch` buckets ahead
        of the compute that needs them.
    prefetch : int
        Buckets gathered ahead; 0 makes every gather exposed.
    reduce : {'none', 'end', 'bucketed', 'each'}
        No gradient reduction; one reduction of each bucket after the last backward of the
        rank (nothing overlaps); of each bucket as soon as the last micro-batch has produced it
        (DDP, overlapped distributed optimizer); of each bucket after every micro-batch
        (ZeRO-2/3 that do not accumulate unsharded). Reductions run on stream ``"dp_rs"``.
    p2p_blocking : bool
        True: a send occupies the sender's compute stream right after the compute action that
        made its data (Megatron without p2p overlap). False: it runs on the sender's ``"pp"``
        stream. The receiver waits for the end of the send in both cases.
    gather_after_step : bool
        ZeRO-1/2 parameter all-gather after the optimizer (on the rank's ``"dp_ag"`` stream).
    tied_embedding : bool
        First and last rank reduce the gradient of the shared embedding before the optimizer.
    """

    buckets: int = 1
    unshard: Literal["none", "once", "forward", "each"] = "none"
    prefetch: int = 1
    reduce: Literal["none", "end", "bucketed", "each"] = "none"
    p2p_blocking: bool = True
    gather_after_step: bool = False
    tied_embedding: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """Seconds of every kind of node, for B candidates.

    Shapes: B candidates, pp ranks, vpp chunks (virtual stages of a rank, both copies of a
    bidirectional pipeline), K buckets.

    Attributes
    ----------
    forward_s, backward_input_s, backward_weight_s : ndarray (B, pp, vpp, K)
        One micro-batch, exposed tp/cp/ep communication included. Recomputation is part of
        `backward_input_s`. Bucket 0 runs first in the forward and last in the backward.
    backward_sync_extra_s : ndarray (B, pp, vpp, K)
        Added to the backward of a micro-batch whose bucket is being reduced at the same time:
        what the overlapped reduction takes from compute.
    send_forward_s, send_backward_s : ndarray (B, pp, vpp)
        Transfer of one micro-batch's boundary tensor out of that virtual stage (to the next
        one, and to the previous one); unused at the ends of the pipeline.
    unshard_s, reduce_s : ndarray (B, pp, vpp, K)
        One gather / one reduction of a bucket.
    optimizer_s, gather_s : ndarray (B, pp)
        Optimizer step of a rank; parameter all-gather after it.
    mirror_s : ndarray (B, pp)
        Gradient all-reduce of a rank with its mirror rank (bidirectional schedules only).
    sync_s : ndarray (B,)
        Collective over the world between gradients and optimizer (gradient norm, finite check).
    tied_s : ndarray (B,)
        Gradient all-reduce of the tied embedding.
    step_s : ndarray (B,)
        Host time a step outside everything else (data loading, logging), before the first action.
    """

    forward_s: FloatArray
    backward_input_s: FloatArray
    backward_weight_s: FloatArray
    backward_sync_extra_s: FloatArray
    send_forward_s: FloatArray
    send_backward_s: FloatArray
    unshard_s: FloatArray
    reduce_s: FloatArray
    optimizer_s: FloatArray
    gather_s: FloatArray
    mirror_s: FloatArray
    sync_s: FloatArray
    tied_s: FloatArray
    step_s: FloatArray

    @property
    def batch(self) -> int:
        """Number of candidates."""
        return int(self.forward_s.shape[0])

    def take(self, index: NDArray[np.int64]) -> StageCosts:
        """The candidates at `index`."""
        return StageCosts(**{f.name: getattr(self, f.name)[index] for f in fields(self)})
