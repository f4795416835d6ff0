import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from lrformer.core import ConfigError
from lrformer.data import SEVERITIES, corrupt, corrupt_split, list_corruptions, two_moons
from lrformer.data.corruptions import apply

RANDOM_KINDS = {
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "motion_blur", "fog",
    "elastic_transform",
}  # fmt: skip


@pytest.fixture(scope="module")
def images():
    """Return pictures with edges and slopes, as photographs have them: random discs on random ramps."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:32, :32] / 31
    pictures = []
    for _ in range(32):
        slope = rng.uniform(-0.4, 0.4, (2, 3))
        picture = 0.5 + slope[0] * (rows - 0.5)[..., None] + slope[1] * (columns - 0.5)[..., None]
        for _ in range(3):
            center, radius = rng.uniform(0, 1, 2), rng.uniform(0.1, 0.3)
            inside = (rows - center[0]) ** 2 + (columns - center[1]) ** 2 < radius**2
            picture[inside] = rng.uniform(0.1, 0.9, 3)
        pictures.append(picture)
    return torch.from_numpy(np.stack(pictures)).clamp(0, 1).float().permute(0, 3, 1, 2)


def _corrupt(images, kind, severity, *, seed=0, rows=None):
    indices = torch.arange(len(images)) if rows is None else rows
    return corrupt(images, kind, severity=severity, indices=indices, seed=seed)


@pytest.mark.parametrize("kind", list_corruptions())
def test_the_distance_to_the_clean_image_rises_with_severity(images, kind):
    distances = [float((_corrupt(images, kind, s) - images).abs().mean()) for s in SEVERITIES]
    assert distances[0] > 1e-3
    if kind == "motion_blur":
        del distances[3]  # published as wide as the third, with more of the path that has no weight
    assert all(later > earlier for earlier, later in itertools.pairwise(distances))
    strongest = _corrupt(images, kind, 5)
    assert 0 <= strongest.min() <= strongest.max() <= 1


@pytest.mark.parametrize("kind", list_corruptions())
def test_a_sample_is_corrupted_alike_in_every_batch(images, kind):
    whole = _corrupt(images, kind, 3)
    rows = torch.tensor([20, 4, 9])
    torch.testing.assert_close(
        _corrupt(images[rows], kind, 3, rows=rows), whole[rows], rtol=0, atol=1e-5
    )
    is_other = not torch.allclose(_corrupt(images, kind, 3, seed=1), whole, atol=1e-3)
    assert is_other == (kind in RANDOM_KINDS)


@pytest.mark.parametrize("kind", list_corruptions())
def test_gray_images_of_any_size_are_corrupted_too(kind):
    gray = torch.rand(3, 1, 10, 14, generator=torch.manual_seed(0))
    done = _corrupt(gray, kind, 4)
    assert done.shape == gray.shape
    assert torch.equal(done, gray) == (kind == "saturate")


def test_at_least_ten_kinds_have_the_names_of_cifar_10_c():
    published = {
        "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur",
        "zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform",
        "pixelate", "jpeg_compression", "speckle_noise", "gaussian_blur", "spatter", "saturate",
    }  # fmt: skip
    assert set(list_corruptions()) <= published
    assert len(list_corruptions()) >= 10


def test_noise_has_the_strength_of_its_table():
    middle = torch.full((60, 3, 16, 16), 0.5)
    for severity, std in ((1, 0.04), (5, 0.10)):
        noise = _corrupt(middle, "gaussian_noise", severity) - 0.5
        assert float(noise.std()) == pytest.approx(std, rel=0.02)
    shot = _corrupt(middle, "shot_noise", 5) - 0.5
    assert float(shot.std()) == pytest.approx((0.5 / 50) ** 0.5, rel=0.02)
    speckle = _corrupt(middle, "speckle_noise", 3) - 0.5
    assert float(speckle.std()) == pytest.approx(0.5 * 0.12, rel=0.02)
    impulse = _corrupt(middle, "impulse_noise", 4)
    assert float((impulse != 0.5).float().mean()) == pytest.approx(0.05, rel=0.05)
    assert float((impulse == 1).float().mean()) == pytest.approx(0.025, rel=0.1)


def test_two_kinds_of_noise_fall_on_pixels_of_their_own():
    middle = torch.full((60, 3, 16, 16), 0.5)
    noises = [_corrupt(middle, kind, 3) - middle for kind in ("gaussian_noise", "speckle_noise")]
    found = torch.corrcoef(torch.stack(noises).flatten(1))[0, 1]
    assert abs(float(found)) < 4 / middle.numel() ** 0.5


def test_gaussian_blur_equals_scipy(images):
    ours = _corrupt(images, "gaussian_blur", 5)
    theirs = ndimage.gaussian_filter(images.double().numpy(), (0, 0, 1, 1), mode="mirror", radius=3)
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)


def test_blurs_keep_the_light(images):
    for kind in ("gaussian_blur", "defocus_blur", "pixelate"):
        mean = _corrupt(images, kind, 3)[:, :, 8:24, 8:24].mean()
        assert float(mean) == pytest.approx(float(images[:, :, 8:24, 8:24].mean()), abs=0.01)
    flat = torch.full((2, 3, 32, 32), 0.3)
    for kind in ("gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "pixelate"):
        torch.testing.assert_close(_corrupt(flat, kind, 5), flat, rtol=0, atol=1e-5)


def test_motion_is_as_long_in_pixels_down_as_across_an_image_that_is_wide():
    point = torch.zeros(20, 3, 64, 64)
    point[:, :, 32, 32] = 1
    square = _corrupt(point, "motion_blur", 5)
    wide = _corrupt(point[:, :, 16:48], "motion_blur", 5)
    torch.testing.assert_close(wide, square[:, :, 16:48], rtol=0, atol=1e-5)
    assert float(square[:, :, 16:48].sum()) == pytest.approx(20 * 3, rel=1e-3)


@pytest.mark.parametrize(("severity", "pixels"), [(1, 0.4), (5, 1.3)])
def test_an_elastic_image_is_bent_by_as_many_pixels_as_its_table_says(severity, pixels):
    column = (torch.arange(32) + 0.5) / 32
    ramps = torch.stack([column.expand(32, 32), column[:, None].expand(32, 32)])
    # The value of a ramp is where it was read; the border is left out, where it is mirrored.
    bent = _corrupt(ramps.expand(300, 2, 32, 32), "elastic_transform", severity) - ramps
    found = 32 * float(bent[..., 6:-6, 6:-6].square().mean().sqrt())
    # Between the points of its coarse grid the field is a little weaker.
    assert 0.8 * pixels < found < pixels


@pytest.mark.parametrize("severity", [1, 5])
def test_jpeg_equals_a_real_encoder_but_for_rounding(images, severity):
    quality = {1: 80, 5: 40}[severity]
    levels = (images * 255).round()
    ours = _corrupt(levels / 255, "jpeg_compression", severity) * 255
    errors = []
    for k in range(8):
        picture = Image.fromarray(levels[k].permute(1, 2, 0).numpy().astype(np.uint8))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality, subsampling=0)
        theirs = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1).float()
        errors.append(float((ours[k] - theirs).abs().mean()))
    assert np.mean(errors) < 1.0
    assert float((ours[:8] - levels[:8]).abs().mean()) > 2 * np.mean(errors)


def test_light_is_changed_as_the_tables_say(images):
    brighter = _corrupt(images, "brightness", 3)
    value = images.amax(dim=1)
    torch.testing.assert_close(brighter.amax(dim=1), (value + 0.15).clamp(max=1))
    flatter = _corrupt(images, "contrast", 2)
    mean = images.mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(flatter - mean, 0.5 * (images - mean), rtol=0, atol=1e-5)
    pale = _corrupt(images, "saturate", 5)
    torch.testing.assert_close(pale[:, 0], pale[:, 2])


def test_fog_leaves_the_brightest_point_of_a_dim_image_as_bright():
    for brightest in (0.2, 0.6, 1.0):
        foggy = _corrupt(torch.full((8, 3, 32, 32), brightest), "fog", 5)
        most, least = foggy.amax(dim=(1, 2, 3)), foggy.amin(dim=(1, 2, 3))
        torch.testing.assert_close(most, torch.full((8,), brightest))
        # Where there is no cloud, the light is shared with fog of 1.5.
        torch.testing.assert_close(least, torch.full((8,), brightest**2 / (brightest + 1.5)))


def test_a_whole_split_is_corrupted_as_its_batches_are(random_split, monkeypatch):
    monkeypatch.setattr(apply, "IMAGES_AT_A_TIME", 7)
    split = random_split(20, side=16)
    done = corrupt_split(split, "gaussian_noise", severity=2, seed=4)
    pixels = torch.from_numpy(np.asarray(split.x)).permute(0, 3, 1, 2).float() / 255
    expected = _corrupt(pixels, "gaussian_noise", 2, seed=4)
    np.testing.assert_array_equal(done.x, (expected * 255).round().permute(0, 2, 3, 1).numpy())
    assert done.name == "random/train-gaussian_noise-2"
    assert (done.mean, done.class_names) == (split.mean, split.class_names)


def test_wrong_kinds_severities_and_points_are_refused(images, random_split):
    with pytest.raises(ConfigError, match="Did you mean 'fog'"):
        _corrupt(images, "fogg", 1)
    with pytest.raises(ConfigError, match=r"severity \(6\)"):
        _corrupt(images, "fog", 6)
    with pytest.raises(ConfigError, match="points, not images"):
        corrupt_split(two_moons(10), "fog", severity=1)


@pytest.mark.parametrize(("severity", "std"), [(1, 1.0), (4, 2.0), (5, 2.5)])
def test_motion_blur_is_one_half_of_a_gaussian_on_a_nearly_level_path(severity, std):
    dots = torch.zeros(40, 1, 65, 65)
    dots[:, :, 32, 32] = 1
    light = _corrupt(dots, "motion_blur", severity)[:, 0]
    assert light.sum(dim=(1, 2)).tolist() == pytest.approx([1.0] * 40, abs=1e-3)
    place = torch.arange(65.0) - 32
    across = (light.sum(dim=1) * place).sum(dim=1)
    down = (light.sum(dim=2) * place).sum(dim=1)
    steps = np.arange(20)
    weights = np.exp(-0.5 * (steps / std) ** 2)
    mean = (weights * steps).sum() / weights.sum()
    # All to one side; bilinear sampling moves nothing.
    assert torch.hypot(across, down).tolist() == pytest.approx([mean] * 40, rel=2e-3)
    assert (across.sign() == across[0].sign()).all()
    angle = torch.atan2(down, across.abs())
    assert angle.abs().max() <= np.pi / 4 + 1e-3
    assert angle.min() < -0.5 < 0.5 < angle.max()
