"""Pure functions over arrays of predictions; uncertainty scores are larger where the model is less certain."""

from lrformer.metrics.bootstrap import (
    Interval,
    SeedInterval,
    bootstrap_classification,
    bootstrap_detection,
    bootstrap_detection_scores,
    bootstrap_selective,
    bootstrap_selective_scores,
    seed_interval,
)
from lrformer.metrics.calibration import (
    CalibrationMetrics,
    ReliabilityBins,
    calibration_metrics,
    class_wise_calibration_error,
    expected_calibration_error,
    reliability_bins,
)
from lrformer.metrics.detection import (
    DetectionMetrics,
    RocCurve,
    aupr,
    auroc,
    detection_metrics,
    fpr_at_tpr,
    roc_curve,
)
from lrformer.metrics.overconfidence import (
    LogitNorms,
    Overconfidence,
    logit_norms,
    overconfidence,
)
from lrformer.metrics.scoring import (
    ScoringMetrics,
    accuracy,
    brier_score,
    negative_log_likelihood,
    scoring_metrics,
)
from lrformer.metrics.selective import (
    RiskCoverageCurve,
    SelectiveMetrics,
    accuracy_at_coverage,
    aurc,
    risk_coverage_curve,
    selective_metrics,
)

__all__ = [
    "CalibrationMetrics",
    "DetectionMetrics",
    "Interval",
    "LogitNorms",
    "Overconfidence",
    "ReliabilityBins",
    "RiskCoverageCurve",
    "RocCurve",
    "ScoringMetrics",
    "SeedInterval",
    "SelectiveMetrics",
    "accuracy",
    "accuracy_at_coverage",
    "aupr",
    "aurc",
    "auroc",
    "bootstrap_classification",
    "bootstrap_detection",
    "bootstrap_detection_scores",
    "bootstrap_selective",
    "bootstrap_selective_scores",
    "brier_score",
    "calibration_metrics",
    "class_wise_calibration_error",
    "detection_metrics",
    "expected_calibration_error",
    "fpr_at_tpr",
    "logit_norms",
    "negative_log_likelihood",
    "overconfidence",
    "reliability_bins",
    "risk_coverage_curve",
    "roc_curve",
    "scoring_metrics",
    "seed_interval",
    "selective_metrics",
]
