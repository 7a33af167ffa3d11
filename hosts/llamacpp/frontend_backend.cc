// Front end B: an accelerator backend for GGML_BACKEND_PATH and ggml_backend_load(). It claims no operation and computes
// nothing; when the scheduler asks what it supports, it rewrites the attention nodes that the CPU backend will then run.
//
// The structures of ggml's private ggml-backend-impl.h that a backend must fill are reduced to what has not changed
// between versions, and that is checked on the host's own CPU backend.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "exports.h"
#include "plugin.h"
#include "report.h"

namespace locks::llamacpp {
namespace {

struct Registration {
  int api_version;
  const char* (*name)(void*);
  std::size_t (*device_count)(void*);
  void* (*device)(void*, std::size_t);
  void* (*proc_address)(void*, const char*);
  void* context;
};

enum DeviceSlot : std::size_t {
  kName,
  kDescription,
  kMemory,
  kType,
  kProperties,
  kInitBackend,
  kBufferType,
  kHostBufferType,
  kBufferFromPointer,
  kSupportsOp,
  kSupportsBufferType,
  kOffloadOp,
  kEventNew,
  kEventFree,
  kEventSynchronize,
  kDeviceSlots,
};
using AnyFunction = void (*)();
struct Device {
  std::array<AnyFunction, kDeviceSlots> functions;
  void* registration;
  void* context;
};

// struct ggml_backend: a pointer to its GUID, `num_slots` function pointers, the device, a context.
struct BackendShape {
  std::size_t num_slots = 0;
  std::size_t compute_slot = 0;
};
constexpr std::size_t kMostSlots = 32;
constexpr std::size_t kFewestSlots = 13;
constexpr std::size_t kNameSlot = 0;
constexpr std::size_t kFreeSlot = 1;

BackendShape shape;
Registration registration;
Device device;
std::atomic<bool> loaded{false};
std::atomic<int> living_backends{0};

const char* name(void*) { return "LOCKS"; }

void free_backend(void* backend) {
  std::free(backend);
  if (living_backends.fetch_sub(1) != 1) return;
  if (Plugin* const active = plugin()) active->forget_all();
}

int compute_nothing(void*, void*) { return -1; }  // GGML_STATUS_FAILED; nothing is ever claimed

void* init_backend(void* of_device, const char*) {
  static std::array<unsigned char, 16> guid{0x6c, 0x6f, 0x63, 0x6b, 0x73, 0x2d, 0x67, 0x67,
                                            0x6d, 0x6c, 0x2d, 0x30, 0x30, 0x30, 0x30, 0x31};
  auto** const backend = static_cast<void**>(std::calloc(shape.num_slots + 3, sizeof(void*)));
  if (backend == nullptr) return nullptr;
  backend[0] = guid.data();
  backend[1 + kNameSlot] = reinterpret_cast<void*>(&name);
  backend[1 + kFreeSlot] = reinterpret_cast<void*>(&free_backend);
  backend[1 + shape.compute_slot] = reinterpret_cast<void*>(&compute_nothing);
  backend[1 + shape.num_slots] = of_device;
  living_backends.fetch_add(1);
  return backend;
}

void memory(void*, std::size_t* free, std::size_t* total) { *free = *total = 0; }
int type(void*) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }
void properties(void*, ggml_backend_dev_props* into) {
  *into = {};
  into->name = into->description = "LOCKS";
  into->type = GGML_BACKEND_DEVICE_TYPE_ACCEL;
}
ggml_backend_buffer_type_t buffer_type(void*) {
  const Host& ggml = *host();
  return ggml.device_buffer_type(ggml.device_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}
bool supports_buffer_type(void*, ggml_backend_buffer_type_t type) { return host()->buffer_type_is_host(type); }

/// A node that was placed on a GPU must not be rewritten under it, and where it was placed cannot be seen.
bool has_gpu() noexcept {
  const Host& ggml = *host();
  return ggml.device_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) != nullptr ||
         ggml.device_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU) != nullptr;
}

bool supports_op(void*, const ggml_tensor* node) {
  try {
    if (has_gpu()) {
      reporter().say_once(Notice::kGpu, "not active: a GPU backend is loaded; use the evaluation callback");
    } else if (Plugin* const active = plugin()) {
      active->visit(const_cast<ggml_tensor*>(node), Plugin::Sees::kPreparation);
    }
  } catch (...) {
    reporter().say_once(Notice::kEntryFailed, "an attention node is left to the host: out of memory");
  }
  return false;
}

