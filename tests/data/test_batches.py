import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError
from lrformer.data import SHIFT_AND_FLIP, AugmentConfig, DeviceBatches, batches, two_moons
from lrformer.data.batches import _compiled

HEAVY = AugmentConfig(
    crop="shift", flip=True, policy="trivial", erase_probability=0.5, mixup_alpha=0.5, cutmix_alpha=1.0
)  # fmt: skip


def _by_index(batches):
    """Return inputs and targets of every sample, by the row it came from."""
    found = {}
    for batch in batches:
        for k, index in enumerate(batch.indices.tolist()):
            assert index not in found
            found[index] = (batch.inputs[k], None if batch.targets is None else batch.targets[k])
    return found


def _assert_same(one, other):
    assert one.keys() == other.keys()
    for index, (inputs, targets) in one.items():
        torch.testing.assert_close(inputs, other[index][0], rtol=0, atol=1e-5)
        if targets is not None:
            torch.testing.assert_close(targets, other[index][1], rtol=0, atol=1e-6)


def test_plain_batches_are_the_normalized_images_in_order(random_split):
    split = random_split(10)
    batches = list(DeviceBatches(split, batch_size=4).epoch())
    assert [len(b.labels) for b in batches] == [4, 4, 2]
    inputs = torch.cat([b.inputs for b in batches])
    expected = (split.x / 255 - np.array(split.mean)) / np.array(split.std)
    np.testing.assert_allclose(inputs.permute(0, 2, 3, 1).numpy(), expected, atol=1e-5)
    assert torch.cat([b.labels for b in batches]).tolist() == split.y.tolist()
    assert batches[0].targets is None


def test_every_epoch_has_an_order_of_its_own_that_holds_each_sample_once(random_split):
    batches = DeviceBatches(random_split(40), batch_size=8, shuffle=True, seed=1)
    first, again, second = (batches.order(epoch) for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert first.sort().values.tolist() == list(range(40))
    drawn = torch.cat([b.indices for b in batches.epoch(1)])
    assert torch.equal(drawn, second)


@pytest.mark.parametrize("augment", [SHIFT_AND_FLIP, HEAVY], ids=["light", "heavy"])
def test_a_sample_is_the_same_whatever_the_batch_size_and_number_of_processes(
    random_split, augment
):
    split = random_split(48)
    one = _by_index(DeviceBatches(split, batch_size=16, augment=augment, shuffle=True).epoch(3))
    small = _by_index(DeviceBatches(split, batch_size=6, augment=augment, shuffle=True).epoch(3))
    _assert_same(one, small)
    parts = [
        DeviceBatches(split, batch_size=8, augment=augment, shuffle=True, rank=rank, world_size=2)
        for rank in range(2)
    ]
    both = [b for part in parts for b in part.epoch(3)]
    _assert_same(one, _by_index(both))
    # Step by step, two processes of eight hold what one process of sixteen holds.
    single = list(DeviceBatches(split, batch_size=16, shuffle=True).epoch(3))
    pairs = zip(single, parts[0].epoch(3), parts[1].epoch(3), strict=True)
    for whole, left, right in pairs:
        assert torch.equal(whole.indices, torch.cat([left.indices, right.indices]))


def test_compiled_batches_are_the_plain_ones_up_to_rounding(random_split):
    torch.compiler.reset()
    augment = dataclasses.replace(HEAVY, policy="rand", num_operations=1, magnitude=0.6)
    settings = {"batch_size": 16, "augment": augment, "shuffle": True}
    split = random_split(70)
    plain = DeviceBatches(split, **settings)
    compiled = DeviceBatches(split, is_compiled=True, **settings)
    torch._dynamo.utils.counters.clear()
    for one, other in zip(plain.epoch(1), compiled.epoch(1), strict=True):
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.indices, other.indices)
        torch.testing.assert_close(one.targets, other.targets, rtol=0, atol=1e-6)
        # A pixel on a threshold (solarize, posterize) may fall on either side by the last bit.
        is_far = (one.inputs - other.inputs).abs() > 1e-4
        assert is_far.float().mean() < 1e-3
    # One graph for own images and partners, one that mixes them, none for the last six, and nothing that breaks them.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.fixture
