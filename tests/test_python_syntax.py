import ast
import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mansard.python_syntax import parse_expression, parse_literal


def yield_to_other_threads(phase, info):
    time.sleep(0)


@pytest.fixture
def collections_that_switch_threads():
    threshold = gc.get_threshold()
    gc.callbacks.append(yield_to_other_threads)
    gc.set_threshold(20)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks.remove(yield_to_other_threads)


def test_threads_parse_at_once(collections_that_switch_threads):
    def parse(terms):
        text = " + ".join(["(a*(b+3))"] * terms)
        return [parse_expression(text) for _ in range(100)]

    with ThreadPoolExecutor(3) as pool:
        for terms, trees in zip((4, 17, 60), pool.map(parse, (4, 17, 60)), strict=True):
            texts = {ast.unparse(tree) for tree in trees}
            assert texts == {" + ".join(["a * (b + 3)"] * terms)}


def test_literals():
    assert parse_literal("  [1, -2.5, ('a\\n', True)]") == [1, -2.5, ("a\n", True)]
    for text in ("f(1)", "name", "1 +"):
        with pytest.raises((SyntaxError, ValueError)):
            parse_literal(text)
