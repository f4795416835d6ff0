"""Image files are read at the size of the model, whatever names it: what training sees is what `predict` sees."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lrformer.evaluation import predict_files, predict_run
from lrformer.evaluation.run_data import load_test_split
from lrformer.training import TrainConfig, train
from lrformer.training.splits import load_splits
from tests.training.small import QUIET

TIMM = "vit_tiny_patch16_224"
TINY: dict[str, Any] = {"depth": 1, "embed_dim": 16, "num_heads": 2}
SIZES = ((40, 56), (72, 48), (24, 24))


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Return a folder of two classes, in noise of one color or the other, in pictures of three sizes."""
    folder, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 6), ("test", 6)):
        for channel, name in ((0, "red"), (2, "blue")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                height, width = SIZES[number % len(SIZES)]
                pixels = generator.integers(0, 120, (height, width, 3))
                pixels[..., channel] += 120
                picture = Image.fromarray(pixels.astype(np.uint8))
                picture.save(folder / split / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({}, 32),
        ({"image_size": 48}, 48),
        ({"model_overrides": {"img_size": 16}}, 16),
        ({"model_overrides": {"img_size": 16}, "image_size": 48}, 16),
        ({"start": TIMM}, 224),
        ({"start": TIMM, "image_size": 64}, 64),
        ({"start": TIMM, "model_overrides": {"img_size": 32, "depth": 1}}, 32),
    ],
)
def test_files_are_scaled_to_the_side_that_the_model_will_have(photos, tmp_path, settings, size):
    config = TrainConfig(data=str(photos), root=str(tmp_path), pretrained=False, **settings)
    for split in load_splits(config):
        assert split.x.shape[1:] == (size, size, 3)


@pytest.mark.parametrize(
    "settings",
    [
        {
            "model": "lrformer_tiny_patch4_32",
            "model_overrides": {**TINY, "patch_size": 8},
            "image_size": 48,
        },
        {"start": TIMM, "model_overrides": {**TINY, "img_size": 32}},
        {"start": TIMM, "model_overrides": TINY},
    ],
    ids=["preset", "timm at 32 pixels", "timm as it is"],
)
def test_predict_says_of_a_file_what_evaluation_says_of_it(photos, tmp_path, settings):
    config = TrainConfig(
        data=str(photos),
        root=str(tmp_path / "cache"),
        pretrained="start" not in settings,
        method_overrides={"num_random_features": 32},
        epochs=1,
        batch_size=8,
        **settings,
    )
    run = train(config, tmp_path / "run", runtime=QUIET)
    split = load_test_split(run.config)
    assert split.x.shape[1:3] == (run.config.img_size,) * 2
    whole = predict_run(run, split, is_calibrated=True, batch_size=8)
    files = [Path(name) for name in split.files or ()]
    rows = list(predict_files(run, files))
    assert [row.error for row in rows] == [None] * 12
    found = [row.probability for row in rows]
    np.testing.assert_allclose(found, whole.confidence, atol=1e-5)
