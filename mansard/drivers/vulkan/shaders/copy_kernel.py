"""Copies by kernels.

``vkCmdCopyBuffer`` may be left to a copy engine built for the bus: on an H200 it moves 90 GB/s from
device memory to device memory, a twentieth of what a kernel does, and between kernels it takes 5 us where a
kernel takes 2. Large transfers to and from host memory stay with the copy engine, which is as fast there.
"""

from __future__ import annotations

from mansard.drivers.vulkan.shaders.assembler import assemble
from mansard.hal.executable import EntryPoint, ExecutableSpec

_LOCAL = 256
_UNROLL = 4
ALIGNMENT = 16
"""Of both addresses, in bytes: an invocation moves 16 bytes at a time."""
CHUNK = _LOCAL * _UNROLL * 16
"""Bytes one workgroup of the main kernel copies."""
THRESHOLD = 64 * 1024
"""Copies below are left to the kernel of the rest as a whole, which spreads them over more invocations."""

ENTRY = EntryPoint("copy", bindings=2, params=0, workgroup=(_LOCAL, 1, 1))
"""Copies one chunk per workgroup of the (x, y) grid; buffers source and target."""
REST = EntryPoint("copy_rest", bindings=2, params=2, workgroup=(_LOCAL, 1, 1))
"""Copies `param 0` units of 16 bytes, one for each invocation, then `param 1` words (up to 3) behind them."""


def _step(i: int) -> tuple[str, str]:
    """The load and the store of a workgroup's ``i``-th stripe."""
    load = f"""
%unit_{i} = OpIAdd %uint %first %stripe_{i}
%wide_{i} = OpUConvert %ulong %unit_{i}
%bytes_{i} = OpIMul %ulong %wide_{i} %sixteen
%offset_{i} = OpIAdd %ulong %bytes_{i} %begin
%from_{i} = OpIAdd %ulong %source %offset_{i}
%p_from_{i} = OpConvertUToPtr %p_uvec4 %from_{i}
%value_{i} = OpLoad %uvec4 %p_from_{i} Aligned 16"""
    store = f"""
%to_{i} = OpIAdd %ulong %target %offset_{i}
%p_to_{i} = OpConvertUToPtr %p_uvec4 %to_{i}
OpStore %p_to_{i} %value_{i} Aligned 16"""
    return load, store


_STEPS = [_step(i) for i in range(_UNROLL)]

TEXT = f"""
OpCapability Shader
OpCapability Int64
OpCapability PhysicalStorageBufferAddresses
OpMemoryModel PhysicalStorageBuffer64 GLSL450
OpEntryPoint GLCompute %main "{ENTRY.name}" %group %groups %index %table
OpExecutionMode %main LocalSize {_LOCAL} 1 1
OpDecorate %group BuiltIn WorkgroupId
OpDecorate %groups BuiltIn NumWorkgroups
OpDecorate %index BuiltIn LocalInvocationIndex
OpDecorate %words ArrayStride 8
OpDecorate %block Block
OpMemberDecorate %block 0 Offset 0
%void = OpTypeVoid
%uint = OpTypeInt 32 0
%ulong = OpTypeInt 64 0
%uvec3 = OpTypeVector %uint 3
%uvec4 = OpTypeVector %uint 4
%u0 = OpConstant %uint 0
%u1 = OpConstant %uint 1
%u2 = OpConstant %uint 2
%sixteen = OpConstant %ulong 16 0
%chunk = OpConstant %ulong {CHUNK} 0
{"".join(f"%stripe_{i} = OpConstant %uint {i * _LOCAL}{chr(10)}" for i in range(_UNROLL))}
%words = OpTypeArray %ulong %u2
%block = OpTypeStruct %words
%p_block = OpTypePointer PushConstant %block
%p_word = OpTypePointer PushConstant %ulong
%p_uvec3 = OpTypePointer Input %uvec3
%p_uint = OpTypePointer Input %uint
%p_uvec4 = OpTypePointer PhysicalStorageBuffer %uvec4
%group = OpVariable %p_uvec3 Input
%groups = OpVariable %p_uvec3 Input
%index = OpVariable %p_uint Input
%table = OpVariable %p_block PushConstant
%signature = OpTypeFunction %void
%main = OpFunction %void None %signature
%entry = OpLabel
%p_source = OpAccessChain %p_word %table %u0 %u0
%source = OpLoad %ulong %p_source
%p_target = OpAccessChain %p_word %table %u0 %u1
%target = OpLoad %ulong %p_target
%g = OpLoad %uvec3 %group
%x = OpCompositeExtract %uint %g 0
%y = OpCompositeExtract %uint %g 1
%n = OpLoad %uvec3 %groups
%row = OpCompositeExtract %uint %n 0
%above = OpIMul %uint %y %row
%linear = OpIAdd %uint %above %x
%wide = OpUConvert %ulong %linear
%begin = OpIMul %ulong %wide %chunk
%first = OpLoad %uint %index
{"".join(load for load, _ in _STEPS)}
{"".join(store for _, store in _STEPS)}
OpReturn
OpFunctionEnd
"""


