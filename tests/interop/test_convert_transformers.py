"""Conversion of transformers' ViT, DeiT and BERT."""

import copy
from typing import Any

import pytest
import torch

from lrformer.attention import ATTENTIONS, attention_maps
from lrformer.core import ConfigError, UnsupportedModelError
from lrformer.interop import conversion_report, convert
from lrformer.interop.transformers import split_mask
from tests.interop.zoo import bert_classifier, pictures, spread, texts, vit_classifier
from tests.tolerance import TOLERANCE, assert_close

pytest.importorskip("transformers")


def padded(lengths: tuple[int, ...] = (9, 5, 1)) -> dict[str, torch.Tensor]:
    """Return words of several lengths in one batch, with the mask that transformers takes."""
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in zip(mask, lengths, strict=True):
        row[:length] = 1
    return {"input_ids": texts(len(lengths), max(lengths)), "attention_mask": mask}


def test_dot_product_in_place_of_dot_product_changes_no_output() -> None:
    x = pictures(size=32)
    vit = vit_classifier()
    assert_close(convert(vit, "dot_product")(x).logits, vit(x).logits, TOLERANCE[torch.float64])
    bert = bert_classifier()
    after = convert(bert, "dot_product")
    for batch in ({"input_ids": texts()}, padded()):
        expected = bert(**batch).logits
        assert_close(after(**batch).logits, expected, TOLERANCE[torch.float64])


def test_deit_is_a_vit_with_one_more_token() -> None:
    from transformers import DeiTConfig, DeiTForImageClassification

    config = DeiTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=48,
    )
    model = spread(DeiTForImageClassification(config).eval())
    x = pictures(size=32)
    assert_close(convert(model, "dot_product")(x).logits, model(x).logits, 1e-12)


@pytest.mark.parametrize("make", [vit_classifier, bert_classifier])
def test_everything_but_queries_and_keys_is_kept_to_the_bit(make: Any) -> None:
    model = make()
    before = copy.deepcopy(model.state_dict())
    converted = convert(model, "lrsa", tie_qk=True)
    after = converted.state_dict()
    renamed = {"o_proj": "attn.proj"}
    untouched = 0
    for key, value in before.items():
        if any(part in key for part in ("q_proj", "k_proj", ".query.", ".key.")):
            continue
        if any(part in key for part in ("v_proj", ".value.")):
            stem, kind = key.rsplit(".", 2)[0], key.rsplit(".", 1)[1]
            assert torch.equal(after[f"{stem}.attn.qkv.{kind}"][32:], value), key
            continue
        for old, new in renamed.items():
            key = key.replace(old, new)
        assert torch.equal(after[key], value), key
        untouched += 1
    assert untouched > 20
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("attention", list(ATTENTIONS))
def test_a_padded_text_gives_what_it_gives_alone(attention: str) -> None:
    batch = padded()
    converted = convert(bert_classifier(), attention, calibration=batch)
    together = converted(**batch).logits
    for index, length in enumerate((9, 5, 1)):
        alone = converted(batch["input_ids"][index : index + 1, :length]).logits
        assert_close(together[index : index + 1], alone, 1e-10)


def test_eager_masks_mean_the_same_as_boolean_ones() -> None:
    converted = convert(bert_classifier(), "lrsa")
    expected = converted(**padded()).logits
    converted.set_attn_implementation("eager")
    assert_close(converted(**padded()).logits, expected, TOLERANCE[torch.float64])


def test_masks_are_read_as_padding_only_where_all_queries_agree() -> None:
    two_dimensional = torch.tensor([[1, 1, 0], [1, 0, 0]])
    expected = two_dimensional == 0
    boolean = (two_dimensional == 1)[:, None, None].expand(2, 1, 3, 3)
    additive = torch.zeros(2, 1, 3, 3).masked_fill(~boolean, torch.finfo(torch.float32).min)
    for mask in (two_dimensional, boolean, additive):
        padding, per_query = split_mask(mask)
        assert per_query is None
        assert padding is not None
        assert torch.equal(padding, expected)
    causal = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
    assert split_mask(causal)[0] is None
    assert split_mask(causal)[1] is causal
    added = torch.tensor([0.0, -2.0, 0.5]).expand(2, 1, 3, 3)
    assert split_mask(added)[0] is None
    assert split_mask(added)[1] is added
    with pytest.raises(ConfigError, match="set_attn_implementation"):
        split_mask("block")


