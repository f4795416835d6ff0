"""A posterior after the fact, for any trained model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from lrformer.core import ConfigError, UnsupportedModelError, make_generator
from lrformer.core.modes import evaluating
from lrformer.core.processes import gather_rows, num_processes
from lrformer.heads import (
    DistanceReport,
    FittedGP,
    LinearHead,
    Predictive,
    RandomFeatureGP,
    RandomFeatureGPConfig,
    RandomFeaturePosterior,
    distance_report,
)
from lrformer.interop.calibration import main_tensor
from lrformer.methods import Method
from lrformer.methods.base import BackboneMethod, Loader, check_repeatable, first_rows
from lrformer.training.classifier_length_scale import (
    check_choice,
    choose_for_classifier,
    read_known,
)
from lrformer.training.length_scale import NUM_TRAINING_FEATURES, LengthScaleChoice

_NUM_KEPT_FEATURES = 1000
_LABELS = frozenset({"label", "labels"})

# What a model is called with: a tensor, or keyword arguments.
Inputs = Shaped[Tensor, "b ..."] | Mapping[str, Tensor]


def fit_posterior(
    model: nn.Module,
    loader: Loader,
    *,
    config: RandomFeatureGPConfig | None = None,
    validation: Loader | None = None,
) -> nn.Module:
    """Return a model that predicts with a posterior fitted to the training data in `loader`.

    Three cases, in this order:

    1. A method that has a posterior fits it and is returned.
    2. A module with a `RandomFeatureGP` or `FittedGP` head somewhere inside gets that head fitted, in place.
    3. A classifier whose last layer is an `nn.Linear` (timm, transformers, ours, a deterministic
       method) is wrapped in a `PosteriorClassifier`: its forward pass and its accuracy stay, its features give a
       variance, by which `predict` shrinks the logits. One that was wrapped before is fitted anew, with the `config` that it
       has unless another is given.

    `loader` gives batches of inputs, or of tuples that start with them, and is gone through twice. What a model takes
    by name, such as token ids and their mask, is a dict, in the second and third case; labels in it are left out.
    In distributed training each process brings its own part of the data.

    The model comes back in evaluation mode: a pass in training mode says that it is trained on, and that its posterior
    is no longer that of its weights.

    Args:
        config: of the posterior in the third case; by default the length-scale is the median distance of features.
        validation: in the third case batches of other images than those of `loader`, with their labels: the length-scale
            is then the one, of nine, with which the variance finds outliers made of them best. `length_scale_choice` of
            what is returned says what was tried.

    Raises:
        UnsupportedModelError: when the model is none of the three.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model (a {type(model).__name__}) must be a module; of a run it is run.method."
        )
    if isinstance(model, PosteriorClassifier):
        model, config = model.model, config or model.head.config
    elif validation is not None:
        _check_takes_choice(model)
    if isinstance(model, Method) and not _is_softmax_method(model):
        return model.fit_posterior(loader).eval()
    heads = [m for m in model.modules() if isinstance(m, RandomFeatureGP | FittedGP)]
    if len(heads) == 1:
        _fit_head(model, heads[0], loader)
        return model.eval()
    if len(heads) > 1:
        raise UnsupportedModelError(
            f"{type(model).__name__} has {len(heads)} Gaussian-process heads; fit each by itself "
            "with reset, update and refresh."
        )
    classifier = PosteriorClassifier(model, config)
    if validation is not None:
        choice = classifier.choose_length_scale(loader, validation)
        chosen = replace(classifier.head.config, length_scale=choice.length_scale)
        classifier = PosteriorClassifier(model, chosen)
        classifier.length_scale_choice = choice
    return classifier.fit_posterior(loader).eval()


