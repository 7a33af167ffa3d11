// A settings file of any bytes ends in settings that can be selected with, or in one of the documented exceptions.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "locks/error.h"
#include "locks/select.h"
#include "settings.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace locks::llamacpp;
  Settings settings;
  try {
    apply_json(settings, {reinterpret_cast<const char*>(data), size}, "settings.json");
    settle(settings);  // as read_settings() does after the variables
  } catch (const locks::FormatError& error) {
    if (error.byte_offset() < 0 || error.byte_offset() > static_cast<std::int64_t>(size) + 1) std::abort();
    return 0;
  } catch (const std::invalid_argument&) {
    return 0;
  }
  if (settings.decode.format == nullptr) std::abort();
  for (const int tokens : {1, 4096, 1 << 30}) {
    static_cast<void>(locks::always_attended(settings.decode.select, tokens));  // no sum leaves an int
  }
  return 0;
}
