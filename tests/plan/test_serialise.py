"""Plans as JSON: whatever the text, there is a plan or an ArtifactError."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support.plans.artifact import two_device_plan

from mansard import dims
from mansard.dims import Dim
from mansard.errors import ArtifactError, ShapeContractError
from mansard.plan.serialise import plan_from_json, plan_to_json

N = {"n": Dim("n", 1, 64), "m": Dim("m", 0, 64)}

DEEP = {
    "sum": "+".join(["n"] * 3000),
    "product": "*".join(["n"] * 3000),
    "long sum": "+".join(["n"] * 100_000),
    "parentheses": "(" * 3000 + "n" + ")" * 3000,
    "signs": "-" * 9000 + "n",
    "calls": "min(" * 1000 + "n" + ",1)" * 1000,
    "polynomial": "*".join(["(n+m+1)"] * 1000),
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_expressions_are_refused_soon(text):
    begin = time.process_time()
    with pytest.raises(ArtifactError, match="not a dim expression") as raised:
        dims.parse(text, N)
    assert len(str(raised.value)) < 250
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    "text",
    [
        *("floordiv(n, 0)", "floordiv(1, 0)", "mod(n, 0)", "mod(3, -2)"),
        *("\ud800", "n\0", "9" * 5000, "", "1e5", " n", "min(*n)", "k"),
    ],
)
def test_expressions_without_a_value_are_refused(text):
    with pytest.raises(ArtifactError, match="not a dim expression"):
        dims.parse(text, N)


def test_a_divisor_that_becomes_zero_is_named():
    expression = dims.parse("floordiv(n, m)", N)
    assert dims.evaluate(expression, {"n": 9, "m": 2}) == 4
    with pytest.raises(ShapeContractError, match=r"floordiv\(n, m\) divides by 0 where m is 0"):
        dims.evaluate(expression, {"n": 9, "m": 0})


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


ODD = [
    *(None, True, -1, 1 << 63, 10**400, 1.5, float("inf"), float("nan")),
    *("", "\ud800", "9" * 5000, [], {}, nested(900), [None], {"": 1}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every part of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    items = value.copy()
    items[path[0]] = replaced(value[path[0]], path[1:], new)
    return items


def test_every_part_of_a_plan_may_be_odd():
    """Each part of a plan in turn is replaced by every second odd value; there are several of each kind."""
    plan = two_device_plan()
    data = json.loads(plan_to_json(plan))
    outcomes = {True: 0, False: 0}
    for number, place in enumerate(places(data)):
        for new in ODD[number % 2 :: 2]:
            try:
                text = json.dumps(replaced(data, place, new))
            except RecursionError:
                continue
            try:
                plan_from_json(text)
            except ArtifactError as error:
                assert len(str(error)) < 2000
                outcomes[False] += 1
            else:
                outcomes[True] += 1
    assert outcomes[False] > 2000
    assert outcomes[True] > 50


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 100_000, '{"a":' * 100_000, "", "null", "[]", "{}", "NaN"),
        *("\ud800".encode("utf-16-le", "surrogatepass"), b"\xff" * 99, b"1" * 9999),
    ],
    ids=range(10),
)
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(ArtifactError, match="plan"):
        plan_from_json(text)
