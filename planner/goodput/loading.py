"""loading: bytes of data that a step reads, and whether storage delivers them in time."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from hwmodels.reliability import storage_of
from planner.layout import LayoutBatch
from planner.layout.axes import shape
from planner.model.spec import ModelSpec
from planner.plan import Workload

FloatArray = NDArray[np.float64]

SMALL_VOCABULARY = 65500
"""Tokens of a smaller vocabulary take two bytes, of others four (Megatron-Core core/datasets/indexed_dataset.py,
``DType.optimal_dtype``)."""


@dataclass(frozen=True, slots=True, eq=False)
class DataNeed:
    """What the steps of n layouts read.

    Attributes
    ----------
    sequence_bytes : float
        Of one sequence with its images.
    total_bytes_per_s, node_bytes_per_s : ndarray (n,)
        Of all nodes, and of the one that reads most.
    read_s : ndarray (n,)
        Seconds in which storage delivers a step's data.
    """

    sequence_bytes: float
    total_bytes_per_s: FloatArray
    node_bytes_per_s: FloatArray
    read_s: FloatArray


def sequence_bytes(model: ModelSpec, workload: Workload, token_bytes: float | None = None) -> float:
    """Bytes of one sequence in storage: its tokens without padding, and images of 8 bits a colour, uncompressed.

    Parameters
    ----------
    token_bytes : float or None
        Of one token; None is what an index of the vocabulary takes.
    """
    each = (2.0 if model.vocab < SMALL_VOCABULARY else 4.0) if token_bytes is None else token_bytes
    found = workload.tokens_per_sequence * (1.0 - workload.padding_share) * each
    if model.vision is not None and workload.images:
        patch = model.vision.patch
        found += workload.images * patch.patches * patch.patch**2 * patch.channels
    return found


def data_need(
    model: ModelSpec, workload: Workload, cluster: Cluster, layouts: LayoutBatch, step_s: ArrayLike,
    token_bytes: float | None = None,
) -> DataNeed:  # fmt: skip
    """Data of a step, read once for every data-parallel rank; tp, cp and pp ranks get theirs from it (assumed).

    Parameters
    ----------
    layouts : LayoutBatch, shape (n,)
    step_s : array (n,)
    """
    each, storage = sequence_bytes(model, workload, token_bytes), storage_of(cluster)
    seconds = np.asarray(step_s, np.float64)
    total = np.full(len(layouts), workload.gbs * each)
    readers = shape(layouts, "dp", cluster.gpus_per_node).ranks_per_node
    node = total / layouts.dp * readers
    read_s = np.maximum(total / storage.read_total, node / storage.read_per_node) + storage.latency_s
    return DataNeed(each, total / seconds, node / seconds, np.asarray(read_s))
