"""What every op of the Graph IR declares about itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mansard import dims
from mansard.dims import DimLike
from mansard.errors import UnsupportedOpError
from mansard.ir.interpreter.scalar import Array
from mansard.ir.op_check import OpCheck
from mansard.ir.text.attributes import Attribute
from mansard.ir.text.literals import value_text
from mansard.ir.text.scanner import Scanner
from mansard.ir.types import Location, Value


@dataclass(frozen=True, eq=False)
class Op:
    """Base of all ops: operands in ``inputs``, results in ``outputs``, attributes in further fields.

    A class states its rules, its meaning, its cost and its text, and enters the table of ops by
    `mansard.ir.ops.register_op`; verifier, interpreter, printer, parser, serialisation and cost model go by
    these. Of fields, serialisation takes ints, bools, floats, texts, dims, index maps, scalar bodies and
    tuples of them.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    location: Location = field(default_factory=Location, kw_only=True)

    attributes: ClassVar[tuple[Attribute, ...]] = ()
    """The fields in the order in which the text form states them."""
    has_effect: ClassVar[bool] = False
    """Whether the op is there for more than its results, and stays when nothing reads these."""
    in_place_operand: ClassVar[int | None] = None
    """The operand that the op changes in parts: its buffer may serve the result if nothing else reads it."""

    @property
    def name(self) -> str:
        """The op's name in dumps and patterns."""
        return type(self).__name__.lower()

    @property
    def output(self) -> Value:
        """The only result."""
        (value,) = self.outputs
        return value

    # What a class states ----------------------------------------------------------------------
    def verify(self, check: OpCheck) -> None:
        """Raise ``check.fail(…)`` when the op breaks a rule. Its operands are defined."""
        raise check.fail("states no rules")

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """The results in NumPy: what the op means."""
        raise UnsupportedOpError(self.name, str(self.location), "the reference interpreter has no rule")

    def operations(self) -> DimLike:
        """Arithmetic operations, for the cost model; two for each element read unless a class says more."""
        return dims.mul(dims.add(0, *(v.type.elements for v in self.inputs)), 2)

    def text(self) -> str:
        """The op without its results."""
        parts = [self.name, ", ".join(map(value_text, self.inputs))]
        parts += [attribute.text(self) for attribute in self.attributes]
        return " ".join(part for part in parts if part)

    @classmethod
    def read(cls, scanner: Scanner, outputs: tuple[Value, ...]) -> dict[str, Any]:
        """The fields of an op from what follows its name in the text form."""
        inputs: list[Value] = []
        while scanner.text.startswith("%", scanner.position):
            inputs.append(scanner.value())
            if not scanner.accept(","):
                break
        fields: dict[str, Any] = {"inputs": tuple(inputs)}
        for attribute in cls.attributes:
            fields |= attribute.read(scanner)
        return fields

    # What follows from it ----------------------------------------------------------------------
    @classmethod
    def attribute_fields(cls) -> tuple[str, ...]:
        """The fields besides operands, results and location, in order."""
        return tuple(
            f.name for f in dataclasses.fields(cls) if f.name not in ("inputs", "outputs", "location")
        )
