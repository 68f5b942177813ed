"""What the tests of cases share: clusters from the catalog's devices, and a prediction in one call."""

from __future__ import annotations

from dataclasses import replace

from hwmodels import catalog
from hwmodels import cluster as clusters
from hwmodels.cluster import Cluster
from planner.layout import Layout
from planner.model import load
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.predict import predict
from planner.results import Step

GB = 1e9
GIB = 2.0**30


def cluster(base: str, nodes: int, gpus: int = 8, device: str = "") -> Cluster:
    """`nodes` of `gpus` GPUs with the links of a preset, and another device of the catalog where one is named."""
    preset = clusters.load(base)
    pool = clusters.Pool(catalog.device(device) if device else preset.device, gpus, nodes)
    return replace(preset, name=base, pools=(pool,), fabric=replace(preset.fabric, gpus_per_node=gpus, nodes=nodes))


def llama(name: str, **shape: int) -> ModelSpec:
    """A model of the Llama line from its figures."""
    return from_shape(
        name=name, gated=True, learned_positions=False, norm="rms", bias=False, tied=False, **shape  # type: ignore[arg-type]
    )  # fmt: skip


def step(model: ModelSpec | str, machines: Cluster | str, workload: Workload, layout: Layout) -> Step:
    """The predicted step."""
    spec = load(model)[0] if isinstance(model, str) else model
    return predict(spec, clusters.load(machines) if isinstance(machines, str) else machines, workload, layout)


def said(found: Step, word: str) -> str:
    """The notes that have a word, in one text."""
    return "\n".join(note for note in found.notes if word in note)
