"""Smaller sizes for a Graph: one number of its shapes and loops for another, wherever it stands."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from mansard.errors import MansardError
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import load
from mansard.ir.parser import parse_graph
from mansard.ir.printer import print_graph
from mansard.ir.types import Constant
from mansard.reducer.graph_parts import valid

_TYPE = re.compile(r"(?<![\w.\"])((?:\d+|\[[^\]]*\])x)+[a-z]+\d*\w*")
_NUMBER = re.compile(r"(?<![^x])\d+(?=x)")
_LOOP = re.compile(r"(?<=:)\d+(?=[,) |])")
_CONTRACT = re.compile(r"^(  dim +\w+: )(\d+) to (\d+)(.*)$", re.M)


def smaller_graphs(graph: Graph) -> Iterator[Graph]:
    """Valid graphs with smaller sizes, the smallest first: a dim that varies is fixed, a number is replaced
    everywhere, or two at once, as reshapes and windows need it."""
    text = print_graph(graph)
    if _CONTRACT.search(text):
        yield from _of_text(graph, _CONTRACT.sub(lambda m: f"{m[1]}{m[2]} to {m[2]}{m[4]}", text))
    numbers = sorted({n for n in _sizes(text) if n > 1}, reverse=True)
    for number in numbers:
        for new in _replacements(number):
            yield from _of_text(graph, _replaced(text, {number: new}))
    for first, second in itertools.permutations(numbers, 2):
        for new in _replacements(first):
            partners = {second * new // first, second - first + new}
            for partner in sorted(p for p in partners if 0 < p < second):
                yield from _of_text(graph, _replaced(text, {first: new, second: partner}))


def _replacements(number: int) -> list[int]:
    return sorted({n for n in (1, 2, number // 2, number - 1) if 0 < n < number})


def _sizes(text: str) -> Iterator[int]:
    for match in _TYPE.finditer(text):
        yield from (int(n) for n in _NUMBER.findall(match[0]))
    yield from (int(match[0]) for match in _LOOP.finditer(text))


def _replaced(text: str, sizes: Mapping[int, int]) -> str:
    def size(match: re.Match[str]) -> str:
        return str(sizes.get(int(match[0]), int(match[0])))

    text = _TYPE.sub(lambda m: _NUMBER.sub(size, m[0]), text)
    return _LOOP.sub(size, text)


def _of_text(graph: Graph, text: str) -> Iterator[Graph]:
    """The graph that a text says, with the data of the constants of ``graph`` cut off or repeated."""
    try:
        parsed = parse_graph(text)
    except (MansardError, ValueError):
        return
    data = {value.name: (value, constant) for value, constant in graph.constants.items()}
    constants = {}
    for value in parsed.constants:
        source, constant = data[value.name]
        array = np.resize(load(source, constant), tuple(int(str(d)) for d in value.type.shape))
        constants[value] = Constant.of(array, constant.key)
    before = {s.before.name: s for s in graph.states}
    states = tuple(replace(s, initial=None if s.before.name in before else s.initial) for s in parsed.states)
    result = valid(replace(parsed, constants=constants, states=states))
    if result is not None:
        yield result
