// The definition of a summary, in double precision and in the order of the formulas.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "cpu/element.h"
#include "locks/rotation.h"
#include "summarize/records.h"

namespace locks::summarize_stage {
namespace {

using Row = std::array<double, kMaxHeadDim>;
using Page = std::array<Row, kPageTokens>;  // [tokens, head_dim]
using Square = std::array<std::array<double, kPageTokens>, kPageTokens>;
using Coefficients = std::array<std::array<double, kMaxRank>, kPageTokens>;  // [tokens, rank]

/// False if a component is not finite or too large.
bool load_page(const PagedCache& cache, std::int64_t page, int kv_head, int head_dim, bool rotated, Page& out) {
  std::array<float, kMaxHeadDim> row;
  for (int token = 0; token < kPageTokens; ++token) {
    for (int dim = 0; dim < head_dim; ++dim) {
      row[dim] = static_cast<float>(row_element(cache.dtype, cache.token(page, token, kv_head), dim) * scale_of(cache));
    }
    if (rotated) rotate(std::span(row).first(static_cast<std::size_t>(head_dim)));
    for (int dim = 0; dim < head_dim; ++dim) {
      if (!(std::abs(row[dim]) <= kLargestComponent)) return false;
      out[token][dim] = row[dim];
    }
  }
  return true;
}

void set_bits(std::byte& byte, int code, int shift) { byte |= static_cast<std::byte>(code << shift); }

double decoded(std::uint16_t bf16) { return bf16_to_float(bf16); }

/// round_half_even(value / scale) within +-limit; 0 if the scale is 0.
int mid_tread(double value, double scale, int limit) {
  if (scale == 0.0) return 0;
  return static_cast<int>(
      std::clamp(std::nearbyint(value / scale), -static_cast<double>(limit), static_cast<double>(limit)));
}

/// floor(value / step) + half within 0 .. 2 half - 1, meaning (code - half + 1/2) step; half if the step is 0.
int mid_rise(double value, double step, int half) {
  if (step == 0.0) return half;
  return static_cast<int>(std::clamp(std::floor(value / step) + half, 0.0, 2.0 * half - 1.0));
}

/// The bf16 step with the least squared error.
std::uint16_t best_step(std::span<const double> values, int half) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  std::uint16_t best = 0;
  double best_error = -1.0;
  for (const float share : kStepShares) {
    const std::uint16_t step = finite_bf16(share * largest / (half - 0.5));
    double error = 0.0;
    for (const double value : values) {
      const double missed = value - (mid_rise(value, decoded(step), half) - half + 0.5) * decoded(step);
      error += missed * missed;
    }
    if (best_error < 0.0 || error < best_error) {
      best = step;
      best_error = error;
    }
  }
  return best;
}

/// Stores the mean of the rows at `codes` and `scale`, and takes the stored mean off the rows.
void store_and_remove_mean(int head_dim, std::byte* codes, std::byte* scale, Page& rows) {
  Row mean{};
  double largest = 0.0;
  for (int dim = 0; dim < head_dim; ++dim) {
    for (int token = 0; token < kPageTokens; ++token) mean[dim] += rows[token][dim];
    mean[dim] /= kPageTokens;
    largest = std::max(largest, std::abs(mean[dim]));
  }
  const std::uint16_t step = finite_bf16(largest / 127.0);
  store_u16(scale, step);
  for (int dim = 0; dim < head_dim; ++dim) {
    const int code = mid_tread(mean[dim], decoded(step), 127);
    codes[dim] = static_cast<std::byte>(static_cast<std::int8_t>(code));
    for (int token = 0; token < kPageTokens; ++token) rows[token][dim] -= code * decoded(step);
  }
}

/// Cyclic Jacobi: on return the diagonal of `a` has the eigenvalues and the columns of `u` the unit eigenvectors.
void diagonalise(Square& a, Square& u) {
  for (int i = 0; i < kPageTokens; ++i) {
    for (int j = 0; j < kPageTokens; ++j) u[i][j] = i == j ? 1.0 : 0.0;
  }
  for (int sweep = 0; sweep < 30; ++sweep) {
    bool turned = false;
    for (int p = 0; p < kPageTokens; ++p) {
      for (int q = p + 1; q < kPageTokens; ++q) {
        if (std::abs(a[p][q]) <= 1e-16 * std::sqrt(std::abs(a[p][p] * a[q][q]))) continue;
        turned = true;
        const double half_cotangent = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
        const double tangent =
            std::copysign(1.0, half_cotangent) / (std::abs(half_cotangent) + std::hypot(1.0, half_cotangent));
        const double cosine = 1.0 / std::hypot(1.0, tangent);
        const double sine = tangent * cosine;
        const auto turn = [cosine, sine](double& x, double& y) {
          const double old = x;
          x = cosine * old - sine * y;
          y = sine * old + cosine * y;
        };
        for (int k = 0; k < kPageTokens; ++k) turn(a[k][p], a[k][q]);
        for (int k = 0; k < kPageTokens; ++k) turn(a[p][k], a[q][k]);
        for (int k = 0; k < kPageTokens; ++k) turn(u[k][p], u[k][q]);
      }
    }
    if (!turned) return;
  }
}

struct Basis {
  std::array<Row, kMaxRank> rows{};  // unit vectors, or zeros if dropped
  std::array<bool, kMaxRank> kept{};
};

Basis principal_directions(const Page& deviations, int head_dim, int rank) {
  Square gram{};
  for (int i = 0; i < kPageTokens; ++i) {
    for (int j = 0; j < kPageTokens; ++j) {
      for (int dim = 0; dim < head_dim; ++dim) gram[i][j] += deviations[i][dim] * deviations[j][dim];
    }
  }
  Square vectors;
  diagonalise(gram, vectors);
  std::array<int, kPageTokens> order;
  for (int i = 0; i < kPageTokens; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return gram[i][i] > gram[j][j]; });
  Basis basis;
  const double most = gram[order[0]][order[0]];
  for (int r = 0; r < rank; ++r) {
    const double energy = gram[order[r]][order[r]];
    if (!(energy > kNullEnergy * most)) continue;
    basis.kept[r] = true;
    std::array<double, kPageTokens> u;
    int largest = 0;
    for (int token = 0; token < kPageTokens; ++token) {
      u[token] = vectors[token][order[r]];
      if (std::abs(u[token]) > std::abs(u[largest])) largest = token;
    }
    const double factor = (u[largest] < 0.0 ? -1.0 : 1.0) / std::sqrt(energy);
    for (int dim = 0; dim < head_dim; ++dim) {
      for (int token = 0; token < kPageTokens; ++token) basis.rows[r][dim] += factor * u[token] * deviations[token][dim];
    }
  }
  return basis;
}