def traced_only(monkeypatch):
    """Let `torch.compile` trace and guard as ever, but run the graph as it is: that takes no time."""
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: compile_with(f, backend="eager", **how))
    _compiled.cache_clear()
    torch.compiler.reset()
    yield
    _compiled.cache_clear()


@pytest.mark.usefixtures("traced_only")
def test_every_config_is_traced_once_and_anew_after_a_reset(random_split):
    split = random_split(32)

    def num_graphs(augment: AugmentConfig) -> int:
        torch._dynamo.utils.counters.clear()
        settings = {"batch_size": 16, "augment": augment, "shuffle": True}
        # The compiled one first: what it keeps must be as good for plain code.
        ours = list(DeviceBatches(split, is_compiled=True, **settings).epoch())
        for one, plain in zip(ours, DeviceBatches(split, **settings).epoch(), strict=True):
            assert torch.equal(one.inputs, plain.inputs)
            assert torch.equal(one.targets, plain.targets)
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    base = AugmentConfig(crop="shift", erase_probability=0.5, mixup_alpha=0.37, cutmix_alpha=1.0)
    assert num_graphs(base) == 2
    for changes in (
        {"crop_padding": 2},
        {"flip": True},
        {"erase_probability": 0.3},
        {"mix_probability": 0.5},
    ):
        assert num_graphs(dataclasses.replace(base, **changes)) == 1, changes
    for changes in ({}, {"mixup_alpha": 0.7}, {"cutmix_alpha": 0.4}):
        assert num_graphs(dataclasses.replace(base, **changes)) == 0, changes
    # A table of many rows resets between them, and so never meets torch's limit of eight graphs.
    for padding in range(9):
        torch.compiler.reset()
        assert num_graphs(dataclasses.replace(base, crop_padding=padding)) == 2


@pytest.mark.parametrize(
    "changes", [{"device_bytes": 0}, {"augment": AugmentConfig(policy="augmix")}]
)
def test_sets_on_the_disk_and_augmix_are_not_compiled(random_split, changes):
    split = random_split(8)
    assert DeviceBatches(split, batch_size=4, is_compiled=True).is_compiled
    assert not DeviceBatches(split, batch_size=4, is_compiled=True, **changes).is_compiled


def test_another_epoch_or_seed_augments_anew(random_split):
    split = random_split(16)

    def inputs(epoch, seed):
        batches = DeviceBatches(split, batch_size=16, augment=SHIFT_AND_FLIP, seed=seed)
        return next(iter(batches.epoch(epoch))).inputs

    assert not torch.equal(inputs(0, 0), inputs(1, 0))
    assert not torch.equal(inputs(0, 0), inputs(0, 1))
    assert torch.equal(inputs(1, 1), inputs(1, 1))


def test_an_epoch_resumed_in_the_middle_goes_on_to_the_bit(random_split):
    batches = DeviceBatches(random_split(40), batch_size=8, augment=HEAVY, shuffle=True)
    whole, rest = list(batches.epoch(2)), list(batches.epoch(2, first_step=3))
    assert len(rest) == 2
    for expected, found in zip(whole[3:], rest, strict=True):
        assert torch.equal(expected.inputs, found.inputs)
        assert torch.equal(expected.indices, found.indices)


