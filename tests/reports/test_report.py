import base64
import io
import re
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from lrformer.core import ConfigError
from lrformer.data import Split
from lrformer.evaluation import (
    EvaluationConfig,
    Results,
    evaluate,
    from_arrays,
    pick_images,
)
from lrformer.evaluation.sentences import operating_point
from lrformer.evaluation.words import write_interval, write_value
from lrformer.methods import AbstentionRule
from lrformer.metrics import reliability_bins
from lrformer.reports import figures, render_report, write_report
from lrformer.reports.figures import reliability_figure, roc_figure, thin
from lrformer.reports.images import write_probability
from tests.evaluation.made_run import random_logits

NAMES = ("cat", "<b>dog</b>", "emu & co")


def _predictions(seed, name, *, labeled=True, num_samples=40):
    logits, labels = random_logits(num_samples, 3, seed=seed)
    probs = torch.from_numpy(logits).softmax(-1).numpy()
    return from_arrays(probs, labels if labeled else None, logits=logits, name=name, class_names=NAMES)  # fmt: skip


HISTORY = tuple(
    {
        "stage": 0,
        "epoch": epoch,
        "loss": 2.0 / (epoch + 1),
        "accuracy": None if epoch == 1 else 0.2 * epoch,
        "lr": 1e-3,
        **({} if epoch == 2 else {"val_nll": 1.5, "val_accuracy": 0.5, "val_logit_norm": 3.0 + epoch}),
    }
    for epoch in range(4)
)  # fmt: skip


def _split(predictions, name):
    rng = np.random.default_rng(0)
    labels = predictions.labels
    return Split(
        name=name,
        x=rng.integers(0, 256, (len(predictions), 6, 5, 3)).astype(np.uint8),
        y=np.zeros(len(predictions), dtype=np.int64) if labels is None else labels,
        class_names=NAMES,
        mean=(0.5,) * 3,
        std=(0.2,) * 3,
    )


@pytest.fixture(scope="module")
def results():
    test, far = _predictions(0, "pets/test"), _predictions(1, "<script>x</script>", labeled=False)
    near = _predictions(2, "near", labeled=False)
    ood = {far.name: far, "near": near}
    corrupted = {f"fog-{s}": _predictions(s, f"fog-{s}") for s in (1, 2)}
    scores = evaluate(
        test,
        ood=ood,
        corrupted=corrupted,
        config=EvaluationConfig(num_draws=20, num_bins=10),
        about={"method": "lrformer", "config": {"epochs": 3, "betas": [0.9, 0.99]}},
    )
    gallery = pick_images(test, _split(test, "pets/test")) + pick_images(far, _split(far, "far"))
    return Results(scores=scores, test=test, ood=ood, gallery=gallery, history=HISTORY)


class Page(HTMLParser):
    """What a test asks of a page: its elements in order, its text, and what is still open at its end."""

    VOID = ("meta", "link", "img", "br", "path", "use", "rect")

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def text(results):
    return render_report(results, title="<script>A & B</script>")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_is_whole_and_asks_nothing_of_the_network(text, page):
    assert page.open == []
    for _, attrs in page.elements:
        for key in ("src", "href", "xlink:href", "action", "data", "srcset"):
            if value := attrs.get(key):
                assert value.startswith(("data:", "#")), value
    assert "script" not in {tag for tag, _ in page.elements}
    style = "".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
    assert not re.search(r"@import|url\((?!#)", style)
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")  # fmt: skip


def test_every_figure_that_is_claimed_is_drawn(page):
    labels = [attrs["aria-label"] for attrs in page.all("svg")]
    assert labels == [
        "Reliability diagram",
        "Risk-coverage curves",
        "ROC curves",
        "Histograms of entropy on known and unknown data",
        "Histograms of entropy on known and unknown data",
        "Accuracy and confidence under corruption",
        "Loss over the epochs",
        "Accuracy over the epochs",
        "Norm of the logits over the epochs",
        "Learning rate over the epochs",
    ]
    for attrs in page.all("svg"):
        assert attrs["viewbox"]
        assert "width" not in attrs
    ids = [attrs["id"] for tag, attrs in page.elements if tag in {"section", "clippath"}]
    links = [attrs["href"][1:] for attrs in page.all("a")]
    assert set(links) <= set(ids)
    assert links == ["known", "classes", "unknown", "corrupted", "images", "training", "run", "conventions"]  # fmt: skip