/// Stores the codes of the basis and gives back what they mean.
Basis store_basis(const SummaryFormat& format, const RecordLayout& at, int head_dim, const Basis& basis, std::byte* record) {
  Basis stored;
  stored.kept = basis.kept;
  for (int r = 0; r < format.rank; ++r) {
    const int bits = format.quad_bits[r / 4];
    const int half = 1 << (bits - 1);
    double step = basis_step(bits, head_dim);
    if (format.basis_has_scales) {
      double largest = 0.0;
      for (int dim = 0; dim < head_dim; ++dim) largest = std::max(largest, std::abs(basis.rows[r][dim]));
      const std::uint16_t scale = finite_bf16(largest / (half - 1));
      store_u16(record + at.basis_scales_at + 2 * r, scale);
      step = decoded(scale);
    }
    const int dims_per_block = bits == 4 ? 16 : 32;
    for (int dim = 0; dim < head_dim; ++dim) {
      const double v = basis.rows[r][dim];
      const int code = format.basis_has_scales ? mid_tread(v, step, half - 1) + half : mid_rise(v, step, half);
      std::byte& byte = record[at.quad_at[r / 4] + dim / dims_per_block * 32 + r % 4 * 8 + dim % 8];
      set_bits(byte, code, dim % dims_per_block / 8 * bits);
      stored.rows[r][dim] = (code - static_cast<double>(format.basis_zero(r / 4))) * step;
    }
  }
  return stored;
}

