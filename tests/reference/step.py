"""The reference: seconds and bytes of one step of one layout, in plain floats, from the formulas' sources."""

from __future__ import annotations

from dataclasses import dataclass

from hwmodels import kernels
from hwmodels.cluster import Cluster
from planner import frameworks, schedule
from planner.layout import Layout
from planner.model.spec import DecoderLayer, DeltaNet, Mamba1, Mamba2, ModelSpec, Moe, VisionTower, Weight
from planner.plan import Workload
from planner.schedule import Kind, Schedule
from tests.reference.blocks import Block, decoder_layer, embedding, head, vocabulary
from tests.reference.formats import (
    ADAM_EAGER,
    EAGER,
    MOMENTS,
    NF4,
    WIDTH,
    Held,
    adapter_elements,
    compute_of,
    elements,
    held_by_layer,
    plain_layers,
    scaled_of,
)
from tests.reference.memory import Sized, sizes
from tests.reference.ops import Apart, Rank, axis_of, collective, pair, places, slow_beside
from tests.reference.recomputed import rebuilt_together
from tests.reference.timing import Durations, Plan, Played, play

HOST = {"pcie4": (27.3e9, 27.3e9, 409.6e9), "pcie5": (55.4e9, 55.4e9, 614.4e9), "c2c": (359e9, 377e9, 512e9)}
"""Bytes/s to the device, to the host, and of the memory of a node (of two devices behind NVLink-C2C)."""


