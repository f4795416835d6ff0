"""Two processes on the CPU give the posterior and the centroids that one process gives."""

from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from lrformer.heads import DUQHead, RandomFeatureGP, RandomFeatureGPConfig
from tests.processes import run_together
from tests.tolerance import assert_close


def build(momentum: float | None) -> RandomFeatureGP:
    config = RandomFeatureGPConfig(num_random_features=16, momentum=momentum)
    return RandomFeatureGP(3, 2, config, generator=torch.Generator().manual_seed(0))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 3, generator=generator)
    return x, torch.randint(2, (24,), generator=generator)


def run_epoch(head: nn.Module, gp: RandomFeatureGP, batches: list[Tensor]) -> None:
    gp.reset()
    for batch in batches:
        head(batch)
    gp.refresh()


def run_process(rank: int, folder: Path) -> None:
    distributed.init_process_group("gloo")
    x, y = data()
    own, own_y = x[rank * 12 : rank * 12 + 12], y[rank * 12 : rank * 12 + 12]
    result = {}
    for name, momentum in (("sum", None), ("momentum", 0.5)):
        gp = build(momentum)
        wrapped = DistributedDataParallel(gp)  # broadcasts buffers of process 0 at every forward
        for _ in range(2):
            run_epoch(wrapped, gp, list(own.split(4)))
        gp.refresh()  # once more: nothing is counted twice
        result[name] = gp.posterior.precision
        result[f"{name} variance"] = gp.variance(x)
    duq = DUQHead(3, 2, centroid_dim=4, generator=torch.Generator().manual_seed(0))
    for rows in (slice(0, 6), slice(6, 12)):
        duq.update_centroids(own[rows], own_y[rows])
    result["centroids"] = duq.centroids
    torch.save(result, folder / f"{rank}.pt")


def test_two_processes_give_the_posterior_of_one(tmp_path: Path) -> None:
    run_together(run_process, tmp_path)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    x, y = data()
    # One process sees, at each step, what the two saw together.
    steps = [torch.cat([x[i : i + 4], x[12 + i : 16 + i]]) for i in (0, 4, 8)]
    for name, momentum in (("sum", None), ("momentum", 0.5)):
        gp = build(momentum)
        for _ in range(2):
            run_epoch(gp, gp, steps)
        for result in results:
            assert_close(result[name], gp.posterior.precision, 1e-6)
            assert_close(result[f"{name} variance"], gp.variance(x), 1e-5)
    duq = DUQHead(3, 2, centroid_dim=4, generator=torch.Generator().manual_seed(0))
    for i in (0, 6):
        rows = torch.cat([torch.arange(i, i + 6), torch.arange(12 + i, 18 + i)])
        duq.update_centroids(x[rows], y[rows])
    for result in results:
        assert_close(result["centroids"], duq.centroids, 1e-5)
