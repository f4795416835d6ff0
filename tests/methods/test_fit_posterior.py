import copy
import dataclasses
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lrformer.core import ConfigError, NotFittedError, UnsupportedModelError
from lrformer.heads import FittedGP, RandomFeatureGP, RandomFeatureGPConfig
from lrformer.metrics import detection_metrics
from lrformer.training.posterior import PosteriorClassifier, find_classifier, fit_posterior
from tests.methods.tiny import (
    NUM_CLASSES,
    TinyMLP,
    digits,
    fit,
    small_method,
    tiny_timm,
    tiny_wide_resnet,
)
from tests.tolerance import assert_close

SMALL = RandomFeatureGPConfig(num_random_features=64, feature_scale="calibrate")


def loader() -> DataLoader:
    return DataLoader(digits()[0], batch_size=64)


@pytest.mark.parametrize("name", ["dnn_gp", "sngp"])
def test_a_method_whose_head_has_no_length_scale_refuses_one(name) -> None:
    with pytest.raises(ConfigError, match=r"length_scale \(0.5\) has no meaning"):
        small_method(name, feature_scale="calibrate", length_scale=0.5)
    small_method(name, feature_scale="literal", length_scale=0.5)
    small_method(name, feature_scale="calibrate")


def test_a_trained_classifier_keeps_its_classes_and_gains_a_variance() -> None:
    method = small_method("deterministic", lambda: TinyMLP(drop_rate=0.0))
    fit(method, digits()[0], epochs=4)
    _, test, unknown = digits()
    model = fit_posterior(method, loader(), config=SMALL)
    assert isinstance(model, PosteriorClassifier)
    x, _ = test.tensors
    before, after = method.predict(x), model.predict(x)
    assert torch.equal(before.logits.argmax(-1), after.logits.argmax(-1))
    assert after.variance is not None
    novel = model.predict(unknown).variance
    assert novel is not None
    assert novel.mean() > 1.25 * after.variance.mean()
    assert model.distance is not None
    assert model.distance.ratio > 2


def test_its_variance_equals_the_closed_form_on_the_classifiers_features() -> None:
    method = small_method("deterministic", lambda: TinyMLP(drop_rate=0.0)).eval()
    model = fit_posterior(method, loader(), config=SMALL)
    assert isinstance(model, PosteriorClassifier)
    train, test, _ = digits()
    with torch.no_grad():
        phi = model.head.random_features(method.features(train.tensors[0])).double()
        at = model.head.random_features(method.features(test.tensors[0])).double()
    precision = torch.eye(64, dtype=torch.float64) + phi.T @ phi
    expected = (at * torch.linalg.solve(precision, at.T).T).sum(-1)
    variance = model.predict(test.tensors[0]).variance
    assert variance is not None
    assert_close(variance, expected, 1e-4)


@pytest.mark.parametrize("build", [tiny_timm, tiny_wide_resnet])
def test_timm_models_and_wide_resnets_are_read_through_their_classifier(build) -> None:
    model = build()
    model.reset_classifier(NUM_CLASSES)
    model.eval()
    wrapped = fit_posterior(model, loader(), config=SMALL)
    assert isinstance(wrapped, PosteriorClassifier)
    x = digits()[1].tensors[0][:8]
    assert torch.equal(wrapped(x), model(x))
    assert wrapped.predict(x).variance is not None
    assert not model.training


def test_a_head_inside_somebodys_model_is_fitted_in_place() -> None:
    config = RandomFeatureGPConfig(num_random_features=64)
    head = RandomFeatureGP(32, NUM_CLASSES, config)
    model = nn.Sequential(TinyMLP(drop_rate=0.0), head)
    assert fit_posterior(model, loader()) is model
    assert head.is_fitted
    assert not model.training
    train, _, _ = digits()
    phi = head.random_features(model[0](train.tensors[0])).double().detach()
    assert_close(head.posterior.precision[0], phi.T @ phi, 1e-5)


def test_a_method_fits_its_own_posterior() -> None:
    for name in ("sngp", "lrformer"):
        method = small_method(name)
        assert fit_posterior(method, loader()) is method
        assert not method.needs_posterior
    sampled = small_method("mc_dropout")
    assert fit_posterior(sampled, loader()) is sampled


