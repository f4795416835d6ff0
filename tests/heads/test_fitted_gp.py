"""The head that is fitted after training predicts as its linear layer does, with the variance of a posterior."""

import pytest
import torch

from lrformer.core import NotFittedError
from lrformer.heads import FittedGP, RandomFeatureGPConfig
from lrformer.methods import create_method
from lrformer.models import create_model
from lrformer.training import PosteriorClassifier
from tests.tolerance import TOLERANCE, assert_close

CONFIG = RandomFeatureGPConfig(num_random_features=64, feature_scale="calibrate")


def fitted(features: torch.Tensor, config: RandomFeatureGPConfig = CONFIG) -> FittedGP:
    head = FittedGP(features.shape[1], 3, config)
    head.calibrate(features)
    head.reset()
    head.update(features)
    head.refresh()
    return head.eval()


def test_the_logits_are_the_linear_layers_shrunk_by_the_variance():
    features = torch.randn(50, 8)
    head = fitted(features)
    predictive = head.predict(features)
    variance = head.variance(features)
    expected = head.linear(features) / (1 + CONFIG.mean_field_factor * variance).sqrt()[:, None]
    torch.testing.assert_close(predictive.logits, expected)
    assert torch.equal(predictive.logits.argmax(1), head.linear(features).argmax(1))


def test_far_from_the_data_the_variance_is_larger():
    features = torch.randn(200, 4)
    head = fitted(features)
    assert head.variance(10 * features).mean() > 2 * head.variance(features).mean()


def test_training_makes_the_posterior_stale():
    features = torch.randn(20, 4)
    head = fitted(features).train()
    head(features)
    with pytest.raises(NotFittedError):
        head.eval().predict(features)


def test_the_method_gives_what_a_posterior_around_the_trained_classifier_gives():
    torch.manual_seed(0)
    method = create_method(
        "lrformer",
        lambda: create_model("lrformer_digits", num_classes=0, depth=1),
        3,
        head="fitted",
        feature_scale="calibrate",
        num_random_features=64,
    ).eval()
    loader = [torch.randn(40, 1, 8, 8) for _ in range(2)]
    method.fit_posterior(loader)
    around = PosteriorClassifier(_Classifier(method), method.config).eval()
    around.head.load_state_dict(
        {k: v for k, v in method.head.state_dict().items() if not k.startswith("linear")}
    )
    ours, theirs = method.predict(loader[0]), around.predict(loader[0])
    assert ours.variance is not None
    assert theirs.variance is not None
    assert_close(ours.logits, theirs.logits, TOLERANCE[torch.float32])
    assert_close(ours.variance, theirs.variance, TOLERANCE[torch.float32])


class _Classifier(torch.nn.Module):
    def __init__(self, method) -> None:
        super().__init__()
        self.backbone, self.fc = method.backbone, method.head.linear

    def forward(self, x):
        return self.fc(self.backbone(x))
