// Matrix-vector products one after another: weights bf16 (N, K), vectors f32, each product's result the next
// one's vector. STAGES is a list of PRODUCT(number, N, K, weights before it in a layer); a dispatch runs
// `count` products from `first` on.
//
// A workgroup fetches its first DEPTH pieces of weights before it waits (AHEAD), for the workgroups of the
// product before to have counted themselves in `arrived`: those of the same dispatch (then all have to be
// resident), or those of the dispatch before, without a barrier between the two.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#pragma use_vulkan_memory_model

layout(local_size_x = THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Counters { uint arrived[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Weights { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Scalars { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vectors { vec4 v[]; };
layout(push_constant) uniform Table {
  uint64_t counters; uint64_t weights; uint64_t even; uint64_t odd;
  int64_t first; int64_t count; int64_t work; int64_t waits;
};

const uint SPINS = 20000;  // a wait that would never end ends here
const uint LOADS = 4;      // of 16 bytes: an invocation's part of a piece
shared vec4 x[LONGEST / 4];

float low(uint w) { return uintBitsToFloat(w << 16); }
float high(uint w) { return uintBitsToFloat(w & 0xffff0000u); }

void arrive(uint number) {
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                 gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
  if (gl_LocalInvocationIndex == 0)
    atomicAdd(Counters(counters).arrived[number * 32], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
              gl_SemanticsRelease | gl_SemanticsMakeAvailable);
}

void await(uint number) {
  if (gl_LocalInvocationIndex == 0) {
    uint spins = 0;
    while (atomicLoad(Counters(counters).arrived[number * 32], gl_ScopeDevice, gl_StorageSemanticsBuffer,
                      gl_SemanticsAcquire | gl_SemanticsMakeVisible) < gl_NumWorkGroups.x && ++spins < SPINS);
  }
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                 gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
}

// Pieces of LOADS * 8 * SUBGROUP weights of a row; an invocation's rows lie a grid of subgroups apart.
#define PIECES(K) ((K) / (LOADS * 8 * SUBGROUP))
#define FETCH(q, item, N, K)                                                                   \
  {                                                                                            \
    uint row = mine + total * ((item) / PIECES(K)), piece = (item) % PIECES(K);                \
    [[unroll]] for (int j = 0; j < LOADS; j++)                                                 \
      q[j] = row < (N) ? w.v[row * ((K) / 8) + (piece * LOADS + j) * SUBGROUP + lane] : uvec4(0); \
  }

#define PRODUCT(stage, N, K, before)                                                           \
  void product##stage(uint number, uint layer) {                                               \
    uint lane = gl_SubgroupInvocationID, total = gl_NumWorkGroups.x * gl_NumSubgroups;         \
    uint mine = gl_WorkGroupID.x + gl_NumWorkGroups.x * gl_SubgroupID;                         \
    uint items = mine < (N) ? ((N) - mine + total - 1) / total * PIECES(K) : 0;                \
    Weights w = Weights(weights + 2 * (uint64_t(layer) * LAYER + (before)));                   \
    uvec4 q[DEPTH][LOADS];                                                                     \
    if (AHEAD == 1 && work != 0) {                                                             \
      [[unroll]] for (int d = 0; d < DEPTH; d++) FETCH(q[d], d, N, K)                          \
    }                                                                                          \
    if (waits != 0 && number > 0) await(number - 1);                                           \
    if (work != 0) {                                                                           \
      if (AHEAD == 0) {                                                                        \
        [[unroll]] for (int d = 0; d < DEPTH; d++) FETCH(q[d], d, N, K)                        \
      }                                                                                        \
      Vectors source = Vectors((number & 1) == 0 ? even : odd);                                \
      Scalars target = Scalars((number & 1) == 0 ? odd : even);                                \
      for (uint j = gl_LocalInvocationIndex; j < (K) / 4; j += THREADS) x[j] = source.v[j];    \
      barrier();                                                                               \
      float sum = 0;                                                                           \
      for (uint item = 0; item < items; item += DEPTH) {                                       \
        [[unroll]] for (int d = 0; d < DEPTH; d++) {                                           \
          uint row = mine + total * ((item + d) / PIECES(K)), piece = (item + d) % PIECES(K);  \
          [[unroll]] for (int j = 0; j < LOADS; j++) {                                         \
            uint at = (piece * LOADS + j) * SUBGROUP + lane;                                   \
            vec4 a = x[2 * at], b = x[2 * at + 1];                                             \
            uvec4 u = q[d][j];                                                                 \
            sum += low(u.x) * a.x + high(u.x) * a.y + low(u.y) * a.z + high(u.y) * a.w;        \
            sum += low(u.z) * b.x + high(u.z) * b.y + low(u.w) * b.z + high(u.w) * b.w;        \
          }                                                                                    \
          if (piece == PIECES(K) - 1) {                                                        \
            sum = subgroupAdd(sum);                                                            \
            if (lane == 0 && row < (N)) target.v[row] = sum;                                   \
            sum = 0;                                                                           \
          }                                                                                    \
          if (item + d + DEPTH < items) FETCH(q[d], item + d + DEPTH, N, K)                    \
        }                                                                                      \
      }                                                                                        \
    }                                                                                          \
    if (waits != 0) arrive(number);                                                            \
  }
STAGES
#undef PRODUCT

void main() {
  for (uint i = 0; i < uint(count); i++) {
    uint number = uint(first) + i, layer = number / COUNT, stage = number % COUNT;
#define PRODUCT(s, N, K, before) if (stage == s) product##s(number, layer);
    STAGES
  }
}
