"""How a model is called in its own framework: its parameters, and the structure of arguments and results.

A plan's inputs and outputs are flat lists of tensors. A framework's model takes nested arguments, numbers and
None, has defaults, and returns structures; the frontend writes down how the two correspond.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass

Scalar = bool | int | float | str | None
"""Arguments and results that are no tensors: fixed when the model is compiled."""

KINDS = ("tensor", "number", "constant", "tuple", "list", "dict", "record", "object")
"""What a `Structure` may be."""


def class_name(cls: type) -> str:
    """A class as `Structure.type` has it: ``module:qualified name``."""
    return f"{cls.__module__}:{cls.__qualname__}"


@dataclass(frozen=True)
class Structure:
    """A value that holds tensors, or one of them.

    ``kind`` is

    - ``tensor``: the input or output ``number`` of the plan; ``number``: such an output of rank 0 as a number
      of Python;
    - ``constant``: the value with the JSON text ``value``, fixed at compilation;
    - ``tuple``, ``list``: of ``children``; ``dict``: ``keys`` (JSON texts) with ``children``;
    - ``record``: an instance of the class ``type`` (``module:qualified name``) with fields ``keys``: a named
      tuple, a dataclass, or a mapping with attributes such as those of ``transformers``;
    - ``object``: an instance of another class that the framework can take apart, into ``children`` and a
      ``value`` of plain data (JSON text).

    A tensor whose size depends on the content of inputs is the first part of an output: ``sizes`` has the
    axes with the numbers of the outputs (of rank 0) that are its size along them.
    """

    kind: str
    number: int = -1
    value: str = ""
    keys: tuple[str, ...] = ()
    children: tuple[Structure, ...] = ()
    type: str = ""
    sizes: tuple[tuple[int, int], ...] = ()

    def leaves(self) -> Iterator[Structure]:
        """The tensors and numbers in it, in order."""
        if self.kind in ("tensor", "number"):
            yield self
        for child in self.children:
            yield from child.leaves()

    def problem(self) -> str:
        """What is wrong with the record of it, empty if nothing."""
        if self.kind not in KINDS:
            return f"no structure is of kind {self.kind[:40]!r}"
        if self.kind in ("dict", "record") and len(self.keys) != len(self.children):
            return f"a structure has {len(self.keys)} keys for {len(self.children)} parts"
        texts = [self.value] if self.kind in ("constant", "object") else []
        for text in (*texts, *(self.keys if self.kind == "dict" else ())):
            try:
                json.loads(text)
            except (ValueError, RecursionError):
                return f"a structure holds {text[:40]!r}, which is not JSON"
        return next(filter(None, (child.problem() for child in self.children)), "")


@dataclass(frozen=True)
class Parameter:
    """A parameter of the model's function, in the order of its signature.

    ``kind`` is Python's (``inspect.Parameter.kind.name``). ``structure`` is that of the argument that the
    model was compiled with, None where it had none. ``default`` is the JSON text of the parameter's default
    value, empty where it has none, or one that is not plain data (``opaque``).
    """

    name: str
    kind: str
    structure: Structure | None = None
    default: str = ""
    opaque: bool = False

    def python(self) -> inspect.Parameter:
        """As Python has it, with an ellipsis for a default that is not plain data."""
        kinds = {kind.name: kind for kind in inspect._ParameterKind}
        default: object = inspect.Parameter.empty
        if self.default:
            default = json.loads(self.default)
        elif self.opaque:
            default = ...
        return inspect.Parameter(self.name, kinds[self.kind], default=default)


@dataclass(frozen=True)
class Interface:
    """The parameters of a model, and the structure of its result.

    A model without ``parameters`` (None) takes the plan's inputs as they are.
    """

    parameters: tuple[Parameter, ...] | None
    result: Structure

    def signature(self) -> inspect.Signature:
        """The parameters, for binding the arguments of a call. Raises ValueError or KeyError for what no
        function has."""
        return inspect.Signature([parameter.python() for parameter in self.parameters or ()])

    def problem(self, inputs: int, outputs: int) -> str:
        """What keeps it from being the interface of a plan with so many inputs and outputs, empty if nothing
        does."""
        structures = [p.structure for p in self.parameters or () if p.structure is not None]
        for structure in (*structures, self.result):
            if wrong := structure.problem():
                return wrong
        taken = sorted(leaf.number for structure in structures for leaf in structure.leaves())
        if self.parameters is not None and taken != list(range(inputs)):
            return f"parameters hold the inputs {taken[:8]}, not each of {inputs} once"
        if any(
            not 0 <= number < outputs
            for leaf in self.result.leaves()
            for number in (leaf.number, *(n for _, n in leaf.sizes))
        ):
            return f"the result holds an output beyond the {outputs} that there are"
        try:
            self.signature()
        except (ValueError, KeyError, RecursionError) as error:
            return f"its parameters are not those of a function: {error}"
        return ""
