"""What only a GPU can show: a captured step is the plain step, and every method survives the attempt."""

import math

import pytest
import torch

from lrformer.data import AugmentConfig
from lrformer.methods import list_methods
from lrformer.training import RuntimeConfig, train
from lrformer.training.journal import read_log
from tests.tolerance import assert_close
from tests.training.small import PLAIN, flat, small
from tests.training.test_train import OVERRIDES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("name", "lr"), [("adamw", 1e-3), ("sgd", 0.02), ("lamb", 1e-2), ("muon", 1e-3)]
)
def test_a_captured_step_is_the_plain_step(tmp_path, name, lr):
    config = small(PLAIN, name=name, lr=lr, precision="float32", ema_decay=0.9, accumulate=2)
    for graph in (True, False):
        runtime = RuntimeConfig(device="cuda", quiet=True, cuda_graph=graph)
        train(config, tmp_path / str(graph), runtime=runtime)
    captured, plain = (flat(tmp_path / str(graph), "model.safetensors") for graph in (True, False))
    assert_close(captured, plain, 1e-4)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_captured_step_averages_statistics_and_augments_like_the_plain_one(tmp_path, is_compiled):
    torch.compiler.reset()
    config = small(
        PLAIN,
        model="wide_resnet28_10",
        model_overrides={"depth": 10, "widen_factor": 1},
        augment=AugmentConfig(crop="shift", flip=True, mixup_alpha=0.5, mix_probability=0.5),
        name="sgd",
        lr=0.02,
        precision="float32",
        ema_decay=0.9,
        accumulate=2,
    )
    for graph in (True, False):
        runtime = RuntimeConfig(device="cuda", quiet=True, cuda_graph=graph, compile=is_compiled)
        train(config, tmp_path / str(graph), runtime=runtime)
    captured, plain = (flat(tmp_path / str(graph), "model.safetensors") for graph in (True, False))
    # Convolutions round to TF32 and may be computed in another order under a graph.
    assert_close(captured, plain, 1e-2)


def test_a_step_of_due_can_be_captured(tmp_path):
    config = small(method="due", method_overrides={}, epochs=2, label_smoothing=0.0)
    # Where it is asked for and fails, this raises.
    runtime = RuntimeConfig(device="cuda", quiet=True, cuda_graph=True)
    for epoch in read_log(train(config, tmp_path, runtime=runtime).path):
        assert math.isfinite(epoch["loss"])


@pytest.mark.parametrize("method", list_methods())
def test_every_method_trains_on_a_gpu(tmp_path, method):
    config = small(method=method, method_overrides=OVERRIDES.get(method, {}), epochs=2)
    run = train(config, tmp_path, runtime=RuntimeConfig(device="cuda", quiet=True))
    assert run.predict(torch.zeros(2, 8, 8, 1, dtype=torch.uint8)).logits.isfinite().all()
    assert run.device.type == "cuda"