std::size_t device_count(void*) { return 1; }
void* get_device(void*, std::size_t) { return &device; }
void* proc_address(void*, const char*) { return nullptr; }

/// Reads the shape of struct ggml_backend off the host's CPU backend. False if something is not where it should be.
bool probe_shape(const Host& ggml, ggml_backend_dev_t cpu) {
  const auto* const cpu_device = reinterpret_cast<const Device*>(cpu);
  const auto cpu_buffer_type =
      reinterpret_cast<ggml_backend_buffer_type_t (*)(ggml_backend_dev_t)>(cpu_device->functions[kBufferType]);
  if (cpu_device->registration != ggml.device_registry(cpu) || cpu_buffer_type == nullptr ||
      cpu_device->functions[kSupportsOp] == nullptr || cpu_buffer_type(cpu) != ggml.device_buffer_type(cpu)) {
    return false;
  }
  ggml_backend_t const backend = ggml.device_init(cpu, nullptr);
  if (backend == nullptr) return false;
  auto* const* const words = reinterpret_cast<void* const*>(backend);
  shape = {};
  for (std::size_t word = 1; word <= kMostSlots && shape.num_slots == 0; ++word) {
    if (words[word] == cpu) shape.num_slots = word - 1;
  }
  // The CPU backend fills name and free, then nothing up to graph_plan_create; graph_compute is four slots further.
  for (std::size_t slot = 2; slot + 4 < shape.num_slots && shape.compute_slot == 0; ++slot) {
    if (words[1 + slot] != nullptr) shape.compute_slot = slot + 4;
  }
  const bool fits = shape.num_slots >= kFewestSlots && shape.compute_slot != 0 && words[1 + shape.compute_slot] != nullptr &&
                    words[1 + kNameSlot] != nullptr && words[1 + kFreeSlot] != nullptr;
  ggml.backend_free(backend);
  return fits;
}

ggml_backend_reg_t load() {
  const Plugin* const active = plugin();
  if (active == nullptr) return nullptr;
  const Host& ggml = active->host();
  if (loaded.load()) {
    say("already loaded; this second time changes nothing");
    return nullptr;
  }
  ggml_backend_dev_t const cpu = ggml.device_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (cpu == nullptr) {
    say("not active: ggml has no CPU backend yet; load that first");
    return nullptr;
  }
  if (has_gpu()) {
    reporter().say_once(Notice::kGpu, "not active: a GPU backend is loaded; use the evaluation callback");
    return nullptr;
  }
  if (!probe_shape(ggml, cpu)) {
    say("not active: the backend interface of ggml " + ggml.version + " is not laid out in a known way");
    return nullptr;
  }
  const int api_version = *reinterpret_cast<const int*>(ggml.device_registry(cpu));
  registration = {api_version, &name, &device_count, &get_device, &proc_address, nullptr};
  device.functions[kName] = reinterpret_cast<AnyFunction>(&name);
  device.functions[kDescription] = reinterpret_cast<AnyFunction>(&name);
  device.functions[kMemory] = reinterpret_cast<AnyFunction>(&memory);
  device.functions[kType] = reinterpret_cast<AnyFunction>(&type);
  device.functions[kProperties] = reinterpret_cast<AnyFunction>(&properties);
  device.functions[kInitBackend] = reinterpret_cast<AnyFunction>(&init_backend);
  device.functions[kBufferType] = reinterpret_cast<AnyFunction>(&buffer_type);
  device.functions[kSupportsOp] = reinterpret_cast<AnyFunction>(&supports_op);
  device.functions[kSupportsBufferType] = reinterpret_cast<AnyFunction>(&supports_buffer_type);
  device.registration = &registration;
  loaded.store(true);
  return reinterpret_cast<ggml_backend_reg_t>(&registration);
}

}  // namespace

bool backend_is_loaded() noexcept { return loaded.load(std::memory_order_relaxed); }

}  // namespace locks::llamacpp

extern "C" LOCKS_EXPORT ggml_backend_reg_t ggml_backend_init() {
  try {
    return locks::llamacpp::load();
  } catch (...) {
    return nullptr;
  }
}

extern "C" LOCKS_EXPORT int ggml_backend_score() { return 1; }
