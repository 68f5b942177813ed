"""The reference: seconds and bytes of one step of one layout, in plain floats, from the formulas' sources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hwmodels import kernels
from hwmodels.cluster import Cluster
from planner import presets, schedule
from planner.layout import Layout
from planner.model.spec import DecoderLayer, ModelSpec, Moe, Parameter, Weight
from planner.plan import Workload
from planner.schedule import Kind, Schedule
from tests.reference.blocks import Block, decoder_layer, embedding, head
from tests.reference.ops import BYTES, Rank, axis_of, collective, pair, slow_beside
from tests.reference.timing import Durations, Plan, Played, play


@dataclass
class Reference:
    """What the reference finds: bytes by category of each pipeline rank, seconds of each virtual stage and the step."""

    memory: list[dict[str, float]]
    forward_s: list[float]
    backward_s: list[float]
    took: Durations
    played: Played
    model_flops: float

    @property
    def step_s(self) -> float:
        return self.played.step_s


def layers_of_stages(model: ModelSpec, stages: int, stated: tuple[int, ...] = ()) -> list[list[DecoderLayer]]:
    """As stated; else equal shares; else embedding and head count as a layer each, and what is left over goes to the
    last stages but one, then the first, then the last. No stage is left empty for the sake of the ends."""
    n = len(model.layers)
    shares = list(stated) or [n // stages] * stages
    if sum(shares) != n:
        ends = int((n + 2) // stages > 1)
        shares = [(n + 2 * ends) // stages] * stages
        order = list(reversed(range(1, stages - 1))) + [0, stages - 1]
        for s in order[: n + 2 * ends - sum(shares)]:
            shares[s] += 1
        shares[0], shares[-1] = shares[0] - ends, shares[-1] - ends
    assert sum(shares) == n
    rest = list(model.layers)
    return [[rest.pop(0) for _ in range(share)] for share in shares]


def elements(parameters: Iterable[Parameter], lay: Layout) -> tuple[float, float]:
    """(dense, expert) parameters on one rank before data-parallel sharding."""
    dense = expert = 0.0
    for p in parameters:
        if not isinstance(p, Weight):
            dense += p.size / lay.tp if p.shard == "column" else p.size
            continue
        degree = lay.etp if p.expert else lay.tp
        n_in, n_out = float(p.n_in), float(p.n_out)
        if p.shard == "column":
            n_out = max(n_out / degree, float(min(p.min_out, p.n_out)))
        elif p.shard == "row":
            n_in = n_in / degree
        one = n_in * n_out + (n_out if p.bias else 0.0)
        if p.expert:
            expert += one * p.copies / lay.ep
        else:
            dense += one * p.copies
    return dense, expert


@dataclass
class _Stage:
    """One virtual stage: its rank, blocks and parameters."""

    rank: int
    layers: list[Block]
    ends: list[Block]
    dense: float
    expert: float

    @property
    def blocks(self) -> list[Block]:
        return self.layers + self.ends


class _Step:
    def __init__(self, model: ModelSpec, cluster: Cluster, workload: Workload, lay: Layout):
        self.model, self.cluster, self.workload, self.lay = model, cluster, workload, lay
        self.preset = presets.get(workload.framework)
        self.schedule: Schedule = schedule.get(lay.schedule)
        self.microbatches = workload.gbs // (lay.mbs * lay.dp)
        self.width, self.grad = BYTES[workload.precision], BYTES[self.preset.gradient_dtype(workload.precision)]
        splits = self.schedule.split_backward
        self.one = Rank(model, workload, lay, cluster, self.preset, splits=splits, copies=self.schedule.directions)
        self.head, self.logits_kept, self.logits_gradient = head(self.one)
        self.embedding = embedding(self.one)
        self.shard = (lay.fsdp or lay.dp) * lay.cp
        self.edp = axis_of(lay, "edp")[0]
        self.expert_shard = max(self.edp // (lay.dp // (lay.fsdp or lay.dp)), 1)
        self.stages = self._stages()
        self.plan = self._plan()

    def _stages(self) -> list[_Stage]:
        lay, model, made = self.lay, self.model, {}
        found, groups = [], layers_of_stages(model, lay.pp * lay.vpp, lay.stage_layers)
        self.length = len(groups)
        # Two copies of the pipeline: the second one's stages after the first's.
        for number, layers in enumerate(groups * self.schedule.directions):
            s = number % self.length
            for layer in layers:
                if layer not in made:
                    made[layer] = (decoder_layer(self.one, layer), elements(layer.parameters(model.hidden), lay))
            dense = sum(made[layer][1][0] for layer in layers)
            ends = []
            if s == 0:
                ends.append(self.embedding)
                dense += elements(model.embedding_parameters(), lay)[0]
            if s == len(groups) - 1:
                ends.append(self.head)
                dense += elements(model.head_parameters(), lay)[0]
                if model.tied_embeddings and lay.pp > 1:
                    dense += model.vocab * model.hidden / lay.tp  # its own copy of the shared matrix
            expert = sum(made[layer][1][1] for layer in layers)
            rank = self.schedule.rank_of(number, lay.pp)
            found.append(_Stage(rank, [made[layer][0] for layer in layers], ends, dense, expert))
        self.made = made
        return found

    # -- communication --------------------------------------------------------------------------

    def _plan(self) -> Plan:
        lay, p = self.lay, self.preset
        plan = Plan(1, "none", 1, "none", not p.p2p_overlap, False, self.model.tied_embeddings and lay.pp > 1)
        experts = any(isinstance(layer.ffn, Moe) for layer in self.model.layers)
        if lay.dp * lay.cp == 1 and (not experts or self.edp == 1):
            return plan
        plan.buckets = min(max(len(self.model.layers) // (lay.pp * lay.vpp), 1), 40)
        if lay.zero_stage >= 3:
            keeps = lay.pp > 1 or not p.reshard_after_forward
            plan.unshard, plan.prefetch = ("once" if keeps else "each"), int(p.prefetch_params)
            plan.reduce = "each" if p.reduce_each_microbatch and not keeps else "bucketed"
            return plan
        if lay.zero_stage == 2 and p.reduce_each_microbatch and lay.pp == 1:
            plan.reduce = "each"
        elif p.overlap_grad_reduce and (p.overlap_split_reduce or not self.schedule.split_backward):
            plan.reduce = "bucketed"
        else:
            plan.reduce, plan.buckets = "end", 1
        if lay.zero_stage >= 1:
            hidden = p.overlap_param_gather
            plan.gather_after, plan.unshard = not hidden, "once" if hidden else "none"
            if hidden:
                plan.buckets = min(max(len(self.model.layers) // (lay.pp * lay.vpp), 1), 40)
        return plan

    def _over(self, op: str, axis: str, nbytes: float) -> float:
        return collective(self.cluster, op, nbytes, *axis_of(self.lay, axis))

    def _expert_traffic(self, op: str, nbytes: float) -> float:
        """Over the shard group of the experts; `op` all_gather or reduce_scatter (with its replicas)."""
        lay, stride = self.lay, self.lay.ep * self.lay.etp
        size = self.expert_shard
        seconds = collective(self.cluster, op, nbytes, size, stride)
        if op == "reduce_scatter" and size < self.edp:
            seconds += collective(self.cluster, "all_reduce", nbytes / size, self.edp // size, stride * size)
        return seconds if lay.zero_stage else 0.0

    def _reduce(self, dense: float, expert: float) -> float:
        """One bucket of gradients."""
        dense, expert = dense * self.grad / self.plan.buckets, expert * self.grad / self.plan.buckets
        if self.lay.zero_stage == 0:
            return self._over("all_reduce", "dp_cp", dense) + self._over("all_reduce", "edp", expert)
        if self._whole:
            return self._over("all_reduce", "fsdp", dense)
        seconds = self._over("reduce_scatter", "fsdp", dense) + self._over("all_reduce", "replica", dense / self.shard)
        return seconds + self._expert_traffic("reduce_scatter", expert)

    @property
    def _whole(self) -> bool:
        """ZeRO-1 as PyTorch's ZeroRedundancyOptimizer: whole gradients, shards broadcast in turn."""
        experts = any(isinstance(layer.ffn, Moe) for layer in self.model.layers)
        return self.lay.zero_stage == 1 and self.preset.zero1_all_reduce and not experts

    def _gather(self, dense: float, expert: float) -> float:
        if self._whole:
            n = self.shard
            return n * self._over("broadcast", "fsdp", dense * self.width / n)
        seconds = self._over("all_gather", "fsdp", dense * self.width)
        return seconds + self._expert_traffic("all_gather", expert * self.width)

    def _sends(self) -> list[float]:
        """Out of each virtual stage to the next one: the boundary activation over the slowest of its pairs."""
        lay, c = self.lay, self.cluster
        boundary = self.one.tokens_sp * self.one.hidden * self.width
        shares = self.preset.scatter_gather_p2p and not lay.sp and lay.tp > 1
        stage = lay.tp * lay.cp * lay.dp
        found = []
        ranks = [s.rank for s in self.stages]
        for r, onward in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
            pairs = ((r * stage + i, onward * stage + i) for i in range(stage))
            apart = any(a // c.gpus_per_node != b // c.gpus_per_node for a, b in pairs)
            sent = boundary / lay.tp if shares else boundary
            one = pair(c, "send_recv", sent, apart, stage) if lay.pp > 1 else 0.0
            found.append(one + (self._over("all_gather", "tp", boundary) if shares else 0.0))
        return found

    def _optimizer(self, dense: float, expert: float) -> float:
        p, w = self.preset, self.workload
        n = self._shard(dense, expert)
        adam = w.optimizer == "adamw"
        if p.fused_optimizer:
            each = self.grad + 2 * ((8 if adam else 0) + 4) + (0 if w.precision == "fp32" else self.width)
            launches = 1
        else:
            each, launches = (4 * (2 + 3 + 2 + 4 + 2 + 2 + 2 + 4), 8) if adam else (12, 2)
        each += self.grad if p.clips_gradients else 0
        return float(kernels.memory_seconds(self.cluster.device, n * each / launches).mid) * launches

    # -- time -----------------------------------------------------------------------------------

    def time(self) -> tuple[Durations, list[float], list[float]]:
        lay, plan, stages = self.lay, self.plan, self.stages
        k, axis = plan.buckets, axis_of(lay, "fsdp" if lay.zero_stage else "dp_cp")
        a, b = slow_beside(self.cluster, "all_reduce", *axis)
        taken = b * (1.0 - 1.0 / a)
        host = float(self.preset.microbatch_s.value) / lay.vpp
        forward = [sum(b.forward.total for b in s.blocks) + host for s in stages]
        backward = [sum(b.input_gradient.total + b.again.total for b in s.blocks) for s in stages]
        weight = [sum(b.weight_gradient.total for b in s.blocks) for s in stages]
        unshard = [self._gather(s.dense / k, s.expert / k) if plan.unshard != "none" else 0.0 for s in stages]
        reduce = [self._reduce(s.dense, s.expert) if plan.reduce != "none" else 0.0 for s in stages]
        # A gather that is prefetched runs beside compute and slows it by what it takes.
        tax = [taken * u if plan.prefetch and plan.unshard == "each" else 0.0 for u in unshard]
        pieces = []
        for i, s in enumerate(stages):
            cut = [(forward[i] - sum(b.forward.total for b in s.ends)) / k + tax[i]] * k
            cut[0] += self.embedding.forward.total if i % self.length == 0 else 0.0
            cut[-1] += self.head.forward.total if i % self.length == self.length - 1 else 0.0
            pieces.append(cut)
        ranks = [[s for s in stages if s.rank == r] for r in range(lay.pp)]
        dense, expert = ([sum(getattr(s, n) for s in held) for held in ranks] for n in ("dense", "expert"))
        onward = self._sends()
        took = Durations(
            forward=pieces,
            backward=[[b / k + t] * k for b, t in zip(backward, tax, strict=True)],
            extra=[taken * r if plan.reduce in ("bucketed", "each") else 0.0 for r in reduce],
            unshard=unshard,
            longer_gather=b if plan.prefetch and plan.unshard == "each" else 1.0,
            longer_reduce=b if plan.reduce in ("bucketed", "each") else 1.0,
            reduce=reduce,
            send_forward=onward,
            send_backward=[onward[s - 1] for s in range(len(stages))],
            optimizer=[self._optimizer(d, e) for d, e in zip(dense, expert, strict=True)],
            gather=[self._gather(d, e) if plan.gather_after else 0.0 for d, e in zip(dense, expert, strict=True)],
            sync=self._over("all_reduce", "world", 4.0) if self.preset.clips_gradients else 0.0,
            tied=self._tied(),
            step=float(self.preset.step_s.value),
            weight=[[w / k] * k for w in weight],
            mirror=self._mirror([self._shard(d, e) * self.grad for d, e in zip(dense, expert, strict=True)]),
        )
        return took, forward, [b + w for b, w in zip(backward, weight, strict=True)]

    def _shard(self, dense: float, expert: float) -> float:
        return dense + expert if self.lay.zero_stage == 0 else dense / self.shard + expert / self.expert_shard

    def _mirror(self, nbytes: list[float]) -> list[float]:
        """All-reduce between the two ranks that hold the same stages, over the slowest of their pairs."""
        if self.schedule.directions == 1:
            return []
        stage, gpn = self.lay.tp * self.lay.cp * self.lay.dp, self.cluster.gpus_per_node
        found = []
        for r, own in enumerate(nbytes):
            far = self.lay.pp - 1 - r
            apart = any((r * stage + i) // gpn != (far * stage + i) // gpn for i in range(stage))
            found.append(collective(self.cluster, "all_reduce", own, 2, gpn if apart else 1))
        return found

    def _tied(self) -> float:
        if not self.plan.tied:
            return 0.0
        lay, gpn = self.lay, self.cluster.gpus_per_node
        nbytes = self.model.vocab * self.model.hidden / lay.tp * self.grad
        far = (lay.pp - 1) * lay.tp * lay.cp * lay.dp  # from a rank of the first stage to its peer of the last
        return pair(self.cluster, "all_reduce", nbytes, far >= gpn, lay.tp * lay.cp * lay.dp)

    # -- memory ---------------------------------------------------------------------------------

    def _flight(self) -> tuple[list[float], list[int]]:
        """Activation bytes at each rank's peak, and most micro-batches between a last stage's F and B."""
        peaks, losses = [], []
        for r, actions in enumerate(self.schedule.actions(self.lay.pp, self.microbatches, self.lay.vpp)):
            saved = {s: sum(b.saved for b in stage.blocks) for s, stage in enumerate(self.stages) if stage.rank == r}
            waiting = {s: sum(b.waiting for b in self.stages[s].blocks) for s in saved}
            held = peak = 0.0
            open_last = at_loss = 0
            for action in actions:
                s = action.stage
                held += {
                    Kind.FORWARD: saved[s],
                    Kind.BACKWARD: -saved[s],
                    Kind.BACKWARD_INPUT: waiting[s] - saved[s],
                    Kind.BACKWARD_WEIGHT: -waiting[s],
                }[action.kind]
                if s % self.length == self.length - 1 and action.kind is not Kind.BACKWARD_WEIGHT:
                    open_last += 1 if action.kind is Kind.FORWARD else -1
                peak, at_loss = max(peak, held), max(at_loss, open_last)
            peaks.append(peak)
            losses.append(at_loss)
        return peaks, losses

    def _rebuilt(self, rank: int) -> float:
        """The largest layer (or attention core) that the rank's recomputation rebuilds at a time."""
        own = [b for s in self.stages if s.rank == rank for b in s.layers]
        if self.lay.recompute == "full":
            return max((b.saved_whole for b in own), default=0.0)
        return max((b.saved_core for b in own), default=0.0) if self.lay.recompute == "selective" else 0.0

    def memory(self) -> list[dict[str, float]]:
        lay, z = self.lay, self.lay.zero_stage
        two = self.preset.compute_copy and self.workload.precision != "fp32"  # a compute copy and a main copy
        main, stored = (4, self.width) if two else (0, 4)
        states = (8 if self.workload.optimizer == "adamw" else 0) + main
        whole = self.plan.reduce != "each" and self.microbatches > 1
        flight, at_loss = self._flight()
        found = []
        for r in range(lay.pp):
            held = [s for s in self.stages if s.rank == r]
            dense, expert = sum(s.dense for s in held), sum(s.expert for s in held)
            shared = dense / self.shard + expert / self.expert_shard
            logits = 0.0
            if at_loss[r]:
                logits = at_loss[r] * self.logits_kept + self.logits_gradient
            found.append(
                {
                    "parameters": stored * (shared if z >= 3 else dense + expert),
                    "gradients": self.grad * (shared if z >= 2 and not whole else dense + expert),
                    "optimizer": states * (shared if z >= 1 else dense + expert),
                    "activations": flight[r] + self._rebuilt(r),
                    "logits": logits,
                    "comm_buffers": self._buffers(dense + expert),
                    "context": float(self.cluster.context_bytes),
                }
            )
        return found

    def _buffers(self, n: float) -> float:
        """Boundary in and out, one gathered activation, gathered parameters and unsharded gradients."""
        lay, z = self.lay, self.lay.zero_stage
        boundary = self.one.tokens_sp * self.one.hidden * self.width
        copies = self.schedule.directions
        total = (2 * copies * boundary if lay.pp > 1 else 0.0) + (boundary * lay.tp if lay.sp else 0.0)
        layer = n / max(len(self.model.layers) * copies / lay.pp, 1.0)
        if z >= 3:
            keeps = lay.pp > 1 or not self.preset.reshard_after_forward
            total += (n if keeps else 2 * layer) * self.width + layer * self.grad
        if z == 2:
            total += min(n * self.grad, float(self.preset.bucket_bytes))
        return total


def model_flops(model: ModelSpec, workload: Workload) -> float:
    """6 FLOPs a token for each matrix parameter it meets, and attention over the whole sequence (PaLM, appendix B)."""
    token = 6.0 * model.hidden * model.vocab
    for layer in model.layers:
        for p in layer.parameters(model.hidden):
            if isinstance(p, Weight):
                met = layer.ffn.top_k if p.expert and isinstance(layer.ffn, Moe) else p.copies
                token += 6.0 * p.n_in * p.n_out * met
        a = layer.attention
        span = min(a.window or workload.seq_len, workload.seq_len)
        token += 6.0 * span * a.n_heads * (a.qk_dim + a.v_dim)
    return token * workload.seq_len * workload.gbs


def reference(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layout: Layout,
) -> Reference:
    """Seconds and bytes of one step."""
    step = _Step(model, cluster, workload, layout)
    took, forward, backward = step.time()
    played = play(step.schedule, layout.pp, step.microbatches, layout.vpp, step.plan, took)
    return Reference(step.memory(), forward, backward, took, played, model_flops(model, workload))
