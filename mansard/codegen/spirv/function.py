"""One kernel as one compute shader: control flow, the argument table, built-in ids.

Registers: f32 and f64 are themselves; integers below 32 bits, bf16 and f8 live in 32-bit integers
(sign-extended where signed), so that no device needs 8- or 16-bit arithmetic; f16 is a 16-bit float,
which storage and conversion alone may use everywhere. Anything more with it asks for Float16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.codegen.kernel import (
    Binding,
    Block,
    For,
    If,
    Inst,
    Kernel,
    KernelBuilder,
    KType,
    KValue,
    SharedMemory,
)
from mansard.codegen.kernel.matrix import MATRIX_OPS
from mansard.codegen.spirv.descriptors import MAX_PARAMS
from mansard.codegen.spirv.module import Module, glsl_number
from mansard.codegen.spirv.requirements import FEATURES
from mansard.codegen.spirv.words import (
    BUILT_IN,
    NON_PRIVATE,
    PARTIAL_COUNT,
    STORAGE,
    Id,
    Instruction,
    Operand,
)
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.executable import EntryPoint

MAX_LANES = 4
SUBGROUP_SIZE = "subgroup_size_"
"""The feature of a device whose subgroups have as many invocations as the number that follows."""


class KernelEmitter:
    """Emits one kernel into a module of its own. Instruction rules append through it."""

    def __init__(self, kernel: Kernel, *, descriptors: bool = False) -> None:
        self.kernel = kernel
        self.descriptors = descriptors
        """Whether buffers are storage buffers of a descriptor set, not addresses."""
        self.storage: dict[tuple[int, Id], Id] = {}
        """The variables of storage buffers by binding and type of element."""
        if descriptors and kernel.params > MAX_PARAMS:
            raise CodegenError(
                f"kernel {kernel.name!r} has {kernel.params} parameters; beside descriptors there is room "
                f"for {MAX_PARAMS}"
            )
        self.entry = EntryPoint(kernel.name, len(kernel.bindings), kernel.params, kernel.workgroup)
        self.module = Module(physical=not descriptors)
        self.vulkan_memory = kernel.body.uses(MATRIX_OPS)
        """Whether the module uses the Vulkan memory model, as matrices ask for: workgroup memory is then
        private to an invocation unless each access says otherwise."""
        if self.vulkan_memory:
            self.module.capabilities.add("VulkanMemoryModel")
        self.shared_bytes = 0
        self.widened: dict[int, Id] = {}
        """The 32-bit register behind a kernel value that was extended from it to 64 bits."""
        self.needs: set[str] = set()
        """Further features a device must have, by name."""
        self.functions: dict[str, Id] = {}
        """Functions of the module beside the entry point, by what they do."""
        self._body: list[Instruction] = []
        self._variables: list[Instruction] = []
        self._prologue: list[Instruction] = []
        self._ids: dict[int, Id] = {}
        self._constants: dict[int, float | int | bool] = {}
        self._sums: dict[int, tuple[KValue, int]] = {}
        self._types: dict[KType, Id] = {}
        self._words: dict[int, Id] = {}
        self._builtins: dict[str, Id] = {}
        self._shared: dict[int, Id] = {}
        self._label = self.module.id()
        self._table: Id | None = None
        self._expansions = 0

    # Instructions and ids -------------------------------------------------------------------
    def op(self, name: str, type_: Id, *operands: Operand) -> Id:
        """Append an instruction with a result."""
        result = self.module.id()
        self._body.append(Instruction(name, type_, result, operands))
        return result

    def do(self, name: str, *operands: Operand) -> None:
        """Append an instruction without a result."""
        self._body.append(Instruction(name, None, None, operands))

    def place(self, name: str, type_: Id, result: Id, *operands: Operand) -> None:
        """Append an instruction whose result id was made before."""
        self._body.append(Instruction(name, type_, result, operands))

    def phi(self, type_: Id, result: Id, incoming: tuple[tuple[Id, Id], ...]) -> None:
        """Append a phi: pairs of value and the block it comes from."""
        self.place("OpPhi", type_, result, *(id_ for pair in incoming for id_ in pair))

    def glsl(self, name: str, type_: Id, *operands: Id) -> Id:
        """Append an instruction of GLSL.std.450."""
        return self.op("OpExtInst", type_, self.module.glsl, glsl_number(name), *operands)

    def id(self, value: KValue) -> Id:
        """The id of a kernel value."""
        return self._ids[value.id]

    def bind(self, value: KValue | None, id_: Id) -> None:
        """Set the id of a kernel value."""
        if value is None:
            raise CodegenError(f"kernel {self.kernel.name!r}: an instruction has no result to define")
        self._ids[value.id] = id_

    def fresh(self, type_: KType) -> KValue:
        """A kernel value that no instruction of the kernel defines."""
        self._expansions += 1
        return KValue(-(1 << 50) + self._expansions, type_)

    def scalar(self, value: KValue, lane: int) -> KValue:
        """One lane of a value, as a value; the value itself where it has one lane."""
        if value.type.lanes == 1:
            return value
        element = self.fresh(value.type.with_lanes(1))
        self.uses_f16(value.type)
        self.bind(element, self.op("OpCompositeExtract", self.type(element.type), self.id(value), lane))
        if value.id in self._constants:
            self.set_constant(element, self._constants[value.id])
        if value.id in self.widened:
            short, held = self.type(KType(DType.I32)), self.widened[value.id]
            self.widened[element.id] = self.op("OpCompositeExtract", short, held, lane)
        return element

    def constant(self, value: KValue) -> float | int | bool | None:
        """The literal behind a value, if it is one."""
        return self._constants.get(value.id)

    def set_constant(self, value: KValue, literal: float | int | bool) -> None:
        """Remember that a value is a literal."""
        self._constants[value.id] = literal

    @property
    def shared_access(self) -> tuple[int, ...]:
        """Memory operands of loads and stores of workgroup memory."""
        return (NON_PRIVATE,) if self.vulkan_memory else ()

    def set_sum(self, value: KValue, left: KValue, right: KValue) -> None:
        """Remember that a value is a sum, for `without_literal`."""
        for part, other in ((left, right), (right, left)):
            literal = self._constants.get(other.id)
            if literal is not None:
                self._sums[value.id] = (part, int(literal))

    def without_literal(self, value: KValue) -> tuple[KValue, int]:
        """An integer as another one plus a literal."""
        return self._sums.get(value.id, (value, 0))

    def expansion(self) -> KernelBuilder:
        """A builder whose instructions this emitter can take in place, by `inline`."""
        self._expansions += 1
        return KernelBuilder(
            self.kernel.name, (), 0, index=self.kernel.index, first_id=-(1 << 40) + (self._expansions << 16)
        )

    def inline(self, builder: KernelBuilder, result: KValue) -> Id:
        """Emit what an expansion built here, and give its result's id."""
        self.block(builder.build().body)
        return self.id(result)

    # Types ----------------------------------------------------------------------------------
    def scalar_type(self, dtype: DType) -> Id:
        """The register type of one element."""
        return self.type(KType(dtype))

    def _element_type(self, dtype: DType) -> Id:
        if dtype.bits < 8:
            raise CodegenError(f"no register holds {dtype.value}; unpack it from u8 first")
        if dtype is DType.BOOL:
            return self.module.bool_type()
        if dtype in (DType.F16, DType.F32, DType.F64):
            return self.module.float_type(dtype.bits)
        return self.module.int_type(max(32, dtype.bits))

    def type(self, type_: KType) -> Id:
        """The register type."""
        known = self._types.get(type_)
        if known is None:
            known = self._types[type_] = self._register_type(type_)
        return known

    def _register_type(self, type_: KType) -> Id:
        if type_.matrix is not None:
            from mansard.codegen.spirv.matrix import matrix_type

            return matrix_type(self, type_)
        if type_.lanes > MAX_LANES:
            raise CodegenError(
                f"kernel {self.kernel.name!r}: {type_} has more lanes than a SPIR-V vector ({MAX_LANES})"
            )
        return self.module.vector_type(self._element_type(type_.dtype), type_.lanes)

    def uses_f16(self, type_: KType) -> None:
        """Say that an f16 register, if it is one, is used for more than storage and conversion."""
        if type_.dtype is DType.F16:
            self.module.capabilities.add("Float16")

    def int_literal(self, value: int, like: KType) -> Id:
        """An integer literal of a register type of integers."""
        bits = max(32, like.dtype.bits)
        scalar = self.module.int_constant(value, bits)
        return self.module.splat(scalar, self.module.int_type(bits), like.lanes)

    def float_literal(self, value: float, like: KType) -> Id:
        """An f32 or f64 literal of a register type."""
        scalar = self.module.float_constant(value, like.dtype.bits)
        return self.module.splat(scalar, self.scalar_type(like.dtype), like.lanes)

    # The argument table and built-in ids -----------------------------------------------------
    def word(self, index: int) -> Id:
        """A word of the argument table, loaded once at the start."""
        if index not in self._words:
            body, self._body = self._body, self._prologue
            self._words[index] = self._load_word(index)
            self._body = body
        return self._words[index]

    def _load_word(self, index: int) -> Id:
        m = self.module
        ulong = m.int_type(64)
        if self.entry.table_in_push_constants:
            return self._load_push_constant(index)
        if self._table is None:
            self._table = self._load_push_constant(0)
        address = self.op("OpIAdd", ulong, self._table, m.int_constant(8 * index, 64))
        pointer = self.op("OpConvertUToPtr", m.pointer_type("PhysicalStorageBuffer", ulong), address)
        return self.op("OpLoad", ulong, pointer, 2, 8)

    def push_constant(self, index: int, type_: Id) -> Id:
        """A 32-bit word of the parameters, which lie in push constants by themselves; see `descriptors`."""
        key = f"push.{index}"
        if key not in self._builtins:
            body, self._body = self._body, self._prologue
            self._builtins[key] = self._load_push(index, type_, 4, 2 * self.kernel.params)
            self._body = body
        return self._builtins[key]

    def _load_push_constant(self, index: int) -> Id:
        held = self.entry.table_words if self.entry.table_in_push_constants else 1
        return self._load_push(index, self.module.int_type(64), 8, held)

    def _load_push(self, index: int, word: Id, stride: int, held: int) -> Id:
        m = self.module
        if "push" not in self._builtins:
            words = m.declare("OpTypeArray", None, word, m.int_constant(held))
            block = m.declare("OpTypeStruct", None, words)
            m.decorate(words, "ArrayStride", stride)
            m.decorate(block, "Block")
            m.decorate_member(block, 0, "Offset", 0)
            self._builtins["push"] = m.variable("PushConstant", block)
        zero, at = m.int_constant(0), m.int_constant(index)
        chain = self.op(
            "OpAccessChain", m.pointer_type("PushConstant", word), self._builtins["push"], zero, at
        )
        return self.op("OpLoad", word, chain)

    def builtin(self, name: str, axis: int) -> Id:
        """A component of WorkgroupId or LocalInvocationId, as a 32-bit integer."""
        key = f"{name}.{axis}"
        if key not in self._builtins:
            m = self.module
            uint = m.int_type(32)
            vector = m.vector_type(uint, 3)
            if name not in self._builtins:
                self._builtins[name] = m.variable("Input", vector)
                m.decorate(self._builtins[name], "BuiltIn", BUILT_IN[name])
            body, self._body = self._body, self._prologue
            whole = self.op("OpLoad", vector, self._builtins[name])
            self._builtins[key] = self.op("OpCompositeExtract", uint, whole, axis)
            self._body = body
        return self._builtins[key]

    def subgroup_builtin(self, name: str) -> Id:
        """SubgroupId, NumSubgroups, SubgroupLocalInvocationId or SubgroupSize, a 32-bit integer."""
        if name not in self._builtins:
            m = self.module
            m.capabilities.add("GroupNonUniform")
            variable = m.variable("Input", m.int_type(32))
            m.decorate(variable, "BuiltIn", BUILT_IN[name])
            body, self._body = self._body, self._prologue
            self._builtins[name] = self.op("OpLoad", m.int_type(32), variable)
            self._body = body
        return self._builtins[name]

    def shared(self, memory: SharedMemory) -> Id:
        """The variable of a workgroup memory."""
        if memory.index not in self._shared:
            m = self.module
            element = m.vector_type(self.shared_element(memory.dtype), memory.lanes)
            array = m.declare("OpTypeArray", None, element, m.int_constant(memory.size))
            self._shared[memory.index] = m.variable("Workgroup", array)
            width = 2 if memory.dtype is DType.F16 else max(4, memory.dtype.itemsize)
            self.shared_bytes += memory.size * memory.lanes * width
        return self._shared[memory.index]

    def shared_element(self, dtype: DType) -> Id:
        """The element type in workgroup memory: the register type, but bool as an integer."""
        self.uses_f16(KType(dtype))
        return self.module.int_type(32) if dtype is DType.BOOL else self.scalar_type(dtype)

    # Structure ------------------------------------------------------------------------------
    def emit(self) -> list[Instruction]:
        """The whole module."""
        from mansard.codegen.spirv.instructions import emit_inst

        self._emit_inst = emit_inst
        main, start = self.module.id(), self._label
        self.block(self.kernel.body)
        self.do("OpReturn")
        body = [
            Instruction("OpLabel", None, start, ()),
            *self._variables,
            *self._prologue,
            *self._body,
        ]
        return self.module.finish(self.kernel.name, main, self.kernel.workgroup, body)

    def requires(self) -> tuple[str, ...]:
        """What a device must have, in the names of `Capabilities.features` and limits."""
        features = sorted(FEATURES[c] for c in self.module.capabilities if c in FEATURES)
        if "bfloat16_matrix" in features:
            features.remove("bfloat16")  # which it includes
        x, y, z = self.kernel.workgroup
        features += sorted(self.needs)
        if self.kernel.subgroup:
            features.append(f"{SUBGROUP_SIZE}{self.kernel.subgroup}")
        features.append(f"workgroup_invocations>={x * y * z}")
        if self.shared_bytes:
            features.append(f"shared_memory>={self.shared_bytes}")
        if self.descriptors:
            features.append(f"storage_buffers>={len(self.kernel.bindings)}")
        return tuple(features)

    def label(self, id_: Id) -> None:
        """Start a block."""
        self._body.append(Instruction("OpLabel", None, id_, ()))
        self._label = id_

    def block(self, block: Block) -> None:
        """Append the nodes of a block."""
        for node in block.nodes:
            if isinstance(node, Inst):
                self._emit_inst(self, node)
            elif isinstance(node, For):
                self._for(node)
            else:
                self._if(node)

    def _for(self, node: For) -> None:
        m = self.module
        head, check, body, after, done = (m.id() for _ in range(5))
        # Matrices go through memory of the function, as in what drivers know: few take them in a phi.
        homes = {v.id: self.home(v.type) for v in node.carried if v.type.matrix is not None}
        for carried, init in zip(node.carried, node.inits, strict=True):
            if carried.id in homes:
                self.do("OpStore", homes[carried.id], self.id(init))
        before = self._label
        self.do("OpBranch", head)
        self.label(head)
        phis = len(self._body)
        scalars = [i for i, v in enumerate(node.carried) if v.type.matrix is None]
        variables = (node.index, *(node.carried[i] for i in scalars))
        for value in variables:
            self.bind(value, m.id())
            self.uses_f16(value.type)
        control = (PARTIAL_COUNT, node.unroll) if node.unroll > 1 else (0,)
        self.do("OpLoopMerge", done, after, *control)
        self.do("OpBranch", check)
        self.label(check)
        more = self.op("OpSLessThan", m.bool_type(), self.id(node.index), self.id(node.upper))
        self.do("OpBranchConditional", more, body, done)
        self.label(body)
        self._reload(node.carried, node.carried, homes)
        self.block(node.body)
        for carried, value in zip(node.carried, node.yields, strict=True):
            if carried.id in homes:
                self.do("OpStore", homes[carried.id], self.id(value))
        self.do("OpBranch", after)
        self.label(after)
        following = self.op("OpIAdd", self.type(node.index.type), self.id(node.index), self.id(node.step))
        self.do("OpBranch", head)
        nexts = (following, *(self.id(node.yields[i]) for i in scalars))
        firsts = (node.lower, *(node.inits[i] for i in scalars))
        self._body[phis:phis] = [
            Instruction("OpPhi", self.type(value.type), self.id(value), (self.id(first), before, then, after))
            for value, first, then in zip(variables, firsts, nexts, strict=True)
        ]
        self.label(done)
        for i in scalars:
            self.bind(node.results[i], self.id(node.carried[i]))
        self._reload(node.results, node.carried, homes)

    def home(self, type_: KType) -> Id:
        """A variable of the function."""
        m, result = self.module, self.module.id()
        pointer = m.pointer_type("Function", self.type(type_))
        self._variables.append(Instruction("OpVariable", pointer, result, (STORAGE["Function"],)))
        return result

    def _reload(self, values: Sequence[KValue], carried: Sequence[KValue], homes: Mapping[int, Id]) -> None:
        """Load what loops carry in variables."""
        for value, place in zip(values, carried, strict=True):
            if place.id in homes:
                self.bind(value, self.op("OpLoad", self.type(value.type), homes[place.id]))

    def _if(self, node: If) -> None:
        m = self.module
        then, otherwise, done = m.id(), m.id(), m.id()
        self.do("OpSelectionMerge", done, 0)
        self.do("OpBranchConditional", self.id(node.condition), then, otherwise)
        for label, block in ((then, node.then), (otherwise, node.otherwise)):
            self.label(label)
            self.block(block)
            self.do("OpBranch", done)
        self.label(done)

    @property
    def current_label(self) -> Id:
        """The block being filled."""
        return self._label


def binding_address(f: KernelEmitter, memory: Binding) -> Id:
    """The 64-bit address of a binding's buffer."""
    return f.word(memory.index)
