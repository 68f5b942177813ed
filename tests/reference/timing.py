"""The schedule's action list, played action by action with plain floats.

Semantics of `planner.simulate.costs.CommPlan`, as its docstring states them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.schedule import Action, Kind, Schedule


@dataclass
class Plan:
    """Which communication a step has; field by field as `CommPlan` documents."""

    buckets: int
    unshard: str
    prefetch: int
    reduce: str
    blocking: bool
    gather_after: bool
    tied: bool


@dataclass
class Durations:
    """Seconds: of a bucket by virtual stage (F, B, extra, unshard, reduce), the rest by rank or alone."""

    forward: list[list[float]]
    backward: list[list[float]]
    """Whole, or with `weight` the input gradient's part."""
    extra: list[float]
    unshard: list[float]
    reduce: list[float]
    send_forward: list[float]
    send_backward: list[float]
    optimizer: list[float]
    gather: list[float]
    sync: float
    tied: float
    step: float
    longer_gather: float = 1.0
    longer_reduce: float = 1.0
    """Of a bucket that has compute beside it: all but the first gathered and the last reduced."""
    weight: list[list[float]] = field(default_factory=list)
    """Weight gradients of a bucket by virtual stage; empty: all of it in `backward`."""
    mirror: list[float] = field(default_factory=list)
    """Reduction of a rank with its mirror rank (two copies of the pipeline)."""


@dataclass
class Played:
    """The step, what each compute stream ran, and everything that ran anywhere."""

    step_s: float
    busy: list[float]
    everything: float


_Key = tuple[str, int, int | None]
"""F or B (a gradient), virtual stage and micro-batch of a result on its way to another rank."""