def _word(index: int, name: str) -> str:
    """Load a word of the argument table."""
    return f"""
%p_{name} = OpAccessChain %p_word %table %u0 %u{index}
%{name} = OpLoad %ulong %p_{name}"""


def _guarded(number: int, count: str, body: str) -> str:
    """``body`` for invocations below ``count``."""
    return f"""
%inside_{number} = OpULessThan %bool %index {count}
OpSelectionMerge %after_{number} None
OpBranchConditional %inside_{number} %within_{number} %after_{number}
%within_{number} = OpLabel
{body}
OpBranch %after_{number}
%after_{number} = OpLabel"""


def _move(number: int, type_: str, size: int, begin: str) -> str:
    """Load and store element ``index`` of an array at an offset of ``begin``, after its size."""
    return f"""
%bytes_{number} = OpIMul %ulong %index %size_{size}
%offset_{number} = OpIAdd %ulong %bytes_{number} {begin}
%from_{number} = OpIAdd %ulong %source %offset_{number}
%p_from_{number} = OpConvertUToPtr %p_{type_} %from_{number}
%value_{number} = OpLoad %{type_} %p_from_{number} Aligned {size}
%to_{number} = OpIAdd %ulong %target %offset_{number}
%p_to_{number} = OpConvertUToPtr %p_{type_} %to_{number}
OpStore %p_to_{number} %value_{number} Aligned {size}"""


REST_TEXT = f"""
OpCapability Shader
OpCapability Int64
OpCapability PhysicalStorageBufferAddresses
OpMemoryModel PhysicalStorageBuffer64 GLSL450
OpEntryPoint GLCompute %main "{REST.name}" %gid %table
OpExecutionMode %main LocalSize {_LOCAL} 1 1
OpDecorate %gid BuiltIn GlobalInvocationId
OpDecorate %words ArrayStride 8
OpDecorate %block Block
OpMemberDecorate %block 0 Offset 0
%void = OpTypeVoid
%bool = OpTypeBool
%uint = OpTypeInt 32 0
%ulong = OpTypeInt 64 0
%uvec3 = OpTypeVector %uint 3
%uvec4 = OpTypeVector %uint 4
{"".join(f"%u{i} = OpConstant %uint {i}{chr(10)}" for i in range(5))}
%zero = OpConstant %ulong 0 0
%size_4 = OpConstant %ulong 4 0
%size_16 = OpConstant %ulong 16 0
%words = OpTypeArray %ulong %u4
%block = OpTypeStruct %words
%p_block = OpTypePointer PushConstant %block
%p_word = OpTypePointer PushConstant %ulong
%p_uvec3 = OpTypePointer Input %uvec3
%p_uvec4 = OpTypePointer PhysicalStorageBuffer %uvec4
%p_uint = OpTypePointer PhysicalStorageBuffer %uint
%gid = OpVariable %p_uvec3 Input
%table = OpVariable %p_block PushConstant
%signature = OpTypeFunction %void
%main = OpFunction %void None %signature
%entry = OpLabel
{"".join(_word(i, name) for i, name in enumerate(("source", "target", "units", "tail")))}
%gid3 = OpLoad %uvec3 %gid
%x = OpCompositeExtract %uint %gid3 0
%index = OpUConvert %ulong %x
%whole = OpIMul %ulong %units %size_16
{_guarded(0, "%units", _move(0, "uvec4", 16, "%zero"))}
{_guarded(1, "%tail", _move(1, "uint", 4, "%whole"))}
OpReturn
OpFunctionEnd
"""


def copy_specs() -> tuple[ExecutableSpec, ExecutableSpec]:
    """The kernels of whole chunks and of the rest, ready to be loaded."""
    return (
        ExecutableSpec("spirv", "vulkan:1.3", assemble(TEXT), (ENTRY,)),
        ExecutableSpec("spirv", "vulkan:1.3", assemble(REST_TEXT), (REST,)),
    )


def rest_grid(size: int) -> tuple[int, int, int]:
    """The grid of the kernel of the rest for ``size`` bytes."""
    return max(1, -(-size // (16 * _LOCAL))), 1, 1


def copy_grids(chunks: int, limit: int) -> list[tuple[int, int, int]]:
    """Grids of at most ``limit`` workgroups in x and y that copy ``chunks`` chunks one after another.

    Full rows first, then what is left of a row: as (first chunk, x, y).
    """
    rows, rest = divmod(chunks, limit)
    grids = [(row * limit, limit, min(limit, rows - row)) for row in range(0, rows, limit)]
    if rest:
        grids.append((rows * limit, rest, 1))
    return grids
