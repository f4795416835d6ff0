import pytest
import torch
from scipy import stats

from lrformer.data.mixing import (
    beta_draws,
    beta_quantiles,
    erase,
    mix_images,
    partner_rows,
    rectangles,
    soft_targets,
)
from lrformer.data.streams import sample_keys


def _keys(count):
    return sample_keys(torch.arange(count), seed=2)


def _table(alpha):
    return beta_quantiles(alpha, torch.device("cpu"))


def _images(count):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, count, 3, 12, 12, generator=generator).unbind(0)


@pytest.mark.parametrize("alpha", [0.1, 0.8, 1.0])
def test_beta_draws_equal_scipys_quantiles(alpha):
    uniform = (torch.arange(5000) + 0.5) / 5000
    expected = torch.from_numpy(stats.beta(alpha, alpha).ppf(uniform.double().numpy())).float()
    torch.testing.assert_close(beta_draws(uniform, _table(alpha)), expected, rtol=0, atol=5e-4)


def test_mixup_is_the_weighted_sum_that_its_share_says():
    own, other = _images(200)
    mixed, kept = mix_images(own, other, _keys(200), mixup=_table(1.0), cutmix=None)
    share = kept[:, None, None, None]
    torch.testing.assert_close(mixed, share * own + (1 - share) * other)
    assert stats.kstest(kept.double().numpy(), "uniform").pvalue > 1e-3


def test_cutmix_pastes_one_rectangle_whose_area_its_share_counts():
    own, other = _images(100)
    mixed, kept = mix_images(own, other, _keys(100), mixup=None, cutmix=_table(1.0))
    is_pasted = (mixed == other).all(dim=1)
    assert torch.equal(mixed, torch.where(is_pasted[:, None], other, own))
    torch.testing.assert_close(kept, 1 - is_pasted.float().mean(dim=(1, 2)))
    for mask in is_pasted:
        rows, columns = mask.any(dim=1), mask.any(dim=0)
        assert torch.equal(mask, rows[:, None] & columns)
        for line in (rows, columns):
            assert int(line.long().diff().abs().sum()) <= 2
    assert kept.min() < 0.5 < kept.max()


def test_the_rectangle_of_cutmix_has_the_form_of_the_image():
    own, other = torch.zeros(200, 1, 16, 64), torch.ones(200, 1, 16, 64)
    mixed, _ = mix_images(own, other, _keys(200), mixup=None, cutmix=_table(1.0))
    num_whole = 0
    for mask in mixed[:, 0] == 1:
        rows, columns = mask.any(dim=1), mask.any(dim=0)
        if not (rows[0] or rows[-1] or columns[0] or columns[-1]) and mask.any():
            num_whole += 1
            # Both sides are rounded to whole pixels.
            assert abs(int(rows.sum()) - int(columns.sum()) / 4) <= 0.5 + 0.5 / 4
    assert num_whole > 10


def test_with_both_each_image_draws_one():
    own, other = _images(200)
    mixed, kept = mix_images(own, other, _keys(200), mixup=_table(1.0), cutmix=_table(1.0))
    is_cut = ((mixed == own) | (mixed == other)).flatten(1).all(dim=1)
    assert 0.35 < is_cut.float().mean() < 0.65
    share = kept[:, None, None, None]
    blended = share * own + (1 - share) * other
    torch.testing.assert_close(mixed[~is_cut], blended[~is_cut])


@pytest.mark.parametrize(("mixup", "cutmix"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_a_share_of_the_images_is_mixed_and_those_as_if_all_were(mixup, cutmix):
    own, other = _images(400)
    tables = {"mixup": _table(mixup), "cutmix": _table(cutmix)}
    every, shares = mix_images(own, other, _keys(400), **tables)
    mixed, kept = mix_images(own, other, _keys(400), **tables, probability=0.25)
    is_own = (mixed == own).flatten(1).all(dim=1)
    assert 0.68 < is_own.float().mean() < 0.82
    assert torch.equal(kept[is_own], torch.ones_like(kept[is_own]))
    assert torch.equal(mixed[~is_own], every[~is_own])
    assert torch.equal(kept[~is_own], shares[~is_own])
    # One is a draw of its own: shares of those that are mixed are spread like all shares.
    assert stats.ks_2samp(kept[~is_own].numpy(), shares.numpy()).pvalue > 1e-3
    is_cut = ((mixed == own) | (mixed == other)).flatten(1).all(dim=1)[~is_own].float().mean()
    assert abs(is_cut - cutmix / (mixup + cutmix)) < 0.2
    nothing, kept = mix_images(own, other, _keys(400), **tables, probability=0.0)
    assert torch.equal(nothing, own)
    assert kept.eq(1).all()


def test_targets_put_the_kept_share_on_the_own_label():
    labels, partners = torch.tensor([0, 2]), torch.tensor([1, 2])
    targets = soft_targets(labels, partners, torch.tensor([0.75, 0.4]), num_classes=3)
    torch.testing.assert_close(targets, torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.0, 1.0]]))


def test_partners_come_from_the_whole_set():
    rows = partner_rows(_keys(5000), 10)
    assert stats.chisquare(torch.bincount(rows, minlength=10).numpy()).pvalue > 1e-3


def test_erasing_sets_rectangles_of_the_usual_area_to_zero():
    images = torch.ones(800, 2, 32, 32)
    done = erase(images, _keys(800), probability=0.25)
    area = (done == 0).float().mean(dim=(1, 2, 3))
    assert 0.19 < (area > 0).float().mean() < 0.31
    assert area.max() < 0.37
    assert torch.equal((done == 0)[:, 0], (done == 0)[:, 1])
    assert torch.equal(erase(images, _keys(800), probability=0.0), images)


def test_rectangles_hold_the_pixels_about_their_center_and_may_stick_out():
    row, column = torch.tensor([0.5, 0.0]), torch.tensor([0.25, 1.0])
    size = torch.tensor([4.0, 6.0]), torch.tensor([2.0, 4.0])
    found = rectangles(row, column, *size, height=10, width=8)
    expected = torch.zeros(2, 10, 8, dtype=torch.bool)
    expected[0, 3:7, 1:3] = True
    expected[1, 0:3, 6:8] = True
    assert torch.equal(found, expected)
