"""Copies between a collective's flat buffer and the parameters of an FSDP group.

PyTorch's per-parameter FSDP gathers all shards of a group into one buffer and copies it out to the parameters, which
lie in memory of their own; gradients are copied into one buffer, and cast to the dtype in which they are reduced,
before they are reduce-scattered. Both run on the stream of the computation (`torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py`: ``foreach_all_gather_copy_out``, ``foreach_reduce_scatter_copy_in``), so that nothing hides
them. FSDP1 keeps views of one flat parameter and copies nothing out; what autograd makes of those views (`torch.split`)
is joined into the gradient of the flat parameter, in the dtype of the computation (`torch/distributed/fsdp/
_flat_param.py`, ``_use_unsharded_views``). Its cast and its division before the reduction run on another stream.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels import kernels
from hwmodels.device import Device

FloatArray = NDArray[np.float64]


def copy_out_seconds(device: Device, gathered_bytes: FloatArray) -> FloatArray:
    """Seconds to read a gathered buffer and write its parameters.

    Parameters
    ----------
    gathered_bytes : ndarray
        Of the whole group, in the dtype in which it travelled.
    """
    return np.asarray(kernels.memory_seconds(device, 2.0 * gathered_bytes).mid)


def copy_in_seconds(device: Device, elements: FloatArray, width: float, reduced_width: float) -> FloatArray:
    """Seconds to read gradients of `width` bytes an element and write them in the dtype of the reduction."""
    return np.asarray(kernels.memory_seconds(device, elements * (width + reduced_width)).mid)
