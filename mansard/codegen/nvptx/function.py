"""One kernel as one PTX entry, by way of LLVM.

The rules are those of CPUs (`mansard.codegen.llvm`) but for what differs on a GPU: an invocation is a thread,
with numbers of its own, and the argument table is the entry's one parameter, by value.
"""

from __future__ import annotations

from collections.abc import Callable

from mansard.codegen.kernel import Binding, Inst, Kernel, KType, KValue, SharedMemory, warpgroups
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.llvm.instructions import emit_inst, result_type
from mansard.codegen.nvptx import warpgroup_product
from mansard.codegen.nvptx.packed import emit_dot_bytes, emit_join_bytes, emit_load_words, emit_unpack
from mansard.codegen.nvptx.quad_products import emit_float12_pairs, emit_quad_products
from mansard.codegen.nvptx.subgroups import check_reached_by_all, emit_reduce, emit_reduce_each
from mansard.codegen.nvptx.target import SUBGROUP, PtxTarget
from mansard.dtypes import DType
from mansard.errors import CodegenError

_REGISTER = "llvm.nvvm.read.ptx.sreg."


class PtxEmitter(FunctionEmitter):
    """Emits one kernel."""

    def __init__(self, kernel: Kernel, target: PtxTarget, metadata: list[str]) -> None:
        super().__init__(kernel, target, metadata)
        self.globals: dict[int, str] = {}
        """Declarations of shared memory."""

    def emit(self) -> str:
        """The function definition."""
        self._prepare()
        self._block(self.kernel.body)
        self.line("ret void")
        words = len(self.kernel.bindings) + self.kernel.params
        arguments = f"ptr byval([{max(1, words)} x i64]) align 8 %table"
        head = f'define ptx_kernel void @"{self.kernel.name}"({arguments}) #0 {{'
        return "\n".join([head, "entry:", *self._entry, "  br label %start", "start:", *self._lines, "}"])

    def _prepare(self) -> None:
        self._emit_inst = _emit_inst
        self._check()
        check_reached_by_all(self.kernel)

    def _check(self) -> None:
        x, y, z = self.kernel.workgroup
        if y * z > 1 or x % SUBGROUP:
            raise CodegenError(
                f"kernel {self.kernel.name!r}: PTX has workgroups of whole subgroups in x alone"
            )
        if self.kernel.subgroup not in (0, SUBGROUP):
            raise CodegenError(f"kernel {self.kernel.name!r}: subgroups of PTX have {SUBGROUP} invocations")

    def pointer(self, memory: Binding | SharedMemory) -> tuple[str, str]:
        """As for CPUs: LLVM finds out which address space a pointer is of."""
        if isinstance(memory, Binding):
            word = self._word(memory.index, "i64")
            place = self._hoist(("global", memory.index, ""), f"inttoptr i64 {word} to ptr addrspace(1)")
            cast = f"addrspacecast ptr addrspace(1) {place} to ptr"
            return self._hoist(("pointer", memory.index, ""), cast), self._scopes[memory.index]
        return f"addrspacecast (ptr addrspace(3) {self.shared(memory)} to ptr)", ""

    def shared(self, memory: SharedMemory) -> str:
        """The variable of a shared memory."""
        name = f'@"{self.kernel.name}.shared{memory.index}"'
        type_ = text.memory_type(KType(memory.dtype))
        count = memory.size * memory.lanes
        self.globals[memory.index] = (
            f"{name} = internal addrspace(3) global [{count} x {type_}] undef, align 1024"
        )
        return name

    def workgroup_barrier(self) -> None:
        """Wait for all invocations of the workgroup."""
        self.line('call void asm sideeffect "bar.sync 0;", "~{memory}"() #1')

    def workgroups(self, dtype: DType) -> str:
        """Workgroups of the grid."""
        return self.special("nctaid.x", dtype)

    def stream_wait(self) -> str:
        """The subgroup's next slot."""
        raise CodegenError(f"kernel {self.kernel.name!r}: only persistent kernels read streams")

    def stream_next(self) -> None:
        """Let a later part take the slot."""
        raise CodegenError(f"kernel {self.kernel.name!r}: only persistent kernels read streams")

    def workgroup_id(self, axis: int, dtype: DType) -> str:
        """A coordinate of the workgroup."""
        return self.special(f"ctaid.{'xyz'[axis]}", dtype)

    def special(self, register: str, dtype: DType) -> str:
        """A special register as an integer."""
        name = self._hoist((register, 0, ""), f"call i32 @{_REGISTER}{register}()")
        self.declare(f"{_REGISTER}{register}", f"i32 @{_REGISTER}{register}()")
        return self.widened(name, dtype)

    def widened(self, name: str, dtype: DType) -> str:
        """A number that is not negative as an integer of some type."""
        return name if dtype.bits == 32 else self.temp(f"zext i32 {name} to {text.scalar_type(dtype)}")

    def address(self, memory: Binding, index: KValue) -> str:
        """The address of an element, as a number."""
        return self.temp(f"add i64 {self._word(memory.index, 'i64')}, {self.bytes_of(memory, index)}")

    def bytes_of(self, memory: Binding, count: KValue) -> str:
        """The bytes of so many elements."""
        number = self.name(count)
        if count.type.dtype is not DType.I64:
            number = self.temp(f"sext {self.typed(count)} to i64")
        return self.temp(f"mul nsw i64 {number}, {memory.dtype.itemsize}")


