"""Which devices the suite covers. Those that this machine lacks skip here, once and by name."""

import pytest
import torch

ALL = {
    "cpu": lambda: True,
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
}


def test_device_is_one_that_works(device):
    assert torch.ones(2, device=device).sum().item() == 2


@pytest.mark.parametrize("name", ALL)
def test_device_is_covered(name, request):
    """Every test with the fixture `device` ran on the devices that pass here, and on no other."""
    if not ALL[name]():
        pytest.skip(f"no {name} device on this machine: no test ran on {name}")
    covered = {
        item.callspec.params["device"]
        for item in request.session.items
        if "device" in getattr(getattr(item, "callspec", None), "params", {})
    }
    assert name in covered
