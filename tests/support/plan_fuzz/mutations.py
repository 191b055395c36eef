"""Mutations of a plan's data: JSON objects, of which mutants share what they leave alone."""

from __future__ import annotations

import random
import reprlib
from collections.abc import Callable
from typing import Any

Path = tuple[str | int, ...]

DULL = {"decisions", "info", "prediction", "label", "location", "name", "message", "source", "product_names"}
"""What is there for people: mutated rarely."""
NUMBERS = (0, 1, -1, 2, 3, 4, 7, 8, 16, 255, 256, 4096, 65536, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**62)
HUGE = (2**62 + 1, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63), 10**30, 10**400)
TEXTS = ("", "x", "cpu", "vulkan", "null", "input", "output", "transient", "constant", "state", "f32", "i64",
         "i4", "bool", "f64", "\ud800", "a\0b", "é" * 300, "../../etc/passwd", "weights", "%s%n")  # fmt: skip
EXPRESSIONS = ("n", "m", "4*n", "n*m", "n*n*n", "-1*n", "n + 1", "n + -1", "2**62", "floordiv(n, 2)",
               "floordiv(n, 0)", "mod(n, 0)", "mod(n, 3)", "min(n, 2)", "max(n, m)", "floordiv(8, n)",
               "q", "n n", "n**n", "(n + m)*(n + m)*(n + m)", "lambda: 0", "min(n)", "4*s0")  # fmt: skip