def _emit_inst(f: FunctionEmitter, inst: Inst) -> None:
    assert isinstance(f, PtxEmitter)
    rule = _RULES.get(inst.op)
    if rule is not None:
        rule(f, inst)
    else:
        emit_inst(f, inst)


def _local_id(f: PtxEmitter, inst: Inst) -> None:
    f.bind(inst.result, f.special(f"tid.{'xyz'[inst.attrs['axis']]}", result_type(inst).dtype))


def _subgroup_place(f: PtxEmitter, inst: Inst) -> None:
    """Numbers of a subgroup and within it: workgroups are whole subgroups in one dimension."""
    thread = f.special("tid.x", DType.I32)
    code = f"lshr i32 {thread}, 5" if inst.op == "subgroup_id" else f"and i32 {thread}, {SUBGROUP - 1}"
    f.bind(inst.result, f.widened(f.temp(code), result_type(inst).dtype))


def _subgroups(f: PtxEmitter, inst: Inst) -> None:
    count = SUBGROUP if inst.op == "subgroup_size" else f.kernel.workgroup[0] // SUBGROUP
    f.bind(inst.result, str(count))


def _barrier(f: PtxEmitter, inst: Inst) -> None:
    if inst.attrs.get("scope", "workgroup") == "subgroup":
        f.line('call void asm sideeffect "bar.warp.sync 0xffffffff;", "~{memory}"() #1')
    else:
        f.workgroup_barrier()


def _cast(f: PtxEmitter, inst: Inst) -> None:
    """f32 to bf16 by the instruction, which keeps subnormals; pairs of bf16 to f32 as halves of words; all
    others as on CPUs."""
    type_, arg = result_type(inst), inst.args[0]
    if (arg.type.dtype, type_.dtype) == (DType.BF16, DType.F32) and type_.lanes % 2 == 0:
        b = f.expansion()
        f.bind(inst.result, f.inline(b, b.unpack(b.words(arg), DType.BF16, 0, type_.lanes)))
        return
    if (arg.type.dtype, type_.dtype) != (DType.F32, DType.BF16):
        emit_inst(f, inst)
        return
    short = text.vector_of("bfloat", type_.lanes)
    rounded = f.temp(f"fptrunc {f.typed(arg)} to {short}")
    f.bind(inst.result, f.temp(f"bitcast {short} {rounded} to {text.type_name(type_)}"))


def _early(f: PtxEmitter, inst: Inst) -> None:
    """A copy that LLVM does not move, nor what it is computed from behind it."""
    type_ = result_type(inst)
    code, constraint = f"mov.b{type_.dtype.bits} $0, $1;", {32: "r", 64: "l"}[type_.dtype.bits]
    operand = f.typed(inst.args[0])
    f.bind(
        inst.result,
        f.temp(
            f'call {text.type_name(type_)} asm sideeffect "{code}", "={constraint},{constraint}"({operand})'
        ),
    )


def _warpgroup_product(f: PtxEmitter, inst: Inst) -> None:
    steps, right_step, *indices = inst.args
    left, right, memory = (inst.attrs[name] for name in ("left", "right", "memory"))
    places = [left] * warpgroups.LEFT + [right] * warpgroups.RIGHT
    addresses = [f.address(b, index) for b, index in zip(places, indices, strict=True)]
    addresses.append(f.bytes_of(right, right_step))
    count = f.name(steps)
    if steps.type.dtype is DType.I64:
        count = f.temp(f"trunc i64 {count} to i32")
    place = f.temp(f"ptrtoint ptr addrspace(3) {f.shared(memory)} to i64")
    words = [count, f.temp(f"trunc i64 {place} to i32"), f.special("tid.x", DType.I32)]
    operands = ", ".join([*(f"i64 {a}" for a in addresses), *(f"i32 {w}" for w in words)])
    code, constraints = warpgroup_product.assembly(left.dtype, inst.attrs["along"])
    lanes = result_type(inst).lanes
    struct = "{ " + ", ".join(["float"] * lanes) + " }"
    quoted = code.replace("\n", "\\0A")
    sums = f.temp(f'call {struct} asm sideeffect "{quoted}", "{constraints}"({operands}) #1')
    vector = "poison"
    for lane in range(lanes):
        element = f.temp(f"extractvalue {struct} {sums}, {lane}")
        vector = f.temp(f"insertelement <{lanes} x float> {vector}, float {element}, i64 {lane}")
    f.bind(inst.result, vector)


