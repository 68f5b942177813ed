"""Collectives over sizes and group sizes, by the nccl-tests size convention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from executor.benchmarks.base import Bench, Case

OPS: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def groups(world: int) -> list[tuple[int, int]]:
    """(size, stride) of the groups to measure: neighbours of each power of two that divides the
    world, and the same sizes spread as far apart as the world allows.
    """
    found = []
    size = 2
    while size <= world:
        if world % size == 0:
            found.append((size, 1))
            if world // size > 1:
                found.append((size, world // size))
        size *= 2
    if world > 1 and (world, 1) not in found:
        found.append((world, 1))
    return found


def make(size: int, stride: int) -> Any:
    """Group of this rank among all groups of that shape (every rank must call it)."""
    world, mine = dist.get_world_size(), None
    for block in range(0, world, size * stride):
        for offset in range(stride):
            ranks = [block + offset + i * stride for i in range(size)]
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                mine = group
    return mine


def cases(bench: Bench, size: int, stride: int, group: Any, nbytes: tuple[int, ...]) -> list[Case]:
    """Cases of one group; all groups of the shape run at the same time."""
    found = []
    for count in nbytes:
        whole = bench.tensor(max(size, count // 4 // size * size))
        part = torch.empty(whole.numel() // size, device=whole.device)
        for op in OPS:
            facts = {"op": op, "group_size": size, "stride": stride, "nbytes": whole.numel() * 4}
            found.append(Case(facts, _call(op, whole, part, group)))
    return found


def _call(op: str, whole: torch.Tensor, part: torch.Tensor, group: Any) -> Callable[[], object]:
    if op == "all_reduce":
        return lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group)
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    if op == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole, op=dist.ReduceOp.MAX, group=group)
    if op == "all_to_all":
        other = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(other, whole, group=group)
    if op == "broadcast":
        return lambda: dist.broadcast(whole, src=dist.get_process_group_ranks(group)[0], group=group)
    return _exchange(whole, group)


def _exchange(whole: torch.Tensor, group: Any) -> Callable[[], object]:
    """Neighbouring pairs: even ranks send and odd ranks receive, then the reverse; a call is two transfers in a row."""
    ranks = dist.get_process_group_ranks(group)
    me = ranks.index(dist.get_rank())
    partner = me ^ 1
    other = torch.empty_like(whole)

    def call() -> None:
        if partner >= len(ranks):
            return
        peer = ranks[partner]
        if me < partner:
            dist.send(whole, peer, group=group)
            dist.recv(other, peer, group=group)
        else:
            dist.recv(other, peer, group=group)
            dist.send(whole, peer, group=group)

    return call