def test_every_metric_of_the_test_set_stands_in_the_page_with_its_interval(results, page):
    text = page.text
    for metric in results.scores.select(dataset="pets/test").values():
        assert write_value(metric.name, metric.value) in text
        assert write_interval(metric.name, metric.low, metric.high) in text
    for name in results.ood:
        for score in results.scores.given_scores:
            metrics = results.scores.select(dataset=name, score=score)
            assert len(metrics) == 5
            for metric in metrics.values():
                assert write_value(metric.name, metric.value) in text


def test_the_images_are_the_gallery_in_its_order(results, page):
    shown = [attrs["src"] for attrs in page.all("img")]
    assert len(shown) == len(results.gallery.images)
    order = ["most confidently wrong", "most uncertain", "most confident on unknown data"]
    entries = zip(results.gallery.entries, results.gallery.images, strict=True)
    expected = sorted(entries, key=lambda pair: order.index(pair[0].reason))
    for source, (_, image) in zip(shown, expected, strict=True):
        png = base64.b64decode(source.removeprefix("data:image/png;base64,"))
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), image)


def test_names_from_elsewhere_are_text_and_never_markup(text, page):
    for name in ("<script>A & B</script>", "<script>x</script>", NAMES[1], NAMES[2]):
        assert name in page.text
    assert "<script" not in text
    assert "<b>dog" not in text


def test_what_was_run_and_the_conventions_are_told(results, page):
    for name, value in (
        ("method", "lrformer"),
        ("config.epochs", "3"),
        ("config.betas", "0.9, 0.99"),
    ):
        assert page.text[page.text.index(name) + 1] == value
    for sentence in results.scores.conventions.values():
        assert sentence in page.text


def test_all_colors_are_the_pages_own_so_that_dark_is_dark(text):
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.findall(r"#(?:[0-9a-f]{6})\b(?![^<]*url)", re.sub(r"url\(#[^)]*\)|\"#[^\"]*\"", "", drawn))  # fmt: skip
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", drawn))
    assert {"--ink", "--faint", "--series-0", "--series-1"} <= used
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    for variable in used:
        assert f"{variable}:" in light
        assert f"{variable}:" in dark


def test_the_bars_of_the_reliability_diagram_are_as_high_as_its_bins(monkeypatch):
    from matplotlib.axes import Axes

    bars = []
    draw = Axes.bar

    def spy(self, *args, **settings):
        bars.append(settings)
        return draw(self, *args, **settings)

    monkeypatch.setattr(Axes, "bar", spy)
    test = _predictions(3, "pets/test", num_samples=200)
    reliability_figure(test, num_bins=10)
    bins = reliability_bins(test.probs, test.labels, num_bins=10)
    filled = [number for number, count in enumerate(bins.counts) if count]
    sound, sure, modest = (entry["height"] for entry in bars[:3])
    assert sound + modest == pytest.approx([bins.accuracy[number] for number in filled])
    assert sound + sure == pytest.approx([bins.confidence[number] for number in filled])
    assert bars[0]["x"] == pytest.approx([(number + 0.5) / 10 for number in filled])


def test_a_thinned_curve_keeps_its_ends_and_its_steep_rise():
    x = np.concatenate([np.zeros(5000), np.linspace(0, 1, 5000)])
    y = np.concatenate([np.linspace(0, 1, 5000), np.ones(5000)])
    thin_x, thin_y = thin(x, y, most=100)
    assert len(thin_x) <= 102
    assert (thin_x[0], thin_y[0], thin_x[-1], thin_y[-1]) == (0, 0, 1, 1)
    assert (np.diff(thin_y[thin_x == 0]) < 0.03).all()
    assert np.array_equal(thin(x[:50], y[:50], most=100)[1], y[:50])


