// Sums of weights, and of weights * values, over a part of a list's completed pages, for up to eight of its query heads. A
// warp has a run of pages of its own and copies them four at a time, while it adds the four before.
#pragma once

#include "attend/complete_pages.cuh"
#include "cuda/chain.cuh"
#include "cuda/launch.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/mma16.cuh"
#include "cuda/pages.cuh"
#include "cuda/shared.cuh"

namespace locks::cuda::complete_kernels {

constexpr int kStages = 2;

/// CTAs a multiprocessor: two, where registers hold their states.
template <FormatId kId, int kUnits>
constexpr int kResident = kUnits <= 2 && RecordLane<kId, kUnits>::kHalves == 1 ? 2 : 1;

/// What the loop needs now and then lies in shared memory: registers are scarce.
struct alignas(16) Places {
  const std::byte* keys;  // of the KV head
  const std::byte* values;
  Parts part;  // of the first head
  int head_count;
  Notes notes[kMaxWarps];
};

/// Looks up the next 32 pages of a warp's run, a page a lane. Entries are asked for at once; write() waits for the table.
class Listed {
 public:
  __device__ __forceinline__ Listed(const Sums& args, int request, int list, int first, int end) {
    const int i = first + static_cast<int>(threadIdx.x) % 32;
    wanted_ = i < end;
    const SelectedPage* const entry =
        args.completed + request * args.completed_request_stride + list * args.completed_list_stride + i;
    // Past L1: the kernel that wrote it may have ended while this multiprocessor's L1 held what was there before.
    index_ = wanted_ ? __ldcg(&entry->page) : 0;
    mask_ = wanted_ ? __ldcg(&entry->mask) : 0U;
  }
  __device__ __forceinline__ void write(const Sums& args, int request, const Places& places, Notes& notes) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto page =
        static_cast<std::uint32_t>(wanted_ ? page_number(args.table, place_of(args.table, request, index_)) : 0);
    notes.pages[lane] = {places.keys + std::uint64_t{page} * static_cast<std::uint32_t>(args.keys.page_stride),
                         places.values + std::uint64_t{page} * static_cast<std::uint32_t>(args.values.page_stride)};
    notes.masks[lane] = mask_;
    __syncwarp();
  }

 private:
  bool wanted_;
  int index_;
  unsigned mask_;
};

/// Asks for a warp's unit that begins with its `first`-th page, if it is one of `count`: four keys, then four values.
template <FormatId kId, int kUnits>
__device__ __forceinline__ void copy_unit(const Sums& args, const Notes& notes, std::byte* stages, int first, int count,
                                          int lane) {
  using Slot = Slots<kId, kUnits>;
  if (first < count) {
    const int own = 16 * lane;
    const auto unit = mma16::shared_address(stages + first / kUnitPages % kStages * Slot::kUnit + own);
    ulonglong2 pages[kUnitPages];  // all at once: each switch from loads of shared memory to copies costs
#pragma unroll
    for (int i = 0; i < kUnitPages; ++i) pages[i] = *reinterpret_cast<const ulonglong2*>(&notes.pages[first + i]);
#pragma unroll
    for (int i = 0; i < kUnitPages; ++i) {
      const std::byte* const key = reinterpret_cast<const std::byte*>(pages[i].x) + own;
      const std::byte* const value = reinterpret_cast<const std::byte*>(pages[i].y) + own;
      const int key_end = first + i < count ? args.keys.copied_bytes : 0;
      const int value_end = first + i < count ? args.values.copied_bytes : 0;
#pragma unroll
      for (int at = 0; at < Slot::kKey; at += 512) ptx::copy_below(unit + i * Slot::kKey + at, key + at, own + at, key_end);
#pragma unroll
      for (int at = 0; at < Slot::kValue; at += 512) {
        ptx::copy_below(unit + kUnitPages * Slot::kKey + i * Slot::kValue + at, value + at, own + at, value_end);
      }
    }
  }
  ptx::commit_copies();
}

