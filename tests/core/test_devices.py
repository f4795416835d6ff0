import pytest
import torch

from lrformer.core import ConfigError, choose_device


def test_auto_is_the_gpu_where_there_is_one(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")


def test_a_gpu_that_torch_does_not_see_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for device in ("cuda", "cuda:0", torch.device("cuda")):
        with pytest.raises(ConfigError, match="torch sees no GPU; take auto or cpu"):
            choose_device(device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1").index == 1
    with pytest.raises(ConfigError, match="torch sees 2 GPU"):
        choose_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:-1", 3.5])
def test_what_is_no_device_is_refused_by_name(name) -> None:
    with pytest.raises(ConfigError, match="must be auto, cpu, cuda or cuda:N"):
        choose_device(name)
