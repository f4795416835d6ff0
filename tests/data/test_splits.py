import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrformer.core import ConfigError
from lrformer.data import select_classes, stratified_rows
from lrformer.data.arrays import Rows


@given(
    st.lists(st.integers(2, 30), min_size=1, max_size=5),
    st.floats(0.05, 0.9),
    st.integers(0, 2**31),
)
def test_every_class_is_cut_in_proportion_and_nothing_is_lost_or_doubled(counts, fraction, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    labels = np.random.default_rng(seed).permutation(labels)
    kept, cut = stratified_rows(labels, fraction=fraction, seed=seed)
    assert sorted([*kept, *cut]) == list(range(len(labels)))
    for label, count in enumerate(counts):
        num_cut = int((labels[cut] == label).sum())
        assert 1 <= num_cut <= count - 1
        assert abs(num_cut - fraction * count) <= 1


def test_the_cut_depends_on_the_seed_alone():
    labels = np.repeat(np.arange(3), 50)
    _, first = stratified_rows(labels, fraction=0.2, seed=1)
    _, again = stratified_rows(labels, fraction=0.2, seed=1)
    _, other = stratified_rows(labels, fraction=0.2, seed=2)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_class_of_one_sample_and_a_share_of_everything_are_refused():
    with pytest.raises(ConfigError, match="pets: class 1 has one sample only"):
        stratified_rows(np.array([0, 0, 1]), fraction=0.5, seed=0, where="pets")
    with pytest.raises(ConfigError, match="class 'dog' has one sample only"):
        stratified_rows(np.array([0, 0, 1]), fraction=0.5, seed=0, class_names=("cat", "dog"))
    kept, cut = stratified_rows(np.array([0, 0, 1]), fraction=0.5, seed=0, needed={0})
    assert sorted([*kept, *cut]) == [0, 1, 2]
    assert len(cut) == 1
    assert 2 in kept
    with pytest.raises(ConfigError, match=r"fraction \(1.0\)"):
        stratified_rows(np.array([0, 0]), fraction=1.0, seed=0)


def test_chosen_classes_are_relabeled_in_the_order_in_which_they_are_named(random_split):
    split = random_split(40, num_classes=4)
    chosen = select_classes(split, ["class 3", 1])
    assert chosen.class_names == ("class 3", "class 1")
    expected = np.flatnonzero(np.isin(split.y, [3, 1]))
    np.testing.assert_array_equal(chosen.x, split.x[expected])
    np.testing.assert_array_equal(chosen.y, np.where(split.y[expected] == 3, 0, 1))


def test_a_class_that_does_not_exist_gets_a_hint(random_split):
    split = random_split()
    with pytest.raises(ConfigError, match="Did you mean 'class 2'"):
        select_classes(split, ["clas 2"])
    with pytest.raises(ConfigError, match=r"outside 0\.\.3"):
        select_classes(split, [4])
    with pytest.raises(ConfigError, match="each once"):
        select_classes(split, [1, 1])


def test_rows_of_rows_are_the_rows_of_the_base(tmp_path, random_split):
    split = random_split(10)
    np.save(tmp_path / "x.npy", split.x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    object.__setattr__(split, "x", mapped)
    twice = split.take(np.array([8, 3, 5])).take(np.array([2, 0]))
    assert isinstance(twice.x, Rows)
    assert twice.x.base is mapped
    np.testing.assert_array_equal(np.asarray(twice.x), mapped[[5, 8]])
    np.testing.assert_array_equal(twice.x[1], mapped[8])
    np.testing.assert_array_equal(twice.y, split.y[[5, 8]])


def test_ood_takes_the_statistics_of_the_id_split(random_split):
    inside, outside = random_split(), random_split(seed=1, channels=1)
    with pytest.raises(ConfigError, match="1 channels but"):
        outside.normalized_like(inside)
    other = random_split(seed=2)
    object.__setattr__(other, "mean", (0, 0, 0))
    assert other.normalized_like(inside).mean == inside.mean


def test_a_number_is_the_name_of_a_class_before_it_is_its_place(random_split):
    split = dataclasses.replace(random_split(), class_names=("1", "10", "2", "cat"))
    assert select_classes(split, ["1", "2"]).class_names == ("1", "2")
    assert select_classes(split, ["0", "3"]).class_names == ("1", "cat")
    assert select_classes(split, [1, 2]).class_names == ("10", "2")
    with pytest.raises(ConfigError, match=r"class 11 is outside 0..3"):
        select_classes(split, ["11"])
    with pytest.raises(ConfigError, match="no class '²'"):
        select_classes(split, ["²", "1"])
