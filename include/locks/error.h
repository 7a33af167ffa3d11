// A caller's mistake is std::invalid_argument. What else can go wrong:
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace locks {

/// A file or a stored record is not what it should be; `byte_offset` says where.
class FormatError : public std::runtime_error {
 public:
  FormatError(const std::string& what, std::int64_t byte_offset) : std::runtime_error(what), byte_offset_(byte_offset) {}
  [[nodiscard]] std::int64_t byte_offset() const noexcept { return byte_offset_; }

 private:
  std::int64_t byte_offset_;
};

}  // namespace locks
