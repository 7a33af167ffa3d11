// The kernel: a warp a record, from the cache to the record's bytes; warps do not wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/chain.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/shared.cuh"
#include "summarize/basis.cuh"
#include "summarize/coefficients.cuh"
#include "summarize/eigenvectors.cuh"
#include "summarize/load_page.cuh"

namespace locks::cuda::summarize_stage {

/// Byte offsets of what a record needs in shared memory. The Gram matrix and its factor are gone when codes and the normal
/// equations come, the mean before either.
struct Room {
  int rows = 0;     // deviations; before that sums [8, head_dim]
  int gram = 0;     // [16, 17]
  int factor = 0;   // [16, 20], or a Tridiagonal
  int codes = 0;    // [rank, head_dim] of slopes
  int system = 0;   // [rank, 32]
  int vectors = 0;  // [rank, 20]
  int stored = 0;   // [rank, 16] coefficients
  int squares = 0;  // [16] of tokens; then 48 of scratch for the vectors, then lengths [16] and steps [16] of ranks
  int record = 0;
  int value_record = 0;
  int bytes = 0;
};

constexpr int kSquaresFloats = 64;

constexpr int rounded_up(int bytes, int multiple) noexcept { return (bytes + multiple - 1) / multiple * multiple; }

template <int kHeadDim>
constexpr Room room_for(int rank, int record_bytes, int value_record_bytes) noexcept {
  Room room;
  int next = 0;
  const auto take = [&next](int bytes) {
    next += rounded_up(bytes, 16);
    return next - rounded_up(bytes, 16);
  };
  room.rows = take(2 * kPageBytes<kHeadDim>);
  constexpr int kGramBytes = rounded_up(4 * kPageTokens * kGramStride, 16);
  constexpr int kMeanBytes = 4 * kRowFloats<kHeadDim>;
  static_assert(sizeof(Tridiagonal) >= 4 * kPageTokens * kFactorStride);
  const int sizes[] = {kMeanBytes, kGramBytes + static_cast<int>(sizeof(Tridiagonal)), 4 * rank * kSystemStride,
                       value_record_bytes == 0 ? 0 : rank * kHeadDim};
  int most = 0;
  for (const int size : sizes) most = most > size ? most : size;
  room.gram = take(most);
  room.factor = room.gram + kGramBytes;
  room.codes = room.gram;
  room.system = room.gram;
  room.vectors = take(4 * rank * kVectorStride);  // and on into `stored`: the halves of vectors, [8, 2, 16]
  room.stored = take(4 * (rank == 4 ? 256 - rank * kVectorStride : rank * kCoefficientStride));
  room.squares = take(4 * kSquaresFloats);
  room.record = take(record_bytes);
  room.value_record = take(value_record_bytes);
  room.bytes = next;
  return room;
}

__device__ __forceinline__ void copy_record(const std::byte* from, std::byte* to, int bytes, int lane) {
  int done = 0;
  if (reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
    done = bytes / 4 * 4;
    for (int i = 4 * lane; i < done; i += 128) {
      *reinterpret_cast<std::uint32_t*>(to + i) = *reinterpret_cast<const std::uint32_t*>(from + i);
    }
  }
  for (int i = done + lane; i < bytes; i += 32) to[i] = from[i];
}

/// The page that item i is about, or -1.
__device__ __forceinline__ int page_of(const Args& args, unsigned item) {
  if (item >= args.items) return -1;
  const unsigned index = item / static_cast<unsigned>(args.kv_heads);
  std::int64_t page = -1;
  if (args.pages != nullptr) {
    page = args.pages[index];
  } else if (const std::int64_t slot = args.slots[index]; slot >= 0 && slot % kPageTokens == kPageTokens - 1) {
    page = slot / kPageTokens;
  }
  return page < args.num_pages ? static_cast<int>(page) : -1;
}

/// Pointers into a record's room.
struct Memory {
  std::byte* rows;
  float* mean;
  float* gram;
  float* factor;
  float* system;
  float* vectors;
  float* stored;
  float* squares;
  float* lengths;
  float* steps;
  std::byte* codes;
  std::byte* record;
  std::byte* value_record;