def test_training_on_makes_the_posterior_stale() -> None:
    model = PosteriorClassifier(small_method("deterministic"), SMALL)
    x = digits()[1].tensors[0][:4]
    with pytest.raises(NotFittedError):
        model.predict(x)
    model.fit_posterior(loader())
    model.predict(x)
    model.train()(x)
    assert model.needs_posterior
    with pytest.raises(NotFittedError, match="older than the weights"):
        model.predict(x)


def test_a_saved_posterior_classifier_predicts_the_same_to_the_bit() -> None:
    model = fit_posterior(small_method("deterministic"), loader(), config=SMALL)
    fresh = PosteriorClassifier(small_method("deterministic"), SMALL)
    fresh.load_state_dict(model.state_dict())
    x = digits()[1].tensors[0][:4]
    assert isinstance(model, PosteriorClassifier)
    assert torch.equal(fresh.predict(x).logits, model.predict(x).logits)


def test_models_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="neither a RandomFeatureGP"):
        fit_posterior(nn.Sequential(nn.ReLU()), loader())
    heads = nn.ModuleList([RandomFeatureGP(4, 2), RandomFeatureGP(4, 2)])
    with pytest.raises(UnsupportedModelError, match="2 Gaussian-process heads"):
        fit_posterior(heads, loader())
    last = nn.Linear(3, 2)
    assert find_classifier(nn.Sequential(nn.Linear(4, 3), last)) is last


class TwoHeads(nn.Module):
    """A classifier and another linear layer that was registered after it."""

    def __init__(self, num_others: int) -> None:
        super().__init__()
        self.body = nn.Linear(64, 16)
        self.head = nn.Linear(16, NUM_CLASSES)
        self.other = nn.Linear(16, num_others)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x.flatten(1)).relu()
        self.other(features)
        return self.head(features)


@pytest.mark.parametrize("num_others", [NUM_CLASSES, 3])
def test_a_layer_whose_output_is_not_the_models_is_refused(num_others: int) -> None:
    with pytest.raises(UnsupportedModelError, match=r"output of other.* is not that of the model"):
        fit_posterior(TwoHeads(num_others), loader(), config=SMALL)


def test_a_fitted_head_inside_a_model_is_fitted_itself() -> None:
    head = FittedGP(16, NUM_CLASSES, SMALL)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), head)
    assert fit_posterior(model, loader()) is model
    assert head.is_fitted
    assert head.random_features.is_calibrated


def test_data_that_can_be_seen_once_only_and_batches_of_names_are_refused() -> None:
    method = small_method("sngp").eval()
    x = digits()[0].tensors[0]
    with pytest.raises(ConfigError, match="generator, which can be gone through only once"):
        method.fit_posterior(part for part in x.split(100))
    with pytest.raises(ConfigError, match="a batch is a dict with pixels"):
        method.fit_posterior([{"pixels": x}])
    method.fit_posterior(x.split(100))
    with pytest.raises(ConfigError, match=r"loader \(5\) must give batches"):
        fit_posterior(nn.Linear(2, 2), 5)  # pyright: ignore[reportArgumentType]


def _method() -> nn.Module:
    return small_method("sngp")


def _inside() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), FittedGP(16, NUM_CLASSES, SMALL))


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, NUM_CLASSES))


@pytest.mark.parametrize("build", [_method, _inside, _classifier])
def test_a_call_of_what_was_fitted_leaves_its_posterior_as_it_is(build) -> None:
    model = fit_posterior(build().train(), loader(), config=SMALL)
    heads = [m for m in model.modules() if hasattr(m, "is_fitted")]
    assert heads
    model(digits()[1].tensors[0])
    assert all(head.is_fitted for head in heads)


def test_the_state_of_a_classifier_of_any_kind_brings_its_posterior_back() -> None:
    fitted = fit_posterior(_classifier(), loader(), config=SMALL)
    again = PosteriorClassifier(_classifier(), SMALL)
    again.load_state_dict(fitted.state_dict())
    x = digits()[2]
    assert torch.equal(again.predict(x).probs, fitted.predict(x).probs)


@pytest.mark.parametrize("name", ["sngp", "lrformer"])
def test_a_cast_of_the_model_does_not_round_what_the_posterior_was_computed_from(name) -> None:
    method = small_method(name)
    fit(method, digits()[0], epochs=2)
    features = method.head.random_features
    before = {key: value.clone() for key, value in features.state_dict().items()}
    method.bfloat16()
    for key, value in features.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[key])
    assert next(method.backbone.parameters()).dtype == torch.bfloat16
    assert method.double().head.random_features.weight.dtype == torch.float64