@dataclass
class Reference:
    """What the reference finds: bytes by category of each pipeline rank, seconds of each virtual stage and the step."""

    memory: list[Sized]
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
    last stages but one, then the first, then the last. No stage is left empty for the sake of the ends, unless there
    are more stages than layers: then the loss, and the embedding before it, have one to themselves."""
    n = len(model.layers)
    if not stated and stages > n:
        stated = ((0,) if stages == n + 2 else ()) + (1,) * n + (0,)
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


@dataclass
class _Stage:
    """One virtual stage: its rank, blocks and parameters."""

    rank: int
    layers: list[Block]
    ends: list[Block]
    dense: Held
    expert: Held
    kept: list[float]
    """Bytes of each layer under the recomputation of this stage."""
    again: set[int]
    together: list[list[int]]
    """Layers that are recomputed, and which of them are rebuilt together."""

    @property
    def blocks(self) -> list[Block]:
        return self.layers + self.ends


class _Step:
    def __init__(self, model: ModelSpec, cluster: Cluster, workload: Workload, lay: Layout):
        self.model, self.cluster, self.workload, self.lay = model, cluster, workload, lay
        self.preset = frameworks.of(workload)
        self.schedule: Schedule = schedule.get(lay.schedule)
        self.microbatches = workload.gbs // (lay.mbs * lay.dp)
        dtype = compute_of(workload)
        self.width, self.grad = WIDTH[dtype], WIDTH[workload.grad_dtype or self.preset.gradient_dtype(dtype)]
        self.narrow = scaled_of(workload, self.preset)
        splits = self.schedule.split_backward
        self.one = Rank(model, workload, lay, cluster, self.preset, splits=splits, copies=self.schedule.directions)
        self.head, self.logits = head(self.one)
        self.embedding = embedding(self.one)
        self.shard = (lay.fsdp or lay.dp) * lay.cp
        self.edp = axis_of(lay, "edp")[0]
        self.expert_shard = max(self.edp // (lay.dp // (lay.fsdp or lay.dp)), 1)
        self.vocab = vocabulary(model.vocab, self.preset.vocab_multiple, lay.tp)
        self.split: list[list[DecoderLayer]] = []
        self.plain_of: list[list[bool]] = []
        self.ends_of: list[list[Held]] = []
        self.stages = self._stages()
        self.plan = self._plan()

    def _end(self, parameters: object) -> Held:
        """Embedding or head: whole, in no narrow format, and frozen beneath adapters."""
        n = sum(elements(p, self.lay) for p in parameters)  # type: ignore[attr-defined]
        tables = sum(self.model.vocab in (p.n_in, p.n_out) for p in parameters if isinstance(p, Weight))  # type: ignore[attr-defined]
        n += tables * (self.vocab - self.model.vocab) * self.model.hidden / self.lay.tp
        return Held(n, 0.0, 0.0, n) if self.workload.lora is None else Held(n, n)

    def _step_extra(self) -> Held:
        """Projection (2h x h, its columns over tp) and three norms of a prediction step."""
        matrix = 2.0 * self.model.hidden**2 / self.lay.tp
        norms = 3.0 * self.model.hidden * (2 if self.model.norm_bias else 1)
        if self.workload.lora is not None:
            return Held(matrix + norms, matrix + norms, matrix, 0.0)
        return Held(matrix + norms, 0.0, matrix, norms)

    def _seeing(self) -> Held:
        """Tower and projector, split over tp; the tower is frozen unless it is trained."""
        tower, work = self.model.vision, self.workload
        if tower is None or not work.images:
            return Held()
        encoder, projector = (sum(elements(p, self.lay) for p in part) for part in (
            tower.tower_parameters(), tower.projector_parameters()))
        if work.lora is not None:
            return Held(encoder + projector, encoder + projector)
        frozen = 0.0 if work.vision == "trained" else encoder
        return Held(encoder + projector, frozen, 0.0, encoder + projector - frozen)

    def _stages(self) -> list[_Stage]:
        lay, model, made = self.lay, self.model, {}
        found, groups = [], layers_of_stages(model, lay.pp * lay.vpp, lay.stage_layers)
        self.length = len(groups)
        plain = plain_layers(model, self.workload, self.preset) * self.schedule.directions
        # Two copies of the pipeline: the second one's stages after the first's.
        for number, layers in enumerate(groups * self.schedule.directions):
            s = number % self.length
            blocks, dense, expert = [], Held(), Held()
            self.split.append(layers)
            self.plain_of.append(plain[: len(layers)])
            self.ends_of.append([])
            for layer in layers:
                key = (layer, plain.pop(0))
                if key not in made:
                    sizes = held_by_layer(layer, model.hidden, self.workload, lay, key[1])
                    made[key] = (decoder_layer(self.one, *key), *sizes)
                blocks.append(made[key][0])
                dense, expert = dense + made[key][1], expert + made[key][2]
            ends, routed = [], []
            if s == 0:
                ends.append(self.embedding)
                self.ends_of[-1].append(self._end(model.embedding_parameters()) + self._seeing())
            if s == len(groups) - 1:
                ends.append(self.head)
                self.ends_of[-1].append(self._end(model.head_parameters()))
                for layer in model.mtp_used(self.workload.mtp_layers):
                    own, own_expert = held_by_layer(layer, model.hidden, self.workload, lay, False)
                    routed.append(own_expert)
                    self.ends_of[-1].append(own + self._step_extra())
                if (model.tied_embeddings or self.workload.mtp_layers) and lay.pp > 1:
                    n = self.vocab * model.hidden / lay.tp  # its own copy of the shared matrix
                    self.ends_of[-1].append(Held(n, 0.0, 0.0, n) if self.workload.lora is None else Held(n, n))
            dense = sum(self.ends_of[-1], start=dense)
            expert = sum(routed, start=expert)
            self.ends_of[-1] += routed
            together = rebuilt_together(lay, s, len(blocks))
            kept = [b.saved_whole for b in blocks]
            for members in together:
                for i in members:
                    kept[i] = blocks[i].saved if i == members[0] else 0.0
            again = {i for members in together for i in members}
            rank = self.schedule.rank_of(number, lay.pp)
            found.append(_Stage(rank, blocks, ends, dense, expert, kept, again, together))
        return found

    # -- communication --------------------------------------------------------------------------

    def _plan(self) -> Plan:
        lay, p = self.lay, self.preset
        plan = Plan(1, "none", 1, "none", not p.p2p_overlap, False,
                    (self.model.tied_embeddings or self.workload.mtp_layers > 0) and lay.pp > 1)
        experts = any(isinstance(layer.ffn, Moe) for layer in self.model.layers)
        if lay.dp * lay.cp == 1 and (not experts or self.edp == 1):
            return plan
        plan.buckets = min(max(len(self.model.layers) // (lay.pp * lay.vpp), 1), 40)
        if lay.zero_stage >= 3:
            # PyTorch's pipelines reshard and reduce after the last backward alone
            pipeline = lay.pp > 1 and p.pipeline_keeps_gathered
            frees = {"always": True, "never": False}.get(lay.reshard, p.reshard_after_forward and not pipeline)
            plan.unshard = "each" if frees else "once" if pipeline else "forward"
            plan.prefetch = int(p.prefetch_params)
            plan.reduce = "each" if p.reduce_each_microbatch and not pipeline else "bucketed"
            return plan
        most, plan.buckets = plan.buckets, self._buckets(plan.buckets)
        if lay.zero_stage == 2 and p.reduce_each_microbatch and not (lay.pp > 1 and p.pipeline_keeps_gathered):
            plan.reduce = "each"
        elif p.overlap_grad_reduce and (p.overlap_split_reduce or not self.schedule.split_backward):
            plan.reduce = "bucketed"
        else:
            plan.reduce, plan.buckets = "end", 1
        if lay.zero_stage >= 1:
            hidden = p.overlap_param_gather
            plan.gather_after, plan.unshard = not hidden, "once" if hidden else "none"
            if hidden:
                plan.buckets = self._buckets(most)
        return plan

    def _buckets(self, most: int) -> int:
        """As many as hold the gradients of a stage's layers, in powers of two, and no more than layers."""
        lay, p = self.lay, self.preset
        trained = 0.0
        for layer in self.model.layers:
            a, b = held_by_layer(layer, self.model.hidden, self.workload, lay, False)
            trained += a.trained + b.trained
        bucket = max(p.bucket_bytes, p.bucket_bytes_per_dp * lay.dp)
        filled, count = trained * self.grad / (lay.pp * lay.vpp) / bucket, 1
        while count < filled and count < most:
            count *= 2
        return min(count, most)

    def _over(self, op: str, axis: str, nbytes: float) -> float:
        return collective(self.cluster, op, nbytes, *axis_of(self.lay, axis))

    def _expert_traffic(self, op: str, nbytes: float) -> float:
        """Over the shard group of the experts; `op` all_gather or reduce_scatter (with its replicas)."""
        size = self.expert_shard
        seconds = collective(self.cluster, op, nbytes, *self._experts("expert_shard"))
        if op == "reduce_scatter" and size < self.edp:
            seconds += collective(self.cluster, "all_reduce", nbytes / size, *self._experts("expert_replica"))
        return seconds if self.lay.zero_stage else 0.0

    def _experts(self, axis: str) -> tuple[int, Apart]:
        """The shard group of the experts, or its replicas."""
        lay, size, stride = self.lay, self.expert_shard, self.lay.ep * self.lay.etp
        if lay.order != "tp-cp-dp-pp":
            return axis_of(lay, axis)
        return (size, stride) if axis == "expert_shard" else (self.edp // size, stride * size)

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

    def sent(self, held: Held) -> float:
        """Bytes of parameters in a gather: everything (ZeRO-3), or what the optimizer changed."""
        lora = self.workload.lora
        packed = self.width
        if lora is not None and lora.base:
            packed = NF4
        elif self.narrow and self.narrow.scaling in self.preset.quantised_params:
            packed = self.narrow.size
        if lora is not None and self.lay.zero_stage < 3:
            return held.trained * self.width
        changed = held.all if self.lay.zero_stage >= 3 else held.trained
        return (changed - held.packed) * self.width + held.packed * packed

    def _gather(self, dense: Held, expert: Held, parts: int = 1) -> float:
        nbytes, of_experts = self.sent(dense) / parts, self.sent(expert) / parts
        if self._whole and self.preset.zero1_broadcast:
            n = self.shard
            return n * self._over("broadcast", "fsdp", nbytes / n)
        seconds = self._over("all_gather", "fsdp", nbytes)
        return seconds + self._expert_traffic("all_gather", of_experts)

    def _sends(self) -> list[float]:
        """Out of each virtual stage to the next one: the boundary activation over the slowest of its pairs."""
        lay, c = self.lay, self.cluster
        boundary = self.one.tokens_sp * self.one.hidden * self.width
        shares = self.preset.scatter_gather_p2p and not lay.sp and lay.tp > 1
        stage = axis_of(lay, "pp")[1]
        found = []
        ranks, held = [s.rank for s in self.stages], self._ranks_of_stages()
        for r, onward in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
            pairs = zip(held[r], held[onward], strict=True)
            apart = any(a // c.gpus_per_node != b // c.gpus_per_node for a, b in pairs)
            sent = boundary / lay.tp if shares else boundary
            sent *= r != onward  # the turn of a V
            one = pair(c, "send_recv", sent, apart, stage) if lay.pp > 1 else 0.0
            found.append(one + (self._over("all_gather", "tp", boundary) if shares else 0.0))
        return found

    def _from_host(self, stage: _Stage) -> float:
        """The rank's shard over the link."""
        shard = self.sent(stage.dense) / self.shard + self.sent(stage.expert) / self.expert_shard
        return shard / HOST[self.cluster.device.host_link][0]

    def _copies(self, stage: _Stage, way: str) -> float:
        """Copies of the offloaded layers beyond their compute."""
        to_device, to_host, _ = HOST[self.cluster.device.host_link or "pcie4"]
        total = 0.0
        for b in stage.layers[: self.lay.offload_activations]:
            if way == "forward":
                total += max(b.saved_whole / to_host - b.forward.total, 0.0)
            else:
                total += max(b.saved_whole / to_device - b.input_gradient.total - b.weight_gradient.total, 0.0)
        return total

    def _host_update(self, n: float, on_device: float) -> float:
        """Gradients out, update beside the weights on their way back; the device updates the rest."""
        share = self.lay.offload_optimizer / 100
        if not share:
            return on_device
        to_device, to_host, memory = HOST[self.cluster.device.host_link or "pcie4"]
        ranks = 2 if self.cluster.device.host_link == "c2c" else self.cluster.gpus_per_node
        moved = self.grad + 2 * MOMENTS[self.workload.optimizer] + self._weights_touched()
        there = n * share * self.grad / to_host
        there += max(n * share * moved * ranks / (0.8 * memory), n * share * self.width / to_device)
        return max(on_device * (1 - share), there)

    def _optimizer(self, dense: Held, expert: Held, layers: list[tuple[DecoderLayer, int]]) -> float:
        lay, p, w = self.lay, self.preset, self.workload
        share, share_e = (1, 1) if lay.zero_stage == 0 else (self.shard, self.expert_shard)
        n = dense.trained / share + expert.trained / share_e
        if p.fused_optimizer:
            launches = 1
            each = self.grad + 2 * MOMENTS[w.optimizer] + self._weights_touched()
        else:
            each, launches = EAGER.get(w.optimizer, ADAM_EAGER)
        each += self.grad if p.clips_gradients else 0
        nbytes = n * each
        if w.optimizer == "muon":  # Adam's second moment outside the hidden matrices
            nbytes += dense.other / share * 2 * 4
        one = float(kernels.memory_seconds(self.cluster.device, nbytes / launches).mid) * launches
        if w.optimizer == "muon":
            one += self._newton_schulz(layers, share, share_e)
        return self._host_update(n, one)

    def _weights_touched(self) -> float:
        """Bytes a parameter: main weight read and written, compute copy written."""
        if self.width == 4:
            return 8.0
        return {"fp32": 4 + 4 + self.width, "bf16": 2 * self.width, "remainder": 2 * (2 + self.width)}[
            self.workload.main_dtype
        ]

    def _newton_schulz(self, layers: list[tuple[DecoderLayer, int]], share: float, share_e: float) -> float:
        """Five times X X^T, A A and B X over the shard of every hidden matrix, divided over its owners."""
        if self.workload.lora is not None:
            return 0.0
        total = 0.0
        for layer, times in layers:
            for p in layer.parameters(self.model.hidden):
                if not isinstance(p, Weight) or p.name in ("router", "shared_expert_gate"):
                    continue
                a, b = self.one.rows_in(p), self.one.columns(p)
                s, long = min(a, b), max(a, b)
                count = p.copies / self.lay.ep / share_e if p.expert else p.copies / share
                for m, n, k in ((s, s, long), (s, s, s), (s, long, s)):
                    one = kernels.gemm_seconds(self.cluster.device, m, n, k, dtype="bf16", impl=self.preset.gemm_impl)
                    total += 5 * times * count * self.one.sustained(float(one.mid), 2.0 * m * n * k, "bf16")
        return total

    # -- time -----------------------------------------------------------------------------------

    def time(self) -> tuple[Durations, list[float], list[float]]:
        lay, plan, stages = self.lay, self.plan, self.stages
        k, axis = plan.buckets, axis_of(lay, "fsdp" if lay.zero_stage else "dp_cp")
        a, b = slow_beside(self.cluster, "all_reduce", *axis)
        taken = b * (1.0 - 1.0 / a)
        host = float(self.preset.microbatch_s.value) / lay.vpp
        alone = self._alone() if self.preset.moe_exchange_overlap else [0.0] * lay.pp
        forward = [sum(b.forward.total + b.forward.paired * alone[s.rank] for b in s.blocks) + host for s in stages]
        reruns = [sum(s.layers[i].again.total for i in s.again) + sum(e.again.total for e in s.ends) for s in stages]
        backward = [
            sum(b.input_gradient.total + b.input_gradient.paired * alone[s.rank] for b in s.blocks) + again
            for s, again in zip(stages, reruns, strict=True)
        ]
        weight = [sum(b.weight_gradient.total for b in s.blocks) for s in stages]
        forward = [f + self._copies(s, "forward") for f, s in zip(forward, stages, strict=True)]
        backward = [b + self._copies(s, "backward") for b, s in zip(backward, stages, strict=True)]
        unshard = [self._gather(s.dense, s.expert, k) if plan.unshard != "none" else 0.0 for s in stages]
        if lay.offload_parameters and plan.unshard != "none":
            unshard = [u + self._from_host(s) / k for u, s in zip(unshard, stages, strict=True)]
        reduce = [self._reduce(s.dense.trained, s.expert.trained) if plan.reduce != "none" else 0.0 for s in stages]
        # A gather that is prefetched runs beside compute and slows it by what it takes.
        tax = [taken * u if plan.prefetch and plan.unshard in ("each", "forward") else 0.0 for u in unshard]
        out, into = self._fsdp2_copies()
        tax = [t + c if plan.unshard in ("each", "forward") else t for t, c in zip(tax, out, strict=True)]
        unshard = [u + c if plan.unshard == "once" else u for u, c in zip(unshard, out, strict=True)]
        pieces = []
        for i, s in enumerate(stages):
            cut = [(forward[i] - sum(b.forward.total for b in s.ends)) / k + tax[i]] * k
            cut[0] += self.embedding.forward.total if i % self.length == 0 else 0.0
            cut[-1] += self.head.forward.total if i % self.length == self.length - 1 else 0.0
            pieces.append(cut)
        ranks = [[s for s in stages if s.rank == r] for r in range(lay.pp)]
        dense, expert = (
            [sum((getattr(s, n) for s in held), start=Held()) for held in ranks] for n in ("dense", "expert")
        )
        split = layers_of_stages(self.model, self.length, lay.stage_layers) * self.schedule.directions
        own = [[(layer, 1) for s, at in zip(stages, split, strict=True) if s.rank == r for layer in at]
               for r in range(lay.pp)]  # fmt: skip
        onward = self._sends()
        took = Durations(
            forward=pieces,
            backward=[[b / k + (t if plan.unshard == "each" else 0.0)] * k for b, t in zip(backward, tax, strict=True)],
            extra=[
                taken * r + c if plan.reduce in ("bucketed", "each") else 0.0
                for r, c in zip(reduce, into, strict=True)
            ],
            unshard=unshard,
            longer_gather=b if plan.prefetch and plan.unshard in ("each", "forward") else 1.0,
            longer_reduce=b if plan.reduce in ("bucketed", "each") else 1.0,
            reduce=reduce,
            send_forward=onward,
            send_backward=[onward[s - 1] for s in range(len(stages))],
            optimizer=[self._optimizer(d, e, at) for d, e, at in zip(dense, expert, own, strict=True)],
            gather=[self._gather(d, e) if plan.gather_after else 0.0 for d, e in zip(dense, expert, strict=True)],
            sync=self._over("all_reduce", "world", 4.0) if self.preset.clips_gradients else 0.0,
            tied=self._tied(),
            step=float(self.preset.step_s.value),
            weight=[[w / k] * k for w in weight],
            mirror=self._mirror([self._shard(d, e) * self.grad for d, e in zip(dense, expert, strict=True)]),
        )
        return took, forward, [b + w for b, w in zip(backward, weight, strict=True)]

    def _fsdp2_copies(self) -> tuple[list[float], list[float]]:
        """Per bucket: the gathered buffer read and written, 16-bit gradients read and written as they are reduced."""
        none = [0.0] * len(self.stages)
        if self.lay.zero_stage < 3 or self.plan.unshard == "none":
            return none, none
        k, device = self.plan.buckets, self.cluster.device
        if not self.preset.shard_copies:  # FSDP1: views out of the flat parameter, one concatenation of gradients in
            joined = [2 * self.width * (s.dense.trained + s.expert.trained) / k for s in self.stages]
            into = [float(kernels.memory_seconds(device, n).mid) for n in joined]
            return none, into if self.preset.flat_parameters else none
        moved = [2 * (self.sent(s.dense) + self.sent(s.expert)) / k for s in self.stages]
        made = [(s.dense.trained + s.expert.trained) / k * (self.width + self.grad) for s in self.stages]
        out, into = ([float(kernels.memory_seconds(device, n).mid) for n in each] for each in (moved, made))
        return out, into

    def _alone(self) -> list[float]:
        """Share of each rank's forwards that no backward of other work follows or precedes at once."""
        found = []
        for actions in self.schedule.actions(self.lay.pp, self.microbatches, self.lay.vpp):
            row = [a for a in actions if a.kind is not Kind.BACKWARD_WEIGHT]
            free = [True] * len(row)
            for i in range(len(row) - 1):
                a, b = row[i], row[i + 1]
                mixed = (a.kind is Kind.FORWARD) != (b.kind is Kind.FORWARD)
                if free[i] and mixed and (a.stage, a.microbatch) != (b.stage, b.microbatch):
                    free[i] = free[i + 1] = False
            forwards = [f for f, a in zip(free, row, strict=True) if a.kind is Kind.FORWARD]
            found.append(sum(forwards) / len(forwards))
        return found

    def _shard(self, dense: Held, expert: Held) -> float:
        share, share_e = (1, 1) if self.lay.zero_stage == 0 else (self.shard, self.expert_shard)
        return dense.trained / share + expert.trained / share_e

    def _mirror(self, nbytes: list[float]) -> list[float]:
        """All-reduce between the two ranks that hold the same stages, over the slowest of their pairs."""
        if self.schedule.directions == 1:
            return []
        gpn, held = self.cluster.gpus_per_node, self._ranks_of_stages()
        found = []
        for r, own in enumerate(nbytes):
            far = self.lay.pp - 1 - r
            apart = any(a // gpn != b // gpn for a, b in zip(held[r], held[far], strict=True))
            found.append(collective(self.cluster, "all_reduce", own, 2, gpn if apart else 1))
        return found

    def _tied(self) -> float:
        if not self.plan.tied or self.workload.lora is not None:
            return 0.0
        lay, gpn = self.lay, self.cluster.gpus_per_node
        nbytes = self.vocab * self.model.hidden / lay.tp * self.grad
        held = self._ranks_of_stages()
        apart = any(a // gpn != b // gpn for a, b in zip(held[0], held[-1], strict=True))
        return pair(self.cluster, "all_reduce", nbytes, apart, axis_of(lay, "pp")[1])

    def _ranks_of_stages(self) -> list[list[int]]:
        """World ranks of every pipeline rank, in their order."""
        grid = places(self.lay)
        return [[rank for rank, at in enumerate(grid) if at["pp"] == p] for p in range(self.lay.pp)]


def mixing_flops(layer: DecoderLayer, length: float) -> float:
    """Forward FLOPs of a token's scores and values, or of its scan as Megatron-Core's ``hybrid_flops`` has it."""
    a, r = layer.softmax, layer.recurrent
    if a is not None:
        return 2.0 * min(a.window or length, a.chunk or length, length) * a.n_heads * (a.qk_dim + a.v_dim)
    if isinstance(r, Mamba1):
        return 7.0 * r.d_inner * r.d_state + 2.0 * r.d_conv * r.d_inner
    if isinstance(r, Mamba2):
        return 7.0 * r.d_inner * r.d_state + 2.0 * r.d_conv * r.conv_dim
    if isinstance(r, DeltaNet):
        return 2.0 * r.d_conv * r.conv_dim + 8.0 * r.d_inner * r.key_dim
    return 0.0


def seen_flops(tower: VisionTower) -> tuple[float, float]:
    """Forward FLOPs of an image: 8 h² + 4 h f a token and layer, full attention, patches; and the projector."""
    h, n = tower.hidden, tower.patch.tokens
    layer = 8.0 * h * h + 4.0 * h * tower.ffn.ffn_hidden + 4.0 * n * h
    pixels = tower.patch.channels * tower.patch.frames * tower.patch.patch**2
    projector = sum(2.0 * p.n_in * p.n_out for p in tower.projector) * tower.mergers
    return n * tower.n_layers * layer + 2.0 * tower.patch.patches * pixels * h, tower.image_tokens * projector


def model_flops(model: ModelSpec, workload: Workload) -> float:
    """6 FLOPs a token for each matrix parameter it meets, and attention over the whole document (PaLM, appendix B).

    A frozen parameter has no weight gradient: 4; an adapter's has one.
    """
    each = 6.0 if workload.lora is None else 4.0
    token = each * model.hidden * (model.vocab + (model.hidden if model.head_transform else 0))
    token += each * model.hidden * model.n_classes / workload.seq_len
    if model.patches is not None:
        p = model.patches
        token += each * model.hidden * p.channels * p.frames * p.patch**2 * p.patches / workload.seq_len
    packed = workload.documents
    length = packed.mean_square_tokens2 / packed.mean_tokens if packed and packed.batching != "padded" else (
        workload.seq_len)
    steps = workload.mtp_layers
    token += steps * each * (2.0 * model.hidden**2 + model.hidden * model.vocab)
    for layer in (*model.layers, *model.mtp_used(steps)):
        for p in layer.parameters(model.hidden):
            if isinstance(p, Weight):
                met = layer.ffn.top_k if p.expert and isinstance(layer.ffn, Moe) else p.copies
                token += each * p.n_in * p.n_out * met
        token += 6.0 * adapter_elements(layer, model.hidden, workload, None)
        token += 3.0 * mixing_flops(layer, length)
    if model.vision is not None and workload.images:
        encoder, projector = seen_flops(model.vision)
        full = workload.lora is None
        tower_passes = 3 if workload.vision == "trained" and full else 1
        token += (tower_passes * encoder + (3 if full else 1) * projector) * workload.images / workload.seq_len
    each_has = packed.mean_tokens if packed and packed.batching == "thd" else workload.seq_len
    return token * each_has * workload.gbs


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
    return Reference(sizes(step), forward, backward, took, played, model_flops(model, workload))