  __device__ __forceinline__ Memory(const Room& room, std::byte* memory) {
    const auto floats = [memory](int at) { return reinterpret_cast<float*>(memory + at); };
    rows = memory + room.rows;
    mean = floats(room.gram);  // gone when the Gram matrix comes
    gram = floats(room.gram);
    factor = floats(room.factor);
    system = floats(room.system);
    vectors = floats(room.vectors);
    stored = floats(room.stored);
    squares = floats(room.squares);
    lengths = squares + 32;
    steps = squares + 48;
    codes = memory + room.codes;
    record = memory + room.record;
    value_record = memory + room.value_record;
  }
};

template <int kHeadDim>
__device__ __forceinline__ Scale scale_of(bool rotated, int exponent) {
  return rotated ? make_scale(kUnit<kHeadDim>, kInverseUnit<kHeadDim>, exponent) : make_scale(1.0F, 1.0F, exponent);
}

/// What follows the eigenvectors: basis, coefficients and what they leave.
template <int kHeadDim>
__device__ __forceinline__ void store_directions(const Args& args, const Memory& at, const Scale& scale, int lane) {
  forget(lane);
  const PieceAddresses<kHeadDim> pieces(at.rows, lane);
  float most = 0.0F;
  unsigned kept_ranks = 0;
  BasisRow<kHeadDim> basis = {};
#pragma unroll 1
  for (int first = 0; first < args.rank; first += 8) {
    RankRow<kHeadDim> row;
    project(at.vectors + first * kVectorStride, args.rank - first, pieces, lane, row);
    const float energy = energy_of(row);
    most = fmaxf(most, largest_of_warp(energy));
    const bool kept = energy > kNullEnergy * most;
    const float inverse_length = kept ? ptx::reciprocal_root(energy) : 0.0F;
    const int rank = first + lane / 4;
    const BasisRow<kHeadDim> before = basis;
    const float step = quantise_basis(args, rank, inverse_length, lane, row, basis, at.record);
    store_basis(args, rank, basis, lane, at.record);
    if (lane % 4 == 0 && rank < args.rank) {
      at.lengths[rank] = energy * inverse_length;
      at.steps[rank] = step;
    }
    kept_ranks |= __reduce_or_sync(kAll, kept ? 1U << rank : 0U);
    __syncwarp();
    multiply_by_basis(pieces, before, basis, at.steps, first, args.rank, lane, at.system);
  }
  __syncwarp();
  if (args.refit) refit_coefficients(at.system, kept_ranks, args.rank, lane, at.stored);
  const auto coefficient = [&](int rank, int token) {
    return args.refit ? at.stored[rank * kCoefficientStride + token]
                      : at.lengths[rank] * at.vectors[rank * kVectorStride + token];
  };
  if (args.coefficient_bits == 4) {
    store_by_rank(args, scale, lane, coefficient, at.stored, at.record);
  } else {
    store_by_token(args, scale, lane, coefficient, at.stored, at.record);
  }
  __syncwarp();
  const float missed = missed_energy(at.squares, at.stored, at.system, args.rank, lane);
  if (lane == 0) {
    const float variance = missed * (1.0F / (kPageTokens * kHeadDim));
    const auto bits = finite_bf16(variance * scale.up[0] * scale.up[0] * scale.up[1] * scale.up[1]);
    *reinterpret_cast<std::uint16_t*>(at.record + args.at.residual_at) = static_cast<std::uint16_t>(bits);
    at.record[args.at.format_at] = static_cast<std::byte>(args.format_id);
    at.record[args.at.flags_at] = std::byte{0};
  }
}

/// The slopes of the values, whose deviations are in place of the keys'.
template <int kHeadDim>
__device__ __forceinline__ void store_slopes(const Args& args, const Memory& at, const Scale& scale, int lane) {
  forget(lane);
  slope_weights(at.stored, args.rank, lane, at.vectors);
  const PieceAddresses<kHeadDim> pieces(at.rows, lane);
#pragma unroll 1
  for (int first = 0; first < args.rank; first += 8) {
    RankRow<kHeadDim> row;
    project(at.vectors + first * kVectorStride, args.rank - first, pieces, lane, row);
    quantise_slopes(args, first + lane / 4, scale, lane, row, at.codes, at.value_record);
  }
  __syncwarp();
  pack_slopes<kHeadDim>(args, at.codes, lane, at.value_record);
}

/// Makes the record, and the value part, of one page and head in shared memory. False if a component is not finite.
template <int kHeadDim>
__device__ __forceinline__ bool make_record(const Args& args, const Memory& at, int page_number, int kv_head, int lane) {
  int key_exponent = 0;
#pragma unroll 1
  for (int part = 0;; part = 1) {  // keys, then values; a loop, because the code that loads pages is long
    const bool rotated = part == 1 || args.rotated;
    int exponent = 0;
    PageFragment<kHeadDim> page;
    if (!load_page(args.caches[part], page_number, kv_head, rotated, args.signs, lane, page, exponent)) return false;
    const float down = power_of_two(-exponent);
    const Scale scale = scale_of<kHeadDim>(rotated, exponent);
    std::byte* const record = part == 0 ? at.record : at.value_record;
    store_mean(page, down, scale, lane, reinterpret_cast<float*>(at.rows), at.mean, record + args.mean_at[part],
               record + args.mean_scale_at[part]);
    if (part == 1) {
      store_deviations(page, down, at.mean, lane, at.rows, [](const auto&, const auto&) {});
      // A slope is a value by a coefficient, and the unfinished factors of two rotations cancel.
      store_slopes<kHeadDim>(args, at, scale_of<kHeadDim>(!args.rotated, exponent - key_exponent), lane);
      return true;
    }
    store_deviations_and_gram(page, down, at.mean, lane, at.rows, at.gram);
    if (lane < kPageTokens) at.squares[lane] = 2.0F * at.gram[lane * kGramStride + lane];
    leading_eigenvectors(at.gram, args.rank, lane, at.factor, at.squares + 16, at.vectors);
    store_directions<kHeadDim>(args, at, scale, lane);
    if (args.caches[1].data == nullptr) return true;
    key_exponent = exponent;
  }
}

/// As many as the warps that shared memory has room for leave each other, and none spills.
template <int kHeadDim>
inline constexpr int kMostRegisters = kHeadDim == 64    ? 128
                                      : kHeadDim <= 128 ? 128
                                                        : 224;

template <int kHeadDim>
__global__ void __maxnreg__(kMostRegisters<kHeadDim>)
    summarize_kernel(const __grid_constant__ Args args, const __grid_constant__ Room room) {
  LOCKS_DYNAMIC_SHARED(float4, shared);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const unsigned item = blockIdx.x * kRecordsPerBlock + warp;
  wait_for_previous();
  let_next_start();
  const int page_number = page_of(args, item);
  if (page_number < 0) return;
  const int kv_head = static_cast<int>(item % static_cast<unsigned>(args.kv_heads));
  const Memory at(room, reinterpret_cast<std::byte*>(shared) + warp * room.bytes);
  const bool usable = make_record<kHeadDim>(args, at, page_number, kv_head, lane);
  __syncwarp();
  const bool with_values = args.caches[1].data != nullptr;
  if (!usable) {
    for (int i = lane; i < args.at.record_bytes; i += 32) {
      at.record[i] = static_cast<std::byte>(i == args.at.format_at  ? args.format_id
                                            : i == args.at.flags_at ? kFlagAlwaysAttend
                                                                    : 0);
    }
    for (int i = lane; with_values && i < args.value_at.record_bytes; i += 32) at.value_record[i] = std::byte{0};
    __syncwarp();
  }
#pragma unroll 1
  for (int part = 0; part < (with_values ? 2 : 1); ++part) {
    const RecordTarget& target = args.targets[part];
    copy_record(part == 0 ? at.record : at.value_record,
                target.data + page_number * target.page_stride + kv_head * target.head_stride, target.bytes, lane);
  }
  if (args.report == nullptr || lane != 0) return;
  const auto add_one = [](std::int64_t* to) { atomicAdd(reinterpret_cast<unsigned long long*>(to), 1ULL); };
  add_one(&args.report->records);
  if (!usable) add_one(&args.report->not_finite_records);
}

template <int kHeadDim>
void launch(const Args& args, CUstream_st* stream) {
  const unsigned blocks = (args.items + kRecordsPerBlock - 1) / kRecordsPerBlock;
  if (blocks == 0) return;
  const Room room =
      room_for<kHeadDim>(args.rank, args.at.record_bytes, args.caches[1].data != nullptr ? args.value_at.record_bytes : 0);
  const int bytes = kRecordsPerBlock * room.bytes;
  check(cudaFuncSetAttribute(summarize_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
  launch_kernel<summarize_kernel<kHeadDim>>(
      {"summarize_kernel", Start::kEarly, blocks, 32 * kRecordsPerBlock, static_cast<std::size_t>(bytes), stream}, args,
      room);
}

}  // namespace locks::cuda::summarize_stage
