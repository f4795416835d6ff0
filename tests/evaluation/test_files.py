import dataclasses
from itertools import cycle, islice

import numpy as np
import pytest
import torch
from PIL import Image

from lrformer.core import ConfigError
from lrformer.data import DeviceBatches, Split, read_image
from lrformer.evaluation import files as files_module
from lrformer.evaluation import find_files, predict_files


@pytest.fixture
def good(workspace):
    return sorted((workspace / "data" / "test").rglob("*.png"))


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_files_get_what_the_run_says_of_their_pixels_in_their_order(run, good, batch_size):
    rows = list(predict_files(run, good, batch_size=batch_size))
    predictive = run.predict(torch.from_numpy(np.stack([read_image(path) for path in good])))
    assert [row.file for row in rows] == [str(path) for path in good]
    names = [run.class_names[k] for k in predictive.probs.argmax(-1)]
    assert [row.label for row in rows] == names
    assert [row.probability for row in rows] == pytest.approx(
        predictive.probs.amax(-1).tolist(), abs=1e-5
    )
    uncertainty = predictive.uncertainty(run.decision.score).tolist()
    assert [row.uncertainty for row in rows] == pytest.approx(uncertainty, rel=1e-3, abs=1e-6)
    assert [row.is_in_distribution for row in rows] == [
        row.uncertainty <= run.threshold for row in rows
    ]


def test_the_folder_of_a_run_will_do(run, good):
    assert list(predict_files(run.path, good[:3])) == list(predict_files(run, good[:3]))


def test_a_broken_file_is_a_row_with_its_error_and_the_others_are_as_without_it(
    run, good, tmp_path
):
    broken, missing = tmp_path / "broken.png", tmp_path / "missing.png"
    broken.write_bytes(good[0].read_bytes()[:60])
    mixed = [good[0], broken, missing, good[1], tmp_path]
    rows = list(predict_files(run, mixed, batch_size=2))
    assert [row.error is None for row in rows] == [True, False, False, True, False]
    assert "not a readable image" in rows[1].error
    assert "no such file" in rows[2].error
    assert "no image in it" in rows[4].error
    assert [row.is_image for row in rows] == [True, True, False, True, False]
    assert rows[1].label is rows[1].probability is rows[1].is_in_distribution is None
    alone = list(predict_files(run, good[:2]))
    assert [rows[0].label, rows[3].label] == [row.label for row in alone]
    assert rows[3].probability == pytest.approx(alone[1].probability, abs=1e-6)


def test_thousands_of_files_stream_and_only_two_batches_are_ever_open(run, good, monkeypatch):
    taken = []

    def endless():
        for path in cycle(good):
            taken.append(path)
            yield path

    rows = list(islice(predict_files(run, endless(), batch_size=4), 9))
    assert len(rows) == 9
    # Nine rows come from three batches, and one more is being read.
    assert len(taken) == 16


def test_the_threshold_of_the_run_decides_what_is_known(run, good):
    strict = dataclasses.replace(run, decision=dataclasses.replace(run.decision, threshold=-1.0))
    assert not any(row.is_in_distribution for row in predict_files(strict, good))
    lax = dataclasses.replace(run, decision=dataclasses.replace(run.decision, threshold=1e9))
    assert all(row.is_in_distribution for row in predict_files(lax, good))


def test_folders_globs_and_files_are_found_and_nothing_named_is_lost(
    workspace, tmp_path, monkeypatch
):
    test = workspace / "data" / "test"
    assert len(find_files([str(test)])) == 42
    found = find_files([str(test / "*" / "00[01].png")])
    assert [path.name for path in found] == ["000.png", "001.png"] * 3
    assert find_files([str(test / "re*")]) == sorted((test / "red").glob("*.png"))
    lost = [str(tmp_path / "none*.png"), str(tmp_path / "x.png"), str(tmp_path)]
    assert [str(path) for path in find_files(lost)] == lost
    monkeypatch.chdir(test)
    assert [str(path) for path in find_files(["red/000.png", "blue/00?.png"])][:2] == [
        "red/000.png",
        "blue/000.png",
    ]


def test_a_run_on_points_and_an_empty_batch_are_refused_before_a_file_is_read(
    run, good, monkeypatch
):
    monkeypatch.setattr(files_module, "read_image", lambda *_, **__: pytest.fail("read a file"))
    points = dataclasses.replace(run, config=dataclasses.replace(run.config, img_size=None))
    with pytest.raises(ConfigError, match="trained on points"):
        predict_files(points, good)
    with pytest.raises(ConfigError, match="batch_size"):
        predict_files(run, good, batch_size=0)


def test_a_pattern_that_matches_nothing_is_a_row_that_says_so(run, tmp_path):
    (row,) = predict_files(run, find_files([str(tmp_path / "*.gif")]))
    assert row.error == "no file matches this pattern."


def test_a_file_has_the_same_draws_in_every_batch(run, good, monkeypatch):
    seen = []
    predict = type(run.method).predict

    def watch(self, x, generator):
        seen.append(generator.get_state().clone())
        return predict(self, x, generator)

    monkeypatch.setattr(type(run.method), "predict", watch)
    list(predict_files(run, good[:5], batch_size=2, seed=3))
    assert len(seen) == 3
    assert all(torch.equal(state, seen[0]) for state in seen)


def test_one_file_in_the_place_of_a_list_is_refused(run, good):
    for one in (str(good[0]), good[0]):
        with pytest.raises(ConfigError, match=r"files \('.*'\) must be a list of files; give \['"):
            predict_files(run, one)


def write_pictures(folder, shape):
    """Write noise, of which every pixel counts, and return the files and their pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, *shape, 3), dtype=np.uint8)
    files = [folder / f"{number}.png" for number in range(len(pixels))]
    for file, picture in zip(files, pixels, strict=True):
        Image.fromarray(picture).save(file)
    return files, pixels


@pytest.mark.parametrize("shape", [(21, 21), (30, 17), (4, 5)])
@pytest.mark.parametrize("scales_files", [True, False, None])
def test_pixels_are_scaled_as_their_file_is(run, tmp_path, shape, scales_files):
    config = dataclasses.replace(run.config, scales_files=scales_files)
    same = dataclasses.replace(run, config=config)
    files, pixels = write_pictures(tmp_path, shape)
    inputs = same.preprocess(pixels)
    assert torch.equal(inputs, same.preprocess(torch.from_numpy(pixels)))
    predictive = same.predict(pixels)
    rows = list(predict_files(same, files))
    assert [row.probability for row in rows] == pytest.approx(
        predictive.probs.amax(-1).tolist(), rel=1e-6
    )
    fitted = np.stack([read_image(file, image_size=8) for file in files])
    assert torch.equal(inputs, same.preprocess(fitted)) == (scales_files is not False)


def test_a_run_that_scaled_arrays_on_the_device_goes_on_doing_so(run, tmp_path):
    config = dataclasses.replace(run.config, scales_files=False)
    _, pixels = write_pictures(tmp_path, (21, 21))
    split = Split(
        name="noise/test", x=pixels, y=np.zeros(5, dtype=np.int64), class_names=("noise",),
        mean=run.config.mean, std=run.config.std,
    )  # fmt: skip
    (batch,) = DeviceBatches(split, batch_size=5, image_size=8).epoch()
    inputs = dataclasses.replace(run, config=config).preprocess(pixels)
    torch.testing.assert_close(inputs, batch.inputs, rtol=0, atol=1e-6)
