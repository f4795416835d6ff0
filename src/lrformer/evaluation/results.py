"""One evaluation as a folder: figures in `metrics.json`, predictions and images in `evaluation/`. A report needs no more."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrformer.evaluation.conventions import EvaluationConfig
from lrformer.evaluation.gallery import Gallery
from lrformer.evaluation.measure import evaluate
from lrformer.evaluation.predictions import Predictions
from lrformer.evaluation.scores import Scores, load_scores, save_scores
from lrformer.methods import AbstentionRule
from lrformer.training.atomic_files import replace_file
from lrformer.training.journal import read_log
from lrformer.training.run_folder import LOG_FILE

FOLDER = "evaluation"
TEST_FILE = "test.npz"
GALLERY_FILE = "gallery.npz"


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """What an evaluation found: the figures, the predictions behind them, and images to look at.

    The predictions for corrupted sets and for those that were made are not kept: they can be made again from their seed.

    Attributes:
        history: the log of the run, an entry for each epoch; nothing where the predictions are somebody else's.
    """

    scores: Scores
    test: Predictions
    ood: dict[str, Predictions] = field(default_factory=dict)
    gallery: Gallery = field(default_factory=Gallery)
    history: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        test: Predictions,
        *,
        ood: Mapping[str, Predictions] | None = None,
        rule: AbstentionRule | None = None,
        config: EvaluationConfig | None = None,
        about: dict[str, Any] | None = None,
    ) -> "Results":
        """Return the results of any model from its predictions: the figures, and what a report draws.

        >>> write_report(Results.of(test, ood={"svhn": svhn}), "report.html")

        Args:
            test: of the in-distribution test set, with labels.
            ood: of unknown sets, by name.
            rule: the threshold kept with the model, as `fit_abstention` finds it on validation.
            about: what was run, for the reader.
        """
        scores = evaluate(test, ood=ood, rule=rule, config=config, about=about)
        return cls(scores=scores, test=test, ood=dict(ood or {}))

    def save(self, folder: str | Path) -> Path:
        """Return `folder`, in which everything now lies; the figures are written last."""
        folder = Path(folder)
        place = folder / FOLDER
        for path in place.glob("ood-*.npz"):
            path.unlink()
        self.test.save(place / TEST_FILE)
        for number, (name, predictions) in enumerate(self.ood.items()):
            predictions.save(place / _file_name(number, name))
        self.gallery.save(place / GALLERY_FILE)
        # Also when the folder is the run's: results may be moved, and the report needs them alone.
        lines = "".join(f"{json.dumps(dict(entry))}\n" for entry in self.history)
        replace_file(place / LOG_FILE, lines.encode())
        save_scores(self.scores, folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "Results":
        """Return the evaluation that was saved in `folder`."""
        place = Path(folder) / FOLDER
        scores = load_scores(folder)
        test, ood = load_predictions(folder, scores)
        return cls(
            scores=scores,
            test=test,
            ood=ood,
            gallery=Gallery.load(place / GALLERY_FILE),
            history=tuple(read_log(place if (place / LOG_FILE).is_file() else Path(folder))),
        )


def load_predictions(
    folder: str | Path, scores: Scores
) -> tuple[Predictions, dict[str, Predictions]]:
    """Return the predictions behind `scores` that are kept in `folder`: of the test set, and of unknown sets by name."""
    place = Path(folder) / FOLDER
    names = [entry.name for entry in scores.of_role("ood")]
    return Predictions.load(place / TEST_FILE), {
        name: Predictions.load(place / _file_name(number, name))
        for number, name in enumerate(names)
    }


def _file_name(number: int, name: str) -> str:
    """Return a file name for the predictions of an OOD set, whatever characters its name has."""
    return f"ood-{number}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.npz"
