"""All uses of PyTorch internals, in one file, for the versions listed in `TESTED`.

- `torch.distributed.pipelining.schedules._PipelineScheduleRuntime` runs our own action list;
- its `_batch_p2p` and `_wait_batch_p2p`, `torch.distributed.Work.wait`, the collectives of
  `torch.distributed` and of `_functional_collectives`, and FSDP2's waits are wrapped to time
  them: gloo calls no hooks and its works keep no duration.
"""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining import PipelineStage, schedules

from executor.timing import Recorder, Span
from hwmodels.errors import RunError

TESTED: tuple[str, ...] = ("2.13",)

_COLLECTIVES: dict[str, str] = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "all_gather_single": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
_FUNCTIONAL: dict[str, str] = {
    "all_reduce": "all_reduce",
    "all_gather_single": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}


def check_version() -> None:
    """Raise `RunError` on a PyTorch whose internals this file was not tested with."""
    version = torch.__version__
    if not any(version.startswith(f"{v}.") for v in TESTED):
        raise RunError(
            f"PyTorch {version} is installed; the executor is tested with {', '.join(TESTED)}. "
            f"Try: pip install 'torch=={TESTED[-1]}.0'"
        )


def pipeline(
    stages: Sequence[PipelineStage],
    microbatches: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    actions: Sequence[Sequence[str]],
) -> Any:
    """PyTorch's pipelining runtime set to run `actions` (compute actions of every pipeline rank).

    The runtime adds the sends, receives and gradient reductions that the list implies.

    Raises
    ------
    hwmodels.errors.RunError
        If PyTorch rejects the list.
    """
    runtime = schedules._PipelineScheduleRuntime(list(stages), microbatches, loss_fn=loss)
    order = {rank: [schedules._Action.from_str(text) for text in row] for rank, row in enumerate(actions)}
    runtime.pipeline_order = order
    try:
        runtime._prepare_schedule_with_comms(order)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise RunError(f"PyTorch's pipelining runtime rejects the action list: {error}") from error
    return runtime


def lowered(runtime: Any) -> list[list[str]]:
    """The action list with communication that the runtime executes, as text, per pipeline rank."""
    return [[str(a) for a in runtime.pipeline_order_with_comms[r]] for r in sorted(runtime.pipeline_order_with_comms)]