def test_a_report_is_written_beside_the_results_and_is_the_same_each_time(results, tmp_path):
    results.save(tmp_path / "run-7")
    path = write_report(tmp_path / "run-7")
    assert path == tmp_path / "run-7" / "report.html"
    first = path.read_text()
    assert "<title>How far to trust run-7</title>" in first
    other = write_report(results, tmp_path / "other.html", title="How far to trust run-7")
    assert other.read_text() == first
    results.save(tmp_path / "birds" / "seed-3")
    seed = write_report(tmp_path / "birds" / "seed-3")
    assert "<title>How far to trust birds, seed-3</title>" in seed.read_text()
    with pytest.raises(ConfigError, match="path is missing"):
        write_report(results)


def test_results_with_nothing_but_a_test_set_make_a_report_too():
    test = _predictions(0, "alone")
    bare = Results(scores=evaluate(test, config=EvaluationConfig(num_draws=5)), test=test)
    page = Page(render_report(bare, title="bare"))
    assert [attrs["id"] for attrs in page.all("section")] == [
        "known",
        "classes",
        "run",
        "conventions",
    ]
    assert len(page.all("svg")) == 2


def test_where_the_run_has_learned_from_the_data_it_is_said_with_every_figure_of_them():
    test = _predictions(0, "pets/<train>")
    note = "the run was trained on this one"
    about = {"evaluated on": f"{test.name} ({note})"}
    config = EvaluationConfig(num_draws=5)
    text = render_report(
        Results(scores=evaluate(test, about=about, config=config), test=test), title="pets"
    )
    opening, known = text.partition('<section id="known">')[::2]
    warning = f"pets/&lt;train&gt; is not new to the run: {note}."
    assert opening.index(warning) < opening.index('class="tiles"')
    assert f"samples of pets/&lt;train&gt; ({note}) the model is right" in opening
    assert f"Measured on pets/&lt;train&gt; ({note}), 40 samples" in known
    new = Results(scores=evaluate(test, config=config), test=test)
    assert "Warning" not in render_report(new, title="pets")


@pytest.mark.parametrize("value", [0.99931, 0.99987, 0.9999941])
def test_probabilities_that_differ_near_one_are_written_so_that_they_differ(value):
    assert write_probability(value) != write_probability(1 - 0.9 * (1 - value))
    assert float(write_probability(value)) == pytest.approx(value, abs=0.05 * (1 - value))


def test_probabilities_are_written_short_where_nothing_is_lost():
    values = (0.0, 0.31415, 0.98, 1.0, 1 - 2**-40)
    assert [write_probability(value) for value in values] == [
        "0.000", "0.314", "0.980", "1.000", "1.00000000",
    ]  # fmt: skip


def test_images_are_shown_with_what_they_are_ordered_by_and_it_is_named():
    # By p the first is the surest, by entropy the second.
    probs = np.array([[0.9998, 0.0001, 0.0001], [0.99979, 0.00021, 0.0], [0.9, 0.1, 0.0]])
    test = from_arrays(probs, np.array([0, 0, 1]), name="pets/test", class_names=NAMES)
    far = from_arrays(probs, name="far", class_names=NAMES)
    assert list(np.argsort(far.uncertainty())) == [1, 0, 2]
    scores = evaluate(test, ood={"far": far}, config=EvaluationConfig(num_draws=5))
    gallery = pick_images(far, _split(far, "far"))
    text = render_report(
        Results(scores=scores, test=test, ood={"far": far}, gallery=gallery), title="pets"
    )
    strangers = text.partition("Surest of the unknown: far")[2]
    assert "The largest p comes first." in strangers.partition("<img")[0]
    assert re.findall(r"p = ([0-9.]+)", strangers) == ["0.99980", "0.99979", "0.900"]
    assert "its uncertainty, entropy." in text


