"""Training, what is fitted after it, and the folder in which a run is kept."""

from lrformer.training.config import OptimizerConfig, RuntimeConfig, TrainConfig
from lrformer.training.loop import TrainingDivergedError
from lrformer.training.metrics_file import update_metrics
from lrformer.training.opening import load, save
from lrformer.training.posterior import PosteriorClassifier, fit_posterior
from lrformer.training.run_config import RunConfig
from lrformer.training.run_folder import Decision, Run, load_run
from lrformer.training.running import train

__all__ = [
    "Decision",
    "OptimizerConfig",
    "PosteriorClassifier",
    "Run",
    "RunConfig",
    "RuntimeConfig",
    "TrainConfig",
    "TrainingDivergedError",
    "fit_posterior",
    "load",
    "load_run",
    "save",
    "train",
    "update_metrics",
]
