import math

import numpy as np
import pytest
import torch
from torchvision.transforms import functional as tv

from lrformer.core import ConfigError
from lrformer.data import AugmentConfig
from lrformer.data.augment import PLAIN, augment_images
from lrformer.data.crops import random_flips, resized_crop
from lrformer.data.policies import AUGMIX, OPERATIONS, STANDARD, WIDE, apply_operation
from lrformer.data.streams import Stream, sample_keys, sample_uniforms

EVERY_CONFIG = [
    AugmentConfig(crop="shift", flip=True),
    AugmentConfig(crop="resized", flip=True, min_scale=0.3),
    AugmentConfig(flip=True),
    AugmentConfig(policy="trivial"),
    AugmentConfig(policy="rand", magnitude=0.6),
    AugmentConfig(policy="augmix", magnitude=0.6),
]


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.integers(20, 236, (24, 3, 4, 4), dtype=np.uint8)).float()
    smooth = torch.nn.functional.interpolate(coarse, (16, 16), mode="bilinear")
    return smooth.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _keys(count, *, epoch=0):
    return sample_keys(torch.arange(count), seed=5, epoch=epoch)


def test_no_augmentation_is_the_image_scaled_to_one(images):
    plain = augment_images(images, _keys(24), PLAIN)
    torch.testing.assert_close(plain, images.permute(0, 3, 1, 2).float() / 255, rtol=0, atol=0)


def test_shift_and_flip_equal_padding_and_cutting_one_image_at_a_time(images):
    keys = _keys(24)
    config = AugmentConfig(crop="shift", crop_padding=3, flip=True)
    fast = augment_images(images, keys, config)
    offsets = (sample_uniforms(keys, Stream.CROP, 2) * 7).long()
    flips = random_flips(keys)
    for k in range(24):
        padded = np.pad(images[k].numpy(), ((3, 3), (3, 3), (0, 0)))
        top, left = offsets[k].tolist()
        cut = padded[top : top + 16, left : left + 16]
        cut = cut[:, ::-1] if flips[k] else cut
        np.testing.assert_array_equal((fast[k] * 255).round().permute(1, 2, 0).numpy(), cut)
    assert 4 < int(flips.sum()) < 20
    assert offsets.unique(dim=0).shape[0] > 10


def test_a_flip_alone_mirrors_half_of_the_images_and_shifts_none(images):
    keys = _keys(24)
    flipped = augment_images(images, keys, AugmentConfig(flip=True))
    plain = images.permute(0, 3, 1, 2).float() / 255
    flips = random_flips(keys)[:, None, None, None]
    assert torch.equal(flipped, torch.where(flips, plain.flip(3), plain))


@pytest.mark.parametrize("config", EVERY_CONFIG, ids=str)
def test_a_sample_is_augmented_alike_in_every_batch_and_anew_in_every_epoch(images, config):
    whole = augment_images(images, _keys(24), config)
    rows = torch.tensor([9, 2, 17])
    some = augment_images(images[rows], _keys(24)[rows], config)
    torch.testing.assert_close(some, whole[rows], rtol=0, atol=1e-6)
    assert 0 <= whole.min() <= whole.max() <= 1
    changed = (augment_images(images, _keys(24, epoch=1), config) - whole).abs().amax(dim=(1, 2, 3))
    assert (changed > 1e-3).float().mean() > 0.4


def test_a_resized_crop_interpolates_the_box_that_was_drawn(images):
    pixels = images.permute(0, 3, 1, 2).float() / 255
    keys = _keys(24)
    cut = resized_crop(pixels, keys, min_scale=0.2, flip=False)
    area, ratio, left, top = sample_uniforms(keys, Stream.CROP, 4).unbind(dim=1)
    area = 0.2 + 0.8 * area
    ratio = torch.exp((2 * ratio - 1) * torch.minimum(-area.log(), torch.tensor(math.log(4 / 3))))
    width, height = (area * ratio).sqrt(), (area / ratio).sqrt()
    assert max(width.max(), height.max()) <= 1
    for k in range(8):
        across = ((2 * torch.arange(16) + 1) / 16 - 1) * width[k] + (2 * left[k] - 1) * (
            1 - width[k]
        )
        down = ((2 * torch.arange(16) + 1) / 16 - 1) * height[k] + (2 * top[k] - 1) * (
            1 - height[k]
        )
        for r in (3, 8):
            for c in (5, 11):
                y, x = ((down[r] + 1) * 16 - 1) / 2, ((across[c] + 1) * 16 - 1) / 2
                expected = _bilinear(pixels[k], float(y), float(x))
                torch.testing.assert_close(cut[k, :, r, c], expected, rtol=0, atol=1e-5)