def test_dollars_underscores_and_quotes_in_names_are_drawn_as_they_are():
    probs, labels = np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0, 1])
    strange = 'x"><script>alert(1)</script>'
    known = {"name": "_test", "scores": {strange: np.array([0.1, 0.2])}, "default_score": strange}
    test = from_arrays(probs, labels, **known)
    unknown = {
        name: from_arrays(probs, **{**known, "name": name})
        for name in (r"$\foo$", "cost $5 to $x", "_misc")
    }
    scores = evaluate(test, ood=unknown, config=EvaluationConfig(num_draws=5))
    text = render_report(Results(scores=scores, test=test, ood=unknown), title="names")
    assert "<script>alert" not in text
    assert "cost $5 to $x" in text
    assert "_misc (" in text
    groups = re.findall(r' id="([^"]+)"', text)
    assert len(groups) == len(set(groups))


def test_scores_that_are_infinite_or_all_equal_can_be_drawn():
    probs = np.full((6, 2), 0.5)
    labels = np.array([0, 1, 0, 1, 0, 1])
    flat = np.array([np.inf, 1.0, 1.0, 1.0, 1.0, 1.0])
    test = from_arrays(probs, labels, scores={"distance": flat}, default_score="distance")
    far = from_arrays(probs, name="far", scores={"distance": flat}, default_score="distance")
    scores = evaluate(test, ood={"far": far}, config=EvaluationConfig(num_draws=5))
    assert "<svg" in render_report(Results(scores=scores, test=test, ood={"far": far}), title="")


def test_the_curve_over_severities_holds_only_kinds_that_were_measured_at_all_of_them():
    def page(*names):
        test = _predictions(9, "pets/test")
        corrupted = {name: _predictions(number, name) for number, name in enumerate(names)}
        config = EvaluationConfig(num_draws=2)
        scores = evaluate(test, corrupted=corrupted, config=config)
        return render_report(Results(scores=scores, test=test, ood={}), title="pets")

    assert "Kinds: fog." in page("fog-1", "fog-2", "contrast-2")
    assert "Kinds:" not in page("fog-1", "fog-2", "contrast-1", "contrast-2")
    assert "confidence under corruption" not in page("fog-1", "contrast-2")


@pytest.mark.parametrize("shift", [(-1.2,), (2.3,), (-1.2, 0.0, 2.3)])
def test_the_names_of_the_curves_lie_beside_them_above_and_below_chance(shift, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "to_svg", lambda figure, **_: drawn.append(figure) or "")
    rng = np.random.default_rng(0)

    def scored(mean):
        scores = {"distance": rng.normal(mean, 1, 200)}
        probs = np.tile([0.6, 0.4], (200, 1))
        return from_arrays(probs, name="known", scores=scores, default_score="distance")

    known, far = scored(0), {f"set {number}": scored(mean) for number, mean in enumerate(shift)}
    roc_figure(known, far, score="distance")
    (axes,) = drawn[0].axes
    drawn[0].draw_without_rendering()
    names = axes.get_legend().get_window_extent()
    assert not names.overlaps(axes.get_window_extent())
    assert drawn[0].bbox.fully_containsx(names.x1)
    assert drawn[0].bbox.fully_containsy(names.y1)


@pytest.mark.parametrize("number", [3, 4, 9])
def test_many_sets_with_long_names_that_begin_alike_leave_room_for_their_curves(number):
    known = _predictions(0, "known")
    names = [f"photographs of kind number {n}" for n in range(number)]
    ood = {name: _predictions(5 + n, name, labeled=False) for n, name in enumerate(names)}
    svg = roc_figure(known, ood, score="entropy")  # a plot without room would be a warning
    for n in range(number):
        assert f"number {n} (" in svg


