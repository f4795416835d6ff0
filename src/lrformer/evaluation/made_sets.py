"""Unknown sets made of the test images themselves, where there is no real one: a first check, and no more than that."""

from collections.abc import Callable

from lrformer.core import ConfigError
from lrformer.data import Split
from lrformer.data.outliers import OUTLIER_KINDS, check_outliers, make_noise, make_outliers

MADE = "made"
_PREFIX = f"{MADE}-"
NOISE = f"{_PREFIX}noise"


def made_sets(test: Split) -> dict[str, Callable[[], Split]]:
    """Return what makes each set, by its name; each is made when it is needed, since all take much memory together.

    Raises:
        ConfigError: where one of them cannot be made.
    """
    if not test.is_image:
        raise ConfigError(
            f"{test.name} holds points, not images; '{MADE}' outliers are made of images. Name unknown points by ood (--ood)."
        )
    for kind in OUTLIER_KINDS:
        check_outliers(test, kind)

    def maker(kind: str) -> Callable[[], Split]:
        return lambda: make_outliers(test, kind)

    sets = {f"{_PREFIX}{kind}": maker(kind) for kind in OUTLIER_KINDS}
    return {**sets, NOISE: lambda: make_noise(test)}
