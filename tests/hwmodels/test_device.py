"""`Device` checks itself when it is built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels.device import Device
from hwmodels.errors import InputError


def test_device_is_checked_when_built() -> None:
    good = Device("toy", "test", "gpu", "toy", {"bf16": 100e12}, 8e9, 1e12, 1e6, 100, 100.0, 5e-6)
    with pytest.raises(InputError) as error:
        replace(good, kind="fpga", memory_bytes=0.0, peak_flops={"bf17": 1.0})
    assert len(error.value.faults) == 3