/// Solves (A + ridge I) x = b for the leading `n` unknowns, in place, by Cholesky's factorisation.
class RidgeSolver {
 public:
  RidgeSolver(const Square& a, int n, double ridge) : n_(n) {
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j <= i; ++j) {
        double sum = a[i][j] + (i == j ? ridge : 0.0);
        for (int k = 0; k < j; ++k) sum -= l_[i][k] * l_[j][k];
        l_[i][j] = i == j ? std::sqrt(sum) : sum / l_[j][j];
      }
    }
  }
  void solve(std::span<double> x) const {
    for (int i = 0; i < n_; ++i) {
      for (int k = 0; k < i; ++k) x[i] -= l_[i][k] * x[k];
      x[i] /= l_[i][i];
    }
    for (int i = n_ - 1; i >= 0; --i) {
      for (int k = i + 1; k < n_; ++k) x[i] -= l_[k][i] * x[k];
      x[i] /= l_[i][i];
    }
  }

 private:
  Square l_{};
  int n_;
};

/// deviations = coefficients * basis: exactly projected, or by ridge regression against the stored basis.
Coefficients fit_coefficients(const Page& deviations, const Basis& basis, int head_dim, int rank, bool refit) {
  Coefficients c{};
  Square normal{};
  for (int r = 0; r < rank; ++r) {
    if (!basis.kept[r]) continue;
    for (int token = 0; token < kPageTokens; ++token) {
      for (int dim = 0; dim < head_dim; ++dim) c[token][r] += deviations[token][dim] * basis.rows[r][dim];
    }
    for (int s = 0; s < rank; ++s) {
      if (!basis.kept[s]) continue;
      for (int dim = 0; dim < head_dim; ++dim) normal[r][s] += basis.rows[r][dim] * basis.rows[s][dim];
    }
  }
  if (refit) {  // a dropped rank has only the ridge on its diagonal, and a zero right-hand side
    const RidgeSolver solver(normal, rank, kRefitRidge);
    for (auto& row : c) solver.solve(row);
  }
  return c;
}

/// Stores the coefficients and gives back what their codes mean.
Coefficients store_coefficients(const SummaryFormat& format, const RecordLayout& at, const Coefficients& c,
                                std::byte* record) {
  Coefficients stored{};
  if (format.coefficient_bits == 8) {
    for (int token = 0; token < kPageTokens; ++token) {
      double largest = 0.0;
      for (int r = 0; r < format.rank; ++r) largest = std::max(largest, std::abs(c[token][r]));
      const std::uint16_t scale = finite_bf16(largest / 127.0);
      store_u16(record + at.coefficient_scales_at + 2 * token, scale);
      for (int r = 0; r < format.rank; ++r) {
        const int code = mid_tread(c[token][r], decoded(scale), 127);
        record[at.coefficients_at + r * kPageTokens + token] = static_cast<std::byte>(static_cast<std::int8_t>(code));
        stored[token][r] = code * decoded(scale);
      }
    }
    return stored;
  }
  for (int r = 0; r < format.rank; ++r) {
    std::array<double, kPageTokens> column;
    for (int token = 0; token < kPageTokens; ++token) column[token] = c[token][r];
    const std::uint16_t step = best_step(column, 8);
    store_u16(record + at.coefficient_scales_at + 2 * r, step);
    for (int token = 0; token < kPageTokens; ++token) {
      const int code = mid_rise(column[token], decoded(step), 8);
      set_bits(record[at.coefficients_at + r * 8 + token % 8], code, token < 8 ? 0 : 4);
      stored[token][r] = (code - 7.5) * decoded(step);
    }
  }
  return stored;
}