def _bilinear(image, y, x):
    y0, x0 = math.floor(y), math.floor(x)
    total = torch.zeros(3, dtype=image.dtype)
    for dy in (0, 1):
        for dx in (0, 1):
            weight = (1 - abs(y - y0 - dy)) * (1 - abs(x - x0 - dx))
            total += weight * image[:, min(max(y0 + dy, 0), 15), min(max(x0 + dx, 0), 15)]
    return total


def _operate(images, name, magnitude, *, up=True, ranges=STANDARD):
    pixels = images.permute(0, 3, 1, 2).float() / 255
    count = len(pixels)
    done = apply_operation(
        pixels,
        torch.full((count,), OPERATIONS.index(name)),
        torch.full((count,), magnitude),
        torch.full((count,), 0.9 if up else 0.1),
        ranges,
    )
    return pixels, done


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("brightness", tv.adjust_brightness),
        ("color", tv.adjust_saturation),
        ("contrast", tv.adjust_contrast),
        ("sharpness", tv.adjust_sharpness),
    ],
)
def test_the_color_operations_equal_torchvision(images, name, peer, up):
    pixels, ours = _operate(images, name, 0.5, up=up)
    factor = 1 + 0.45 if up else 1 - 0.45
    # torchvision rounds its weights of gray to four digits.
    torch.testing.assert_close(ours, peer(pixels, factor), rtol=0, atol=2e-4)


def test_posterize_solarize_and_autocontrast_equal_torchvision(images):
    pixels, ours = _operate(images, "posterize", 0.5)
    theirs = tv.posterize((pixels * 255).round().to(torch.uint8), 6).float() / 255
    torch.testing.assert_close(ours, theirs)
    _, ours = _operate(images, "solarize", 0.4)
    torch.testing.assert_close(ours, tv.solarize(pixels, 0.6))
    _, ours = _operate(images, "autocontrast", 0.7)
    torch.testing.assert_close(ours, tv.autocontrast(pixels))


def test_posterize_clears_the_bits_of_the_nearest_level_of_a_pixel_between_two(images):
    levels = images.permute(0, 3, 1, 2).float()
    done = apply_operation(
        (levels - 0.4) / 255,
        torch.full((24,), OPERATIONS.index("posterize")),
        torch.full((24,), 0.5),
        torch.full((24,), 0.9),
        STANDARD,
    )
    assert torch.equal(
        (done * 255).round().to(torch.uint8), tv.posterize(levels.to(torch.uint8), 6)
    )


def test_the_geometric_operations_equal_torchvision(images):
    bilinear = tv.InterpolationMode.BILINEAR
    pixels, ours = _operate(images, "rotate", 0.5)
    torch.testing.assert_close(ours, tv.rotate(pixels, 15.0, bilinear), rtol=0, atol=1e-5)
    _, ours = _operate(images, "translate_x", 0.5, ranges=WIDE)
    moved = torch.zeros_like(pixels)
    moved[..., :8] = pixels[..., 8:]
    torch.testing.assert_close(ours, moved, rtol=0, atol=1e-5)
    _, ours = _operate(images, "translate_y", 0.5, up=False, ranges=WIDE)
    moved = torch.zeros_like(pixels)
    moved[:, :, 8:] = pixels[:, :, :8]
    torch.testing.assert_close(ours, moved, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(12, 24), (24, 12)])
def test_images_that_are_not_square_are_turned_without_being_bent(shape):
    pixels = torch.rand(4, 3, *shape, generator=torch.Generator().manual_seed(0))
    angle = 15.0
    ours = apply_operation(
        pixels,
        torch.full((4,), OPERATIONS.index("rotate")),
        torch.full((4,), angle / STANDARD.degrees),
        torch.full((4,), 0.9),
        STANDARD,
    )
    theirs = tv.rotate(pixels, angle, tv.InterpolationMode.BILINEAR)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "axis"), [("shear_x", 2), ("shear_y", 3)])
def test_shear_moves_every_line_in_proportion_to_its_distance_from_the_center(name, axis):
    ramp = (torch.arange(16) / 32 + 0.25).view(1, 1, 1, 16).expand(1, 1, 16, 16)
    ramp = ramp if name == "shear_x" else ramp.transpose(2, 3)
    images = (ramp.permute(0, 2, 3, 1) * 255).round().to(torch.uint8)
    pixels, ours = _operate(images, name, 1.0)
    center = (torch.arange(16) - 7.5) * 0.3 / 32
    expected = pixels + (center.view(16, 1) if axis == 2 else center.view(1, 16))
    torch.testing.assert_close(
        ours[:, :, 4:12, 4:12], expected[:, :, 4:12, 4:12], rtol=0, atol=4e-3
    )


