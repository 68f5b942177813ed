"""Each internal of PyTorch that the adapter leans on, so that a new version fails here by name."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup  # noqa: E402
from torch.distributed.pipelining import PipelineStage, schedules  # noqa: E402

from executor import torch_adapter  # noqa: E402
from executor.device import Backend  # noqa: E402
from executor.summary import split_waits  # noqa: E402
from executor.timing import Recorder, StepTimes  # noqa: E402
from hwmodels.errors import RunError  # noqa: E402


def test_version_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_adapter.check_version()
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    with pytest.raises(RunError, match=r"3\.0\.0 is installed"):
        torch_adapter.check_version()


def test_actions_are_read_as_written() -> None:
    for text in ("0F3", "12B0", "1I2", "1W2"):
        assert str(schedules._Action.from_str(text)) == text


def test_the_runtime_has_what_is_used() -> None:
    assert list(inspect.signature(schedules._batch_p2p).parameters) == ["p2p_ops", "desc"]
    assert list(inspect.signature(schedules._wait_batch_p2p).parameters) == ["work"]
    runtime = schedules._PipelineScheduleRuntime
    assert "actions" in inspect.signature(runtime._prepare_schedule_with_comms).parameters
    for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk", "perform_reduce_grad"):
        assert hasattr(PipelineStage, name)
    assert "full_backward" in inspect.signature(PipelineStage.backward_one_chunk).parameters


def test_wrapping_is_undone() -> None:
    recorder = Recorder(Backend(torch.device("cpu"), "gloo"))
    before = (
        dist.all_reduce,
        functional.wait_tensor,
        dist.Work.wait,
        schedules._batch_p2p,
        FSDPParamGroup.wait_for_unshard,
    )
    with torch_adapter.CommunicationWatch(recorder).installed():
        assert dist.all_reduce is not before[0] and dist.Work.wait is not before[2]
    after = (
        dist.all_reduce,
        functional.wait_tensor,
        dist.Work.wait,
        schedules._batch_p2p,
        FSDPParamGroup.wait_for_unshard,
    )
    assert before == after


def test_sizes_follow_the_nccl_tests_convention() -> None:
    whole, part = torch.zeros(8), torch.zeros(4)
    assert torch_adapter.communication_size({"output_tensor": whole, "input_tensor": part}) == 32
    assert torch_adapter.communication_size({"output": part, "input": whole}) == 32
    assert torch_adapter.communication_size({"tensor": part, "group": None}) == 16


def test_waiting_for_what_was_not_sent_is_bubble() -> None:
    # The receiver waits from 10.0+0.2 to 10.0+0.7; the sender issues at 10.5: 0.3 s of bubble, 0.2 s of transfer.
    span = {"phase": "pp_comm", "key": ("wait", "recv", 0, 1, 0), "start_s": 0.2, "end_s": 0.7}
    step = StepTimes(10.0, 1.0, {"pp_comm": 0.5, "forward": 0.5}, [span], {})
    split_waits(step, {(0, 1, 0): 10.5})
    assert step.phases == pytest.approx({"pp_comm": 0.2, "bubble": 0.3, "forward": 0.5})
    # Sent before the wait began: all of it is transfer.
    early = StepTimes(10.0, 1.0, {"pp_comm": 0.5}, [dict(span)], {})
    split_waits(early, {(0, 1, 0): 9.0})
    assert early.phases == pytest.approx({"pp_comm": 0.5, "bubble": 0.0})
