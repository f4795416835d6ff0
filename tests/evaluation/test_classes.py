import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrformer.core import from_record, to_record
from lrformer.evaluation import EvaluationConfig, Scores, evaluate, from_arrays
from lrformer.evaluation.classes import class_figures, confusions, worst_classes
from lrformer.evaluation.sentences import worst

NAMES = ("ant", "bee", "cow", "dog")
TRUTH = np.array([0, 0, 0, 0, 1, 1, 2])
SAID = np.array([0, 0, 1, 2, 1, 0, 2])


def predictions(truth=TRUTH, said=SAID, names=NAMES):
    return from_arrays(0.7 * np.eye(len(names))[said] + 0.3 / len(names), truth, class_names=names)


def test_every_class_has_its_samples_its_accuracy_and_what_it_is_taken_for():
    ant, bee, cow, dog = class_figures(predictions(), level=0.95)
    assert [entry.name for entry in (ant, bee, cow, dog)] == list(NAMES)
    assert (ant.count, ant.accuracy, ant.num_right) == (4, 0.5, 2)
    assert ant.taken_for == {"bee": 1, "cow": 1}
    assert (bee.count, bee.accuracy, bee.taken_for) == (2, 0.5, {"ant": 1})
    assert (cow.count, cow.accuracy, cow.taken_for) == (1, 1, {})
    assert cow.low < 0.5 < cow.high == 1
    assert (dog.count, dog.accuracy, dog.low) == (0, None, None)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_the_mean_over_the_samples_of_every_class_is_the_accuracy(pairs):
    truth, said = map(np.array, zip(*pairs, strict=True))
    found = class_figures(predictions(truth, said), level=0.95)
    assert sum(entry.num_right for entry in found) == (truth == said).sum()
    assert sum(entry.count for entry in found) == len(truth)
    assert all(entry.low <= entry.accuracy <= entry.high for entry in found if entry.count)


def test_the_worst_come_first_and_of_equals_those_with_more_samples():
    classes = class_figures(predictions(), level=0.95)
    assert [entry.name for entry in worst_classes(classes, most=9)] == ["ant", "bee"]
    assert confusions(classes, most=2) == [("ant", "bee", 1), ("ant", "cow", 1)]
    more = class_figures(predictions([0, 0, 1, 1, 1], [1, 1, 0, 1, 1], NAMES), level=0.95)
    assert confusions(more, most=9) == [("ant", "bee", 2), ("bee", "ant", 1)]


def test_classes_of_one_name_are_told_apart_by_their_number():
    found = class_figures(predictions(names=("crane", "bee", "crane", "dog")), level=0.95)
    assert [entry.name for entry in found] == ["crane (0)", "bee", "crane (2)", "dog"]
    assert found[0].taken_for == {"bee": 1, "crane (2)": 1}


def test_the_worst_classes_are_said_in_one_line():
    scores = evaluate(predictions(), config=EvaluationConfig(num_draws=2))
    said = "Classes right least often: ant (50.0% of 4), bee (50.0% of 2)."
    assert worst(scores) == f"{said} With every class alike the accuracy is 66.7%."
    kept = tuple(metric for metric in scores.metrics if metric.name != "balanced_accuracy")
    assert worst(dataclasses.replace(scores, metrics=kept)) == said  # from before it was measured
    right = evaluate(predictions(said=TRUTH), config=EvaluationConfig(num_draws=2))
    assert worst(right) == "Every class of test is always right."
    assert worst(dataclasses.replace(scores, classes=())) is None
    two = predictions([0, 0, 1, 1, 1], [1, 0, 0, 1, 1], ("yes", "no"))
    assert worst(evaluate(two, config=EvaluationConfig(num_draws=2))).startswith("Classes right least often: yes (50.0% of 2).")  # fmt: skip


def test_classes_survive_json_and_records_from_before_them_are_read():
    scores = evaluate(predictions(), config=EvaluationConfig(num_draws=2, level=0.8))
    record = json.loads(json.dumps(to_record(scores)))
    assert from_record(Scores, record).classes == scores.classes
    assert scores.classes == class_figures(predictions(), level=0.8)
    for name in ("classes", "rule"):
        del record[name]
    before = from_record(Scores, record)
    assert before.metrics == scores.metrics
    assert before.classes == ()
    assert before.rule is None


def test_the_record_of_a_thousand_classes_is_as_long_as_its_confusions_and_no_matrix():
    rng = np.random.default_rng(0)
    truth = np.arange(3000) % 1000
    said = np.where(rng.random(3000) < 0.2, rng.integers(0, 1000, 3000), truth)
    names = tuple(f"class {number}" for number in range(1000))
    probs = np.full((3000, 1000), 0.5 / 999)
    probs[np.arange(3000), said] = 0.5
    found = class_figures(from_arrays(probs, truth, class_names=names), level=0.95)
    assert sum(entry.num_right for entry in found) == (truth == said).sum()
    assert len(json.dumps(to_record(found), indent=1)) < 500_000


@pytest.mark.parametrize("level", [0.5, 0.99])
def test_the_level_of_an_evaluation_is_that_of_its_classes(level):
    scores = evaluate(predictions(), config=EvaluationConfig(num_draws=2, level=level))
    assert scores.classes == class_figures(predictions(), level=level)
