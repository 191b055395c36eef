"""Fields of a request's JSON object, each checked: every error names the field and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mansard.arguments import shown
from mansard.serving.api_errors import ApiError, wrong

_INT64 = 2**63


class Fields:
    """Gives out fields by name; a field that is null counts as absent. `finish` refuses what nobody asked
    for, since ignoring a field would give another answer than the client expects."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        self._known: list[str] = []

    def value(self, name: str) -> Any:
        """A field of any type, None where it is absent."""
        self._known.append(name)
        return self._given.get(name)

    def has(self, name: str) -> bool:
        """Whether a field is there."""
        return name in self._given

    def boolean(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise wrong(name, f"{name}={shown(value)} is not true or false", "invalid_type")
        return default if value is None else value

    def integer(self, name: str, low: int = -_INT64, high: int = _INT64 - 1) -> int | None:
        """A whole number in a range."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(name, f"{name}={shown(value)} is not a whole number", "invalid_type")
        if not low <= value <= high:
            raise wrong(name, f"{name}={shown(value)} is not in {low} to {high}")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number in a range."""
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong(name, f"{name}={shown(value)} is not a number", "invalid_type")
        if not low <= value <= high:
            raise wrong(name, f"{name}={shown(value)} is not in {low:g} to {high:g}")
        return float(value)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise wrong(name, f"{name}={shown(value)} is not a string", "invalid_type")
        return value

    def object(self, name: str) -> dict[str, Any]:
        """An object, empty where it is absent."""
        value = self.value(name)
        if value is not None and not isinstance(value, dict):
            raise wrong(name, f"{name}={shown(value)} is not an object", "invalid_type")
        return value or {}

    def neutral(self, name: str, unchanged: Callable[[Any], bool], what: str) -> None:
        """A field that is not supported, and accepted with values that change nothing."""
        value = self.value(name)
        if value is not None and not unchanged(value):
            raise wrong(name, f"{name}={shown(value)} is not supported: {what}", "unsupported_parameter")

    def ignored(self, *names: str) -> None:
        """Fields that do not change the answer."""
        self._known.extend(names)

    def finish(self) -> None:
        """Raise ApiError for a field that is not known."""
        for name in self._given:
            if name not in self._known:
                raise ApiError(
                    400,
                    f"{shown(name)} is not a field of this request; its fields are "
                    f"{', '.join(sorted(set(self._known)))}",
                    name,
                    "unknown_parameter",
                )
