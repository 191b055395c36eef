"""SPIR-V kernels for tests, from assembly text.

All follow the project's ABI: 64-bit addresses and parameters in a table, which sits in push constants
when it fits and behind a 64-bit address in push constants when it does not. Storage is addressed
through physical storage buffers.
"""

from __future__ import annotations

from mansard.drivers.vulkan.shaders.assembler import assemble
from mansard.hal import EntryPoint, ExecutableSpec

LOCAL_SIZE = 64


def kernel_text(entry: EntryPoint, body: str) -> str:
    """A module with one kernel. ``body`` sees %x (u32, the global invocation) and %word_0, %word_1 ..."""
    words = entry.table_words
    held = words if entry.table_in_push_constants else 1
    indices = sorted({*range(words), 0, 4, 8})
    return f"""
OpCapability Shader
OpCapability Int64
OpCapability PhysicalStorageBufferAddresses
OpMemoryModel PhysicalStorageBuffer64 GLSL450
OpEntryPoint GLCompute %main "{entry.name}" %gid %table
OpExecutionMode %main LocalSize {" ".join(map(str, entry.workgroup))}
OpDecorate %gid BuiltIn GlobalInvocationId
OpDecorate %words ArrayStride 8
OpDecorate %block Block
OpMemberDecorate %block 0 Offset 0
%void = OpTypeVoid
%bool = OpTypeBool
%uint = OpTypeInt 32 0
%ulong = OpTypeInt 64 0
%float = OpTypeFloat 32
%uvec3 = OpTypeVector %uint 3
{"".join(f"%u{i} = OpConstant %uint {i}{chr(10)}" for i in indices if i != held)}
%u{held} = OpConstant %uint {held}
%factor = OpConstant %uint 1664525
%step = OpConstant %uint 1013904223
%four = OpConstant %ulong 4 0
{"".join(f"%at_{i} = OpConstant %ulong {8 * i} 0{chr(10)}" for i in range(words))}
%words = OpTypeArray %ulong %u{held}
%block = OpTypeStruct %words
%p_block = OpTypePointer PushConstant %block
%p_word = OpTypePointer PushConstant %ulong
%p_uvec3 = OpTypePointer Input %uvec3
%p_uint = OpTypePointer PhysicalStorageBuffer %uint
%p_float = OpTypePointer PhysicalStorageBuffer %float
%p_ulong = OpTypePointer PhysicalStorageBuffer %ulong
%gid = OpVariable %p_uvec3 Input
%table = OpVariable %p_block PushConstant
%signature = OpTypeFunction %void
%main = OpFunction %void None %signature
%begin = OpLabel
%gid3 = OpLoad %uvec3 %gid
%x = OpCompositeExtract %uint %gid3 0
{load_words(entry)}
{body}
OpReturn
OpFunctionEnd
"""


def load_words(entry: EntryPoint) -> str:
    """Instructions that bring every word of the table into %word_0, %word_1 ..."""
    lines = []
    if not entry.table_in_push_constants:
        lines += ["%p_base = OpAccessChain %p_word %table %u0 %u0", "%base = OpLoad %ulong %p_base"]
    for i in range(entry.table_words):
        if entry.table_in_push_constants:
            lines += [
                f"%p_{i} = OpAccessChain %p_word %table %u0 %u{i}",
                f"%word_{i} = OpLoad %ulong %p_{i}",
            ]
        else:
            lines += [
                f"%address_{i} = OpIAdd %ulong %base %at_{i}",
                f"%p_{i} = OpConvertUToPtr %p_ulong %address_{i}",
                f"%word_{i} = OpLoad %ulong %p_{i} Aligned 8",
            ]
    return "\n".join(lines)


def guarded(count: str, body: str) -> str:
    """``body`` for invocations below ``count`` (a u64 id); may use %wide (u64 %x) and %bytes (4 %x)."""
    return f"""
%wide = OpUConvert %ulong %x
%bytes = OpIMul %ulong %wide %four
%inside = OpULessThan %bool %wide {count}
OpSelectionMerge %done None
OpBranchConditional %inside %work %done
%work = OpLabel
{body}
OpBranch %done
%done = OpLabel
"""


