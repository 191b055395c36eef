"""Assembles the few SPIR-V instructions that hand-written kernels use."""

from __future__ import annotations

import re
import struct

# name: (opcode, whether a result type precedes the result)
_OPCODES = {
    "OpMemoryModel": (14, False), "OpEntryPoint": (15, False), "OpExecutionMode": (16, False),
    "OpCapability": (17, False), "OpTypeVoid": (19, False), "OpTypeBool": (20, False),
    "OpTypeInt": (21, False), "OpTypeFloat": (22, False), "OpTypeVector": (23, False),
    "OpTypeArray": (28, False), "OpTypeStruct": (30, False), "OpTypePointer": (32, False),
    "OpTypeFunction": (33, False), "OpConstant": (43, True), "OpFunction": (54, True),
    "OpFunctionEnd": (56, False), "OpVariable": (59, True), "OpLoad": (61, True), "OpStore": (62, False),
    "OpAccessChain": (65, True), "OpDecorate": (71, False), "OpMemberDecorate": (72, False),
    "OpConvertUToPtr": (120, True), "OpUConvert": (113, True), "OpSConvert": (114, True),
    "OpIAdd": (128, True), "OpFAdd": (129, True), "OpIMul": (132, True), "OpULessThan": (176, True),
    "OpPhi": (245, True), "OpLoopMerge": (246, False), "OpSelectionMerge": (247, False),
    "OpLabel": (248, False), "OpBranch": (249, False), "OpBranchConditional": (250, False),
    "OpReturn": (253, False), "OpCompositeExtract": (81, True),
}  # fmt: skip
_ENUMERANTS = {
    "Shader": 1, "Int64": 11, "PhysicalStorageBufferAddresses": 5347, "PhysicalStorageBuffer64": 5348,
    "GLSL450": 1, "GLCompute": 5, "LocalSize": 17, "Block": 2, "ArrayStride": 6, "BuiltIn": 11, "Offset": 35,
    "NumWorkgroups": 24, "WorkgroupId": 26, "GlobalInvocationId": 28, "LocalInvocationIndex": 29,
    "Input": 1, "PushConstant": 9, "PhysicalStorageBuffer": 5349, "None": 0,
    "Aligned": 2,
}  # fmt: skip
_SPIRV_1_5 = 0x00010500


def assemble(text: str) -> bytes:
    """SPIR-V 1.5 words of assembly text: one instruction a line, a 64-bit constant as two words."""
    ids: dict[str, int] = {}
    words: list[int] = []

    def operand(token: str) -> list[int]:
        if token.startswith("%"):
            return [ids.setdefault(token, len(ids) + 1)]
        if token.startswith('"'):
            raw = token[1:-1].encode() + b"\0"
            raw += bytes(-len(raw) % 4)
            return list(struct.unpack(f"<{len(raw) // 4}I", raw))
        return [_ENUMERANTS[token]] if token in _ENUMERANTS else [int(token) & 0xFFFFFFFF]

    for line in filter(None, (line.split(";")[0].strip() for line in text.splitlines())):
        result, _, rest = line.rpartition(" = ")
        name, *tokens = re.findall(r'"[^"]*"|\S+', rest)
        opcode, has_type = _OPCODES[name]
        encoded = [operand(token) for token in tokens]
        if result:
            encoded.insert(1 if has_type else 0, operand(result))
        body = [word for part in encoded for word in part]
        words += [(len(body) + 1) << 16 | opcode, *body]
    header = [0x07230203, _SPIRV_1_5, 0, len(ids) + 1, 0]
    return struct.pack(f"<{len(header) + len(words)}I", *header, *words)