def _vectors(f: FunctionEmitter, inst: Inst) -> SharedMemory | None:
    """The memory of an access, where it is one of vectors."""
    memory = inst.attrs["memory"]
    return memory if isinstance(memory, SharedMemory) and memory.lanes > 1 else None


def _vector_address(f: PtxEmitter, memory: SharedMemory, index: KValue) -> tuple[str, str, int]:
    """Type of a vector in shared memory, its address and its bytes."""
    base, _ = f.pointer(memory)
    type_ = text.memory_type(KType(memory.dtype, memory.lanes))
    address = f.temp(f"getelementptr inbounds {type_}, ptr {base}, {f.typed(index)}")
    return type_, address, memory.lanes * memory.dtype.itemsize


def _place_of_vector(f: PtxEmitter, inst: Inst) -> tuple[str, str, int] | None:
    """`_vector_address` of a load or store; for any other memory the common rule emits it, and None."""
    memory = _vectors(f, inst)
    if memory is None:
        emit_inst(f, inst)
        return None
    return _vector_address(f, memory, inst.args[0])


def _load(f: PtxEmitter, inst: Inst) -> None:
    if (place := _place_of_vector(f, inst)) is None:
        return
    type_, address, size = place
    f.bind(inst.result, f.temp(f"load {type_}, ptr {address}, align {size}"))


def _store(f: PtxEmitter, inst: Inst) -> None:
    if (place := _place_of_vector(f, inst)) is None:
        return
    type_, address, size = place
    f.line(f"store {type_} {f.name(inst.args[1])}, ptr {address}, align {size}")


def _store_lane(f: PtxEmitter, inst: Inst) -> None:
    memory, (index, lane, value) = inst.attrs["memory"], inst.args
    _, vector, _ = _vector_address(f, memory, index)
    element = text.memory_type(KType(memory.dtype))
    address = f.temp(f"getelementptr inbounds {element}, ptr {vector}, {f.typed(lane)}")
    f.line(f"store {element} {f.name(value)}, ptr {address}, align {memory.dtype.itemsize}")


def _stream_load(f: PtxEmitter, inst: Inst) -> None:
    slot, byte = inst.args
    address = f.temp(f"inttoptr i32 {f.name(slot)} to ptr addrspace(3)")
    address = f.temp(f"getelementptr inbounds i8, ptr addrspace(3) {address}, {f.typed(byte)}")
    type_ = result_type(inst)
    f.bind(
        inst.result,
        f.temp(f"load {text.type_name(type_)}, ptr addrspace(3) {address}, align {4 * type_.lanes}"),
    )


def _exp2_native(f: PtxEmitter, inst: Inst) -> None:
    f.bind(inst.result, f.call("float", "llvm.nvvm.ex2.approx.f", [f.typed(inst.args[0])]))


def _refuse(f: PtxEmitter, inst: Inst) -> None:
    raise CodegenError(f"kernel {f.kernel.name!r}: no PTX for instruction {inst.op!r}")


_RULES: dict[str, Callable[[PtxEmitter, Inst], None]] = {
    "local_id": _local_id,
    **dict.fromkeys(("subgroup_id", "subgroup_lane"), _subgroup_place),
    **dict.fromkeys(("subgroup_count", "subgroup_size"), _subgroups),
    "barrier": _barrier,
    "cast": _cast,
    "warpgroup_product": _warpgroup_product,
    "load": _load,
    "store": _store,
    "store_lane": _store_lane,
    "load_words": emit_load_words,
    "unpack": emit_unpack,
    "dot_bytes": emit_dot_bytes,
    "join_bytes": emit_join_bytes,
    "early": _early,
    "exp2_native": _exp2_native,
    "subgroup_reduce": emit_reduce,
    "subgroup_reduce_each": lambda f, inst: emit_reduce_each(f, inst, f.special("tid.x", DType.I32)),
    "workgroups": lambda f, inst: f.bind(inst.result, f.workgroups(result_type(inst).dtype)),
    "stream_wait": lambda f, inst: f.bind(inst.result, f.stream_wait()),
    "stream_load": _stream_load,
    "quad_products": emit_quad_products,
    "float12_pairs": emit_float12_pairs,
    "stream_next": lambda f, _: f.stream_next(),
    **dict.fromkeys(("subgroup_scan", "prefetch"), _refuse),
}
