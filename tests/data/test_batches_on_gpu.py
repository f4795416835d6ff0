import pytest
import torch

from lrformer.data import SHIFT_AND_FLIP, AugmentConfig, DeviceBatches, corrupt, list_corruptions

pytestmark = pytest.mark.gpu

CONFIGS = {
    "light": SHIFT_AND_FLIP,
    "heavy": AugmentConfig(crop="shift", flip=True, policy="trivial", erase_probability=0.5,
                           mixup_alpha=0.5, cutmix_alpha=1.0),
    "resized": AugmentConfig(crop="resized", flip=True, policy="rand"),
    "augmix": AugmentConfig(policy="augmix"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_batches_on_the_gpu_are_those_on_the_cpu(random_split, name):
    split = random_split(64, side=32)
    made = [
        list(DeviceBatches(split, batch_size=16, augment=CONFIGS[name], shuffle=True, device=d).epoch(1))
        for d in ("cpu", "cuda")
    ]  # fmt: skip
    for one, other in zip(*made, strict=True):
        assert other.inputs.device.type == "cuda"
        assert torch.equal(one.indices, other.indices.cpu())
        # A pixel on a threshold (solarize, posterize) may fall on either side by the last bit.
        is_far = (one.inputs - other.inputs.cpu()).abs() > 1e-3
        assert is_far.float().mean() < 1e-4


@pytest.mark.parametrize(
    ("name", "is_compiled"), [*((name, False) for name in CONFIGS), ("heavy", True)]
)
def test_a_batch_can_be_captured_in_a_cuda_graph(random_split, name, is_compiled):
    batches = DeviceBatches(
        random_split(64, side=32),
        batch_size=16,
        augment=CONFIGS[name],
        device="cuda",
        is_compiled=is_compiled,
    )
    indices = torch.arange(16, device="cuda")
    keys = batches.keys(indices, 0)
    warm_up = torch.cuda.Stream()
    with torch.cuda.stream(warm_up):
        batches.assemble(indices, keys)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = batches.assemble(indices, keys)
    indices.copy_(torch.arange(16, 32))
    keys.copy_(batches.keys(indices, 3))
    graph.replay()
    torch.cuda.synchronize()
    expected = batches.assemble(indices, keys)
    torch.testing.assert_close(captured.inputs, expected.inputs)
    assert torch.equal(captured.labels, expected.labels)


@pytest.mark.parametrize("kind", list_corruptions())
def test_corruptions_on_the_gpu_are_those_on_the_cpu(kind):
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    indices = torch.arange(8)
    one = corrupt(images, kind, severity=4, indices=indices)
    other = corrupt(images.cuda(), kind, severity=4, indices=indices.cuda()).cpu()
    is_far = (one - other).abs() > 1e-3
    # A coefficient of JPEG on the edge of two steps may be rounded either way.
    assert is_far.float().mean() < (0.02 if kind == "jpeg_compression" else 1e-4)
