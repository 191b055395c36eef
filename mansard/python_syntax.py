"""Expressions in Python's syntax, parsed on any thread."""

from __future__ import annotations

import ast
import threading

_LOCK = threading.RLock()
"""Held while a tree is built. CPython before 3.11.8 and 3.12.2 counts the depth of the tree in state that all
threads share (python/cpython issue 106905): where the garbage collector runs a callback meanwhile, and with
it another thread that parses, both fail with a SystemError."""


def parse_expression(text: str) -> ast.expr:
    """The tree of an expression.

    Raises SyntaxError for other text, and ValueError, RecursionError or MemoryError where ``ast.parse`` does.
    """
    with _LOCK:
        return ast.parse(text, mode="eval").body


def parse_literal(text: str) -> object:
    """The value of a literal: numbers, strings, and tuples, lists, sets and dicts of them.

    Raises SyntaxError and ValueError for other text.
    """
    return ast.literal_eval(parse_expression(text.lstrip(" \t")))
