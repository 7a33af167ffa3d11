#include "verify_cuda.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cuda_array.cuh"
#include "locks/cuda.h"

namespace locks::cli {
namespace {

constexpr std::int64_t kAlignment = 16;  // of rows

/// A cache's copy on the device.
struct Cache {
  explicit Cache(const test::CacheData& host) : bytes(host.bytes()), slots(host.slots()), view(host.view()) {
    view.data = bytes.data();
    if (view.page_slots != nullptr) view.page_slots = slots.data();
  }
  Array<std::byte> bytes;
  Array<std::int32_t> slots;
  PagedCache view;
};

}  // namespace

struct CudaStages::Device {
  Device(const CaseShape& shape, const CaseData& data)
      : keys(data.keys),
        values(data.values),
        blocks(data.table.blocks),
        lengths(data.table.context_tokens),
        queries(data.queries),
        table(data.table.table),
        query_view(data.query_view(shape.geometry)),
        host_records(static_cast<std::size_t>(
            cuda::summary_bytes(*shape.format, shape.geometry.head_dim, shape.geometry.kv_heads, shape.num_pages, true))) {
    table.blocks.data = blocks.data();
    table.context_tokens = lengths.span();
    query_view.data = queries.data();
    host_store = make_store(shape, host_records.data());
    const SummaryStore& from = data.summaries.store();
    for (std::int64_t page = 0; page < shape.num_pages; ++page) {
      for (int head = 0; head < shape.geometry.kv_heads; ++head) {
        std::memcpy(host_store.record(page, head), from.record(page, head),
                    static_cast<std::size_t>(record_layout(*shape.format, shape.geometry.head_dim).record_bytes));
        std::memcpy(host_store.value_record(page, head), from.value_record(page, head),
                    static_cast<std::size_t>(value_layout(*shape.format, shape.geometry.head_dim).record_bytes));
      }
    }
    records = std::make_unique<Array<std::byte>>(std::span<const std::byte>(host_records));
    store = make_store(shape, records->data());
  }
  static SummaryStore make_store(const CaseShape& shape, std::byte* memory) {
    return cuda::make_store(*shape.format, shape.geometry.head_dim, shape.geometry.kv_heads, shape.num_pages, true, memory);
  }

  Cache keys, values;
  Array<std::int32_t> blocks, lengths;
  Array<float> queries;
  PageTable table;
  View<const float, 3> query_view;
  std::vector<std::byte> host_records;  // the case's, until summary() is asked for one
  SummaryStore host_store;
  std::unique_ptr<Array<std::byte>> records;  // the case's
  SummaryStore store;
  bool summarised = false;
};

bool CudaStages::take(const CaseShape& shape, const CaseData& data) {
  if (shape.key_type != shape.value_type || shape.key_type == DType::kQ8_0) return false;
  const auto is_aligned = [](const PagedCache& cache) {
    return cache.block_stride % kAlignment == 0 && cache.token_stride % kAlignment == 0 &&
           cache.head_stride % kAlignment == 0;
  };
  return is_aligned(data.keys.view()) && is_aligned(data.values.view());
}

CudaStages::CudaStages(const CaseShape& shape, const CaseData& data)
    : shape_(shape), data_(data), device_(std::make_unique<Device>(shape, data)) {}
CudaStages::~CudaStages() = default;

DecodedSummary CudaStages::summary(std::int64_t page, int head) {
  Device& device = *device_;
  if (!device.summarised) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(shape_.num_pages));
    std::iota(all.begin(), all.end(), 0);
    const Array<std::int32_t> pages{std::span<const std::int32_t>(all)};
    const Array<std::byte> made(device.host_records.size());
    const SummarizeArgs args{.head_dim = shape_.geometry.head_dim,
                             .kv_heads = shape_.geometry.kv_heads,
                             .keys = device.keys.view,
                             .values = &device.values.view,
                             .pages = pages.span(),
                             .out = Device::make_store(shape_, made.data())};
    cuda::summarize(args, nullptr, nullptr);
    device.host_records = made.read();
    device.host_store = Device::make_store(shape_, device.host_records.data());
    device.summarised = true;
  }
  return decode_record(*shape_.format, shape_.geometry.head_dim, device.host_store.record(page, head));
}

std::vector<float> CudaStages::log_mass() {
  const int requests = device_->table.num_requests();
  const int pages = shape_.longest() / kPageTokens;
  if (pages == 0) return {};
  const int heads = shape_.geometry.query_heads;
  const Array<float> out(static_cast<std::size_t>(requests) * static_cast<std::size_t>(heads * pages));
  cuda::score({shape_.geometry,
               device_->query_view,
               device_->store,
               device_->table,
               contiguous(out.data(), requests, heads, pages),
               {}},
              nullptr);
  return out.read();
}

std::vector<float> CudaStages::dense() {
  const Geometry& geometry = shape_.geometry;
  const int requests = device_->table.num_requests();
  const Array<float> states(static_cast<std::size_t>(requests * geometry.query_heads * (2 + geometry.head_dim)));
  const Array<float> out(data_.queries.size());
  const Array<std::byte> workspace(cuda::attend_workspace_bytes(geometry, requests, geometry.kv_heads));
  AttendArgs args;
  args.geometry = geometry;
  args.queries = device_->query_view;
  args.keys = device_->keys.view;
  args.values = device_->values.view;
  args.table = device_->table;
  args.num_lists = geometry.kv_heads;
  args.workspace = workspace.span();
  cuda::attend(args, contiguous(states.data(), requests, geometry.query_heads, 2 + geometry.head_dim), false,
               contiguous(out.data(), requests, geometry.query_heads, geometry.head_dim), nullptr);
  return out.read();
}

std::vector<float> CudaStages::decode(const DecodeConfig& config, std::vector<DecodeReport>& reports) {
  const Geometry& geometry = shape_.geometry;
  const int requests = device_->table.num_requests();
  const DecodePlan plan(config, geometry, {requests, shape_.longest(), 1});
  const Array<float> out(data_.queries.size());
  const Array<DecodeReport> device_reports(static_cast<std::size_t>(requests));
  const Array<std::byte> workspace(cuda::decode_workspace_bytes(plan));
  cuda::run(plan, {device_->query_view, device_->keys.view, device_->values.view, device_->store, device_->table},
            contiguous(out.data(), requests, geometry.query_heads, geometry.head_dim), device_reports.span(),
            workspace.span(), nullptr);
  reports = device_reports.read();
  return out.read();
}

}  // namespace locks::cli