@pytest.mark.parametrize("augment", [None, HEAVY], ids=["plain", "heavy"])
def test_a_set_too_large_for_the_device_gives_the_same_batches(random_split, tmp_path, augment):
    split = random_split(30)
    np.save(tmp_path / "x.npy", split.x)
    mapped = dataclasses.replace(split, x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    mapped = mapped.take(np.arange(29, -1, -1))
    resident = DeviceBatches(mapped, batch_size=4, augment=augment, shuffle=True)
    streamed = DeviceBatches(mapped, batch_size=4, augment=augment, shuffle=True, device_bytes=0)
    assert resident.is_resident
    assert not streamed.is_resident
    for one, other in zip(resident.epoch(1), streamed.epoch(1), strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)


def test_mixed_targets_name_the_label_and_the_partner_that_was_pasted(random_split):
    split = random_split(12, num_classes=12, channels=1)
    # One gray level a class: the pixels of a mixed image say which classes are in it.
    levels = np.arange(12, dtype=np.uint8) * 20
    split = dataclasses.replace(
        split, x=np.broadcast_to(levels[:, None, None, None], (12, 8, 8, 1)).copy(),
        mean=(0.0,), std=(1.0,),
    )  # fmt: skip
    batches = DeviceBatches(split, batch_size=12, augment=AugmentConfig(cutmix_alpha=1.0))
    batch = next(iter(batches.epoch()))
    assert batch.targets is not None
    shares = torch.stack(
        [((batch.inputs * 255 / 20).round() == k).float().mean(dim=(1, 2, 3)) for k in range(12)],
        dim=1,
    )
    torch.testing.assert_close(batch.targets, shares, rtol=0, atol=1e-6)
    assert (batch.targets.max(dim=1).values < 1).any()


def test_images_that_are_not_mixed_keep_their_pixels_and_their_label(random_split):
    split = random_split(64)

    def batch(**changes):
        augment = dataclasses.replace(HEAVY, **changes)
        return next(iter(DeviceBatches(split, batch_size=64, augment=augment).epoch()))

    every, half, none = batch(), batch(mix_probability=0.5), batch(mix_probability=0.0)
    plain = batch(mixup_alpha=0.0, cutmix_alpha=0.0)
    labels = torch.nn.functional.one_hot(plain.labels, 4).float()
    is_own = (half.inputs == plain.inputs).flatten(1).all(dim=1)
    assert 0.3 < is_own.float().mean() < 0.7
    assert torch.equal(half.targets[is_own], labels[is_own])
    assert torch.equal(half.inputs[~is_own], every.inputs[~is_own])
    assert torch.equal(half.targets[~is_own], every.targets[~is_own])
    assert none.targets is None
    assert torch.equal(none.inputs, plain.inputs)


def test_finished_images_are_scaled_on_the_device(random_split):
    split = random_split(4)
    small = next(iter(DeviceBatches(split, batch_size=4).epoch())).inputs
    large = next(iter(DeviceBatches(split, batch_size=4, image_size=20).epoch())).inputs
    expected = torch.nn.functional.interpolate(small, (20, 20), mode="bilinear", antialias=True)
    torch.testing.assert_close(large, expected)


def test_points_are_normalized_and_not_augmented():
    moons = two_moons(64)
    batch = next(iter(DeviceBatches(moons, batch_size=64).epoch()))
    torch.testing.assert_close(batch.inputs.mean(dim=0), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(batch.inputs.std(dim=0, correction=0), torch.ones(2))
    with pytest.raises(ConfigError, match="points, not images"):
        DeviceBatches(moons, batch_size=8, augment=SHIFT_AND_FLIP)


def test_lengths_count_the_batches_and_impossible_ones_are_refused(random_split):
    split = random_split(42)
    assert len(DeviceBatches(split, batch_size=8)) == 6
    dropped = DeviceBatches(split, batch_size=8, drop_last=True)
    assert len(dropped) == 5
    assert len(list(dropped.epoch())) == 5
    with pytest.raises(ConfigError, match=r"batch_size \(0\)"):
        DeviceBatches(split, batch_size=0)
    with pytest.raises(ConfigError, match="fewer than one batch of 64"):
        DeviceBatches(split, batch_size=64, drop_last=True)
    with pytest.raises(ConfigError, match=r"rank \(2\)"):
        DeviceBatches(split, batch_size=4, rank=2, world_size=2)
    with pytest.raises(ConfigError, match="2 samples for 4 processes"):
        DeviceBatches(split, batch_size=10, world_size=4)


def test_a_set_that_takes_more_than_half_of_the_free_memory_stays_on_the_disk(
    random_split, monkeypatch
):
    split = random_split(40)
    num_bytes = split.x.nbytes
    for free, is_resident in ((2 * num_bytes + 2, True), (2 * num_bytes - 2, False)):
        memory = SimpleNamespace(available=free)
        monkeypatch.setattr(batches.psutil, "virtual_memory", lambda memory=memory: memory)
        found = DeviceBatches(split, batch_size=8)
        assert found.is_resident == is_resident
        (first, *_) = found.epoch()
        assert first.indices.tolist() == list(range(8))