class _Play:
    def __init__(self, schedule: Schedule, pp: int, microbatches: int, vpp: int, plan: Plan, took: Durations) -> None:
        self.lists = schedule.actions(pp, microbatches, vpp)
        self.stages, self.copies = pp * vpp, schedule.directions
        self.rank_of = [schedule.rank_of(s, pp) for s in range(self.stages * self.copies)]
        self.plan, self.took, self.pp = plan, took, pp
        self.clock = [took.step] * pp
        self.ag, self.rs, self.sent = [0.0] * pp, [0.0] * pp, [0.0] * pp
        self.arrived: dict[_Key, float] = {}
        self.reached: list[list[float]] = [[] for _ in range(pp)]
        self.gathered: set[tuple[int, int]] = set()
        self.final, self.busy, self.total = [0.0] * pp, [took.step] * pp, took.step * pp
        self.last_gradient: dict[int, Action] = {}
        for actions in self.lists:
            for action in actions:
                if action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                    self.last_gradient[action.stage] = action

    def elsewhere(self, stage: int, step: int) -> int | None:
        """The stage before or after in the same copy of the pipeline, if another rank holds it."""
        other = stage + step
        inside = 0 <= stage % self.stages + step < self.stages
        return other if inside and self.rank_of[other] != self.rank_of[stage] else None

    def source(self, action: Action) -> _Key | None:
        """The neighbour's result that an action receives from another rank."""
        if action.kind is Kind.BACKWARD_WEIGHT:
            return None
        forward = action.kind is Kind.FORWARD
        other = self.elsewhere(action.stage, -1 if forward else 1)
        return None if other is None else ("F" if forward else "B", other, action.microbatch)

    def seconds(self, action: Action, k: int) -> float:
        took, s = self.took, action.stage
        weight = took.weight[s][k] if took.weight else 0.0
        return {
            Kind.FORWARD: took.forward[s][k],
            Kind.BACKWARD: took.backward[s][k] + weight,
            Kind.BACKWARD_INPUT: took.backward[s][k],
            Kind.BACKWARD_WEIGHT: weight,
        }[action.kind]

    def run(self) -> None:
        at = [0] * self.pp
        moved = True
        while moved:
            moved = False
            for r, actions in enumerate(self.lists):
                while at[r] < len(actions):
                    need = self.source(actions[at[r]])
                    if need is not None and need not in self.arrived:
                        break
                    self.act(r, actions[at[r]], self.arrived[need] if need else 0.0)
                    at[r] += 1
                    moved = True
        assert at == [len(actions) for actions in self.lists], "the list deadlocks"

    def act(self, r: int, action: Action, ready: float) -> None:
        plan, took, s = self.plan, self.took, action.stage
        is_forward, gradient = action.kind is Kind.FORWARD, action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
        final = gradient and self.last_gradient[s] == action
        reduced = (plan.reduce == "each" and gradient) or (plan.reduce == "bucketed" and final)
        order = list(range(plan.buckets)) if is_forward else list(reversed(range(plan.buckets)))
        for k in order:
            if is_forward or (action.kind is not Kind.BACKWARD_WEIGHT and plan.unshard != "forward"):
                ready = max(ready, self.gather(r, s, k))
            seconds = self.seconds(action, k) + (took.extra[s] if reduced else 0.0)
            self.clock[r] = max(self.clock[r], ready) + seconds
            self.busy[r] += seconds
            self.total += seconds
            if reduced:
                lasts = took.reduce[s] * (took.longer_reduce if k else 1.0)
                self.rs[r] = max(self.rs[r], self.clock[r]) + lasts
                self.total += lasts
        self.final[r] = self.clock[r]
        if action.kind is not Kind.BACKWARD_WEIGHT:
            self.send(r, action, is_forward)

    def gather(self, r: int, s: int, k: int) -> float:
        """End of the gather that a bucket needs: launched when compute has reached the use `prefetch` before."""
        plan = self.plan
        if plan.unshard == "none" or (plan.unshard == "once" and (s, k) in self.gathered):
            return 0.0
        self.gathered.add((s, k))
        self.reached[r].append(self.clock[r])
        i = len(self.reached[r]) - 1 - plan.prefetch
        launched = self.reached[r][i] if i >= 0 else self.took.step
        lasts = self.took.unshard[s] * (self.took.longer_gather if k else 1.0)
        self.ag[r] = max(self.ag[r], launched) + lasts
        self.total += lasts
        return self.ag[r]

    def send(self, r: int, action: Action, is_forward: bool) -> None:
        if self.elsewhere(action.stage, 1 if is_forward else -1) is None:
            return
        seconds = (self.took.send_forward if is_forward else self.took.send_backward)[action.stage]
        if self.plan.blocking:
            self.clock[r] += seconds
            self.busy[r] += seconds
            end = self.clock[r]
        else:
            self.sent[r] = end = max(self.sent[r], self.clock[r]) + seconds
        self.total += seconds
        self.arrived["F" if is_forward else "B", action.stage, action.microbatch] = end

    def finish(self) -> Played:
        plan, took = self.plan, self.took
        if plan.reduce == "end":
            for s, r in enumerate(self.rank_of):
                self.rs[r] = max(self.rs[r], self.final[r]) + took.reduce[s]
                self.total += took.reduce[s]
        if self.copies > 1:  # rank r waits for rank pp-1-r, then both reduce what both hold
            ready = [max(a, b) for a, b in zip(self.clock, self.rs, strict=True)]
            for r in range(self.pp):
                self.clock[r] = max(ready[r], ready[-1 - r]) + took.mirror[r]
                self.busy[r] += took.mirror[r]
                self.total += took.mirror[r]
        first, last = self.rank_of[0], self.rank_of[self.stages - 1]
        if plan.tied and self.copies == 1 and first != last:
            both = max(self.clock[first], self.clock[last], self.rs[first], self.rs[last]) + took.tied
            for r in (first, last):
                self.clock[r] = both
                self.busy[r] += took.tied
            self.total += 2 * took.tied
        together = max(*self.clock, *self.rs) + took.sync
        ends = [together + took.optimizer[r] + (took.gather[r] if plan.gather_after else 0.0) for r in range(self.pp)]
        for r in range(self.pp):
            self.busy[r] += took.sync + took.optimizer[r]
            self.total += took.sync + took.optimizer[r] + (took.gather[r] if plan.gather_after else 0.0)
        return Played(max(ends), self.busy, self.total)


def play(schedule: Schedule, pp: int, microbatches: int, vpp: int, plan: Plan, took: Durations) -> Played:
    """Step seconds of a schedule with given durations."""
    game = _Play(schedule, pp, microbatches, vpp, plan, took)
    game.run()
    return game.finish()
