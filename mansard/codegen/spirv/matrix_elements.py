"""Cooperative matrices element by element and row by row.

Elements are reached by every invocation in its own share of a matrix, which SPV_KHR_cooperative_matrix
allows without saying where in the matrix they stand. What crosses invocations is of
SPV_NV_cooperative_matrix2.
"""

from __future__ import annotations

from mansard.codegen.kernel import Inst, KType
from mansard.codegen.spirv.function import KernelEmitter
from mansard.codegen.spirv.words import Id, Instruction
from mansard.dtypes import DType
from mansard.errors import CodegenError

_UNROLL = 1  # loop control
_ROW = 1  # CooperativeMatrixReduce


def emit_matrix_map(f: KernelEmitter, inst: Inst) -> None:
    """A loop over the elements that an invocation holds, in variables of the function."""
    if inst.result is None:
        raise CodegenError("matrix_map without a result")
    m, like = f.module, KType(DType.I32)
    uint = f.type(like)
    homes = [_stored(f, f.id(arg), arg.type) for arg in inst.args]
    target = f.home(inst.result.type)
    count = f.op("OpCooperativeMatrixLengthKHR", uint, f.type(inst.result.type))
    head, check, body, after, done = (m.id() for _ in range(5))
    place, following = m.id(), m.id()
    before = f.current_label
    f.do("OpBranch", head)
    f.label(head)
    f.phi(uint, place, ((f.int_literal(0, like), before), (following, after)))
    f.do("OpLoopMerge", done, after, _UNROLL)
    f.do("OpBranch", check)
    f.label(check)
    f.do("OpBranchConditional", f.op("OpULessThan", m.bool_type(), place, count), body, done)
    f.label(body)
    for element, home in zip(inst.attrs["elements"], homes, strict=True):
        f.bind(element, f.op("OpLoad", f.type(element.type), _element(f, home, place, element.type)))
    f.block(inst.attrs["body"])
    value = inst.attrs["value"]
    f.do("OpStore", _element(f, target, place, value.type), f.id(value))
    f.do("OpBranch", after)
    f.label(after)
    f.place("OpIAdd", uint, following, place, f.int_literal(1, like))
    f.do("OpBranch", head)
    f.label(done)
    f.bind(inst.result, f.op("OpLoad", f.type(inst.result.type), target))


def _stored(f: KernelEmitter, value: Id, type_: KType) -> Id:
    home = f.home(type_)
    f.do("OpStore", home, value)
    return home


def _element(f: KernelEmitter, home: Id, place: Id, type_: KType) -> Id:
    return f.op("OpAccessChain", f.module.pointer_type("Function", f.type(type_)), home, place)


def emit_matrix_reduce(f: KernelEmitter, inst: Inst) -> None:
    """OpCooperativeMatrixReduceNV with a function of two elements."""
    if inst.result is None:
        raise CodegenError("matrix_reduce without a result")
    f.module.capabilities.add("CooperativeMatrixReductionsNV")
    f.module.extensions.add("SPV_NV_cooperative_matrix2")
    joined = _function(f, inst.attrs["combiner"])
    type_ = f.type(inst.result.type)
    f.bind(inst.result, f.op("OpCooperativeMatrixReduceNV", type_, f.id(inst.args[0]), _ROW, joined))


def _function(f: KernelEmitter, combiner: str) -> Id:
    """A function that combines two f32, made once."""
    m = f.module
    if combiner not in f.functions:
        real = m.float_type(32)
        signature = m.declare("OpTypeFunction", None, real, real, real)
        name, left, right, result = (m.id() for _ in range(4))
        f.functions[combiner] = name
        m.functions += [
            Instruction("OpFunction", real, name, (0, signature)),
            Instruction("OpFunctionParameter", real, left, ()),
            Instruction("OpFunctionParameter", real, right, ()),
            Instruction("OpLabel", None, m.id(), ()),
            Instruction("OpFAdd", real, result, (left, right))
            if combiner == "add"
            else m.glsl_instruction("FMax", real, result, left, right),
            Instruction("OpReturnValue", None, None, (result,)),
            Instruction("OpFunctionEnd", None, None, ()),
        ]
    return f.functions[combiner]


def emit_matrix_convert(f: KernelEmitter, inst: Inst) -> None:
    """A conversion that also changes the use."""
    if inst.result is None:
        raise CodegenError("matrix_convert without a result")
    f.module.capabilities.add("CooperativeMatrixConversionsNV")
    f.module.extensions.add("SPV_NV_cooperative_matrix2")
    same = inst.args[0].type.dtype is inst.result.type.dtype
    op = "OpCooperativeMatrixConvertNV" if same else "OpFConvert"
    f.bind(inst.result, f.op(op, f.type(inst.result.type), f.id(inst.args[0])))
