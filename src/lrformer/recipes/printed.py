"""The figures that the paper prints in its tables 1, 2, 3, 4 and 6, by row and column."""

from collections.abc import Mapping

from lrformer.recipes.table import Printed

_Figures = Mapping[str, tuple[float, ...]]

PRINTED_DATA = ("cifar10", "cifar100")

# Tables 1 and 2: accuracy is printed in percent.
SOTA: Mapping[str, Mapping[str, _Figures]] = {
    "cifar10": {
        "deterministic": {
            "accuracy": (0.960, 0.0001),
            "ece": (0.023, 0.002),
            "nll": (0.158, 0.01),
            "aupr:svhn": (0.781, 0.01),
            "aupr:cifar100": (0.835, 0.01),
        },
        "sngp": {
            "accuracy": (0.959, 0.0001),
            "ece": (0.018, 0.001),
            "nll": (0.138, 0.01),
            "aupr:svhn": (0.990, 0.01),
            "aupr:cifar100": (0.905, 0.01),
        },
        "lrformer": {
            "accuracy": (0.972, 0.0001),
            "ece": (0.012, 0.001),
            "nll": (0.100, 0.01),
            "aupr:svhn": (0.993, 0.01),
            "aupr:cifar100": (0.911, 0.01),
        },
    },
    "cifar100": {
        "deterministic": {
            "accuracy": (0.798, 0.0002),
            "ece": (0.085, 0.004),
            "nll": (0.872, 0.01),
            "aupr:svhn": (0.882, 0.01),
            "aupr:cifar10": (0.745, 0.01),
        },
        "sngp": {
            "accuracy": (0.799, 0.0003),
            "ece": (0.025, 0.012),
            "nll": (0.847, 0.01),
            "aupr:svhn": (0.923, 0.01),
            "aupr:cifar10": (0.801, 0.01),
        },
        "lrformer": {
            "accuracy": (0.852, 0.0003),
            "ece": (0.018, 0.005),
            "nll": (0.538, 0.01),
            "aupr:svhn": (0.955, 0.01),
            "aupr:cifar10": (0.777, 0.01),
        },
    },
}
# Table 6.
ABLATION: Mapping[str, Mapping[str, _Figures]] = {
    "cifar10": {
        "transformer": {
            "accuracy": (0.8592, 0.01),
            "nll": (0.6972, 0.02),
            "auroc:svhn": (0.7552, 0.05),
            "aupr:svhn": (0.8521, 0.02),
        },
        "due": {
            "accuracy": (0.8556, 0.03),
            "nll": (0.5337, 0.02),
            "auroc:svhn": (0.8348, 0.04),
            "aupr:svhn": (0.8921, 0.01),
        },
        "sngp": {
            "accuracy": (0.8542, 0.02),
            "nll": (0.4933, 0.01),
            "auroc:svhn": (0.8275, 0.03),
            "aupr:svhn": (0.8960, 0.01),
        },
        "lrformer": {
            "accuracy": (0.8528, 0.02),
            "nll": (0.4447, 0.01),
            "auroc:svhn": (0.8500, 0.05),
            "aupr:svhn": (0.9078, 0.01),
        },
    },
    "cifar100": {
        "transformer": {
            "accuracy": (0.6304, 0.02),
            "nll": (1.7862, 0.01),
            "auroc:svhn": (0.7831, 0.02),
            "aupr:svhn": (0.8701, 0.02),
        },
        "sngp": {
            "accuracy": (0.6298, 0.03),
            "nll": (1.5413, 0.01),
            "auroc:svhn": (0.8134, 0.01),
            "aupr:svhn": (0.8929, 0.01),
        },
        "lrformer": {
            "accuracy": (0.6404, 0.02),
            "nll": (1.4041, 0.02),
            "auroc:svhn": (0.8421, 0.01),
            "aupr:svhn": (0.9165, 0.01),
        },
    },
}
# Table 3, on CIFAR-100 only.
ATTENTIONS: Mapping[str, Mapping[str, _Figures]] = {
    "cifar100": {
        "dot_product": {"ece": (0.066,), "nll": (0.580,)},
        "l2": {"ece": (0.048,), "nll": (0.582,)},
        "scsa": {"ece": (0.028,), "nll": (0.626,)},
        "lrsa": {"ece": (0.018,), "nll": (0.538,)},
    }
}
# Table 4, on CIFAR-100 only.
ALPHA: Mapping[str, Mapping[str, _Figures]] = {
    "cifar100": {
        "alpha_1": {"accuracy": (0.5637, 0.01), "nll": (1.7063, 0.02)},
        "alpha_100": {"accuracy": (0.6601, 0.02), "nll": (1.3712, 0.01)},
        "alpha_500": {"accuracy": (0.6404, 0.01), "nll": (1.4041, 0.03)},
        "alpha_1000": {"accuracy": (0.6212, 0.02), "nll": (1.4259, 0.01)},
    }
}


def printed_on(figures: Mapping[str, Mapping[str, _Figures]], data: str) -> str:
    """Return the data whose figures stand beside a table on `data`: its own where they are printed."""
    return data if data in figures else next(iter(figures))


def printed_row(
    figures: Mapping[str, Mapping[str, _Figures]], data: str, row: str
) -> dict[str, Printed]:
    """Return what is printed in one row: for the other CIFAR where not for this, nothing for other data."""
    found = figures[printed_on(figures, data)].get(row, {}) if data in PRINTED_DATA else {}
    return {
        column: Printed(value=values[0], spread=values[1] if len(values) > 1 else None)
        for column, values in found.items()
    }
