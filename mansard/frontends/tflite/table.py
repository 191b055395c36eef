"""The table of rules: how each operator becomes ops of the Graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from mansard.frontends.tflite.entries import Entry
from mansard.frontends.tflite.node import Node

if TYPE_CHECKING:
    from mansard.frontends.tflite.graph import GraphImporter

Result: TypeAlias = Entry | Sequence[Entry | None]
Rule: TypeAlias = Callable[["GraphImporter", Node], Result]
"""A rule returns the operator's result or a list of its results."""

_RULES: dict[str, Rule] = {}
_REFUSALS: dict[str, str] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators; custom ones by ``custom.`` and their code."""

    def enter_all(function: Rule) -> Rule:
        for name in names:
            _RULES[name] = function
        return function

    return enter_all


def enter(name: str, function: Rule) -> None:
    """Enter a rule that is made by a function."""
    _RULES[name] = function


def refuse(reason: str, *names: str) -> None:
    """Enter operators that are never supported, and why."""
    for name in names:
        _REFUSALS[name] = reason


def find_rule(name: str) -> Rule | None:
    """The rule of an operator, if there is one."""
    return _RULES.get(name)


def refusal(name: str) -> str:
    """Why an operator has no rule."""
    return _REFUSALS.get(name, "no rule imports this operator")


def supported() -> list[str]:
    """Every operator with a rule."""
    return sorted(_RULES)
