"""The table of rules: how each StableHLO op becomes ops of the Graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from mansard.frontends.stablehlo.entries import Entry
from mansard.frontends.stablehlo.node import Node

if TYPE_CHECKING:
    from mansard.frontends.stablehlo.graph import StableHloImporter

Result: TypeAlias = Entry | list[Entry]
Rule: TypeAlias = Callable[["StableHloImporter", Node], Result]

_RULES: dict[str, Rule] = {}
_REFUSALS: dict[str, str] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for ops, or for the targets of custom calls and composites (``mhlo.erf``)."""

    def enter(function: Rule) -> Rule:
        for name in names:
            _RULES[name] = function
        return function

    return enter


def enter(name: str, function: Rule) -> None:
    """Enter a rule that is made by a function."""
    _RULES[name] = function


def refuse(name: str, reason: str) -> None:
    """Enter an op that is not supported, and why."""
    _REFUSALS[name] = reason


def results_of(result: Result) -> Sequence[Entry]:
    """What a rule returned, as a list."""
    return result if isinstance(result, list) else [result]


def find_rule(name: str) -> Rule | None:
    """The rule of an op, if there is one."""
    return _RULES.get(name)


def refusal(name: str) -> str | None:
    """Why an op is not supported."""
    return _REFUSALS.get(name)


def supported() -> list[str]:
    """Every op with a rule."""
    return sorted(_RULES)
