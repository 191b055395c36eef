"""SPIR-V instructions as data: numbers of the specification, encoding, and readable text."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Union

# Opcodes, from the SPIR-V specification, section 3.49 (unified1).
OPCODES = {
    "OpExtension": 10,
    "OpExtInstImport": 11, "OpExtInst": 12, "OpMemoryModel": 14, "OpEntryPoint": 15, "OpExecutionMode": 16,
    "OpCapability": 17, "OpTypeVoid": 19, "OpTypeBool": 20, "OpTypeInt": 21, "OpTypeFloat": 22,
    "OpTypeVector": 23, "OpTypeArray": 28, "OpTypeRuntimeArray": 29,
    "OpTypeStruct": 30, "OpTypePointer": 32, "OpTypeFunction": 33,
    "OpConstantTrue": 41, "OpConstantFalse": 42, "OpConstant": 43, "OpConstantComposite": 44,
    "OpFunction": 54, "OpFunctionEnd": 56, "OpVariable": 59, "OpLoad": 61, "OpStore": 62,
    "OpAccessChain": 65, "OpDecorate": 71, "OpMemberDecorate": 72, "OpCompositeConstruct": 80,
    "OpVectorShuffle": 79, "OpCompositeExtract": 81, "OpCompositeInsert": 82, "OpConvertFToU": 109,
    "OpConvertFToS": 110,
    "OpConvertSToF": 111, "OpConvertUToF": 112, "OpUConvert": 113, "OpSConvert": 114, "OpFConvert": 115,
    "OpConvertUToPtr": 120, "OpBitcast": 124, "OpSNegate": 126, "OpFNegate": 127, "OpIAdd": 128,
    "OpFAdd": 129, "OpISub": 130, "OpFSub": 131, "OpIMul": 132, "OpFMul": 133, "OpUDiv": 134, "OpSDiv": 135,
    "OpFDiv": 136, "OpMatrixTimesScalar": 143,
    "OpLogicalEqual": 164, "OpLogicalNotEqual": 165, "OpLogicalOr": 166,
    "OpLogicalAnd": 167, "OpLogicalNot": 168, "OpSelect": 169, "OpIEqual": 170, "OpINotEqual": 171,
    "OpUGreaterThan": 172, "OpSGreaterThan": 173, "OpUGreaterThanEqual": 174, "OpSGreaterThanEqual": 175,
    "OpULessThan": 176, "OpSLessThan": 177, "OpULessThanEqual": 178, "OpSLessThanEqual": 179,
    "OpFOrdEqual": 180, "OpFUnordNotEqual": 183, "OpFOrdLessThan": 184, "OpFOrdGreaterThan": 186,
    "OpFOrdLessThanEqual": 188, "OpFOrdGreaterThanEqual": 190, "OpShiftRightLogical": 194,
    "OpShiftRightArithmetic": 195, "OpShiftLeftLogical": 196, "OpBitwiseOr": 197, "OpBitwiseXor": 198,
    "OpBitwiseAnd": 199, "OpNot": 200, "OpBitFieldInsert": 201, "OpBitFieldSExtract": 202,
    "OpBitFieldUExtract": 203,
    "OpControlBarrier": 224,
    "OpAtomicLoad": 227,
    "OpAtomicCompareExchange": 230, "OpAtomicIAdd": 234, "OpAtomicSMin": 236, "OpAtomicSMax": 238,
    "OpSDot": 4450, "OpUDot": 4451, "OpSUDot": 4452,
    "OpPhi": 245, "OpLoopMerge": 246, "OpSelectionMerge": 247, "OpLabel": 248, "OpBranch": 249,
    "OpBranchConditional": 250, "OpReturn": 253, "OpGroupNonUniformIAdd": 349, "OpGroupNonUniformFAdd": 350,
    "OpGroupNonUniformIMul": 351, "OpGroupNonUniformFMul": 352, "OpGroupNonUniformSMin": 353,
    "OpGroupNonUniformUMin": 354, "OpGroupNonUniformFMin": 355, "OpGroupNonUniformSMax": 356,
    "OpGroupNonUniformUMax": 357, "OpGroupNonUniformFMax": 358, "OpGroupNonUniformBitwiseAnd": 359,
    "OpGroupNonUniformBitwiseOr": 360, "OpGroupNonUniformLogicalAnd": 362,
    "OpGroupNonUniformLogicalOr": 363,
    "OpTypeCooperativeMatrixKHR": 4456, "OpCooperativeMatrixLoadKHR": 4457,
    "OpCooperativeMatrixStoreKHR": 4458, "OpCooperativeMatrixMulAddKHR": 4459,
    "OpCooperativeMatrixLengthKHR": 4460, "OpCooperativeMatrixConvertNV": 5293,
    "OpCooperativeMatrixReduceNV": 5366, "OpFunctionParameter": 55,
    "OpReturnValue": 254, "OpExecutionModeId": 331,
}  # fmt: skip

# Instructions of the extended set GLSL.std.450.
GLSL = {
    "RoundEven": 2, "Trunc": 3, "FAbs": 4, "SAbs": 5, "Floor": 8, "Ceil": 9, "Exp2": 29, "Sqrt": 31,
    "UMin": 38, "SMin": 39, "FMax": 40, "UMax": 41, "SMax": 42, "Fma": 50,
    "PackHalf2x16": 58, "UnpackHalf2x16": 62,
}  # fmt: skip

CAPABILITIES = {
    "Shader": 1, "Float16": 9, "Float64": 10, "Int64": 11, "Int64Atomics": 12, "GroupNonUniform": 61,
    "GroupNonUniformArithmetic": 63, "GroupNonUniformClustered": 67,
    "StorageBuffer16BitAccess": 4433, "StorageBuffer8BitAccess": 4448,
    "DotProductInput4x8BitPacked": 6018, "DotProduct": 6019,
    "SignedZeroInfNanPreserve": 4466, "BFloat16TypeKHR": 5116, "BFloat16CooperativeMatrixKHR": 5118,
    "CooperativeMatrixReductionsNV": 5430, "CooperativeMatrixConversionsNV": 5431,
    "CooperativeMatrixKHR": 6022, "FloatControls2": 6029, "Int8": 39, "VulkanMemoryModel": 5345,
    "PhysicalStorageBufferAddresses": 5347,
}  # fmt: skip

STORAGE = {
    "Input": 1, "Workgroup": 4, "Function": 7, "PushConstant": 9, "StorageBuffer": 12,
    "PhysicalStorageBuffer": 5349,
}  # fmt: skip
DECORATION = {
    "Block": 2, "ArrayStride": 6, "BuiltIn": 11, "Aliased": 20, "Binding": 33, "DescriptorSet": 34,
    "Offset": 35, "FPFastMathMode": 40, "NoContraction": 42,
}  # fmt: skip
BUILT_IN = {
    "WorkgroupId": 26, "LocalInvocationId": 27, "SubgroupSize": 36, "NumSubgroups": 38, "SubgroupId": 40,
    "SubgroupLocalInvocationId": 41,
}  # fmt: skip
SCOPE = {"Device": 1, "Workgroup": 2, "Subgroup": 3}

ALIGNED = 2  # memory operand
LOGICAL, PHYSICAL_64, GLSL450 = 0, 5348, 1  # addressing and memory model
GL_COMPUTE, LOCAL_SIZE = 5, 17
PRESERVE_NAN = 4461  # execution mode SignedZeroInfNanPreserve
FAST_MATH_DEFAULT, ALLOW_CONTRACT = 6028, 0x10000  # execution mode FPFastMathDefault; a fast math mode
PARTIAL_COUNT = 0x100  # loop control, followed by how often to unroll
REDUCE, INCLUSIVE_SCAN, CLUSTERED_REDUCE = 0, 1, 3  # group operations
ACQUIRE_RELEASE_WORKGROUP = 0x8 | 0x100  # memory semantics
MAKE_AVAILABLE_VISIBLE = 0x2000 | 0x4000  # further ones, of the Vulkan memory model
NON_PRIVATE = 0x20  # memory operand
VULKAN = 3  # memory model

MAGIC, VERSION = 0x07230203, 0x00010500  # SPIR-V 1.5, which Vulkan 1.2 and later accept


@dataclass(frozen=True)
class Id:
    """A result id."""

    number: int

    def __str__(self) -> str:
        return f"%{self.number}"


Operand = Union[Id, int, str]


@dataclass(frozen=True)
class Instruction:
    """One instruction: ``type`` and ``result`` where it has them, then ids, literal words and strings."""

    op: str
    type: Id | None
    result: Id | None
    operands: tuple[Operand, ...]

    def words(self) -> list[int]:
        """The encoding."""
        body = [i.number for i in (self.type, self.result) if i is not None]
        for operand in self.operands:
            if isinstance(operand, Id):
                body.append(operand.number)
            elif isinstance(operand, str):
                body += _string(operand)
            else:
                body.append(operand & 0xFFFFFFFF)
        return [(len(body) + 1) << 16 | OPCODES[self.op], *body]

    def __str__(self) -> str:
        left = f"{self.result} = " if self.result is not None else ""
        shown = [f'"{o}"' if isinstance(o, str) else str(o) for o in self.operands]
        types = [str(self.type)] if self.type is not None else []
        return f"{left}{self.op} {' '.join([*types, *shown])}".rstrip()


def _string(text: str) -> list[int]:
    raw = text.encode() + b"\0"
    raw += bytes(-len(raw) % 4)
    return list(struct.unpack(f"<{len(raw) // 4}I", raw))


def encode(instructions: list[Instruction], bound: int) -> bytes:
    """A whole module."""
    words = [MAGIC, VERSION, 0, bound, 0]
    for instruction in instructions:
        words += instruction.words()
    return struct.pack(f"<{len(words)}I", *words)