double residual_variance(const Page& deviations, const Basis& basis, const Coefficients& c, int head_dim, int rank) {
  double sum = 0.0;
  for (int token = 0; token < kPageTokens; ++token) {
    for (int dim = 0; dim < head_dim; ++dim) {
      double missed = deviations[token][dim];
      for (int r = 0; r < rank; ++r) missed -= c[token][r] * basis.rows[r][dim];
      sum += missed * missed;
    }
  }
  return sum / (kPageTokens * head_dim);
}

/// The value part: the stored mean, and the regression of what it leaves on the stored coefficients.
void store_values(const SummaryFormat& format, int head_dim, const Coefficients& c, Page& values, std::byte* record) {
  const ValueLayout at = value_layout(format, head_dim);
  store_and_remove_mean(head_dim, record + at.mean_at, record + at.mean_scale_at, values);
  Square normal{};
  double ridge = 0.0;
  for (int r = 0; r < format.rank; ++r) {
    for (int s = 0; s < format.rank; ++s) {
      for (int token = 0; token < kPageTokens; ++token) normal[r][s] += c[token][r] * c[token][s];
    }
    ridge += kSlopeRidge * normal[r][r] / format.rank;
  }
  std::array<Row, kMaxRank> slopes{};
  if (ridge > 0.0) {
    const RidgeSolver solver(normal, format.rank, ridge);
    for (int dim = 0; dim < head_dim; ++dim) {
      std::array<double, kMaxRank> x{};
      for (int r = 0; r < format.rank; ++r) {
        for (int token = 0; token < kPageTokens; ++token) x[r] += c[token][r] * values[token][dim];
      }
      solver.solve(x);
      for (int r = 0; r < format.rank; ++r) slopes[r][dim] = x[r];
    }
  }
  const int row_bytes = head_dim / 4;
  for (int r = 0; r < format.rank; ++r) {
    const std::uint16_t step = best_step(std::span(slopes[r]).first(static_cast<std::size_t>(head_dim)), 2);
    store_u16(record + at.slope_scales_at + 2 * r, step);
    for (int dim = 0; dim < head_dim; ++dim) {
      std::byte& byte = record[at.slopes_at + r * row_bytes + dim % row_bytes];
      set_bits(byte, mid_rise(slopes[r][dim], decoded(step), 2), dim / row_bytes * 2);
    }
  }
}

}  // namespace

bool summarize_reference(const SummarizeArgs& args, std::int64_t page, int kv_head) noexcept {
  const SummaryFormat& format = *args.out.format;
  const int head_dim = args.head_dim;
  const bool with_values = args.out.value_data != nullptr;
  Page keys;
  Page values;
  if (!load_page(args.keys, page, kv_head, head_dim, format.rotated, keys) ||
      (with_values && !load_page(*args.values, page, kv_head, head_dim, true, values))) {
    write_always_attend(args, page, kv_head);
    return false;
  }
  const RecordLayout at = record_layout(format, head_dim);
  std::byte* record = args.out.record(page, kv_head);
  std::memset(record, 0, static_cast<std::size_t>(at.record_bytes));
  store_and_remove_mean(head_dim, record + at.mean_at, record + at.mean_scale_at, keys);
  const Basis basis = principal_directions(keys, head_dim, format.rank);
  const Basis stored_basis = store_basis(format, at, head_dim, basis, record);
  const Coefficients fitted =
      fit_coefficients(keys, format.refit ? stored_basis : basis, head_dim, format.rank, format.refit);
  const Coefficients c = store_coefficients(format, at, fitted, record);
  store_u16(record + at.residual_at, finite_bf16(residual_variance(keys, stored_basis, c, head_dim, format.rank)));
  record[at.format_at] = static_cast<std::byte>(format.id);
  if (with_values) {
    std::byte* value_record = args.out.value_record(page, kv_head);
    std::memset(value_record, 0, static_cast<std::size_t>(value_layout(format, head_dim).record_bytes));
    store_values(format, head_dim, c, values, value_record);
  }
  return true;
}

}  // namespace locks::summarize_stage