FILL_INDEX = EntryPoint("fill_index", bindings=1, params=3, workgroup=(LOCAL_SIZE, 1, 1))
"""out[i] = i * a + b as i32 for i < n; params n, a, b."""
_FILL_INDEX = guarded(
    "%word_1",
    """
%a = OpUConvert %uint %word_2
%b = OpUConvert %uint %word_3
%scaled = OpIMul %uint %x %a
%value = OpIAdd %uint %scaled %b
%target = OpIAdd %ulong %word_0 %bytes
%pointer = OpConvertUToPtr %p_uint %target
OpStore %pointer %value Aligned 4
""",
)

ADD = EntryPoint("add", bindings=3, params=1, workgroup=(LOCAL_SIZE, 1, 1))
"""c[i] = a[i] + b[i] as f32 for i < n; buffers a, b, c; params n."""
_ADD = guarded(
    "%word_3",
    """
%a_at = OpIAdd %ulong %word_0 %bytes
%a_p = OpConvertUToPtr %p_float %a_at
%a = OpLoad %float %a_p Aligned 4
%b_at = OpIAdd %ulong %word_1 %bytes
%b_p = OpConvertUToPtr %p_float %b_at
%b = OpLoad %float %b_p Aligned 4
%sum = OpFAdd %float %a %b
%c_at = OpIAdd %ulong %word_2 %bytes
%c_p = OpConvertUToPtr %p_float %c_at
OpStore %c_p %sum Aligned 4
""",
)

SPIN = EntryPoint("spin", bindings=1, params=1)
"""Runs n steps of a linear congruential generator and stores the last value in out[0]; params n.

llvmpipe ends loops after 65535 iterations; for more work run more workgroups, all write the same."""
_SPIN = """
%n = OpUConvert %uint %word_1
OpBranch %head
%head = OpLabel
%i = OpPhi %uint %u0 %begin %i_next %continue
%state = OpPhi %uint %u0 %begin %state_next %continue
OpLoopMerge %exit %continue None
OpBranch %test
%test = OpLabel
%more = OpULessThan %bool %i %n
OpBranchConditional %more %turn %exit
%turn = OpLabel
%product = OpIMul %uint %state %factor
%state_next = OpIAdd %uint %product %step
OpBranch %continue
%continue = OpLabel
%i_next = OpIAdd %uint %i %u1
OpBranch %head
%exit = OpLabel
%pointer = OpConvertUToPtr %p_uint %word_0
OpStore %pointer %state Aligned 4
"""

WIDE = EntryPoint("wide", bindings=1, params=20)
"""Stores the sum of its 20 parameters as i64 in out[0]; its table does not fit push constants."""
_WIDE = """
%sum_1 = OpIAdd %ulong %word_1 %word_2
{sums}
%pointer = OpConvertUToPtr %p_ulong %word_0
OpStore %pointer %sum_19 Aligned 8
""".format(sums="\n".join(f"%sum_{i} = OpIAdd %ulong %sum_{i - 1} %word_{i + 1}" for i in range(2, 20)))

TEXTS = {
    entry.name: kernel_text(entry, body)
    for entry, body in ((FILL_INDEX, _FILL_INDEX), (ADD, _ADD), (SPIN, _SPIN), (WIDE, _WIDE))
}


def spec(entry: EntryPoint, requires: tuple[str, ...] = ("int64", "buffer_device_address")) -> ExecutableSpec:
    """One of the kernels above, ready to be loaded."""
    return ExecutableSpec("spirv", "vulkan:1.3", assemble(TEXTS[entry.name]), (entry,), requires)


def groups(count: int) -> tuple[int, int, int]:
    """The grid that covers ``count`` invocations in x."""
    return (-(-count // LOCAL_SIZE), 1, 1)
