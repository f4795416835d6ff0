"""A saved folder gives back the same model, to the bit, or says clearly why it cannot."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lrformer.attention import LRSAConfig, use_backend
from lrformer.core import ConfigError, LRFormerError, UnsupportedModelError
from lrformer.interop import conversion_report, convert, load, save
from lrformer.models import create_model
from tests.interop.zoo import (
    TIMM_MODELS,
    bert_classifier,
    logits,
    pictures,
    split_qkv_model,
    texts,
    timm_model,
    vit_classifier,
)


def assert_same_outputs(model: nn.Module, folder: Path, *inputs: Any) -> nn.Module:
    restored = load(folder)
    assert type(restored) is type(model)
    assert not restored.training
    model.eval()
    assert torch.equal(logits(restored(*inputs)), logits(model(*inputs)))
    return restored


@pytest.mark.parametrize("name", TIMM_MODELS)
def test_a_converted_timm_model_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    model = convert(timm_model(name), "lrsa", calibration=pictures())
    kwargs = TIMM_MODELS[name]
    assert save(model, tmp_path / "run", model_kwargs=kwargs) == tmp_path / "run"
    restored = assert_same_outputs(model, tmp_path / "run", pictures())
    assert conversion_report(restored) == conversion_report(model)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize(
    "attention",
    ["dot_product", "l2", "l2_provable", "scsa", "lrsa_m", LRSAConfig(floor=0.3)],
    ids=str,
)
def test_every_attention_comes_back_with_its_settings(attention: Any, tmp_path: Path) -> None:
    model = convert(timm_model("vit_tiny_patch16_224"), attention, calibration=pictures())
    save(model, tmp_path)
    assert_same_outputs(model, tmp_path, pictures())


def test_models_made_by_their_class_and_dropout_rates_come_back(tmp_path: Path) -> None:
    from timm.models.vision_transformer import VisionTransformer

    x = torch.randn(2, 1, 8, 8)
    model = VisionTransformer(
        img_size=8,
        patch_size=2,
        in_chans=1,
        num_classes=4,
        embed_dim=24,
        depth=3,
        num_heads=2,
        mlp_ratio=2.0,
        drop_path_rate=0.2,
        attn_drop_rate=0.1,
        proj_drop_rate=0.3,
    )
    for saved in (model, convert(model, "lrsa", calibration=x)):
        save(saved, tmp_path)
        restored = assert_same_outputs(saved, tmp_path, x)
        assert restored.blocks[2].drop_path1.drop_prob == pytest.approx(0.2)
        assert restored.blocks[0].attn.attn_drop.p == 0.1


def test_a_patch_of_another_size_than_the_name_says_comes_back(tmp_path: Path) -> None:
    model = timm_model("vit_tiny_patch16_224", depth=1, img_size=8, patch_size=2, in_chans=1)
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    for saved in (model, convert(model, "lrsa", calibration=x)):
        save(saved, tmp_path)
        assert_same_outputs(saved, tmp_path, x)


def test_split_projections_come_back(tmp_path: Path) -> None:
    model = split_qkv_model()
    with pytest.raises(UnsupportedModelError, match="model_kwargs"):
        save(model, tmp_path)
    assert not list(tmp_path.iterdir())
    save(model, tmp_path, model_kwargs={"qkv_fused": False})
    assert_same_outputs(model, tmp_path, pictures(size=32))
    converted = convert(model, "lrsa")
    save(converted, tmp_path)
    assert_same_outputs(converted, tmp_path, pictures(size=32))


def test_transformers_models_come_back(tmp_path: Path) -> None:
    for model, inputs in ((vit_classifier(), pictures(size=32)), (bert_classifier(), texts())):
        for saved in (model, convert(model, "lrsa"), convert(model, "scsa")):
            save(saved, tmp_path)
            assert_same_outputs(saved, tmp_path, inputs)


@pytest.mark.parametrize("name", ["lrformer_digits", "lrformer_two_moons"])
def test_our_own_models_come_back(name: str, tmp_path: Path) -> None:
    model = create_model(name, attention="lrsa", alpha=33.0)
    x = torch.randn(2, 1, 8, 8) if name == "lrformer_digits" else torch.randn(2, 2)
    save(model, tmp_path)
    assert_same_outputs(model, tmp_path, x)


def test_our_own_models_come_back_with_another_classifier_and_image_size(tmp_path: Path) -> None:
    model = create_model("lrformer_digits")
    model.reset_classifier(3)
    model.set_input_size(16)
    save(model, tmp_path)
    assert_same_outputs(model, tmp_path, torch.randn(2, 1, 16, 16))


def test_a_backend_that_was_set_is_no_part_of_the_model(tmp_path: Path) -> None:
    model = convert(timm_model("vit_tiny_patch16_224"), "lrsa")
    with use_backend(model, "reference"):
        save(model, tmp_path)
    x = pictures(2)
    assert torch.equal(load(tmp_path)(x), model(x))


def test_weights_keep_their_dtype_and_the_global_generator_its_state(tmp_path: Path) -> None:
    model = convert(timm_model("vit_tiny_patch16_224").bfloat16(), "lrsa")
    state = torch.get_rng_state()
    save(model, tmp_path)
    restored = load(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert {p.dtype for p in restored.parameters()} == {torch.bfloat16}
    x = pictures().bfloat16()
    assert torch.equal(restored(x), model(x))


def test_a_setting_that_cannot_be_read_off_the_model_is_refused_by_name(tmp_path: Path) -> None:
    model = timm_model("vit_tiny_patch16_224", depth=1, act_layer="relu")
    with pytest.raises(
        UnsupportedModelError, match=r"'blocks.0.mlp.act' is a ReLU, rebuilt a GELU"
    ):
        save(model, tmp_path)
    model = timm_model("vit_tiny_patch16_224", depth=1, no_embed_class=True)
    with pytest.raises(UnsupportedModelError, match="no_embed_class"):
        save(model, tmp_path)
    save(model, tmp_path, model_kwargs={"no_embed_class": True})
    assert_same_outputs(model, tmp_path, pictures())
    with pytest.raises(UnsupportedModelError, match=r"Linear cannot be saved.*preset, timm"):
        save(nn.Linear(2, 2), tmp_path)


def test_what_was_put_into_a_model_after_it_was_built_is_not_dropped_in_silence(
    tmp_path: Path,
) -> None:
    model = timm_model("vit_tiny_patch16_224", depth=1)
    save(model, tmp_path)
    hooks = (
        (model.head.register_forward_hook(lambda _, args, output: 2 * output), "'head' has a"),
        (model.blocks[0].register_forward_pre_hook(lambda _, args: args), "'blocks.0' has a"),
    )
    for hook, words in reversed(hooks):
        with pytest.raises(UnsupportedModelError, match=words):
            save(model, tmp_path)
        hook.remove()
    model.forward = lambda x: x
    with pytest.raises(UnsupportedModelError, match="the model has a forward that was put into it"):
        save(model, tmp_path)


def test_a_write_that_breaks_leaves_the_old_model_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = create_model("lrformer_digits"), create_model("lrformer_digits")
    save(old, tmp_path)

    def broken(*_: Any) -> None:
        raise OSError("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", broken)
        with pytest.raises(OSError, match="disk is full"):
            save(new, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert_same_outputs(old, tmp_path, torch.randn(2, 1, 8, 8))


def test_a_place_that_cannot_hold_a_model_is_refused_in_words(tmp_path: Path) -> None:
    model = create_model("lrformer_digits", depth=1)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="is a file; a model is saved as a folder"):
        save(model, file)
    with pytest.raises(LRFormerError, match=r"cannot be saved in .*\(Not a directory\)"):
        save(model, file / "model")
    assert file.read_text() == "mine"
    for wrong in (None, 3):
        with pytest.raises(ConfigError, match=rf"folder \({wrong}\) must be a path"):
            save(model, wrong)
    with pytest.raises(ConfigError, match=r"model_kwargs \(3\) must be a dict"):
        save(model, tmp_path / "model", model_kwargs=3)
    assert not (tmp_path / "model").exists()


def test_a_trained_run_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"kind": "run", "schema": 1}))
    with pytest.raises(ConfigError, match=r"not a saved model's \(kind 'run'\)"):
        save(create_model("lrformer_digits", depth=1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_of_other_things_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    save(create_model("lrformer_digits", depth=1), tmp_path)
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").touch()
    with pytest.raises(ConfigError, match="holds other files and no saved model"):
        save(create_model("lrformer_digits", depth=1), other)
    assert [path.name for path in other.iterdir()] == ["cat.jpg"]


def test_damaged_missing_and_newer_folders_are_refused_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"^\S+ is not a folder; give the one"):
        load(folder)
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"has no config.json"):
        load(folder)
    save(create_model("lrformer_digits"), folder)
    config = json.loads((folder / "config.json").read_text())
    weights = (folder / "model.safetensors").read_bytes()

    def refused(match: str, **changes: Any) -> None:
        changed = {k: v for k, v in {**config, **changes}.items() if v != "absent"}
        (folder / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ConfigError, match=match):
            load(folder)
        (folder / "config.json").write_text(json.dumps(config))

    refused("schema 2", schema=2)
    refused("no schema number", schema="absent")
    refused("lacks kind", kind="absent")
    refused("unknown kind of model 'onnx'", kind="onnx")
    refused("has no field 'width'", model={"config": {**config["model"]["config"], "width": 3}})
    refused("not a model config", model={"config": {"kind": "create_model"}})
    smaller = {**config["model"]["config"], "depth": 1}
    refused("do not fit", model={"config": smaller})
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ConfigError, match="checksum"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no model.safetensors"):
        load(folder)


def test_the_files_hold_plain_values_and_every_weight(tmp_path: Path) -> None:
    model = convert(timm_model("vit_tiny_patch16_224"), "lrsa", calibration=pictures())
    save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == model.state_dict().keys()
    assert "blocks.0.attn.alpha" in tensors
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["kind"] == "timm"
    assert config["model"]["architecture"].startswith("vit_tiny_patch16_224")
    assert config["conversion"]["layers"][0]["attention"]["kind"] == "LRSAConfig"


def test_only_known_builders_are_called(tmp_path: Path) -> None:
    save(timm_model("vit_tiny_patch16_224", depth=1), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for architecture in ("hf-hub:someone/something", "local-dir:/tmp/x", "vit_of_tomorrow"):
        config["model"]["architecture"] = architecture
        path.write_text(json.dumps(config))
        with pytest.raises(ConfigError, match="has no architecture"):
            load(tmp_path)