template <FormatId kId, int kUnits>
__global__ void __launch_bounds__(32 * kMaxWarps, kResident<kId, kUnits>) sum_completion(const __grid_constant__ Sums args) {
  using Lane = RecordLane<kId, kUnits>;
  using Slot = Slots<kId, kUnits>;
  LOCKS_DYNAMIC_SHARED(uint4, shared);
  auto& queries = *reinterpret_cast<SharedQueries<kUnits, kHeads>*>(shared);
  auto& places = *reinterpret_cast<Places*>(reinterpret_cast<std::byte*>(shared) + sizeof(queries));
  std::byte* const all_stages = reinterpret_cast<std::byte*>(shared) + sizeof(queries) + sizeof(places);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (!args.beside_attention) wait_for_previous();
  let_next_start();

  const int part = static_cast<int>(blockIdx.x);
  const int list = static_cast<int>(blockIdx.y) / args.passes;
  const int request = static_cast<int>(blockIdx.z);
  if (args.whole_tokens > 0 && args.context_tokens[request] <= args.whole_tokens) return only_first_block_waits();
  const std::int32_t* const completed = args.num_completed + request * args.num_request_stride + list * args.num_list_stride;
  const int entries = min(max(__ldcg(completed), 0), args.capacity);
  const int parts = parts_of(entries);
  if (part < parts) {
    // Parts are runs of pages that differ by one at most.
    const int part_begin = part * (entries / parts) + min(part, entries % parts);
    const int part_pages = entries / parts + (part < entries % parts ? 1 : 0);
    // Whole pairs of pages, of which the part's warps take turns to have one more: its place among the multiprocessor's
    // schedulers goes with its number.
    const int shift = __ffs(warps) - 1;  // a power of two
    const int turn = (warp + part / 2) & (warps - 1);
    const int pairs = (part_pages + 1) / 2;
    const int rest = pairs & (warps - 1);
    int from = part_begin + 2 * (turn * (pairs >> shift) + min(turn, rest));
    const int to = min(from + 2 * ((pairs >> shift) + (turn < rest ? 1 : 0)), part_begin + part_pages);
    const Listed listed(args, request, list, from, to);
    const int first_in_list = (static_cast<int>(blockIdx.y) - list * args.passes) * kHeads;
    const int first_head = list * args.list_heads + first_in_list;
    const int head_count = min(kHeads, args.list_heads - first_in_list);
    const HeadsOfCta<kUnits, kHeads> query(args.queries, request, first_head, head_count, args.shape.head_dim);
    if (threadIdx.x == 0) {
      const int kv_head = list / args.lists_per_kv_head;
      places.keys = args.keys.data + kv_head * args.keys.head_stride;
      places.values = args.values.data + kv_head * args.values.head_stride;
      const std::int64_t own = first_part(request, args.queries.query_heads, first_head) + part;
      places.part = {args.parts.values + own * args.shape.head_dim, args.parts.max_and_sum + own * 2};
      places.head_count = head_count;
    }
    __syncthreads();
    std::byte* const stages = all_stages + warp * max(kStages * Slot::kUnit, state_bytes(64 * kUnits));
    Notes& notes = places.notes[warp];
    const auto copy = [&](int first) { copy_unit<kId, kUnits>(args, notes, stages, first, min(to - from, 32), lane); };
    listed.write(args, request, places, notes);
    copy(0);
    copy(kUnitPages);
    query.quantise(Lane::kFormat.rotated, queries);
    __syncthreads();
    const Lane own(args.shape, lane);
    HeadLane<kId, kUnits, 1> heads;
    constexpr float kLog2E = 1.4426950408889634F;  // logits in units of log 2
    heads.read(own, queries, args.queries.softmax_scale * kLog2E, args.queries.softmax_scale * kLog2E);
    State<kUnits> state;
#pragma unroll 1
    while (from < to) {
#pragma unroll 1
      for (int first = 0; first < min(to - from, 32); first += kUnitPages) {
        ptx::wait_copies<kStages - 1>();
        __syncwarp();
        add_unit(own, heads, queries, args.shape, args.values_at, stages + first / kUnitPages % kStages * Slot::kUnit,
                 min(to - from - first, kUnitPages), first, args.bias, notes, state);
        __syncwarp();  // every lane has read the stage
        copy(first + kStages * kUnitPages);
      }
      from += 32;
      if (from >= to) break;
      Listed(args, request, list, from, to).write(args, request, places, notes);
      copy(0);
      copy(kUnitPages);
    }
    __syncthreads();  // the stages are free
    write_part(state, args.shape.head_dim, places.head_count, warps, reinterpret_cast<float*>(all_stages), places.part);
  }
  if (args.beside_attention) wait_for_previous();  // whoever waits for this kernel has waited for attention too
}

template <FormatId kId, int kUnits>
void launch_sums(const Sums& args, Stream stream) {
  using Slot = Slots<kId, kUnits>;
  constexpr int kWarpBytes = std::max(kStages * Slot::kUnit, state_bytes(64 * kUnits));
  constexpr int kFixed = static_cast<int>(sizeof(SharedQueries<kUnits, kHeads>) + sizeof(Places));
  const auto shape = launch_shape(sum_completion<kId, kUnits>, kFixed, kWarpBytes, kMaxWarps, kResident<kId, kUnits>);
  const int warps = static_cast<int>(std::bit_floor(static_cast<unsigned>(shape.warps)));
  const dim3 grid(static_cast<unsigned>(parts_of(args.capacity)), static_cast<unsigned>(args.lists * args.passes),
                  static_cast<unsigned>(args.requests));
  launch_kernel<sum_completion<kId, kUnits>>(
      {"sum_completion", Start::kEarly, grid, 32 * warps, static_cast<std::size_t>(kFixed + warps * kWarpBytes), stream},
      args);
}

template <FormatId kId>
void launch(const Sums& args, Stream stream) {
  with_units(args.shape.head_dim, [&](auto units) { launch_sums<kId, units()>(args, stream); });
}

}  // namespace locks::cuda::complete_kernels