def test_a_mask_for_each_query_is_refused_by_lrsa_and_honored_by_dot_products() -> None:
    bert = bert_classifier()
    mask = torch.ones(3, 1, 9, 9, dtype=torch.bool).tril()
    expected = bert(texts(), attention_mask=mask).logits
    kept = convert(bert, "dot_product")(texts(), attention_mask=mask).logits
    assert_close(kept, expected, TOLERANCE[torch.float64])
    with pytest.raises(ConfigError, match="attn_mask"):
        convert(bert, "lrsa")(texts(), attention_mask=mask)


@pytest.mark.unhooked
def test_a_mask_for_each_query_is_not_lost_in_a_compiled_model() -> None:
    bert = bert_classifier()
    mask = torch.ones(3, 1, 9, 9, dtype=torch.bool).triu()
    expected = bert(texts(), attention_mask=mask).logits
    torch.compiler.reset()
    kept = torch.compile(convert(bert, "dot_product"), backend="eager")
    assert_close(kept(texts(), attention_mask=mask).logits, expected, TOLERANCE[torch.float64])
    lrsa = torch.compile(convert(bert, "lrsa"), backend="eager")
    with pytest.raises(RuntimeError, match="differs between queries"):
        lrsa(texts(), attention_mask=mask)
    padding = torch.tensor([[1] * 9, [1] * 6 + [0] * 3, [1] * 9])
    plain = convert(bert, "lrsa")(texts(), attention_mask=padding).logits
    assert_close(lrsa(texts(), attention_mask=padding).logits, plain, TOLERANCE[torch.float64])


@pytest.mark.parametrize("attention", list(ATTENTIONS))
@pytest.mark.parametrize("make", [vit_classifier, bert_classifier])
def test_a_converted_classifier_trains(make: Any, attention: str) -> None:
    model = make()
    is_text = make is bert_classifier
    batch = padded() if is_text else {"pixel_values": pictures(size=32)}
    converted = convert(model, attention, calibration=batch)
    assert type(converted) is type(model)
    converted.eval()  # dropout would hide a step that small
    optimizer = torch.optim.SGD(converted.parameters(), 1e-4)
    before = converted(**batch, labels=torch.tensor([0, 1, 2])).loss
    before.backward()
    for name, parameter in converted.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    optimizer.step()
    assert converted(**batch, labels=torch.tensor([0, 1, 2])).loss < before


def test_movement_is_measured_without_padded_tokens() -> None:
    bert = bert_classifier()
    alone = conversion_report(convert(bert, "l2", alpha=None, calibration=padded((5,))))
    # The same words with four padded ones behind: nothing that counts has changed.
    batch = {
        "input_ids": torch.cat([padded((5,))["input_ids"], texts(1, 4)], 1),
        "attention_mask": torch.tensor([[1] * 5 + [0] * 4]),
    }
    together = conversion_report(convert(bert, "l2", alpha=None, calibration=batch))
    for one, other in zip(alone.layers, together.layers, strict=True):
        assert one.attention == pytest.approx(other.attention, rel=1e-9)
        assert one.tokens == pytest.approx(other.tokens, rel=1e-9)


def test_attention_weights_come_from_attention_maps_not_from_the_model() -> None:
    converted = convert(vit_classifier(), "lrsa")
    maps = attention_maps(converted, pictures(size=32))
    assert [tuple(m.shape) for m in maps.values()] == [(3, 4, 17, 17)] * 2
    with pytest.raises(ConfigError, match="attention_maps"):
        converted(pictures(size=32), output_attentions=True)
    hidden = converted(pictures(size=32), output_hidden_states=True).hidden_states
    assert len(hidden) == 3


def test_decoders_other_models_and_converted_ones_are_refused_by_name() -> None:
    from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    decoder = BertLMHeadModel(BertConfig(vocab_size=9, is_decoder=True, **sizes))
    with pytest.raises(UnsupportedModelError, match=r"BertLMHeadModel.*leak the future"):
        convert(decoder)
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(UnsupportedModelError, match=r"GPT2LMHeadModel.*'gpt2'.*Supported"):
        convert(gpt)
    with pytest.raises(UnsupportedModelError, match="converted already"):
        convert(convert(vit_classifier()))


def test_the_bare_encoder_converts_too() -> None:
    from transformers import BertModel

    model = spread(BertModel(bert_classifier().config).eval())
    after = convert(model, "dot_product")(texts()).last_hidden_state
    assert_close(after, model(texts()).last_hidden_state, TOLERANCE[torch.float64])
