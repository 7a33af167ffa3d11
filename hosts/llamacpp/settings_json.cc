// The settings file. nlohmann's parser is slow to compile, so it is alone here.
#include <cstdint>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "locks/error.h"
#include "settings.h"

namespace locks::llamacpp {
namespace {

/// Takes a flat object of numbers, booleans and strings; anything nested is refused where it begins, so that depth costs
/// nothing.
class FlatObject : public nlohmann::json_sax<nlohmann::json> {
 public:
  FlatObject(Settings& settings, const std::string& file_name) : settings_(settings), file_name_(file_name) {}

  bool null() override { return value("null"); }
  bool boolean(bool is_true) override {
    if (key_ == "prefill") return value(is_true ? "on" : "off");
    return value(is_true ? "1" : "0");
  }
  bool number_integer(number_integer_t number) override { return value(std::to_string(number)); }
  bool number_unsigned(number_unsigned_t number) override { return value(std::to_string(number)); }
  bool number_float(number_float_t, const string_t& text) override { return value(text); }
  bool string(string_t& text) override { return value(text); }
  bool binary(binary_t&) override { return nested(); }
  bool start_array(std::size_t) override { return nested(); }
  bool end_array() override { return true; }
  bool start_object(std::size_t) override { return depth_++ == 0 ? true : nested(); }
  bool end_object() override { return true; }
  bool key(string_t& text) override {
    key_ = text;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    throw FormatError(file_name_ + " is not JSON at byte " + std::to_string(position) + ": " + error.what(),
                      static_cast<std::int64_t>(position));
  }

 private:
  bool value(const std::string& text) {
    if (depth_ == 0) return nested();
    apply_setting(settings_, key_, text, file_name_ + ": '" + key_.substr(0, 80) + "'");
    return true;
  }
  bool nested() {
    throw std::invalid_argument(file_name_ + ": expected one object with a number, a string or true/false for each setting");
  }

  Settings& settings_;
  const std::string& file_name_;
  std::string key_;
  int depth_ = 0;
};

}  // namespace

void apply_json(Settings& settings, std::string_view text, const std::string& file_name) {
  FlatObject handler(settings, file_name);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
}

}  // namespace locks::llamacpp
