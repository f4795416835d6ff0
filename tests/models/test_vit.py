import pytest
import torch

from lrformer.core import ConfigError
from lrformer.models import create_model, resize_pos_embed
from lrformer.models.block import DropPath, PostNormBlock, PreNormBlock
from lrformer.models.pool import Pool
from lrformer.models.vit import LRSAConfig
from tests.tolerance import assert_close


def test_post_norm_is_the_layer_that_the_paper_prints():
    block = PostNormBlock(16, 2, LRSAConfig()).double().eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    inner = block.norm1(x + block.attn(x))
    assert_close(block(x), block.norm2(inner + block.mlp(inner)), 1e-12)


def test_pre_norm_normalizes_inside_the_branches():
    block = PreNormBlock(16, 2, LRSAConfig()).double().eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    middle = x + block.attn(block.norm1(x))
    assert_close(block(x), middle + block.mlp(block.norm2(middle)), 1e-12)


@pytest.mark.parametrize("block_type", [PreNormBlock, PostNormBlock])
def test_a_block_passes_the_padding_mask_on(block_type):
    block = block_type(16, 2, LRSAConfig()).double().eval()
    x = torch.randn(1, 7, 16, dtype=torch.float64)
    mask = torch.tensor([[False] * 4 + [True] * 3])
    assert_close(block(x, key_padding_mask=mask)[:, :4], block(x[:, :4]), 1e-12)


def test_stochastic_depth_drops_whole_samples_and_keeps_the_mean():
    drop = DropPath(0.25)
    x = torch.ones(20_000, 2, 3)
    dropped = drop(x)
    per_sample = dropped.flatten(1)
    assert ((per_sample == 0).all(1) | torch.isclose(per_sample, torch.tensor(4 / 3)).all(1)).all()
    assert abs(dropped.mean().item() - 1) < 0.02
    assert torch.equal(drop.eval()(x), x)


def test_stochastic_depth_grows_linearly_from_zero():
    model = create_model("lrformer_digits", drop_path_rate=0.3)
    rates = [block.drop_path1.rate for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_sequence_pooling_is_a_learned_average_of_the_tokens():
    pool = Pool("seq", 6)
    assert pool.score is not None
    tokens = torch.randn(2, 4, 6)
    weights = torch.softmax(pool.score(tokens).squeeze(-1), 1)
    expected = torch.einsum("bn,bne->be", weights, tokens)
    assert_close(pool(tokens), expected, 1e-5)
    assert_close(Pool("avg", 6)(tokens), tokens.mean(1), 1e-6)
    assert torch.equal(Pool("token", 6)(tokens), tokens[:, 0])


def test_position_embeddings_resize_smoothly_and_leave_the_class_token_alone():
    rows = torch.linspace(0, 1, 8)
    plane = (rows[:, None] + 2 * rows[None, :]).reshape(1, 64, 1)
    pos_embed = torch.cat([torch.full((1, 1, 1), 7.0), plane], 1)
    resized = resize_pos_embed(pos_embed, (8, 8), (16, 16), num_prefix_tokens=1)
    assert resized.shape == (1, 257, 1)
    assert resized[0, 0] == 7.0
    inner = resized[0, 1:].reshape(16, 16)[4:12, 4:12]
    # A plane stays a plane away from the border: equal steps, half as long.
    assert torch.allclose(inner.diff(dim=0), torch.tensor(1 / 14), atol=1e-3)
    assert torch.allclose(inner.diff(dim=1), torch.tensor(2 / 14), atol=1e-3)
    same = resize_pos_embed(pos_embed, (8, 8), (8, 8), num_prefix_tokens=1)
    assert torch.equal(same, pos_embed)


@pytest.mark.parametrize("name", ["lrformer_tiny_depth6_patch4_32", "lrformer_compact_32"])
def test_a_model_takes_other_image_sizes_after_resizing(name):
    model = create_model(name, depth=1).eval()
    x = torch.randn(1, 3, 32, 32)
    before = model(x)
    model.set_input_size(48)
    assert model(torch.randn(1, 3, 48, 48)).shape == (1, 10)
    with pytest.raises(ConfigError, match="set_input_size"):
        model(x)
    model.set_input_size(32)
    assert (model(x) - before).abs().max() < before.abs().max()


def test_vectors_have_no_image_size_to_change():
    with pytest.raises(ConfigError, match="reads vectors"):
        create_model("lrformer_two_moons").set_input_size(32)


def test_without_the_final_norm_a_far_point_has_far_features():
    def growth(**settings: bool) -> float:
        torch.manual_seed(0)
        model = create_model("lrformer_two_moons", num_classes=0, **settings).eval()
        near, far = model(torch.ones(1, 2)), model(1000 * torch.ones(1, 2))
        return (far.norm() / near.norm()).item()

    assert growth() > 100
    assert growth(final_norm=True) < 10


def test_a_point_is_mapped_linearly_and_injectively_to_its_tokens():
    model = create_model("lrformer_two_moons").double()
    tokenizer = model.tokenizer
    a, b = torch.randn(2, 1, 2, dtype=torch.float64)
    mean = tokenizer((a + b) / 2)
    assert_close(mean, (tokenizer(a) + tokenizer(b)) / 2, 1e-12)
    assert torch.linalg.matrix_rank(tokenizer.proj.weight) == 2


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lrformer_digits", {"patch_size": 0}, r"patch_size \(0\) must be at least 1"),
        ("lrformer_digits", {"in_chans": 0}, r"in_chans \(0\) must be at least 1"),
        ("lrformer_digits", {"mlp_ratio": -1.0}, r"mlp_ratio \(-1.0\) times embed_dim"),
        ("certified_digits", {"mlp_ratio": 0.0}, r"mlp_ratio \(0.0\) times embed_dim"),
        ("lrformer_compact_32", {"img_size": 0}, r"img_size \(0\) must be at least 1"),
        ("lrformer_hybrid_32", {"img_size": -1}, r"img_size \(-1\) must be at least 1"),
    ],
)
def test_sizes_that_no_model_has_are_refused(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        create_model(name, **settings)


def test_a_refused_size_leaves_the_model_as_it_was_and_a_frozen_embedding_stays_frozen():
    model = create_model("lrformer_compact_32", num_convs=2, embed_dim=16, depth=1, num_heads=2)
    with pytest.raises(ConfigError, match=r"img_size \(-3\)"):
        model.set_input_size(-3)
    model(torch.randn(1, 3, 32, 32))
    model.requires_grad_(False).set_input_size(16)
    assert not model.pos_embed.requires_grad
    with pytest.raises(ConfigError, match="belongs to its"):
        create_model("certified_digits").set_input_size(16)


def test_a_new_classifier_has_the_type_of_the_model():
    small = {"depth": 10, "widen_factor": 1}
    for model in (
        create_model("lrformer_digits", depth=1),
        create_model("wide_resnet28_10", in_chans=1, img_size=8, **small),
    ):
        model.bfloat16().reset_classifier(3)
        assert model(torch.randn(2, 1, 8, 8).bfloat16()).shape == (2, 3)
