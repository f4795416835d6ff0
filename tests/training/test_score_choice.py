"""The score and the rate of a run's threshold are what was asked for, and what is little known of it is said."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta

from lrformer.core import ConfigError
from lrformer.data import Split
from lrformer.heads import Predictive
from lrformer.methods import fit_abstention
from lrformer.recipes.score_choice import find_outliers
from lrformer.training import Decision, RuntimeConfig, TrainConfig, load_run, running, train
from lrformer.training import score_choice as module
from lrformer.training.atomic_files import read_json, write_json
from lrformer.training.loop import Training
from lrformer.training.score_choice import check_score, choose_score
from lrformer.training.splits import load_splits
from lrformer.training.validation import rough_threshold
from tests.methods.tiny import small_method
from tests.training.small import PLAIN, QUIET, small, weights

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
SHOWN = RuntimeConfig(device="cpu")


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "chosen"
    train(small(epochs=1, score="chosen"), folder, runtime=QUIET)
    return folder


def test_the_chosen_score_is_the_one_that_reproduce_and_demo_would_choose(chosen):
    run = load_run(chosen)
    found = find_outliers(run, is_calibrated=True, batch_size=32)
    assert run.decision.score == choose_score([found]) != "entropy"
    kept = read_json(chosen / "metrics.json")["training"]["score"]
    assert kept["score"] == run.decision.score
    assert set(kept["tried"]) == set(run.method.scores) == set(found)
    assert kept["tried"]["energy"] == pytest.approx(np.mean([*found["energy"].values()]), abs=1e-6)
    assert max(kept["tried"], key=kept["tried"].__getitem__) == run.decision.score


def test_the_python_of_the_training_page_refits_a_run(chosen, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (block,) = (text for text in blocks if "weights_of" in text)
    shutil.copytree(chosen, tmp_path / "runs" / "digits")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block, PAGE.name, "exec"), names)
    assert load_run(tmp_path / "runs" / "digits-99").decision.true_positive_rate == 0.99
    assert names["run"].threshold > load_run(chosen).threshold


def test_of_many_validation_images_a_part_is_enough(chosen, tmp_path, monkeypatch):
    seen = []

    def make(split, kind, *, seed):
        seen.append(len(split))
        return module_make(split, kind, seed=seed)

    module_make = module.make_outliers
    monkeypatch.setattr(module, "NUM_VALIDATION_IMAGES", 20)
    monkeypatch.setattr(module, "make_outliers", make)
    train(small(epochs=1, score="chosen"), tmp_path, runtime=QUIET, weights_of=chosen)
    assert seen == [20, 20, 20]


def test_another_score_and_rate_are_fitted_without_training_as_if_trained_with_them(
    chosen, tmp_path, monkeypatch
):
    asked = small(epochs=1, score="energy", true_positive_rate=0.75)
    train(asked, tmp_path / "anew", runtime=QUIET)
    monkeypatch.setattr(Training, "run", lambda _: pytest.fail("it was trained"))
    run = train(asked, tmp_path / "refitted", runtime=QUIET, weights_of=chosen)
    assert weights(tmp_path / "refitted") == weights(tmp_path / "anew")
    assert "score" not in read_json(tmp_path / "refitted" / "metrics.json")["training"]
    _, val = load_splits(asked)
    predictive = run.predict(torch.from_numpy(val.x[:]))
    rule = fit_abstention(predictive, score="energy", true_positive_rate=0.75)
    assert run.decision.score == "energy"
    assert run.threshold == pytest.approx(rule.threshold, rel=1e-5)
    assert run.decision.num_validation == len(val)
    with pytest.raises(ConfigError, match="lrformer refit gives a finished run another score in a"):
        train(small(epochs=1), chosen, runtime=QUIET)


def test_a_run_from_before_scores_and_numbers_were_kept_goes_on_and_loads(tmp_path, monkeypatch):
    first = train(small(PLAIN, epochs=1), tmp_path, runtime=QUIET)
    config, decision = (read_json(tmp_path / f"{name}.json") for name in ("config", "decision"))
    assert config["config"]["train"].pop("score") is None
    assert decision.pop("num_validation") > 0
    write_json(tmp_path / "config.json", config)
    write_json(tmp_path / "decision.json", decision)
    monkeypatch.setattr(running, "_finish", lambda *_: pytest.fail("it was fitted again"))
    again = train(small(PLAIN, epochs=1), tmp_path, runtime=QUIET)
    assert (again.decision.num_validation, again.threshold) == (None, first.threshold)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small(PLAIN, score="variance"), r"'variance'\) is not given by method 'deterministic'"),
        (
            small(score="mutual_information"),
            "it gives: msp, entropy, energy, dempster_shafer, variance",
        ),
        (
            small(PLAIN, data="two_moons", classes=None, model="auto", model_overrides={}, score="chosen"),
            "score 'chosen' needs images, of which outliers can be made; two_moons/val holds points",
        ),
    ],
)  # fmt: skip
def test_a_score_that_cannot_be_is_refused_before_anything_is_written(tmp_path, config, message):
    with pytest.raises(ConfigError, match=message):
        train(config, tmp_path / "run", runtime=QUIET)
    assert not (tmp_path / "run").exists()


def test_an_unknown_score_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"unknown score 'entropie'. Did you mean 'entropy'"):
        TrainConfig(data="digits", score="entropie")


@pytest.mark.parametrize(
    ("side", "labels", "message"),
    [(3, (0, 1), "of val/x have 3"), (8, (1, 1), "those of val/x are of one")],
)
def test_images_of_which_no_outliers_can_be_made_choose_no_score(side, labels, message):
    split = Split(
        name="val/x",
        x=np.zeros((2, side, side, 1), np.uint8),
        y=np.array(labels),
        class_names=("a", "b"),
        mean=(0.0,),
        std=(1.0,),
    )
    with pytest.raises(ConfigError, match=rf"{message}.* Name a score: msp, entropy, energy"):
        check_score(small(score="chosen"), small_method("deterministic"), split)


@pytest.mark.filterwarnings("ignore:the variance carries no distance")
@pytest.mark.parametrize("head", ["gp", "fitted", "linear"])
@pytest.mark.parametrize("approximation", ["mean_field", "monte_carlo"])
def test_what_a_method_says_that_it_gives_is_what_its_predictions_give(head, approximation):
    method = small_method("lrformer", head=head, approximation=approximation).eval()
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert method.fit_posterior([x]).scores == method.predict(x).scores


def decide(number, rate):
    """Return a decision on as many inputs, all different, and their predictions."""
    logits = torch.stack([torch.linspace(1, 2, number), torch.zeros(number)], dim=1)
    predictive = Predictive(logits=logits)
    rule = fit_abstention(predictive, true_positive_rate=rate)
    return Decision(
        temperature=1.0, score="entropy", threshold=rule.threshold, true_positive_rate=rate
    ), predictive


@pytest.mark.parametrize(("number", "rate", "above"), [(30, 0.95, 1), (400, 0.99, 4), (20, 1.0, 0)])
def test_a_threshold_with_few_samples_above_it_is_called_rough_with_its_interval(
    number, rate, above
):
    warning = rough_threshold(*decide(number, rate))
    accepted = number - above
    low = beta.ppf(0.025, accepted, above + 1)
    high = beta.ppf(0.975, accepted + 1, above) if above else 1.0
    assert warning is not None
    assert (
        f"with {above} of {number} validation samples above it: asked for {rate:.0%} of" in warning
    )
    assert f"it may accept {low:.1%} to {high:.1%} of them" in warning


@pytest.mark.parametrize(("number", "rate"), [(100, 0.95), (500, 0.99)])
def test_five_samples_above_a_threshold_are_enough(number, rate):
    assert rough_threshold(*decide(number, rate)) is None


def test_what_is_chosen_and_what_is_rough_is_said_once_when_it_is_fitted(chosen, tmp_path, capsys):
    config = small(epochs=1, score="chosen", true_positive_rate=0.9)
    for _ in range(2):  # the second call only loads it
        train(config, tmp_path, runtime=SHOWN, weights_of=chosen)
    said = capsys.readouterr().err
    assert said.count("warning: the threshold is rough") == 0
    assert said.count("finds outliers made of validation images best: AUPR") == 1
    train(small(epochs=1), tmp_path / "rough", runtime=SHOWN, weights_of=chosen)
    assert capsys.readouterr().err.count("warning: the threshold is rough, with 2 of 5") == 1