@pytest.mark.parametrize("name", [n for n in OPERATIONS if n not in {"autocontrast"}])
def test_magnitude_zero_changes_nothing(images, name):
    pixels, ours = _operate(images, name, 0.0)
    torch.testing.assert_close(ours, pixels, rtol=0, atol=1e-5)


def test_augmix_blends_the_image_with_three_weighted_chains_of_one_to_three_operations(images):
    keys = _keys(24)
    pixels = images.permute(0, 3, 1, 2).float() / 255
    mixed = augment_images(images, keys, AugmentConfig(policy="augmix", magnitude=0.6))
    lengths = []
    for k, row in enumerate(sample_uniforms(keys, Stream.POLICY, 34).tolist()):
        blend, first, chains = row[0], [-math.log(1 - u) for u in row[1:4]], row[4:]
        image = (1 - blend) * pixels[k : k + 1]
        for weight, start in zip(first, (0, 10, 20), strict=True):
            length, *drawn = chains[start : start + 10]
            lengths.append(1 + int(3 * length))
            changed = pixels[k : k + 1]
            for step in range(lengths[-1]):
                choice, strength, sign = drawn[3 * step : 3 * step + 3]
                changed = apply_operation(
                    changed,
                    # Of the eight that CIFAR-10-C does not test.
                    torch.tensor([1 + int(8 * choice)]),
                    torch.tensor([0.6 * strength]),
                    torch.tensor([sign]),
                    AUGMIX,
                )
            image = image + blend * weight / sum(first) * changed
        torch.testing.assert_close(mixed[k : k + 1], image, rtol=0, atol=1e-5)
    assert set(lengths) == {1, 2, 3}


def test_gray_images_are_augmented_too():
    gray = torch.randint(0, 256, (6, 8, 8, 1), dtype=torch.uint8, generator=torch.manual_seed(0))
    for config in EVERY_CONFIG:
        assert augment_images(gray, _keys(6), config).shape == (6, 1, 8, 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": "shfit"}, "Did you mean 'shift'"),
        ({"policy": "mixup"}, "unknown policy 'mixup'"),
        ({"magnitude": 9.0}, r"magnitude \(9.0\) must lie"),
        ({"mixup_alpha": -1.0}, "mixup_alpha"),
        ({"cutmix_alpha": math.inf}, r"cutmix_alpha \(inf\) must be a finite number"),
        ({"mixup_alpha": math.nan, "cutmix_alpha": 1.0}, "mixup_alpha"),
        ({"policy": "rand", "num_operations": 0}, "num_operations"),
        ({"num_operations": 1.5}, r"num_operations \(1.5\) must be a whole number"),
        ({"mix_probability": 1.5}, r"mix_probability \(1.5\) must lie in \[0, 1\]"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        AugmentConfig(**settings)


@pytest.mark.parametrize("min_scale", [0.08, 0.9, 1.0])
def test_a_resized_crop_keeps_as_much_of_the_area_as_it_says(min_scale):
    count = 4000
    # The image is its own coordinates, so that a corner of the cut says where it was.
    line = (2 * torch.arange(64) + 1) / 64 - 1
    pixels = torch.stack(torch.meshgrid(line, line, indexing="ij")).expand(count, 2, 64, 64)
    cut = resized_crop(pixels, _keys(count), min_scale=min_scale, flip=False)
    height, width = (cut[:, axis].amax((1, 2)) - cut[:, axis].amin((1, 2)) for axis in (0, 1))
    share = height * width / (line[-1] - line[0]) ** 2
    assert share.min() >= min_scale - 2e-3
    assert share.max() <= 1 + 1e-4
    assert share.mean().item() == pytest.approx((1 + min_scale) / 2, abs=0.02)


def test_wide_translations_go_as_many_pixels_on_larger_images():
    images = torch.randint(
        0, 256, (3, 96, 96, 3), dtype=torch.uint8, generator=torch.manual_seed(0)
    )
    pixels, ours = _operate(images, "translate_x", 1.0, ranges=WIDE)
    moved = torch.zeros_like(pixels)
    moved[..., :-32] = pixels[..., 32:]
    torch.testing.assert_close(ours, moved, rtol=0, atol=1e-4)


def test_posterize_of_augmix_leaves_four_bits_at_most(images):
    for magnitude, bits in ((0.0, 4), (0.3, 3), (1.0, 0)):
        pixels, ours = _operate(images, "posterize", magnitude, ranges=AUGMIX)
        theirs = tv.posterize((pixels * 255).round().to(torch.uint8), bits).float() / 255
        torch.testing.assert_close(ours, theirs)
