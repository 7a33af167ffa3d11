// What the C++ runtime inside the plug-in takes from glibc 2.35 and later, so that 2.34 suffices. Hidden, by their
// assembler names: nobody else sees them.
#include <link.h>
#include <sys/random.h>

#include <cmath>
#include <cstdint>

namespace {

struct FoundObject {  // struct dl_find_object of x86-64
  unsigned long long flags;
  void* map_start;
  void* map_end;
  void* link_map;
  void* eh_frame;
  unsigned long long reserved[7];
};

struct Search {
  std::uintptr_t address;
  FoundObject* found;
};

int holds_address(dl_phdr_info* info, std::size_t, void* data) {
  const auto& search = *static_cast<Search*>(data);
  bool holds = false;
  void* frames = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    const std::uintptr_t start = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_GNU_EH_FRAME) frames = reinterpret_cast<void*>(start);
    if (segment.p_type != PT_LOAD || search.address < start || search.address >= start + segment.p_memsz) continue;
    holds = true;
    search.found->map_start = reinterpret_cast<void*>(start);
    search.found->map_end = reinterpret_cast<void*>(start + segment.p_memsz);
  }
  if (!holds || frames == nullptr) return 0;
  search.found->eh_frame = frames;
  return 1;
}

}  // namespace

#define LOCKS_HIDDEN __attribute__((visibility("hidden"), used))

extern "C" {

/// The unwinder asks it where a function's frame descriptions are.
LOCKS_HIDDEN int locks_find_object(void* address, FoundObject* found) __asm__("_dl_find_object");
int locks_find_object(void* address, FoundObject* found) {
  *found = {};
  Search search{reinterpret_cast<std::uintptr_t>(address), found};
  return dl_iterate_phdr(holds_address, &search) != 0 ? 0 : -1;
}

/// Behind std::random_device, which comes along unused.
LOCKS_HIDDEN std::uint32_t locks_random() __asm__("arc4random");
std::uint32_t locks_random() {
  std::uint32_t bits = 0;
  while (getrandom(&bits, sizeof bits, 0) != sizeof bits) {
  }
  return bits;
}

/// sqrt(x x + y y) without overflow on the way.
LOCKS_HIDDEN double locks_hypot(double x, double y) __asm__("hypot");
double locks_hypot(double x, double y) {
  const double a = std::fabs(x);
  const double b = std::fabs(y);
  if (std::isinf(a) || std::isinf(b)) return HUGE_VAL;
  const double large = a > b ? a : b;
  const double small = a > b ? b : a;
  if (large == 0.0) return 0.0;
  const double ratio = small / large;
  return large * std::sqrt(1.0 + ratio * ratio);
}
}
