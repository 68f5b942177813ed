"""`Job`: one rank's share of a plan, ready to run training steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from executor import mesh, parallel, torch_adapter
from executor.device import Backend
from executor.parallel import Part
from executor.timing import Recorder, phase
from planner.model.spec import ModelSpec
from planner.plan import Plan


class Job:
    """A plan built on this rank.

    Parameters
    ----------
    plan : Plan
    spec : ModelSpec
    backend : Backend
    recorder : Recorder
        Told about phases and communication.
    seed : int
        Seed of the weights.
    """

    def __init__(self, plan: Plan, spec: ModelSpec, backend: Backend, recorder: Recorder, seed: int) -> None:
        self.plan, self.spec, self.backend, self.recorder, self.seed = plan, spec, backend, recorder, seed
        self.groups = mesh.build(plan, backend.device.type, spec.tied_embeddings)
        self.parts: list[Part] = parallel.build_parts(plan, spec, self.groups, backend, recorder, seed)
        self.optimizer = parallel.build_optimizer(plan, self.parts, self.groups)
        self.microbatches = plan.layout.microbatches(plan.workload.gbs)
        self.executed: list[str] = []
        self.runtime: Any = self._pipeline() if plan.layout.pp > 1 else None

    def _pipeline(self) -> Any:
        stages = []
        for part in self.parts:
            inputs, outputs = self._boundaries(part)
            stage = PipelineStage(
                part.module,
                part.stage.stage,
                len(self.plan.stages),
                self.backend.device,
                input_args=inputs,
                output_args=outputs,
                group=self.groups.pp,
            )
            torch_adapter.around_compute(stage, self._around(part))
            stages.append(stage)
        return torch_adapter.pipeline(stages, self.microbatches, self._loss, self.plan.actions)

    def _boundaries(self, part: Part) -> tuple[Tensor, Tensor]:
        """Examples (on the meta device) of what a stage takes and gives.

        Given them, PyTorch does not find the shapes by a trial run, whose backward would start
        DDP's reduction out of turn.
        """
        work, tp = self.plan.workload, self.groups.tp
        mbs, seq = self.plan.layout.mbs, work.seq_len
        low = work.precision == "bf16"
        # FSDP2 casts whole layers; autocast keeps the residual stream in fp32.
        residual = torch.bfloat16 if low and self.plan.layout.zero_stage >= 2 else torch.float32
        stream = torch.empty(
            mbs, seq // (tp.size if tp.sp else 1), self.spec.hidden, dtype=residual, device="meta", requires_grad=True
        )
        tokens = torch.empty(mbs, seq, dtype=torch.int64, device="meta")
        logits_dtype = torch.bfloat16 if low else torch.float32
        shape = (mbs, seq, self.spec.vocab // tp.size)
        logits = torch.empty(shape, dtype=logits_dtype, device="meta", requires_grad=True)
        return (tokens if part.stage.embedding else stream), (logits if part.stage.head else stream)

    def _around(self, part: Part) -> Any:
        @contextmanager
        def around(kind: str, microbatch: int) -> Iterator[None]:
            text = f"{part.stage.stage}{kind}{microbatch if microbatch >= 0 else ''}"
            if microbatch >= 0:
                self.executed.append(text)
            with self.recorder.span("forward" if kind == "F" else "backward", text, op=kind):
                yield
                if part.reduction is not None and kind != "F":
                    part.reduction.close()

        return around

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        with phase("forward", "loss"):
            loss = self.groups.tp.cross_entropy(output, target)
            # A split backward detaches the loss in place, which a view (of a DTensor) does not allow.
            return loss.clone() if loss._is_view() else loss

    def _precision(self) -> Any:
        if self.plan.workload.precision == "bf16":
            return torch.autocast(self.backend.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def own(self, whole: Tensor) -> Tensor:
        """Sequences of a global batch that belong to this data-parallel rank."""
        per = self.plan.workload.gbs // self.plan.layout.dp
        return whole[self.groups.dp_rank * per : (self.groups.dp_rank + 1) * per].to(self.backend.device)

    def forward_backward(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Gradients of the mean loss over the global batch; returns this rank's mean loss (last stage only)."""
        self.executed.clear()
        with self.groups.tp.losses():
            loss = self._pipelined(tokens, targets) if self.runtime is not None else self._accumulated(tokens, targets)
        with phase("backward", "finish gradients"):
            parallel.finish_gradients(self.parts, self.groups)
        return loss

    def _pipelined(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        first = any(p.stage.embedding for p in self.parts)
        last = any(p.stage.head for p in self.parts)
        losses: list[Tensor] = []
        with self._precision():
            self.runtime.step(
                *((tokens,) if first else ()),
                target=targets if last else None,
                losses=losses if last else None,
                return_outputs=False,
            )
        return torch.stack(losses).detach().mean() if last else None

    def _accumulated(self, tokens: Tensor, targets: Tensor) -> Tensor:
        part, n = self.parts[0], self.microbatches
        total = torch.zeros((), device=self.backend.device)
        for i, (x, y) in enumerate(zip(tokens.chunk(n), targets.chunk(n), strict=True)):
            hold = i < n - 1 and isinstance(part.module, DistributedDataParallel)
            with part.module.no_sync() if hold else nullcontext():
                with self.recorder.span("forward", f"0F{i}", op="F"), self._precision():
                    loss = self.groups.tp.cross_entropy(part.module(x), y) / n
                with self.recorder.span("backward", f"0B{i}", op="B"):
                    loss.backward()
                    if part.reduction is not None:
                        part.reduction.close()
            total += loss.detach()
        return total

    def optimise(self) -> None:
        """Optimizer step; gradients are freed."""
        with self.recorder.span("optimizer", "optimizer", op=self.plan.workload.optimizer):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """One training step on this rank's sequences."""
        loss = self.forward_backward(tokens, targets)
        self.optimise()
        return loss

    def gradients(self) -> dict[str, Tensor]:
        """Gradients by whole-model name, gathered over FSDP (a collective), still split over tp."""
        found = {}
        for part in self.parts:
            for name, p in part.named_parameters().items():
                if p.requires_grad and p.grad is not None:
                    found[name] = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        return found

    def tracked_tensors(self) -> dict[str, list[Tensor]]:
        """Tensors that live across steps, by memory category."""
        state = [t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, Tensor)]
        inner = getattr(self.optimizer, "optim", None)
        if inner is not None:
            state += [t for s in inner.state.values() for t in s.values() if isinstance(t, Tensor)]
        held = [p for part in self.parts for p in part.decoder.parameters()]
        return {
            "parameters": [parallel.local(p.data) for p in held],
            "gradients": [parallel.local(p.grad) for p in held if p.grad is not None],
            "optimizer": [parallel.local(t) for t in state],
        }