def test_a_model_of_text_sees_its_mask() -> None:
    pytest.importorskip("transformers")
    from tests.interop.zoo import bert_classifier

    bert = bert_classifier()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 30, (12, 6), generator=generator)
    mask = torch.ones_like(ids)
    mask[:, 3:] = 0
    named = {"input_ids": ids, "attention_mask": mask}
    labels = torch.zeros(12, dtype=torch.long)
    model = fit_posterior(bert, [({**named, "labels": labels}, labels)], config=SMALL)
    expected = bert(**named).logits
    shrunk = model.predict(named)
    assert torch.equal(shrunk.probs.argmax(-1), expected.argmax(-1))
    assert_close(model(named), expected, 1e-6)
    # What is padding does not matter.
    other = {**named, "input_ids": torch.where(mask.bool(), ids, 1)}
    assert_close(model.predict(other).variance, shrunk.variance, 1e-5)
    with pytest.raises(ConfigError, match="what looks like their mask"):
        fit_posterior(bert, [(ids, mask, labels)], config=SMALL)


def test_numbers_that_are_none_are_said() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(ConfigError, match="gives NaN; look at its inputs"):
        fit_posterior(model, [torch.full((4, 1, 8, 8), float("nan"))], config=SMALL)


@pytest.mark.filterwarnings("ignore:the variance carries no distance")
def test_a_moving_average_is_fitted_alike_whatever_the_batches() -> None:
    data = digits()[0]
    loaders = [DataLoader(data, batch_size=size) for size in (7, 600)]
    method = small_method("sngp", momentum=0.99).eval()
    assert isinstance(method.head, RandomFeatureGP)
    found = []
    for each in loaders:
        method.fit_posterior(each)
        found.append(method.head.posterior.precision.clone())
    assert_close(found[0], found[1], 1e-4)
    plain = small_method("deterministic").eval()
    config = dataclasses.replace(SMALL, momentum=0.99)
    wrapped = PosteriorClassifier(plain, config)
    found = [wrapped.fit_posterior(each).head.posterior.precision.clone() for each in loaders]
    assert_close(found[0], found[1], 1e-3)


def test_training_makes_the_posterior_stale_and_that_of_no_copy() -> None:
    method = small_method("deterministic").eval()
    model = fit_posterior(method, loader(), config=SMALL)
    assert isinstance(model, PosteriorClassifier)
    twin = copy.deepcopy(model)
    x = digits()[1].tensors[0][:4]
    model(x)
    assert not model.needs_posterior  # looked at, not trained
    model.train()(x)
    assert model.needs_posterior
    assert not twin.needs_posterior
    assert not method._forward_pre_hooks


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_an_epoch_forgets_a_sum_and_not_a_moving_average(momentum) -> None:
    method = small_method("sngp", momentum=momentum).train()
    assert isinstance(method.head, RandomFeatureGP)
    method.loss(*digits()[0].tensors)
    before = method.head.posterior.precision.clone()
    method.refresh_posterior()
    method.on_epoch_start()
    assert method.needs_posterior
    is_kept = torch.equal(method.head.posterior.precision, before)
    assert before.any()
    assert is_kept == (momentum is not None)


def test_what_is_no_module_is_refused_by_its_kind() -> None:
    with pytest.raises(ConfigError, match=r"model \(a NoneType\) must be a module"):
        fit_posterior(None, digits()[0])  # pyright: ignore[reportArgumentType]


def test_a_classifier_that_was_wrapped_before_is_fitted_anew_and_not_wrapped_again() -> None:
    method = small_method("deterministic").eval()
    first = fit_posterior(method, loader(), config=SMALL)
    again = fit_posterior(first, loader())
    assert isinstance(again, PosteriorClassifier)
    assert again.model is method
    assert again.head.config == SMALL
    other = dataclasses.replace(SMALL, ridge=2.0)
    third = fit_posterior(again, loader(), config=other)
    assert isinstance(third, PosteriorClassifier)
    assert (third.model, third.head.config) == (method, other)


def test_inputs_with_their_labels_are_no_batches() -> None:
    pair = digits()[0].tensors
    for model in (small_method("deterministic"), small_method("sngp"), _classifier()):
        with pytest.raises(ConfigError, match=r"pair of tensors.* give \[\(X, y\)\], or a DataLo"):
            fit_posterior(model, pair)
    x = pair[0]
    fit_posterior(_classifier(), (x[:300], x[300:]), config=SMALL)
    fit_posterior(_classifier(), [pair], config=SMALL)