def around_compute(stage: PipelineStage, around: Callable[[str, int], Any]) -> None:
    """Run every compute action of `stage` inside ``around(kind, microbatch)``; kind is F, B, I or W."""
    forward, backward = stage.forward_one_chunk, stage.backward_one_chunk
    weight, reduce = stage.backward_weight_one_chunk, stage.perform_reduce_grad

    def run_forward(fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with around("F", fwd_chunk_id):
            return forward(fwd_chunk_id, *args, **kwargs)

    def run_backward(bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with around("B" if kwargs.get("full_backward", True) else "I", bwd_chunk_id):
            return backward(bwd_chunk_id, *args, **kwargs)

    def run_weight(bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with around("W", bwd_chunk_id):
            return weight(bwd_chunk_id, *args, **kwargs)

    def run_reduce(factor: int) -> Any:
        with around("REDUCE_GRAD", -1):
            return reduce(factor)

    stage.forward_one_chunk = run_forward
    stage.backward_one_chunk = run_backward
    stage.backward_weight_one_chunk = run_weight
    stage.perform_reduce_grad = run_reduce


def communication_size(arguments: Mapping[str, Any]) -> int:
    """Bytes of a collective by the nccl-tests convention (the larger of its two buffers)."""
    sizes = [v.numel() * v.element_size() for v in arguments.values() if isinstance(v, Tensor)]
    return max(sizes, default=0)


class CommunicationWatch:
    """Times what the main thread spends issuing and awaiting collectives, and counts them.

    Attributes
    ----------
    recorder : Recorder
    axes : dict
        Process-group name -> axis (``"tp"``, ``"dp"``, ``"pp"`` …) of the plan that runs now.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.axes: dict[str, str] = {}
        self._works: dict[int, tuple[Any, str, str, int]] = {}
        self._tensors: dict[int, tuple[Any, str, str, int]] = {}
        self._sequence: dict[tuple[str, int, int], int] = defaultdict(int)
        self._p2p: dict[int, tuple[Any, ...]] = {}

    def begin(self, axes: Mapping[str, str]) -> None:
        """Start a step of a plan with these groups."""
        self.axes = dict(axes)
        for table in (self._works, self._tensors, self._p2p):
            table.clear()
        self._sequence.clear()

    def _axis(self, group: Any) -> str:
        name = group.group_name if isinstance(group, dist.ProcessGroup) else str(group)
        return self.axes.get(name, "")

    def _covers(self, op: str, axis: str, nbytes: int, what: str) -> Any:
        return self.recorder.span(f"{axis}_comm", f"{op} {what}".strip(), axis, nbytes=nbytes, op=op, group=axis)

    def collective(self, original: Callable[..., Any], op: str) -> Callable[..., Any]:
        """Wrap a function of `torch.distributed`."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.active:
                return original(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            axis = self._axis(given.get("group"))
            if not axis:
                return original(*args, **kwargs)
            nbytes = communication_size(given)
            self.recorder.issued(op, axis, nbytes)
            with self._covers(op, axis, nbytes, ""):
                work = original(*args, **kwargs)
            if work is not None:
                self._works[id(work)] = (work, op, axis, nbytes)
            return work

        return call

    def functional(self, original: Callable[..., Any], op: str) -> Callable[..., Any]:
        """Wrap a functional collective (what DTensor issues)."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.active:
                return original(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            axis = self._axis(functional._resolve_group(given["group"]))
            if not axis:
                return original(*args, **kwargs)
            with self._covers(op, axis, 0, "") as entry:
                result = original(*args, **kwargs)
            elem = getattr(result, "elem", result)
            source = given["self"]
            nbytes = max(elem.numel() * elem.element_size(), source.numel() * source.element_size())
            entry.nbytes = nbytes
            self.recorder.issued(op, axis, nbytes)
            self._tensors[id(elem)] = (elem, op, axis, nbytes)
            return result

        return call

    def wait_tensor(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the wait for a functional collective."""

        @functools.wraps(original)
        def call(tensor: Any) -> Any:
            known = self._tensors.pop(id(tensor), None) if self.recorder.active else None
            if known is None:
                return original(tensor)
            with self._covers(known[1], known[2], known[3], "wait"):
                return original(tensor)

        return call

    def wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `Work.wait`."""

        @functools.wraps(original)
        def call(work: Any, *args: Any, **kwargs: Any) -> Any:
            known = self._works.pop(id(work), None) if self.recorder.active else None
            if known is None:
                return original(work, *args, **kwargs)
            with self._covers(known[1], known[2], known[3], "wait"):
                return original(work, *args, **kwargs)

        return call

    def batch_p2p(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the issue of pipeline sends and receives; the n-th send to a rank meets its n-th receive."""

        @functools.wraps(original)
        def call(ops: list[Any], desc: str | None = None) -> list[Any]:
            if not self.recorder.active or not ops:
                return original(ops, desc)
            me = dist.get_rank()
            first = ops[0]
            kind = "send" if first.op is dist.isend else "recv"
            nbytes = sum(o.tensor.numel() * o.tensor.element_size() for o in ops)
            pair = (me, first.peer) if kind == "send" else (first.peer, me)
            number = self._sequence[kind, *pair]
            self._sequence[kind, *pair] += 1
            key = (kind, *pair, number)
            if kind == "send":
                self.recorder.issued("send_recv", "pp", nbytes)
            with self.recorder.span(
                "pp_comm",
                f"{kind} to {first.peer}" if kind == "send" else f"{kind} from {first.peer}",
                "pp",
                nbytes=nbytes,
                op="send_recv",
                group="pp",
                key=("issue", *key),
            ):
                works = original(ops, desc)
            for work in works:
                self._p2p[id(work)] = (work, nbytes, key)
            return works

        return call

    def wait_p2p(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the wait for pipeline sends and receives."""

        @functools.wraps(original)
        def call(works: list[Any]) -> None:
            known = [self._p2p.pop(id(w)) for w in works if id(w) in self._p2p] if self.recorder.active else []
            if not known:
                original(works)
                return
            _, nbytes, key = known[0]
            with self.recorder.span(
                "pp_comm", f"wait {key[0]}", "pp", nbytes=nbytes, op="send_recv", group="pp", key=("wait", *key)
            ):
                original(works)

        return call

    def covered(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Wrap an FSDP2 method that waits for a collective (on CUDA: makes the compute stream wait)."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.active:
                return original(*args, **kwargs)
            with self.recorder.span("dp_comm", name, "dp"):
                return original(*args, **kwargs)

        return call

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the functions while the block runs."""
        wanted: list[tuple[Any, str, Callable[..., Any]]] = []
        for name, op in _COLLECTIVES.items():
            if hasattr(dist, name):
                wanted.append((dist, name, self.collective(getattr(dist, name), op)))
        for name, op in _FUNCTIONAL.items():
            wanted.append((functional, name, self.functional(getattr(functional, name), op)))
        wanted += [
            (functional, "wait_tensor", self.wait_tensor(functional.wait_tensor)),
            (dist.Work, "wait", self.wait(dist.Work.wait)),
            (schedules, "_batch_p2p", self.batch_p2p(schedules._batch_p2p)),
            (schedules, "_wait_batch_p2p", self.wait_p2p(schedules._wait_batch_p2p)),
            (FSDPParamGroup, "wait_for_unshard", self.covered(FSDPParamGroup.wait_for_unshard, "wait unshard")),
            (FSDPParamGroup, "finalize_backward", self.covered(FSDPParamGroup.finalize_backward, "wait reduce")),
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in wanted]
        for owner, name, replacement in wanted:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, original in before:
                setattr(owner, name, original)


class BucketReduction:
    """DDP communication hook: PyTorch's averaged all-reduce, with the exposed wait at its end timed.

    DDP waits for its buckets in C++ after the last one has been launched; from that launch to
    the end of the backward nothing else runs, so that stretch is the exposed reduction.
    """

    def __init__(self, recorder: Recorder, group: dist.ProcessGroup) -> None:
        self.recorder, self.group = recorder, group
        self._open: Span | None = None
        self._bytes = 0

    def __call__(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket over the group."""
        flat = bucket.buffer().div_(self.group.size())
        work = dist.all_reduce(flat, group=self.group, async_op=True)
        self._bytes += flat.numel() * flat.element_size()
        if bucket.is_last() and self.recorder.active and self._open is None:
            self._open = self.recorder.open(
                "dp_comm", "all_reduce wait for buckets", "dp", nbytes=self._bytes, op="wait", group="dp"
            )
        future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future

    def close(self) -> None:
        """The backward is over, and with it the wait."""
        self._bytes = 0
        if self._open is not None:
            self.recorder.close(self._open)
            self._open = None

    def attach(self, module: nn.parallel.DistributedDataParallel) -> None:
        """Register as the hook of `module`."""

        def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            return self(state, bucket)

        hook.__annotations__ = {"state": object, "bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}
        module.register_comm_hook(None, hook)
