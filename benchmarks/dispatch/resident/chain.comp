// A chain of matrix-vector products: weights bf16 (n, k), vectors f32. With CHAIN=1 one dispatch of resident
// workgroups runs all of them, with a barrier over the device between two; otherwise one dispatch runs one.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#pragma use_vulkan_memory_model

layout(local_size_x = THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Counter { uint arrived; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Weights { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Scalars { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vectors { vec4 v[]; };
struct Product { uint64_t weights; uint64_t source; uint64_t target; uint n; uint k; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Program { Product p[]; };
layout(push_constant) uniform Table { uint64_t counter; uint64_t program; int64_t first; int64_t count; int64_t work; };

shared vec4 x[VECTORS];
const uint SPINS = 20000;  // more workgroups than fit the device at a time would wait for ever
bool gave_up = false;

float low(uint w) { return uintBitsToFloat(w << 16); }
float high(uint w) { return uintBitsToFloat(w & 0xffff0000u); }

uint fetch(Product p, uint row, uint lane, uint chunk, out uvec4 q[4]) {
  Weights w = Weights(p.weights);
  uint chunks = p.k / 8, size = gl_SubgroupSize;
  for (int j = 0; j < 4; j++) {
    uint at = chunk + j * size;
    q[j] = row < p.n && at < chunks ? w.v[row * chunks + at] : uvec4(0);
  }
  return chunks;
}

void main() {
  uint lane = gl_SubgroupInvocationID, size = gl_SubgroupSize;
  uint total = gl_NumWorkGroups.x * gl_NumSubgroups;
  uint mine = gl_WorkGroupID.x + gl_NumWorkGroups.x * gl_SubgroupID;
  Program program = Program(program);
  Product p = program.p[uint(first)];
  uvec4 ahead[4];
  for (uint i = 0; i < uint(count); i++) {
    uint chunks = p.k / 8;
    if (work != 0) {
      for (uint j = gl_LocalInvocationIndex; j < p.k / 4; j += THREADS) x[j] = Vectors(p.source).v[j];
      barrier();
      for (uint row = mine; row < p.n; row += total) {
        float sum = 0;
        for (uint chunk = lane; chunk < chunks; chunk += 4 * size) {
          uvec4 q[4];
          if (AHEAD == 1 && i > 0 && row == mine && chunk == lane) q = ahead;
          else fetch(p, row, lane, chunk, q);
          for (int j = 0; j < 4; j++) {
            uint at = min(chunk + j * size, chunks - 1);
            vec4 a = x[2 * at], b = x[2 * at + 1];
            uvec4 u = q[j];
            sum += low(u.x) * a.x + high(u.x) * a.y + low(u.y) * a.z + high(u.y) * a.w;
            sum += low(u.z) * b.x + high(u.z) * b.y + low(u.w) * b.z + high(u.w) * b.w;
          }
        }
        sum = subgroupAdd(sum);
        if (lane == 0) Scalars(p.target).v[row] = sum;
      }
    }
    if (i + 1 == uint(count)) break;
    p = program.p[uint(first) + i + 1];
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    if (gl_LocalInvocationIndex == 0)
      atomicAdd(Counter(counter).arrived, 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    if (AHEAD == 1) fetch(p, mine, lane, lane, ahead);  // weights arrive while the others are waited for
    if (gl_LocalInvocationIndex == 0) {
      uint wanted = (i + 1) * gl_NumWorkGroups.x, spins = 0;
      while (!gave_up && atomicLoad(Counter(counter).arrived, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                                    gl_SemanticsAcquire | gl_SemanticsMakeVisible) < wanted)
        gave_up = ++spins == SPINS;
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
  }
}
