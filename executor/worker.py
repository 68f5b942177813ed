"""The torchrun entry: ``torchrun --nproc_per_node N -m executor.worker --plan plan.json --out DIR``.

`--plan` may be repeated: the plans share one launch and are timed in turn.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from executor import check, measure, messages, process, summary, support, timing, torch_adapter
from executor.job import Job
from hwmodels.errors import RunError
from planner.model import read_config
from planner.model.spec import ModelSpec
from planner.plan import Plan
from planner.plan_io import load_plan
from planner.results_io import save_measurement

CHECK_LIMIT = {"cpu": 150_000_000, "cuda": 2_000_000_000}
"""Parameters above which a narrow copy of the model is checked: weights and gradients of the
whole model must fit beside the plan in every process."""


def arguments() -> argparse.Namespace:
    """Command line of a worker."""
    parser = argparse.ArgumentParser(prog="executor.worker", description="Check and time plans on this rank.")
    parser.add_argument("--plan", action="append", required=True, help="plan.json; may be repeated")
    parser.add_argument("--out", required=True, help="folder for measured.json files")
    parser.add_argument("--repeats", type=int, default=20, help="timed steps at least")
    parser.add_argument("--warmup", type=int, default=3, help="steps before")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per rank")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a collective may take")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no more repeats are added")
    parser.add_argument("--only-check", action="store_true", help="check, and time nothing")
    return parser.parse_args()


def progress(text: str) -> None:
    """A line for the launcher, from rank 0."""
    if dist.get_rank() == 0:
        messages.say("progress", text=text)


def _mismatch(name: str, verdict: dict[str, Any]) -> str:
    return (
        f"plan {name} does not compute what a single process does: loss off by {verdict['loss_rel_err']:.1e}, "
        f"gradient of {verdict['worst_parameter']} by {verdict['grad_rel_err']:.1e}, next loss by "
        f"{verdict['next_loss_rel_err']:.1e} (relative), more than {verdict['tolerance']:.0e}; nothing was timed"
    )


class Session:
    """Plans of one launch on this rank."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch_adapter.check_version()
        self.backend = process.start(args.device, args.threads, args.timeout)
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(args.seed)
        self.recorder = timing.Recorder(self.backend)
        timing.install(self.recorder)
        self.watch = torch_adapter.CommunicationWatch(self.recorder)
        progress(f"{dist.get_world_size()} ranks on {self.backend.device.type} with {self.backend.collectives}")
        self.plans: list[tuple[Plan, ModelSpec]] = []
        for path in args.plan:
            plan = load_plan(path)
            spec = read_config(plan.model, plan.model_name)
            support.require(plan, spec)
            if plan.layout.world != dist.get_world_size():
                raise RunError(
                    f"plan {plan.name} needs {plan.layout.world} ranks; {dist.get_world_size()} were started"
                )
            self.plans.append((plan, spec))
        self._references: dict[tuple[Any, ...], check.Reference] = {}

    def build(self, plan: Plan, spec: ModelSpec) -> Job:
        """A plan on this rank, told to the communication watch."""
        job = Job(plan, spec, self.backend, self.recorder, self.args.seed)
        self.watch.begin(job.groups.axes)
        return job

    def _reference(self, plan: Plan, spec: ModelSpec) -> check.Reference:
        # Gradients do not depend on how the batch is cut, so plans of one model share a reference.
        key = (spec, plan.workload.seq_len, plan.workload.gbs, plan.workload.optimizer)
        if key not in self._references:
            self._references.clear()
            self._references[key] = check.reference(plan, spec, self.backend, self.args.seed)
        return self._references[key]

    def verify(self) -> tuple[list[Job], list[dict[str, Any]]]:
        """Build and check every plan; the jobs are those to be timed."""
        jobs, verdicts = [], []
        for plan, spec in self.plans:
            small_spec, small_plan = check.reduced(spec, plan, CHECK_LIMIT[self.backend.device.type])
            job = self.build(small_plan, small_spec)
            verdict = check.verify(job, self._reference(small_plan, small_spec))
            verdict["actions_executed"] = self._executed(job)
            if not verdict["passed"]:
                raise RunError(_mismatch(plan.name, verdict))
            progress(f"{plan.name}: equals a single process (gradients within {verdict['grad_rel_err']:.1e})")
            verdicts.append(verdict)
            if small_spec is not spec:
                del job
                job = self.build(plan, spec)
            jobs.append(job)
        self._references.clear()
        return jobs, verdicts

    def _executed(self, job: Job) -> bool:
        """Whether every pipeline rank ran exactly the compute actions of the plan, in order."""
        if job.runtime is None:
            return True
        same = job.executed == list(job.plan.actions[job.groups.pp_rank])
        everywhere: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, same)
        if not all(everywhere):
            raise RunError(
                f"plan {job.plan.name}: the pipeline ran other actions than the plan lists "
                f"(ranks {[r for r, ok in enumerate(everywhere) if not ok]})"
            )
        return True

    def run(self) -> None:
        """Check, time, and write one measured.json a plan."""
        started = time.perf_counter()
        jobs, verdicts = self.verify()
        progress(f"checked in {time.perf_counter() - started:.1f} s")
        if self.args.only_check:
            for (plan, _), verdict in zip(self.plans, verdicts, strict=True):
                if dist.get_rank() == 0:
                    messages.say("checked", plan=plan.name, verdict=verdict)
            return
        with self.watch.installed():
            series = measure.time_plans(
                jobs,
                self.recorder,
                self.watch,
                repeats=self.args.repeats,
                warmup=self.args.warmup,
                budget_s=self.args.budget,
                on_progress=progress,
            )
        offset = process.clock_offset_s()
        for number, (job, found, verdict) in enumerate(zip(jobs, series, verdicts, strict=True)):
            self._write(number, job, found, verdict, offset)

    def _write(self, number: int, job: Job, found: measure.Series, verdict: dict[str, Any], offset: float) -> None:
        peak = measure.peak_bytes(job)
        losses = measure.global_losses(job, found.losses)
        for step in found.steps:
            step.start_s += offset
        sends: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(sends, summary.send_times(found))
        for i, step in enumerate(found.steps):
            summary.split_waits(step, {k: v for rank in sends for k, v in rank[i].items()})
        starts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(starts, found.steps[-1].start_s)
        rank = dist.get_rank()
        mine = {
            "step_s": found.step_s,
            "records": summary.records(rank, found),
            "phases": summary.rank_phases(found),
            "timeline": summary.timeline(rank, found.steps[-1], min(starts)),
            "peak_bytes": peak,
        }
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        if rank != 0:
            return
        environment = {
            **self.backend.environment(),
            "ranks": dist.get_world_size(),
            "warmup": self.args.warmup,
            "seed": self.args.seed,
            "interleaved_with": [p.name for p, _ in self.plans if p is not job.plan],
        }
        result = summary.measurement(job.plan, everyone, environment, verdict, losses)
        path = save_measurement(result, Path(self.args.out) / f"{number:02d}" / "measured.json")
        messages.say("written", number=number, path=str(path))


def run() -> None:
    """Body of a worker."""
    Session(arguments()).run()


if __name__ == "__main__":
    process.main(run)