class Mutator:
    """Makes mutants of plans. Every mutant is a function of the seed's data and of the random state."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log: list[str] = []

    def mutate(self, data: dict[str, Any]) -> dict[str, Any]:
        """A mutant with one to four changes; ``log`` then says which."""
        self.log = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 2, 3, 4))):
            change: Callable[[Any], Any] = self.rng.choices(
                (self._leaf, self._list, self._object, self._like, self._coherent), (30, 14, 4, 30, 22)
            )[0]
            data = change(data)
        return data

    # Places ---------------------------------------------------------------------------------
    def _pick(self, data: Any, wanted: Callable[[Any], bool]) -> Path | None:
        """A random place whose contents are ``wanted``, found by walking down from the root."""
        for _ in range(20):
            path, node = self._descend(data)
            while path:
                if wanted(node):
                    return path
                path = path[:-1]
                node = get(data, path)
        return None

    def _descend(self, data: Any) -> tuple[Path, Any]:
        path: list[str | int] = []
        node = data
        while isinstance(node, (dict, list)) and node:
            if isinstance(node, dict):
                keys = [k for k in node if k not in DULL or self.rng.random() < 0.06] or list(node)
                key: str | int = self.rng.choice(keys)
            else:
                key = self.rng.randrange(len(node))
            path.append(key)
            node = node[key]
            if isinstance(node, (dict, list)) and self.rng.random() < 0.08:
                break
        return tuple(path), node

    def _set(self, data: Any, path: Path, value: Any, what: str) -> Any:
        self.log.append(f"{what} {'.'.join(map(str, path))}: {reprlib.repr(value)}")
        return put(data, path, value)

    # Changes --------------------------------------------------------------------------------
    def _leaf(self, data: Any) -> Any:
        path = self._pick(data, lambda node: not isinstance(node, (dict, list)))
        if path is None:
            return data
        return self._set(data, path, self._other(get(data, path)), "set")

    def _other(self, old: Any) -> Any:
        rng = self.rng
        if isinstance(old, bool):
            return not old if rng.random() < 0.8 else self._junk()
        if isinstance(old, int):
            kind = rng.random()
            if kind < 0.45:
                return old + rng.choice((1, -1, 2, -2, 4, -4, 16, -16, 64, 256))
            if kind < 0.6:
                return rng.choice((old * 2, old // 2, -old, old * 4, old // 4))
            if kind < 0.85:
                return rng.choice(NUMBERS)
            return (
                rng.choice(HUGE) if kind < 0.92 else rng.choice(EXPRESSIONS) if kind < 0.97 else self._junk()
            )
        if isinstance(old, str):
            kind = rng.random()
            if kind < 0.4:
                return rng.choice(EXPRESSIONS)
            if kind < 0.6 and old:
                at = rng.randrange(len(old))
                return old[:at] + rng.choice("0123456789nm*+-() ,") + old[at + 1 :]
            if kind < 0.7:
                return f"{old} + {rng.choice((1, 4, -4, 64))}"
            return rng.choice(TEXTS) if kind < 0.9 else rng.choice(NUMBERS) if kind < 0.97 else self._junk()
        return self._junk() if rng.random() < 0.5 else rng.choice(NUMBERS)

    def _junk(self) -> Any:
        return self.rng.choice(
            (None, True, 1.5, 1e308, [], {}, [[]], {"": {}}, "?", 0, [1, 2, 3], {"step": "barrier"})
        )

    def _list(self, data: Any) -> Any:
        path = self._pick(data, lambda node: isinstance(node, list) and len(node) > 0)
        if path is None:
            return data
        rng, items = self.rng, list(get(data, path))
        a, b = rng.randrange(len(items)), rng.randrange(len(items))
        kind = rng.choice(("drop", "double", "swap", "swap", "move", "reverse", "empty", "many", "shuffle"))
        if kind == "drop":
            del items[a]
        elif kind == "double":
            items.insert(b, items[a])
        elif kind == "swap":
            items[a], items[b] = items[b], items[a]
        elif kind == "move":
            items.insert(b, items.pop(a))
        elif kind == "reverse":
            items.reverse()
        elif kind == "empty":
            items = []
        elif kind == "many":
            items = items * rng.choice((2, 3, 20))
        else:
            rng.shuffle(items)
        return self._set(data, path, items, kind)

    def _object(self, data: Any) -> Any:
        path = self._pick(data, lambda node: isinstance(node, dict) and len(node) > 0)
        if path is None:
            return data
        record = dict(get(data, path))
        key = self.rng.choice(list(record))
        kind = self.rng.choice(("drop", "rename", "add", "exchange"))
        if kind == "drop":
            del record[key]
        elif kind == "rename":
            record[key + "x"] = record.pop(key)
        elif kind == "add":
            record[self.rng.choice(("step", "bytes", "", "params", "__class__"))] = self._junk()
        else:
            other = self.rng.choice(list(record))
            record[key], record[other] = record[other], record[key]
        return self._set(data, path, record, kind)

    def _like(self, data: Any) -> Any:
        """Put what one place holds where another of the same key holds its own."""
        path = self._pick(data, lambda node: True)
        if path is None:
            return data
        keys = tuple(key for key in path if isinstance(key, str))
        for _ in range(30):
            other, _ = self._descend(data)
            while other and tuple(key for key in other if isinstance(key, str)) != keys:
                other = other[:-1]
            if other and other[: len(path)] != path and path[: len(other)] != other:
                changed = self._set(data, path, get(data, other), "copy")
                if self.rng.random() < 0.4:
                    changed = self._set(changed, other, get(data, path), "and back")
                return changed
        return data

    def _coherent(self, data: Any) -> Any:
        """Changes in several places that go together, and so get further into the checks."""
        change = self.rng.choice(
            (
                self._retarget,
                self._resize,
                self._reshape,
                self._retype,
                self._rekind,
                self._kernel,
                self._part,
                self._lifetime,
                self._contract,
            )
        )
        try:
            return change(data)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            return data  # an earlier change has removed what this one needs

    def _values(self, data: Any) -> list[dict[str, Any]]:
        return [dict(value) for value in data["values"]]

    def _retarget(self, data: Any) -> Any:
        """Let every reference to one value (or those of one list) name another."""
        numbers = [value["id"] for value in data["values"]]
        old, new = self.rng.choice(numbers), self.rng.choice(numbers)
        where = self.rng.choice(("inputs", "outputs", "devices", "devices", "devices", "states", "asserts"))
        self.log.append(f"retarget {where} from {old} to {new}")

        def changed(node: Any, key: str | int) -> Any:
            if isinstance(node, dict):
                return {k: changed(v, k) for k, v in node.items()}
            if isinstance(node, list):
                return [changed(item, key) for item in node]
            references = ("value", "source", "target") if where != "states" else ("states",)
            return new if key in references and node == old else node

        return {**data, where: changed(data[where], where)}

    def _resize(self, data: Any) -> Any:
        """Another size for a value, and for the input or output that it is."""
        values = self._values(data)
        value = self.rng.choice(values)
        count = self.rng.choice((0, 1, 2, 3, 16, 1000, 2**20, 2**34, 2**58, "n", "m", "n*n", "4*m"))
        value["bytes"] = 4 * count if isinstance(count, int) else f"4*{count}"
        self.log.append(f"resize {value['id']} to {count} elements of 4 bytes")
        tensors = {}
        for where in ("inputs", "outputs"):
            tensors[where] = [
                {**spec, "shape": [count]} if spec["value"] == value["id"] else spec for spec in data[where]
            ]
        return {**data, "values": values, **tensors}

    def _reshape(self, data: Any) -> Any:
        """Another shape of as many elements."""
        where = self.rng.choice(("inputs", "outputs"))
        specs = list(data[where])
        number = self.rng.randrange(len(specs))
        shape = list(specs[number]["shape"])
        kind = self.rng.choice(("turn", "flat", "one", "halve"))
        if kind == "turn":
            self.rng.shuffle(shape)
        elif kind == "one":
            shape.insert(self.rng.randrange(len(shape) + 1), 1)
        elif kind == "flat":
            shape = (
                ["*".join(map(str, shape))] if any(isinstance(d, str) for d in shape) else [_product(shape)]
            )
        else:
            shape = [*(d // 2 if isinstance(d, int) else d for d in shape), 2]
        self.log.append(f"{kind} the shape of {where}.{number}: {shape}")
        specs[number] = {**specs[number], "shape": shape}
        return {**data, where: specs}

    def _retype(self, data: Any) -> Any:
        """Another element type of the same or another size."""
        where = self.rng.choice(("inputs", "outputs", "weights"))
        specs = list(data[where])
        number = self.rng.randrange(len(specs))
        dtype = self.rng.choice(("f32", "i32", "f16", "bf16", "i64", "u8", "i8", "i4", "bool", "f64", "f8"))
        specs[number] = {**specs[number], "dtype": dtype}
        self.log.append(f"retype {where}.{number}: {dtype}")
        return {**data, where: specs}

    def _rekind(self, data: Any) -> Any:
        """Another kind of value, named by what that kind needs."""
        values = self._values(data)
        value = self.rng.choice(values)
        value["kind"] = self.rng.choice(("input", "output", "transient", "state", "constant"))
        if value["kind"] in ("constant", "state"):
            value["weight"] = self.rng.randrange(max(1, len(data["weights"])))
        self.log.append(f"value {value['id']} is of kind {value['kind']}")
        data = {**data, "values": values}
        if value["kind"] == "state":
            data["states"] = [*data["states"], [value["id"], self.rng.choice(values)["id"]]]
        return data

    def _steps(self, data: Any) -> list[tuple[Path, dict[str, Any]]]:
        return [
            (("devices", d, "segments", s, "steps", n), step)
            for d, device in enumerate(data["devices"])
            for s, segment in enumerate(device["segments"])
            for n, step in enumerate(segment["steps"])
        ]

    def _kernel(self, data: Any) -> Any:
        """Let a step launch another step's kernel, over its own or the other's bindings."""
        steps = [pair for pair in self._steps(data) if pair[1].get("step") == "dispatch"]
        (path, step), (_, other) = self.rng.choice(steps), self.rng.choice(steps)
        fields = ("executable", "entry", "params", "grid", "bindings")[: self.rng.choice((2, 4, 4, 5))]
        return self._set(
            data, path, {**step, **{key: other[key] for key in fields}}, "kernel of another step"
        )

    def _part(self, data: Any) -> Any:
        """Make a value a part of another."""
        values = self._values(data)
        value, whole = self.rng.choice(values), self.rng.choice(values)
        value["part_of"] = whole["id"]
        value["part_offset"] = self.rng.choice((0, 0, 4, 64, -4, whole["bytes"], value["bytes"], "4*n"))
        self.log.append(f"value {value['id']} is a part of {whole['id']} from {value['part_offset']} on")
        return {**data, "values": values}

    def _lifetime(self, data: Any) -> Any:
        """Let values lie in the same memory at the same time."""
        values = self._values(data)
        for value in self.rng.sample(values, min(3, len(values))):
            value["first"], value["last"] = self.rng.choice(((0, 0), (5, 1), (0, 2**40), (1, 1), (3, 4)))
        self.log.append("other lifetimes")
        return {**data, "values": values}

    def _contract(self, data: Any) -> Any:
        """Other ranges of the dims."""
        symbols = [dict(dim) for dim in data["dims"]]
        dim = self.rng.choice(symbols)
        dim[self.rng.choice(("min", "max", "multiple"))] = self.rng.choice(
            (0, 1, 2, 3, 4, 8, 100, 2**20, 2**62, 2**70)
        )
        self.log.append(f"dim {dim}")
        return {**data, "dims": symbols}


def get(data: Any, path: Path) -> Any:
    """What lies at a path."""
    for key in path:
        data = data[key]
    return data


def put(data: Any, path: Path, value: Any) -> Any:
    """The data with something else at a path; what lies beside the path is shared."""
    if not path:
        return value
    key, *rest = path
    copy: Any = dict(data) if isinstance(data, dict) else list(data)
    copy[key] = put(data[key], tuple(rest), value)
    return copy


def _product(shape: list[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
