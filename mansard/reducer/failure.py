"""What a failing model does, and when two failures are the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAMES = re.compile(r"%[\w.]+|'[^']*'|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]|\bat \S+|-?\d[\w.+-]*")
_SHOWN = 200


@dataclass(frozen=True)
class Failure:
    """``kind`` is ``error`` (an exception), ``wrong`` (a result that is not the interpreter's), ``crash``
    (the process ended) or ``hang``; ``stage`` is ``import`` for what happens before there is a Graph."""

    stage: str
    kind: str
    name: str = ""
    """The exception's class, or how the process ended."""
    op: str = ""
    """The op that an error of an unsupported one names."""
    message: str = ""

    @staticmethod
    def of(record: Mapping[str, Any]) -> Failure | None:
        """What a trial's process reports; None for success."""
        if not record.get("kind"):
            return None
        return Failure(**{name: str(record.get(name, "")) for name in Failure.__dataclass_fields__})

    def is_like(self, other: Failure | None) -> bool:
        """Whether the other has the same cause, as far as can be told: the same kind, class and message, but
        for names, numbers and places."""
        if other is None or (self.stage, self.kind, self.name) != (other.stage, other.kind, other.name):
            return False
        if self.kind != "error":
            return True
        return self.op == other.op if self.op else _shape(self.message) == _shape(other.message)

    def __str__(self) -> str:
        text = " ".join(self.message.split())
        what = {"wrong": "a wrong result", "crash": f"a crash ({self.name})", "hang": "a hang"}
        return f"{self.stage}: {what.get(self.kind, self.name)}{': ' if text else ''}{text[:_SHOWN]}"


def _shape(message: str) -> str:
    return " ".join(_NAMES.sub("_", " ".join(message.split()))[:_SHOWN].split())
