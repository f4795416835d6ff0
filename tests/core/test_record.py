import json
from dataclasses import dataclass, field

import pytest

from lrformer.core import ConfigError, from_record, to_record


@dataclass(frozen=True, kw_only=True)
class Left:
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Right:
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Whole:
    part: Left | Right = field(default_factory=Left)
    parts: tuple[Left, ...] = ()
    rate: float | None = None
    shape: tuple[int, ...] | None = None
    name: str


def test_a_config_survives_json():
    whole = Whole(part=Right(sizes=(3, 4)), parts=(Left(size=5),), rate=0.5, shape=(3, 8), name="x")
    assert from_record(Whole, json.loads(json.dumps(to_record(whole)))) == whole


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"name": "x", "raet": 1.0}, "no field 'raet'. Did you mean 'rate'"),
        ({"rate": 1.0}, "lacks its field 'name'"),
        ({"name": "x", "part": {"kind": "Middle"}}, "'Middle' is none of Left, Right"),
        ([1], "must be an object"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(record, message):
    with pytest.raises(ConfigError, match=message):
        from_record(Whole, record)


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(ConfigError, match="set cannot be written"):
        to_record({"a": {1, 2}})