@pytest.mark.parametrize("value", [0.00371, 0.04996, 0.5, 0.99951])
@pytest.mark.parametrize("name", ["nll", "accuracy", "ece_equal_width"])
def test_an_interval_that_holds_a_value_shows_so(name, value):
    said = write_value(name, value).rstrip("%")
    for low, high in ((value, value + 1e-6), (value - 1e-6, value)):
        ends = write_interval(name, low, high).rstrip("%").split("\u2013")
        assert float(ends[0]) <= float(said) + 0.00011
        assert float(said) <= float(ends[1]) + 0.00011
        assert len(ends[0].split(".")[1]) == len(said.split(".")[1])


def _of_classes(number, names=None):
    rng = np.random.default_rng(0)
    truth = np.arange(4 * number) % number
    said = np.where(rng.random(len(truth)) < 0.3, rng.integers(0, number, len(truth)), truth)
    probs = np.full((len(truth), number), 0.4 / (number - 1))
    probs[np.arange(len(truth)), said] = 0.6
    names = names or tuple(f"class {k}" for k in range(number))
    test = from_arrays(probs, truth, name="pets/test", class_names=names)
    scores = evaluate(test, config=EvaluationConfig(num_draws=2))
    text = render_report(Results(scores=scores, test=test), title="pets")
    return scores, text.partition('<section id="classes">')[2].partition("</section>")[0]


@pytest.mark.parametrize("number", [2, 10, 20])
def test_of_few_classes_every_one_and_the_whole_matrix_stand_in_the_page(number):
    scores, section = _of_classes(number)
    matrix = section.partition("What was taken for what")[2]
    rows = [re.findall(r"<td.*?>(.*?)</td>", row) for row in matrix.split("<tr>")[2:]]
    assert len(rows) == number
    for place, (row, entry) in enumerate(zip(rows, scores.classes, strict=True)):
        counts = [int(re.sub(r"<.*?>", "", cell) or 0) for cell in row[1:]]
        assert sum(counts) == entry.count
        assert counts[place] == entry.num_right
        assert write_interval("accuracy", entry.low, entry.high) in section


@pytest.mark.parametrize("number", [21, 300])
def test_of_many_classes_the_worst_stand_in_a_page_that_stays_short(number):
    scores, section = _of_classes(number)
    assert section.count("<tr>") == 2 * (1 + 10)
    assert len(section) < 10_000
    worst = min((entry for entry in scores.classes), key=lambda entry: entry.accuracy)
    assert write_value("accuracy", worst.accuracy) in section
    assert f"{number} classes, of which" in section


def test_names_of_classes_are_text_and_classes_without_a_sample_are_named():
    _, section = _of_classes(2, ("<script>a</script>", "b & c"))
    assert "<script" not in section
    assert "b &amp; c" in section
    test = from_arrays(np.tile([0.8, 0.1, 0.1], (4, 1)), np.zeros(4, dtype=int), class_names=NAMES)
    scores = evaluate(test, config=EvaluationConfig(num_draws=2))
    text = render_report(Results(scores=scores, test=test), title="pets")
    said = "Without a sample in the test set: &lt;b&gt;dog&lt;/b&gt;, emu &amp; co."
    assert said in text


def test_what_the_threshold_accepts_stands_in_the_findings_and_in_the_tables():
    test, far = _predictions(0, "pets/test"), _predictions(1, "far", labeled=False)
    rule = AbstentionRule(score="entropy", threshold=0.5)
    results = Results.of(test, ood={"far": far}, rule=rule, config=EvaluationConfig(num_draws=20))
    text = render_report(results, title="pets")
    assert escape(operating_point(results.scores)) in text.partition("</ul>")[0]
    known, unknown = (
        text.partition(f'<section id="{name}">')[2].partition("</section>")[0]
        for name in ("known", "unknown")
    )
    for section, dataset in ((known, "pets/test"), (unknown, "far")):
        metric = results.scores.select(dataset=dataset, score="entropy")["accepted_at_threshold"]
        assert write_interval(metric.name, metric.low, metric.high) in section
        assert section.count("Accepted") == 1
    bare = render_report(Results.of(test, ood={"far": far}, config=EvaluationConfig(num_draws=2)), title="pets")  # fmt: skip
    assert "Accepted" not in bare
