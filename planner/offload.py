"""What lies in host memory: its bytes there, what stays on the device, and the seconds of the way.

Optimizer (ZeRO-Offload, arXiv 2101.06840, section 4; Megatron-Core ``HybridDeviceOptimizer``, ``optimizer_offload_
fraction``): gradients of the offloaded share go to the host, are applied there, and the new weights come back while
the update still runs. Parameters (ZeRO-Infinity, arXiv 2104.07857, section 5): the shard comes over the link before
each gather. Activations (Transformer Engine ``get_cpu_offload_context``, Megatron-Core ``cpu_offloading_num_layers``):
the first layers of a stage go out behind the forward and come back behind the backward, each beside one layer's
compute; one layer is on its way at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwmodels import host as hosts
from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from planner.layout import RECOMPUTE, split_id
from planner.recompute import Stages, coverage

FloatArray = NDArray[np.float64]
_BLOCK = RECOMPUTE.index("block")


def offloaded(stages: Stages, values: Sequence[FloatArray]) -> FloatArray:
    """Sum of a value over the layers whose activations are offloaded: ndarray (n, r, chunks).

    Parameters
    ----------
    values : sequence of ndarray (n,)
        The value of a layer of each kind.
    """
    b, n = stages.layouts, len(stages.layouts)
    found = np.zeros((n, len(stages.at), stages.chunks))
    chosen = np.flatnonzero(b.offload_activations)
    if not len(chosen):
        return found
    each = np.stack([np.broadcast_to(v, (n,)) for v in values])
    keys = np.stack([b.stage_layers[chosen], b.offload_activations[chosen]], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    for i, (split, layers) in enumerate(unique):
        rows = chosen[inverse.reshape(-1) == i]
        place = (stages.model, stages.pp, stages.vpp, stages.schedule)
        first = coverage(*place, int(split), _BLOCK, split_id((int(layers),))).again[:, stages.at]
        found[rows] = np.tensordot(each[:, rows], first, axes=(0, 0))
    return found


def in_transit(stages: Stages, whole: Sequence[FloatArray]) -> FloatArray:
    """Bytes of the one layer that is on its way, the largest kind: ndarray (n, 1)."""
    n = len(stages.layouts)
    most = np.max(np.stack([np.broadcast_to(v, (n,)) for v in whole]), axis=0)
    return np.asarray(np.where(stages.layouts.offload_activations > 0, most, 0.0)[:, None])


@dataclass(frozen=True, slots=True, eq=False)
class HostSeconds:
    """Seconds that copies of activations add to the passes of each virtual stage: ndarray (n, pp, chunks)."""

    forward: FloatArray
    backward: FloatArray


def activation_seconds(
    cluster: Cluster,
    stages: Stages,
    whole: Sequence[FloatArray],
    forward_s: Sequence[FloatArray],
    backward_s: Sequence[FloatArray],
) -> HostSeconds | None:
    """What remains of the copies of offloaded layers beyond the compute beside them; None where nothing is offloaded.

    Parameters
    ----------
    whole : sequence of ndarray (n,)
        Bytes that a layer of each kind saves.
    forward_s, backward_s : sequence of ndarray (n,)
        Seconds of one.
    """
    if not np.any(stages.layouts.offload_activations):
        return None
    host = hosts.of(cluster)
    out = [np.maximum(b / host.to_host - s, 0.0) for b, s in zip(whole, forward_s, strict=True)]
    back = [np.maximum(b / host.to_device - s, 0.0) for b, s in zip(whole, backward_s, strict=True)]
    return HostSeconds(offloaded(stages, out), offloaded(stages, back))


def optimizer_seconds(
    cluster: Cluster, share: FloatArray, device_s: FloatArray, elements: FloatArray, grad: float, width: float,
    traffic: float,
) -> FloatArray:  # fmt: skip
    """Seconds of an optimizer whose `share` is on the host: ndarray (n, pp).

    The device updates its own part meanwhile. Gradients go first; weights return behind the update.

    Parameters
    ----------
    share : ndarray (n, 1)
    device_s : ndarray (n, pp)
        Seconds of the whole update on the device.
    elements : ndarray (n, pp)
        Parameters of a rank's share.
    grad, width : float
        Bytes of a gradient and of a weight that returns.
    traffic : float
        Bytes of host memory that the update of a parameter moves.
    """
    host = hosts.of(cluster)
    own = elements * share
    update = own * traffic / host.memory_bandwidth
    there = own * grad / host.to_host + np.maximum(update, own * width / host.to_device)
    return np.asarray(np.maximum(device_s * (1.0 - share), there))


def shard_seconds(cluster: Cluster, nbytes: FloatArray) -> FloatArray:
    """Seconds in which a rank's shard comes over the link."""
    return np.asarray(nbytes / hosts.of(cluster).to_device)