class PosteriorClassifier(nn.Module):
    """A trained classifier whose logits are shrunk by the variance of a posterior on its features.

    The mean is the classifier's own: the posterior adds the variance. Under the mean-field approximation it does not
    change which class is most probable, unless every class has a variance of its own (`likelihood="softmax"`).

    The model inside is the one that was given, not a copy. Train it through this module, which then knows that its
    posterior is stale; after training it by itself, fit the posterior again.
    """

    def __init__(self, model: nn.Module, config: RandomFeatureGPConfig | None = None) -> None:
        super().__init__()
        classifier = find_classifier(model)
        self.model = model
        self.classifier_name = next(n for n, m in model.named_modules() if m is classifier)
        self.head = RandomFeaturePosterior(
            classifier.in_features,
            classifier.out_features,
            config or RandomFeatureGPConfig(feature_scale="calibrate"),
        ).to(classifier.weight.device)
        self.distance: DistanceReport | None = None
        self.length_scale_choice: LengthScaleChoice | None = None
        self.train(model.training)

    @property
    def needs_posterior(self) -> bool:
        """Whether `predict` would refuse."""
        return not self.head.is_fitted

    def forward(self, x: Inputs) -> Float[Tensor, "b c"]:
        """Return the logits of the classifier; in training mode the posterior becomes stale."""
        if self.training:
            self.head.posterior.mark_stale()
        return self._features_and_logits(x)[1]

    def _features_and_logits(self, x: Inputs, *, is_checked: bool = False) -> tuple[Tensor, Tensor]:
        """Return what the classifier sees and says; checked, also that this is what the model says."""
        seen: list[tuple[Tensor, Tensor]] = []
        layer = self.model.get_submodule(self.classifier_name)
        with _watched(layer, lambda features, logits: seen.append((features, logits))):
            output = _call(self.model, x)
        features, logits = seen[-1]
        if is_checked:
            self._check_classifier(logits, main_tensor(output))
        if features.ndim != 2:
            raise UnsupportedModelError(
                f"the classifier sees features of shape {tuple(features.shape)}; it must see "
                "(b, e), one row for each input."
            )
        return features, logits

    @torch.no_grad()
    def fit_posterior(self, loader: Loader) -> "PosteriorClassifier":
        """Return self, with the scale calibrated and the precision summed over `loader`."""
        device = self.head.posterior.precision.device
        with evaluating(self):
            kept = gather_rows(
                self._first_features(loader, device, limit=_NUM_KEPT_FEATURES), device
            )
            self.head.share_features()
            if self.head.config.feature_scale == "calibrate":
                self.head.calibrate(kept)
            with self.head.posterior.frozen_pass():
                for x in _model_inputs(loader, device):
                    features, logits = self._features_and_logits(x)
                    self.head.posterior.update(self.head.random_features(features), logits)
                self.head.refresh()
            self.distance = distance_report(self.head, kept, generator=make_generator(0, device))
        return self

    @torch.no_grad()
    def choose_length_scale(self, loader: Loader, validation: Loader) -> LengthScaleChoice:
        """Return the length-scale with which the variance finds outliers made of `validation` best, and what was tried.

        The head is calibrated to the features of `loader` by that, and has to be fitted.
        """
        check_choice(self.head.config)
        device = self.head.posterior.precision.device
        known = read_known(validation, device)
        layer = self.model.get_submodule(self.classifier_name)
        weight = next(layer.parameters())

        def add(head: RandomFeaturePosterior, features: Tensor) -> None:
            logits = layer(features.to(weight.dtype))
            head.posterior.update(head.random_features(features), logits)

        with evaluating(self):
            limit = NUM_TRAINING_FEATURES // num_processes()
            kept = gather_rows(self._first_features(loader, device, limit=limit), device)
            self.head.share_features()
            self.head.calibrate(kept[:_NUM_KEPT_FEATURES])
            return choose_for_classifier(
                self.head,
                kept,
                known,
                features=lambda x: self._features_and_logits(x)[0],
                add=add,
            )

    def _first_features(self, loader: Loader, device: torch.device, *, limit: int) -> list[Tensor]:
        features = (
            self._features_and_logits(x, is_checked=index == 0)[0].float()
            for index, x in enumerate(_model_inputs(loader, device))
        )
        return first_rows(features, limit)

    def _check_classifier(self, logits: Tensor, output: Tensor) -> None:
        """Raise where the output of the layer is not that of the model: with two heads neither is the prediction."""
        if output.isnan().any():
            raise ConfigError(
                f"{type(self.model).__name__} gives NaN; look at its inputs and its weights."
            )
        if output.shape != logits.shape or not torch.allclose(output, logits):
            raise UnsupportedModelError(
                f"the output of {self.classifier_name}, the classifier of {type(self.model).__name__}, is not that of the "
                "model: it has several heads, or something after its last layer. Give a model that ends in one nn.Linear."
            )

    @torch.no_grad()
    def predict(self, x: Inputs, generator: torch.Generator | None = None) -> Predictive:
        """Return the classifier's prediction with the variance of the posterior."""
        with evaluating(self):
            features, logits = self._features_and_logits(x)
            phi = self.head.random_features(features)
            return self.head.predict_around(logits.to(phi.dtype), phi, generator)


