"""Two processes, each with its own part of the data, fit the posterior that one process fits to all of it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn

from lrformer.core import ConfigError
from lrformer.heads import FittedGP, LaplacePosterior, RandomFeatureGPConfig
from lrformer.methods import create_method
from lrformer.training.posterior import fit_posterior
from tests.methods.tiny import tiny_lrformer
from tests.processes import run_together
from tests.tolerance import assert_close

CALIBRATED = RandomFeatureGPConfig(num_random_features=32, feature_scale="calibrate")


class Inside(nn.Module):
    """Somebody's model with a process of ours at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.head = FittedGP(64, 3, CALIBRATED)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


def backbone() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return tiny_lrformer(depth=1)


def data() -> Tensor:
    x = torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    # The parts of the two processes are not alike.
    x[:30] *= 0.2
    return x


def batches(x: Tensor) -> list[Tensor]:
    return [batch for batch in x.split(16) if len(batch)]


def fitted(x: Tensor) -> dict[str, Tensor]:
    """Return the variances of a method with a fitted process, and of a classifier that gets one."""
    settings = {"head": "fitted", "feature_scale": "calibrate", "num_random_features": 32}
    method = create_method("lrformer", backbone, 3, **settings)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    torch.nn.init.eye_(linear[1].weight)
    inside = Inside()
    seen = torch.ones(2, 1, 8, 8)
    variances = {
        name: fit_posterior(model, batches(x), config=CALIBRATED if name == "classifier" else None)
        .predict(seen)
        .variance
        for name, model in (("method", method), ("classifier", linear))
    }
    fit_posterior(inside, batches(x))
    return variances | {"inside": inside.head.predict(seen.flatten(1)).variance}


def moving_average(batches: list[Tensor]) -> Tensor:
    posterior = LaplacePosterior(64, 2, momentum=0.5)
    for batch in batches:
        posterior.update(batch.flatten(1))
    posterior.refresh()
    return posterior.precision


def continued(own: Tensor) -> Tensor:
    """Return a moving average that is written before `refresh`, read, and goes on."""
    first, second = (LaplacePosterior(64, 2, momentum=0.5) for _ in range(2))
    first.update(own[:10].flatten(1))
    second.load_state_dict(first.state_dict())
    second.update(own[10:20].flatten(1))
    second.refresh()
    return second.precision


def run_process(rank: int, folder: Path) -> None:
    distributed.init_process_group("gloo")
    torch.manual_seed(5 * rank)  # every process draws other random features
    own = data().chunk(2)[rank]
    result = fitted(own)
    # One batch more in the first process.
    result["average"] = moving_average(list(own[: 20 - 10 * rank].split(10)))
    result["continued"] = continued(own)
    # Nothing for the second process, then nothing for anybody.
    torch.manual_seed(5 * rank)
    alone = fitted(data()[: 60 * (1 - rank)])
    result |= {f"{name} alone": variance for name, variance in alone.items()}
    with pytest.raises(ConfigError, match="loader is empty"):
        fitted(data()[:0])
    torch.save(result, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, Tensor]]:
    folder: Path = tmp_path_factory.mktemp("processes")
    run_together(run_process, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", ["method", "classifier", "inside"])
def test_the_posterior_is_that_of_one_process(results, name) -> None:
    torch.manual_seed(0)
    expected = fitted(data())
    for result in results:
        assert_close(result[name], expected[name], 1e-4)


@pytest.mark.parametrize("name", ["method", "classifier", "inside"])
def test_a_process_without_data_keeps_up_with_the_others(results, name) -> None:
    torch.manual_seed(0)
    expected = fitted(data())
    for result in results:
        assert_close(result[f"{name} alone"], expected[name], 1e-4)


def test_a_moving_average_waits_for_nobody(results) -> None:
    first, second = data().chunk(2)
    own = [moving_average(list(first[:20].split(10))), moving_average([second[:10]])]
    expected = (2 * own[0] + own[1]) / 3
    for result in results:
        assert_close(result["average"], expected, 1e-6)


def test_a_moving_average_that_was_written_goes_on(results) -> None:
    own = [moving_average(list(part[:20].split(10))) for part in data().chunk(2)]
    for result in results:
        assert_close(result["continued"], (own[0] + own[1]) / 2, 1e-6)
