"""A SPIR-V module under construction: its sections, with one instance of each type and constant."""

from __future__ import annotations

import struct
from typing import Union

from mansard.codegen.spirv.requirements import number_capability
from mansard.codegen.spirv.words import (
    ALLOW_CONTRACT,
    CAPABILITIES,
    DECORATION,
    FAST_MATH_DEFAULT,
    GL_COMPUTE,
    GLSL,
    GLSL450,
    LOCAL_SIZE,
    LOGICAL,
    PHYSICAL_64,
    PRESERVE_NAN,
    STORAGE,
    VULKAN,
    Id,
    Instruction,
    Operand,
    encode,
)

_Key = tuple[str, Union[Id, None], tuple[Operand, ...]]


class Module:
    """Holds one compute entry point. ``capabilities`` grows with what is used."""

    def __init__(self, *, physical: bool = True) -> None:
        self.capabilities = {"Shader"}
        if physical:  # buffers are reached by 64-bit addresses
            self.capabilities |= {"PhysicalStorageBufferAddresses", "Int64"}
        self.extensions: set[str] = set()
        self._next = 1
        self._decorations: list[Instruction] = []
        self._globals: list[Instruction] = []
        self._known: dict[_Key, Id] = {}
        self._interface: list[Id] = []
        self._preserved: set[int] = set()
        self._float_controls = False
        self.functions: list[Instruction] = []
        """Whole functions that the entry point uses."""
        self.glsl = self.id()

    def preserve_nan(self, bits: int = 32) -> None:
        """Forbid drivers to drop NaN, infinities or the sign of zero in arithmetic of so many bits, if any.

        Without it a driver may turn ``a < b ? a : b`` into a minimum that ignores NaN, and NVIDIA's does.
        """
        self._preserved.add(bits)

    def control_floats(self) -> None:
        """Say so by SPV_KHR_float_controls2, which also forbids to reassociate: NVIDIA's driver makes x of
        ``(x + y) - y`` otherwise, in spite of `preserve_nan`, and then loses infinities and rounding."""
        self._float_controls = True
        self.capabilities.add("FloatControls2")
        self.extensions.add("SPV_KHR_float_controls2")

    def forbid_contraction(self, result: Id) -> None:
        """Keep a sum or product from becoming a part of a fused one."""
        if self._float_controls:
            self.decorate(result, "FPFastMathMode", 0)
        else:
            self.decorate(result, "NoContraction")

    def _float_modes(self, main: Id) -> list[Instruction]:
        """The execution modes of arithmetic on floats."""
        widths = sorted(b for b in self._preserved if b == 32 or f"Float{b}" in self.capabilities)
        if not self._float_controls:
            self.capabilities.update(["SignedZeroInfNanPreserve"] if widths else [])
            return [Instruction("OpExecutionMode", None, None, (main, PRESERVE_NAN, b)) for b in widths]
        allowed = self.int_constant(ALLOW_CONTRACT)
        modes = [(main, FAST_MATH_DEFAULT, self.float_type(b), allowed) for b in widths]
        return [Instruction("OpExecutionModeId", None, None, mode) for mode in modes]

    def bytes_of(self, type_: Id) -> int:
        """The size of a number or a vector of numbers in memory."""
        op, _, operands = next(key for key, id_ in self._known.items() if id_ == type_)
        if op == "OpTypeVector" and isinstance(operands[0], Id) and isinstance(operands[1], int):
            return operands[1] * self.bytes_of(operands[0])
        assert op in ("OpTypeInt", "OpTypeFloat") and isinstance(operands[0], int), op
        return operands[0] // 8

    def id(self) -> Id:
        """A fresh id."""
        self._next += 1
        return Id(self._next - 1)

    def declare(self, op: str, type_: Id | None, *operands: Operand) -> Id:
        """A type, constant or other global, made once for equal operands."""
        key = (op, type_, operands)
        if key not in self._known:
            self._known[key] = self.id()
            self._globals.append(Instruction(op, type_, self._known[key], operands))
        return self._known[key]

    def decorate(self, target: Id, decoration: str, *operands: int) -> None:
        """Decorate an id."""
        self._decorations.append(
            Instruction("OpDecorate", None, None, (target, DECORATION[decoration], *operands))
        )

    def array_block(self, element: Id, stride: int) -> Id:
        """A block with a runtime array of elements, ``stride`` bytes apart."""
        known = ("OpTypeRuntimeArray", None, (element,)) in self._known
        array = self.declare("OpTypeRuntimeArray", None, element)
        block = self.declare("OpTypeStruct", None, array)
        if not known:
            self.decorate(array, "ArrayStride", stride)
            self.decorate(block, "Block")
            self.decorate_member(block, 0, "Offset", 0)
        return block

    def decorate_member(self, struct_: Id, member: int, decoration: str, *operands: int) -> None:
        """Decorate a member of a struct."""
        words: tuple[Operand, ...] = (struct_, member, DECORATION[decoration], *operands)
        self._decorations.append(Instruction("OpMemberDecorate", None, None, words))

    # Types ----------------------------------------------------------------------------------
    def bool_type(self) -> Id:
        """The type of conditions."""
        return self.declare("OpTypeBool", None)

    def int_type(self, bits: int) -> Id:
        """An integer; operations choose the signedness."""
        self._uses_number(bits, is_float=False)
        return self.declare("OpTypeInt", None, bits, 0)

    def float_type(self, bits: int) -> Id:
        """A float; f16 only for memory and conversions unless Float16 is asked for."""
        self._uses_number(bits, is_float=True)
        return self.declare("OpTypeFloat", None, bits)

    def _uses_number(self, bits: int, *, is_float: bool) -> None:
        capability = number_capability(bits, is_float=is_float)
        if capability is not None:
            self.capabilities.add(capability)

    def bfloat16_type(self) -> Id:
        """bf16 as a float of its own, which conversions and matrices take where devices know it."""
        self.capabilities.add("BFloat16TypeKHR")
        self.extensions.add("SPV_KHR_bfloat16")
        return self.declare("OpTypeFloat", None, 16, 0)  # encoding 0: BFloat16KHR

    def vector_type(self, scalar: Id, lanes: int) -> Id:
        """``scalar`` itself, or a vector of it."""
        return scalar if lanes == 1 else self.declare("OpTypeVector", None, scalar, lanes)

    def pointer_type(self, storage: str, pointee: Id) -> Id:
        """A pointer type."""
        return self.declare("OpTypePointer", None, STORAGE[storage], pointee)

    # Constants ------------------------------------------------------------------------------
    def int_constant(self, value: int, bits: int = 32) -> Id:
        """An integer literal, wrapped to its width."""
        words = [value & 0xFFFFFFFF] if bits == 32 else [value & 0xFFFFFFFF, (value >> 32) & 0xFFFFFFFF]
        return self.declare("OpConstant", self.int_type(bits), *words)

    def float_constant(self, value: float, bits: int = 32) -> Id:
        """An f32 or f64 literal."""
        raw = struct.pack("<f" if bits == 32 else "<d", value)
        return self.declare("OpConstant", self.float_type(bits), *struct.unpack(f"<{bits // 32}I", raw))

    def half_constant(self, bits: int) -> Id:
        """An f16 literal by its code."""
        return self.declare("OpConstant", self.float_type(16), bits)

    def bool_constant(self, value: bool) -> Id:
        """true or false."""
        return self.declare("OpConstantTrue" if value else "OpConstantFalse", self.bool_type())

    def splat(self, constant: Id, scalar: Id, lanes: int) -> Id:
        """A constant in every lane."""
        if lanes == 1:
            return constant
        vector = self.vector_type(scalar, lanes)
        return self.declare("OpConstantComposite", vector, *[constant] * lanes)

    # Variables ------------------------------------------------------------------------------
    def variable(self, storage: str, pointee: Id) -> Id:
        """A module variable, listed in the entry point's interface."""
        result = self.id()
        pointer = self.pointer_type(storage, pointee)
        self._globals.append(Instruction("OpVariable", pointer, result, (STORAGE[storage],)))
        self._interface.append(result)
        return result

    def finish(
        self, name: str, main: Id, workgroup: tuple[int, int, int], body: list[Instruction]
    ) -> list[Instruction]:
        """Every instruction of the module, in the order the specification asks for."""
        void = self.declare("OpTypeVoid", None)
        signature = self.declare("OpTypeFunction", None, void)
        modes = self._float_modes(main)
        capabilities = [
            Instruction("OpCapability", None, None, (CAPABILITIES[c],))
            for c in sorted(self.capabilities & CAPABILITIES.keys())
        ]
        model = VULKAN if "VulkanMemoryModel" in self.capabilities else GLSL450
        addressing = PHYSICAL_64 if "PhysicalStorageBufferAddresses" in self.capabilities else LOGICAL
        return [
            *capabilities,
            *(Instruction("OpExtension", None, None, (name,)) for name in sorted(self.extensions)),
            Instruction("OpExtInstImport", None, self.glsl, ("GLSL.std.450",)),
            Instruction("OpMemoryModel", None, None, (addressing, model)),
            Instruction("OpEntryPoint", None, None, (GL_COMPUTE, main, name, *self._interface)),
            Instruction("OpExecutionMode", None, None, (main, LOCAL_SIZE, *workgroup)),
            *modes,
            *self._decorations,
            *self._globals,
            Instruction("OpFunction", void, main, (0, signature)),
            *body,
            Instruction("OpFunctionEnd", None, None, ()),
            *self.functions,
        ]

    def glsl_instruction(self, name: str, type_: Id, result: Id, *operands: Id) -> Instruction:
        """An instruction of GLSL.std.450."""
        return Instruction("OpExtInst", type_, result, (self.glsl, glsl_number(name), *operands))

    def encode(self, instructions: list[Instruction]) -> bytes:
        """The binary."""
        return encode(instructions, self._next)


def glsl_number(name: str) -> int:
    """The number of an instruction of GLSL.std.450."""
    return GLSL[name]