def _check_takes_choice(model: nn.Module) -> None:
    """Raise for a model whose own process is fitted: its length-scale is set where it is made."""
    has_process = any(isinstance(m, RandomFeaturePosterior) for m in model.modules())
    if has_process or (isinstance(model, Method) and not _is_softmax_method(model)):
        raise ConfigError(
            f"validation chooses the length-scale of a classifier without a process of its own, and {type(model).__name__} is "
            "none. Leave it out; runs of the method lrformer with head='fitted' choose theirs by choose_length_scale=True."
        )


def find_classifier(model: nn.Module) -> nn.Linear:
    """Return the last linear layer: what the model calls its classifier, or else the last `nn.Linear`.

    Raises:
        UnsupportedModelError: when there is none.
    """
    get_classifier = getattr(model, "get_classifier", None)
    if callable(get_classifier) and isinstance(classifier := get_classifier(), nn.Linear):
        return classifier
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise UnsupportedModelError(
            f"{type(model).__name__} has neither a RandomFeatureGP head nor a final nn.Linear."
        )
    return layers[-1]


def _is_softmax_method(method: Method) -> bool:
    """Return whether a method is one network with a linear head and nothing else to its prediction."""
    return (
        isinstance(method, BackboneMethod)
        and isinstance(method.head, LinearHead)
        and type(method).predict is BackboneMethod.predict
    )


@torch.no_grad()
def _fit_head(model: nn.Module, head: RandomFeatureGP | FittedGP, loader: Loader) -> None:
    """Fit a head inside somebody's model from the features that reach it."""
    device = head.posterior.precision.device
    if isinstance(head, FittedGP):
        head.share_features()
        if head.config.feature_scale == "calibrate":
            head.calibrate(gather_rows(_features_seen_by(model, head, loader, device), device))
    kept: list[Tensor] = []

    def update(features: Tensor, _: Tensor) -> None:
        head.update(features)
        if sum(part.shape[0] for part in kept) < _NUM_KEPT_FEATURES:
            kept.append(features.float())

    with evaluating(model):
        with head.posterior.frozen_pass():
            with _watched(head, update):
                for x in _model_inputs(loader, device):
                    _call(model, x)
            head.refresh()
        distance_report(head, gather_rows(kept, device), generator=make_generator(0, device))


def _features_seen_by(
    model: nn.Module, head: nn.Module, loader: Loader, device: torch.device
) -> list[Tensor]:
    """Return the first features that reach a head inside somebody's model, batch by batch."""
    seen: list[Tensor] = []
    with evaluating(model), _watched(head, lambda features, _: seen.append(features.float())):
        for x in _model_inputs(loader, device):
            _call(model, x)
            if sum(part.shape[0] for part in seen) >= _NUM_KEPT_FEATURES:
                break
    return first_rows(seen, _NUM_KEPT_FEATURES)


def _model_inputs(loader: Loader, device: torch.device) -> Iterator[Inputs]:
    """Yield what the model is called with, batch by batch, on `device`."""
    check_repeatable(loader)
    for batch in loader:
        x = batch if isinstance(batch, Tensor | Mapping) else batch[0]
        if isinstance(x, Mapping):
            yield {
                name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
                for name, value in x.items()
            }
            continue
        if isinstance(batch, Sequence) and len(batch) > 1 and _is_masked_text(x, batch[1]):
            raise ConfigError(
                f"a batch has token ids and, of the same shape {tuple(x.shape)}, what looks like their mask, which would be "
                "left out; give a dict of what the model takes, such as {'input_ids': ids, 'attention_mask': mask}."
            )
        yield x.to(device, non_blocking=True)


def _call(model: nn.Module, x: Inputs) -> Any:
    """Return what a model makes of its inputs; labels, of which it would make a loss, are left out."""
    if not isinstance(x, Mapping):
        return model(x)
    return model(**{name: value for name, value in x.items() if name not in _LABELS})


def _is_masked_text(x: Tensor, second: object) -> bool:
    return (
        not x.is_floating_point()
        and x.ndim == 2
        and isinstance(second, Tensor)
        and second.shape == x.shape
    )


@contextmanager
def _watched(layer: nn.Module, see) -> Iterator[None]:
    """Call `see(input, output)` whenever `layer` runs inside the block."""
    handle = layer.register_forward_hook(lambda _, args, output: see(args[0], output))
    try:
        yield
    finally:
        handle.remove()
