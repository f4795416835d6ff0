"""One evaluation as a folder: figures in `metrics.json`, predictions and images in `evaluation/`. A report needs no more."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from lrformer.evaluation.gallery import Gallery
from lrformer.evaluation.predictions import Predictions
from lrformer.evaluation.scores import Scores, load_scores, save_scores

FOLDER = "evaluation"
TEST_FILE = "test.npz"
GALLERY_FILE = "gallery.npz"


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """What an evaluation found: the figures, the predictions behind them, and images to look at.

    The predictions for corrupted sets are not kept: they are many, and can be made again from their seed.
    """

    scores: Scores
    test: Predictions
    ood: dict[str, Predictions] = field(default_factory=dict)
    gallery: Gallery = field(default_factory=Gallery)

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
        save_scores(self.scores, folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "Results":
        """Return the evaluation that was saved in `folder`."""
        place = Path(folder) / FOLDER
        scores = load_scores(folder)
        names = [entry.name for entry in scores.of_role("ood")]
        return cls(
            scores=scores,
            test=Predictions.load(place / TEST_FILE),
            ood={
                name: Predictions.load(place / _file_name(number, name))
                for number, name in enumerate(names)
            },
            gallery=Gallery.load(place / GALLERY_FILE),
        )


def _file_name(number: int, name: str) -> str:
    """Return a file name for the predictions of an OOD set, whatever characters its name has."""
    return f"ood-{number}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.npz"