def trained_classifier() -> nn.Module:
    method = small_method("deterministic", lambda: TinyMLP(drop_rate=0.0))
    fit(method, digits()[0], epochs=4)
    return method.eval()


def test_the_length_scale_of_a_classifier_is_the_one_that_finds_made_outliers_best() -> None:
    _, test, unknown = digits()
    known, seen = (test.tensors[0][:100], test.tensors[1][:100]), test.tensors[0][100:]
    method = trained_classifier()
    config = dataclasses.replace(SMALL, num_random_features=256)
    plain = fit_posterior(method, loader(), config=config)
    chosen = fit_posterior(method, loader(), config=config, validation=[known])
    assert isinstance(chosen, PosteriorClassifier)
    choice = chosen.length_scale_choice
    assert choice is not None
    assert f"{choice.length_scale:.3g}" == max(choice.tried, key=choice.tried.__getitem__)
    assert chosen.head.config.length_scale == choice.length_scale != 2.0

    def auroc(model) -> float:
        scores = [model.predict(x).uncertainty("variance") for x in (seen, unknown)]
        return detection_metrics(*scores).auroc

    assert auroc(chosen) > auroc(plain) + 0.02
    # What was chosen is that of a process which is made with it, and stays with the model.
    set_to_it = dataclasses.replace(config, length_scale=choice.length_scale)
    same = fit_posterior(method, loader(), config=set_to_it)
    assert auroc(same) == pytest.approx(auroc(chosen), abs=0.03)
    again = fit_posterior(chosen, loader())
    assert isinstance(again, PosteriorClassifier)
    assert again.head.config == chosen.head.config


@pytest.mark.filterwarnings("ignore:the variance carries no distance")  # pixels are no features
def test_the_python_of_the_methods_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (block,) = (text for text in blocks if "fit_posterior(net" in text)
    names = {"net": _classifier(), "train_loader": loader(), "val_loader": [digits()[1].tensors]}
    exec(compile(block, "methods.md", "exec"), names)
    model = names["model"]
    assert isinstance(model, PosteriorClassifier)
    assert model.head.config.length_scale == 0.5


def test_a_length_scale_is_chosen_for_one_covariance_of_each_class_too() -> None:
    test = digits()[1].tensors
    config = dataclasses.replace(SMALL, likelihood="softmax")
    model = fit_posterior(small_method("deterministic"), loader(), config=config, validation=[test])
    assert isinstance(model, PosteriorClassifier)
    assert model.length_scale_choice is not None
    assert len(model.length_scale_choice.tried) == 9
    assert model.head.posterior.precision.shape[0] == NUM_CLASSES


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (lambda x, y: [x], "validation must give pairs of images and labels; a batch is a Tensor"),
        (lambda x, y: [{"x": x}], "a batch is a dict"),
        (lambda x, y: [(x.flatten(1), y)], r"inputs of shape \(\d+, 64\) .* are made of images"),
        (lambda x, y: [(x, y.float()[:, None])], r"labels of shape \(\d+, 1\)"),
        (lambda x, y: (x, y), "validation is a pair of tensors"),
        (lambda x, y: [], "validation is empty"),
        (lambda x, y: [(x, torch.zeros_like(y))], "images of one class alone"),
    ],
)
def test_validation_of_which_no_outliers_can_be_made_is_refused(validation, message) -> None:
    given = validation(*digits()[1].tensors)
    with pytest.raises(ConfigError, match=message):
        fit_posterior(small_method("deterministic"), loader(), config=SMALL, validation=given)


@pytest.mark.parametrize("build", [_method, _inside, lambda: small_method("mc_dropout")])
def test_a_model_with_a_process_of_its_own_takes_no_validation(build) -> None:
    with pytest.raises(ConfigError, match="validation chooses the length-scale of a classifier"):
        fit_posterior(build(), loader(), validation=[digits()[1].tensors])


def test_a_length_scale_on_another_scale_is_not_chosen() -> None:
    config = RandomFeatureGPConfig(num_random_features=64)
    with pytest.raises(ConfigError, match="'calibrate', and config has 'layer_norm'"):
        fit_posterior(
            small_method("deterministic"), loader(), config=config, validation=[digits()[1].tensors]
        )
