"""A classifier with a posterior that was fitted to it comes back from its folder as it was."""

import json

import pytest
import torch
from torch import nn

import lrformer
import lrformer.interop
from lrformer.core import ConfigError, NotFittedError
from lrformer.heads import RandomFeatureGPConfig
from lrformer.models import create_model
from lrformer.training import train
from lrformer.training.posterior import PosteriorClassifier
from tests.training.small import PLAIN, QUIET, small

SMALL = RandomFeatureGPConfig(num_random_features=32, feature_scale="calibrate", ridge=2.0)
SETTINGS = {"depth": 1, "embed_dim": 16, "num_heads": 2}


def images(count: int = 24) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def fitted() -> PosteriorClassifier:
    model = create_model("lrformer_digits", num_classes=4, **SETTINGS)
    found = lrformer.fit_posterior(model.eval(), [images()], config=SMALL)
    assert isinstance(found, PosteriorClassifier)
    return found


def test_a_posterior_comes_back_to_the_bit(fitted, tmp_path):
    assert lrformer.save(fitted, tmp_path / "kept") == tmp_path / "kept"
    torch.manual_seed(3)
    again = lrformer.load(tmp_path / "kept")
    drawn = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), drawn), "loading moved the generator"
    assert isinstance(again, PosteriorClassifier)
    before, after = fitted.predict(images(3)), again.predict(images(3))
    assert torch.equal(before.logits, after.logits)
    assert torch.equal(before.variance, after.variance)
    assert again.head.config == SMALL
    plain = lrformer.interop.load(tmp_path / "kept")
    assert torch.equal(plain(images(3)), fitted.model(images(3)))


def test_a_converted_model_of_timm_is_shipped_with_its_posterior(tmp_path):
    timm = pytest.importorskip("timm")
    small_vit = {"depth": 1, "embed_dim": 24, "num_heads": 3, "img_size": 32, "num_classes": 3}
    model = lrformer.convert(timm.create_model("vit_tiny_patch16_224", **small_vit), tie_qk=True)
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    fitted = lrformer.fit_posterior(model.eval(), [x], config=SMALL)
    lrformer.save(fitted, tmp_path, model_kwargs=small_vit)
    again = lrformer.load(tmp_path)
    assert torch.equal(again.predict(x).variance, fitted.predict(x).variance)
    assert lrformer.bounds(again).chain.bound.value == lrformer.bounds(model).chain.bound.value


def test_a_model_without_posterior_leaves_none_behind(fitted, tmp_path):
    lrformer.save(fitted, tmp_path)
    lrformer.save(fitted.model, tmp_path)
    assert not isinstance(lrformer.load(tmp_path), PosteriorClassifier)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_what_is_not_fitted_is_not_saved(tmp_path):
    model = PosteriorClassifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    with pytest.raises(NotFittedError, match="call fit_posterior"):
        lrformer.save(model, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_files_that_do_not_belong_together_are_named(fitted, tmp_path):
    lrformer.save(fitted, tmp_path)
    whole = (tmp_path / "posterior.safetensors").read_bytes()
    (tmp_path / "posterior.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ConfigError, match=r"posterior\.safetensors is not the file"):
        lrformer.load(tmp_path)
    (tmp_path / "posterior.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"posterior\.safetensors is missing"):
        lrformer.load(tmp_path)
    (tmp_path / "posterior.safetensors").write_bytes(whole)
    # Another model in its place, by somebody who did not use `lrformer.save`.
    other = create_model("lrformer_digits", num_classes=4, **SETTINGS)
    lrformer.interop.save(other, tmp_path)
    with pytest.raises(ConfigError, match=r"model\.safetensors is not the file"):
        lrformer.load(tmp_path)
    record = json.loads((tmp_path / "posterior.json").read_text())
    (tmp_path / "posterior.json").write_text(json.dumps(record | {"schema": 7}))
    with pytest.raises(ConfigError, match="schema 7"):
        lrformer.load(tmp_path)


def test_training_can_start_from_the_model_inside(fitted, tmp_path):
    lrformer.save(fitted, tmp_path / "kept")
    config = small(
        PLAIN,
        start=str(tmp_path / "kept"),
        model="lrformer_digits",
        model_overrides=SETTINGS,
        image_size=None,
        epochs=1,
        lr=1e-9,
    )
    run = train(config, tmp_path / "run", runtime=QUIET)
    ours = dict(run.method.backbone.named_parameters())
    for name, value in fitted.model.named_parameters():
        if name in ours and not name.startswith("head"):
            torch.testing.assert_close(ours[name], value, atol=1e-5, rtol=1e-4)
    assert set(ours) <= {name for name, _ in fitted.model.named_parameters()}


def test_a_model_for_larger_images_is_no_start_for_small_ones(tmp_path):
    timm = pytest.importorskip("timm")
    settings = {"depth": 1, "embed_dim": 24, "num_heads": 3, "img_size": 64, "num_classes": 3}
    vit = timm.create_model("vit_tiny_patch16_224", in_chans=1, **settings)
    lrformer.save(lrformer.convert(vit), tmp_path / "kept", model_kwargs=settings)
    config = small(PLAIN, start=str(tmp_path / "kept"), image_size=None)
    with pytest.raises(ConfigError, match="cannot take images of 8 pixels"):
        train(config, tmp_path / "run", runtime=QUIET)
    assert not (tmp_path / "run").exists()
