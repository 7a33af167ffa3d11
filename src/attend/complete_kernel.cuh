// Sums of weights, and of weights * values, over a part of a list's completed pages, for up to eight of its query heads. A
// warp has a run of pages of its own and copies them four at a time, while it adds the four before.
#pragma once

#include "attend/complete_pages.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/launch.cuh"
#include "cuda/pages.cuh"

namespace locks::cuda::complete_kernels {

constexpr int kStages = 2;

/// CTAs a multiprocessor: two, where registers hold their states.
template <FormatId kId, int kUnits>
constexpr int kResident = kUnits <= 2 && RecordLane<kId, kUnits>::kHalves == 1 ? 2 : 1;

/// What the loop needs now and then lies in shared memory: registers are scarce.
struct alignas(16) Places {
  const std::byte* keys;  // of the KV head
  const std::byte* values;
  float* partials;  // of the part and its first head
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
  __device__ __forceinline__ void write(const Sums& args, int request, Notes& notes) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    notes.pages[lane] = wanted_ ? page_number(args.table, place_of(args.table, request, index_)) : 0;
    notes.masks[lane] = mask_;
    __syncwarp();
  }

 private:
  bool wanted_;
  int index_;
  unsigned mask_;
};

template <FormatId kId, int kUnits>
__global__ void __launch_bounds__(32 * kMaxWarps, kResident<kId, kUnits>) sum_completion(const __grid_constant__ Sums args) {
  using Lane = RecordLane<kId, kUnits>;
  using Slot = Slots<kId, kUnits>;
  extern __shared__ uint4 shared[];
  auto& queries = *reinterpret_cast<SharedQueries<kUnits, kHeads>*>(shared);
  auto& places = *reinterpret_cast<Places*>(reinterpret_cast<std::byte*>(shared) + sizeof(queries));
  std::byte* const all_stages = reinterpret_cast<std::byte*>(shared) + sizeof(queries) + sizeof(places);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (!args.beside_attention) wait_for_previous();
  let_next_start();

  const int part = static_cast<int>(blockIdx.x);
  const int list_heads = args.queries.query_heads / args.lists;
  const int passes = (list_heads + kHeads - 1) / kHeads;
  const int list = static_cast<int>(blockIdx.y) / passes;
  const int request = static_cast<int>(blockIdx.z);
  const int entries = min(
      max(__ldcg(args.num_completed + request * args.num_request_stride + list * args.num_list_stride), 0), args.capacity);
  const int parts = parts_of(entries);
  if (part < parts) {
    const auto begin = static_cast<int>(std::int64_t{part} * entries / parts);
    const auto end = static_cast<int>(std::int64_t{part + 1} * entries / parts);
    int from = begin + warp * (end - begin) / warps;  // the warp's run
    const int to = begin + (warp + 1) * (end - begin) / warps;
    const Listed listed(args, request, list, from, to);
    const int first_in_list = static_cast<int>(blockIdx.y) % passes * kHeads;
    const int first_head = list * list_heads + first_in_list;
    const int head_count = min(kHeads, list_heads - first_in_list);
    const HeadsOfCta<kUnits, kHeads> query(args.queries, request, first_head, head_count, args.shape.head_dim);
    if (threadIdx.x == 0) {
      const int kv_head = first_head / (args.queries.query_heads / args.queries.kv_heads);
      places.keys = args.keys.data + kv_head * args.keys.head_stride;
      places.values = args.values.data + kv_head * args.values.head_stride;
      places.partials =
          args.partials + (static_cast<std::int64_t>(request * args.queries.query_heads + first_head) * kMaxParts + part) *
                              partial_floats(args.shape.head_dim);
      places.head_count = head_count;
    }
    __syncthreads();
    std::byte* const stages = all_stages + warp * max(kStages * Slot::kUnit, state_bytes(64 * kUnits));
    const auto copy_unit = [&](int first) {
      std::byte* const unit = stages + first / kUnitPages % kStages * Slot::kUnit + 16 * lane;
      const std::byte* const keys = places.keys + 16 * lane;
      const std::byte* const values = places.values + 16 * lane;
#pragma unroll
      for (int i = 0; i < kUnitPages; ++i) {
        if (first + i >= min(to - from, 32)) break;
        const std::int64_t page = places.notes[warp].pages[first + i];
#pragma unroll
        for (int at = 0; at < Slot::kKey; at += 512) {
          ptx::copy_async(unit + i * Slot::kKey + at, keys + page * args.keys.page_stride + at,
                          at + 16 * lane < args.keys.copied_bytes);
        }
#pragma unroll
        for (int at = 0; at < Slot::kValue; at += 512) {
          ptx::copy_async(unit + kUnitPages * Slot::kKey + i * Slot::kValue + at,
                          values + page * args.values.page_stride + at, at + 16 * lane < args.values.copied_bytes);
        }
      }
      ptx::commit_copies();
    };
    listed.write(args, request, places.notes[warp]);
    copy_unit(0);
    copy_unit(kUnitPages);
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
                 min(to - from - first, kUnitPages), first, places.notes[warp], state);
        __syncwarp();  // every lane has read the stage
        copy_unit(first + kStages * kUnitPages);
      }
      from += 32;
      if (from >= to) break;
      Listed(args, request, list, from, to).write(args, request, places.notes[warp]);
      copy_unit(0);
      copy_unit(kUnitPages);
    }
    ptx::wait_copies<0>();
    __syncthreads();  // the stages are free
    write_part(state, args.shape.head_dim, places.head_count, warps, reinterpret_cast<float*>(all_stages), places.partials,
               std::int64_t{kMaxParts} * partial_floats(args.shape.head_dim));
  }
  if (args.beside_attention) wait_for_previous();  // whoever waits for this kernel has waited for attention too
}

template <FormatId kId, int kUnits>
void launch_sums(const Sums& args, Stream stream) {
  using Slot = Slots<kId, kUnits>;
  constexpr int kWarpBytes = std::max(kStages * Slot::kUnit, state_bytes(64 * kUnits));
  const auto shape =
      launch_shape(sum_completion<kId, kUnits>, static_cast<int>(sizeof(SharedQueries<kUnits, kHeads>) + sizeof(Places)),
                   kWarpBytes, kMaxWarps, kResident<kId, kUnits>);
  const int list_heads = args.queries.query_heads / args.lists;
  const dim3 grid(static_cast<unsigned>(parts_of(args.capacity)),
                  static_cast<unsigned>(args.lists * ((list_heads + kHeads - 1) / kHeads)),
                  static_cast<unsigned>(args.requests));
  launch_early("sum_completion", sum_completion<kId, kUnits>, grid, static_cast<unsigned>(32 * shape.warps),
               shape.shared_bytes, stream, args);
}

template <FormatId kId>
void launch(const Sums& args, Stream stream) {
  with_units(args.shape.head_dim, [&](auto units) { launch_sums<kId, units()>(args, stream); });
}

}  // namespace locks::cuda::complete_kernels
