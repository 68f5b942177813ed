"""Fabrics that several tests of the network use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hwmodels import catalog
from hwmodels import cluster as clusters
from hwmodels.network import Fabric, Link, PcieTree, wire
from hwmodels.topology import GroupShape

NDR = 50e9  # bytes/s per direction of a 400 Gb/s port


def rails(nodes: int, **more: object) -> Fabric:
    link = catalog.link("infiniband-ndr")
    return replace(Fabric(8, nodes, catalog.link("nvlink4"), link, 8, 1.0, "rail-fat-tree"), **more)


def plain(nodes: int, **more: object) -> Fabric:
    return replace(rails(nodes, topology="fat-tree"), **more)


def torus(*dims: int) -> Fabric:
    ici = Link("ici", "ici", 50e9, 1e-6, "test", "torus")
    nodes = int(np.prod(dims))
    return Fabric(1, nodes, ici, ici, 2 * len(dims), 1.0, "torus", torus=tuple(dims))


def shape(ranks: int, nodes: int, stride: int) -> GroupShape:
    return GroupShape(np.asarray(ranks), np.asarray(nodes), np.asarray(stride))


def everyone(fabric: Fabric) -> list[tuple[int, int]]:
    return [(n, i) for n in range(fabric.nodes) for i in range(fabric.gpus_per_node)]


FABRICS = (
    rails(4), rails(6, leaf_nodes=2, spines=3), rails(8, leaf_nodes=2, pod_nodes=4, oversubscription=2.0),
    plain(4), plain(6, leaf_nodes=3, oversubscription=1.5), clusters.load("aws-p4d:3").fabric,
    clusters.load("aws-p5:2").fabric, clusters.load("mi300x:2").fabric, torus(4, 3), torus(2, 2, 3), torus(5, 1),
    Fabric(8, 1, Link("cube", "nvlink", 150e9, 0.5e-6, "test", "cube-mesh")),
    Fabric(4, 2, catalog.link("nvlink3-bridge"), catalog.link("infiniband-hdr"), 2, 1.0, "rail-fat-tree"),
    Fabric(6, 1, catalog.link("pcie4"), pcie=PcieTree(2, 2)),
)  # fmt: skip
WIRINGS = tuple(wire(f) for f in FABRICS)
