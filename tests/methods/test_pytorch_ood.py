import pytest
import torch
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.interop.pytorch_ood import DETECTORS, FeatureDetectors
from tests.tolerance import assert_close

pytest.importorskip("pytorch_ood")


def clusters() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    centers = 4 * torch.randn(3, 6, generator=generator)
    labels = torch.arange(120) % 3
    features = centers[labels] + torch.randn(120, 6, generator=generator)
    far = 10 * torch.randn(40, 6, generator=generator)
    return features, labels, far


def detectors(**settings) -> FeatureDetectors:
    features, labels, _ = clusters()
    weight = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    bias = torch.tensor([0.1, -0.2, 0.3])
    arguments = {"weight": weight, "bias": bias, "num_neighbors": 5, **settings}
    return FeatureDetectors(features, labels, **arguments)


def test_mahalanobis_equals_its_formula() -> None:
    features, labels, far = (t.double() if t.is_floating_point() else t for t in clusters())
    means = torch.stack([features[labels == c].mean(0) for c in range(3)])
    centered = features - means[labels]
    scatter = centered.T @ centered
    difference = far.unsqueeze(1) - means
    distance = torch.einsum("bce,ef,bcf->bc", difference, scatter.inverse(), difference)
    assert_close(detectors().score(far.float())["mahalanobis"], 0.5 * distance.amin(-1), 1e-4)


def test_knn_equals_its_formula() -> None:
    features, _, far = clusters()
    normalized, query = (torch.nn.functional.normalize(t.double()) for t in (features, far))
    expected = torch.cdist(query, normalized).sort().values[:, 4]
    assert_close(detectors().score(far)["knn"], expected, 1e-4)


def test_energy_and_vim_read_the_last_layer() -> None:
    fitted = detectors()
    _, _, far = clusters()
    assert fitted.weight is not None
    logits = far @ fitted.weight.T + fitted.bias
    scores = fitted.score(far)
    assert_close(scores["energy"], -logits.logsumexp(-1), 1e-5)
    # ViM adds a non-negative virtual logit to the energy.
    assert (scores["vim"] - scores["energy"] > -1e-4).all()


@pytest.mark.parametrize("name", ["mahalanobis", "knn", "vim"])
def test_far_features_score_higher_than_near_ones(name: str) -> None:
    features, _, far = clusters()
    fitted = detectors(names=[name])
    assert fitted.score(far)[name].median() > fitted.score(features)[name].median()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="'vim' needs the last linear layer"):
        detectors(weight=None)
    with pytest.raises(ConfigError, match="detector 'odin' must be one of mahalanobis"):
        detectors(names=["odin"])
    with pytest.raises(ConfigError, match=r"num_neighbors \(500\)"):
        detectors(num_neighbors=500)
    assert set(detectors().score(clusters()[2])) == set(DETECTORS)
