"""The nodes of a cluster that a job has: their numbers on the fabric, and host names where a file states them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hwmodels.errors import Fault, InfeasibleError, InputError
from hwmodels.network import Fabric
from planner.layout import divisors

_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Nodes of a job, in rising order.

    Attributes
    ----------
    nodes : tuple of int
        Positions on the fabric: neighbours lie below one leaf as far as it reaches.
    names : tuple of str
        Host names, in the order of `nodes`.
    """

    nodes: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        faults = []
        if not self.nodes or len(set(self.nodes)) != len(self.nodes) or list(self.nodes) != sorted(self.nodes):
            why = "each stands once, in order"
            faults.append(Fault(f"nodes are {list(self.nodes)}", "allocation", why, "0-3,8-11"))
        if self.names and len(self.names) != len(self.nodes):
            what = f"{len(self.names)} names for {len(self.nodes)} nodes"
            faults.append(Fault(what, "allocation", fix="one name a node, or none"))
        if faults:
            raise InputError(faults)

    def name(self, node: int) -> str:
        """Host name of a node; ``node7`` where none was stated."""
        return self.names[self.nodes.index(node)] if self.names else f"node{node}"

    def held(self, fabric: Fabric) -> None:
        """Refuse nodes that a fabric does not have with `InputError`."""
        if self.nodes[-1] >= fabric.nodes:
            why = f"the cluster has nodes 0 to {fabric.nodes - 1}"
            raise InputError(Fault(f"node {self.nodes[-1]} is allocated", "--nodes-of", why, "nodes of the cluster"))

    def of(self, count: int, fabric: Fabric, block: int) -> tuple[int, ...]:
        """`count` of the nodes, whole blocks of `block` below one leaf first, then what is left of the leaves.

        Raises
        ------
        InfeasibleError
            Where there are fewer.
        """
        if count > len(self.nodes):
            what = f"{len(self.nodes)} nodes are allocated and the layout needs {count}."
            raise InfeasibleError(what, "nodes", f"--nodes-of with {count} nodes, or a layout of fewer ranks")
        leaves: dict[int, list[int]] = {}
        for node in self.nodes:
            leaves.setdefault(node // fabric.leaf_span, []).append(node)
        fullest = sorted(leaves.values(), key=lambda held: (-(len(held) // block), held[0]))
        if count == len(self.nodes):
            fullest = sorted(fullest, key=lambda held: held[0])
        whole = [node for held in fullest for node in held[: len(held) // block * block]]
        rest = [node for held in fullest for node in held[len(held) // block * block :]]
        return tuple((whole + rest)[:count])


def first_nodes(fabric: Fabric, ranks: int) -> Allocation:
    """As many nodes from the first one as the ranks need; some more where that gives all of them as many ranks.

    256 ranks on racks of 72 GPUs need four, and so do 64 on each; 40 on nodes of 16 need three, or four of 10. At least
    half of the GPUs of a node are used.
    """
    gpus = fabric.gpus_per_node
    need = -(-ranks // gpus)
    even = [ranks // d for d in divisors(ranks, gpus) if 2 * d >= gpus and need <= ranks // d <= fabric.nodes]
    return Allocation(tuple(range(min(even, default=need))))


def parse_nodes(text: str) -> Allocation:
    """Nodes from ``"0-3,8,12-15"``, or from a file with a node on each line, its host name behind it where it has one.

    Raises
    ------
    InputError
        Naming every part that is no node.
    """
    path = Path(text)
    if path.is_file():
        lines = [line.split("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
        return _made([words for words in lines if words], text)
    return _made([[part.strip()] for part in text.split(",")], "--nodes-of")


def _made(parts: Sequence[Sequence[str]], where: str) -> Allocation:
    found: dict[int, str] = {}
    faults = []
    for words in parts:
        match = _RANGE.match(words[0])
        many = match is not None and match[2] is not None
        if match is None or len(words) > 2 or (many and len(words) > 1) or (many and int(match[2]) < int(match[1])):
            fix = "0-3,8 or a file with lines such as '12 host-a12'"
            faults.append(Fault(f"{' '.join(words)!r} names no node", where, fix=fix))
            continue
        for node in range(int(match[1]), int(match[2] or match[1]) + 1):
            if node in found:
                faults.append(Fault(f"node {node} stands twice", where, fix="each node once"))
            found[node] = words[1] if len(words) > 1 else ""
    if faults:
        raise InputError(faults)
    nodes = tuple(sorted(found))
    named = all(found[node] for node in nodes)
    return Allocation(nodes, tuple(found[node] for node in nodes) if named else ())
