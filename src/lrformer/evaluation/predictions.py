"""What a model said about one data set, as plain arrays: made once, scored and drawn as often as one likes."""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped

from lrformer.core import ConfigError
from lrformer.core.registry import did_you_mean
from lrformer.heads import Predictive
from lrformer.training.atomic_files import replace_file

SCHEMA = 1
SCORE_PREFIX = "score."
DAMAGE = (OSError, EOFError, zipfile.BadZipFile, zlib.error)
# A softmax in float32 underflows to zero, whose logarithm would not be a logit.
SMALLEST_PROBABILITY = 1e-38


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """The predictions for one data set, in its order.

    Attributes:
        name: of the data set, as reports call it.
        probs: class probabilities.
        labels: what is right; None for a set on which nothing is, such as an OOD set.
        scores: every uncertainty score that the model gives, larger where it is less certain.
        default_score: the one of `scores` that decides where only one can.
        logit_norm: L2 norm of each sample's logits; None where only probabilities are known.
        class_names: in the order of the columns of `probs`; empty where they have none.
    """

    name: str
    probs: Float[np.ndarray, "b c"]
    labels: Int[np.ndarray, " b"] | None = None
    scores: Mapping[str, Float[np.ndarray, " b"]]
    default_score: str
    logit_norm: Float[np.ndarray, " b"] | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.probs.ndim != 2 or len(self.probs) == 0:
            raise ConfigError(
                f"{self.name}: probs has shape {self.probs.shape}; it must be (samples, classes), not "
                "empty."
            )
        columns = {"labels": self.labels, "logit_norm": self.logit_norm, **self.scores}
        for name, column in columns.items():
            if column is not None and column.shape != (len(self.probs),):
                raise ConfigError(
                    f"{self.name}: {name} has shape {column.shape}; it must be ({len(self.probs)},), one "
                    "for each prediction."
                )
        if self.class_names and len(self.class_names) != self.probs.shape[1]:
            raise ConfigError(
                f"{self.name}: there are {len(self.class_names)} class_names for {self.probs.shape[1]} "
                "columns of probs."
            )
        self.uncertainty(self.default_score)

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def predicted(self) -> Int[np.ndarray, " b"]:
        """Return the most probable class of each sample."""
        return self.probs.argmax(axis=1)

    @property
    def confidence(self) -> Float[np.ndarray, " b"]:
        """Return the largest probability of each sample."""
        return self.probs.max(axis=1)

    def class_name(self, label: int) -> str:
        """Return what a class is called; its number where it has no name."""
        return self.class_names[label] if self.class_names else str(label)

    def uncertainty(self, score: str | None = None) -> Float[np.ndarray, " b"]:
        """Return the named score of each sample, the default one without a name."""
        score = score or self.default_score
        if score not in self.scores:
            raise ConfigError(
                f"{self.name} has no score '{score}'.{did_you_mean(score, self.scores)} It has: "
                f"{', '.join(self.scores)}."
            )
        return self.scores[score]

    def save(self, path: str | Path) -> None:
        """Write everything to `path` as one npz file without pickles, in one step."""
        about = {
            "schema": SCHEMA,
            "name": self.name,
            "default_score": self.default_score,
            "class_names": list(self.class_names),
        }
        arrays: dict[str, Any] = {"about": np.array(json.dumps(about)), "probs": self.probs}
        arrays |= {f"{SCORE_PREFIX}{name}": values for name, values in self.scores.items()}
        if self.labels is not None:
            arrays["labels"] = self.labels
        if self.logit_norm is not None:
            arrays["logit_norm"] = self.logit_norm
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        replace_file(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Predictions":
        """Return what `save` wrote; nothing is unpickled."""
        try:
            # Opened here, since numpy leaves a damaged file open.
            with Path(path).open("rb") as content, np.load(content, allow_pickle=False) as file:
                arrays = dict(file)
            about = json.loads(str(arrays["about"]))
            schema = about["schema"]
        except (*DAMAGE, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read as predictions ({error}); `lrformer evaluate` writes such files."
            ) from error
        if schema != SCHEMA:
            raise ConfigError(
                f"{path} has schema {schema}; this version reads {SCHEMA}. Evaluate again."
            )
        return cls(
            name=about["name"],
            probs=arrays["probs"],
            labels=arrays.get("labels"),
            scores={
                key.removeprefix(SCORE_PREFIX): values
                for key, values in arrays.items()
                if key.startswith(SCORE_PREFIX)
            },
            default_score=about["default_score"],
            logit_norm=arrays.get("logit_norm"),
            class_names=tuple(about["class_names"]),
        )


def from_arrays(
    probs: Shaped[np.ndarray, "..."],
    labels: Shaped[np.ndarray, "..."] | None = None,
    *,
    name: str = "test",
    scores: Mapping[str, Shaped[np.ndarray, "..."]] | None = None,
    logits: Shaped[np.ndarray, "..."] | None = None,
    default_score: str = "entropy",
    class_names: tuple[str, ...] = (),
) -> Predictions:
    """Return the predictions of any other model, from its probabilities.

    Args:
        probs: (samples, classes), or (members, samples, classes) of an ensemble or of repeated passes, which then also
            gives variance and mutual information.
        scores: further scores of that model, larger where it is less certain.
        logits: (samples, classes); with them energy, Dempster-Shafer and the norm of the logits are known too.
    """
    checked = _distribution(np.asarray(probs), name=name)
    labels = None if labels is None else np.asarray(labels)
    logits = None if logits is None else np.asarray(logits)
    members = checked if checked.ndim == 3 else None
    mean = checked if members is None else members.mean(axis=0)
    if logits is not None and logits.shape != mean.shape:
        raise ConfigError(
            f"{name}: logits has shape {logits.shape} but probs {mean.shape}; give one for each."
        )
    log_probs = torch.from_numpy(np.log(np.maximum(checked, SMALLEST_PROBABILITY)))
    predictive = Predictive(
        logits=log_probs
        if members is None
        else torch.from_numpy(np.log(mean + SMALLEST_PROBABILITY)),
        samples=None if members is None else log_probs,
    )
    # Energy and Dempster-Shafer measure how large the logits are; the logarithms of probabilities do not know that.
    from_logits = {"energy", "dempster_shafer"}
    given = {
        score: predictive.uncertainty(score).numpy()
        for score in predictive.scores
        if score not in from_logits
    }
    if logits is not None:
        raw = Predictive(logits=torch.from_numpy(np.asarray(logits, dtype=np.float64)))
        given |= {score: raw.uncertainty(score).numpy() for score in sorted(from_logits)}
    given |= {score: np.asarray(v, dtype=np.float64) for score, v in (scores or {}).items()}
    return Predictions(
        name=name,
        probs=mean,
        labels=None if labels is None else np.asarray(labels),
        scores=given,
        default_score=default_score,
        logit_norm=None if logits is None else np.linalg.norm(np.asarray(logits, float), axis=1),
        class_names=class_names,
    )


def _distribution(probs: np.ndarray, *, name: str) -> np.ndarray:
    """Return `probs` as float64 after the checks of the metrics, member by member."""
    from lrformer.metrics.inputs import as_probs

    if probs.ndim == 3 and len(probs):
        return np.stack([as_probs(member, name=f"{name}: probs").numpy() for member in probs])
    return as_probs(probs, name=f"{name}: probs").numpy()
