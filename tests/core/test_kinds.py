"""Settings are checked against the kinds that their dataclass declares."""

from dataclasses import dataclass

import pytest

from lrformer.core import ConfigError
from lrformer.core.kinds import check_kinds


@dataclass
class Settings:
    rate: float = 0.1
    depth: int = 2
    is_fast: bool = False
    widths: tuple[int, ...] = (1, 2)
    bound: float | None = None
    name: str = "any"


@pytest.mark.parametrize(
    "settings",
    [
        {"rate": 1},
        {"rate": 0.5, "depth": 3, "is_fast": True},
        {"widths": [3, 4]},
        {"bound": None},
        {"bound": 2.0},
        {"name": 5},
    ],
)
def test_values_of_the_right_kind_pass(settings) -> None:
    check_kinds(Settings, settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": "abc"}, r"rate \('abc'\) must be a number\."),
        ({"rate": True}, r"rate \(True\) must be a number\."),
        ({"rate": None}, r"rate \(None\) must be a number\."),
        ({"rate": float("nan")}, r"rate \(nan\) must be a finite number\."),
        ({"bound": float("inf")}, r"bound \(inf\) must be a finite number, or null\."),
        ({"depth": 2.5}, r"depth \(2\.5\) must be a whole number\."),
        ({"is_fast": 1}, r"is_fast \(1\) must be true or false\."),
        ({"widths": 3}, r"widths \(3\) must be a list of whole numbers"),
        ({"widths": [3, "a"]}, "must be a list of whole numbers"),
        ({"bound": "abc"}, r"bound \('abc'\) must be a number, or null\."),
    ],
)
def test_others_are_refused_by_name(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_kinds(Settings, settings)
