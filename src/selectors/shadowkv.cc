// ShadowKV (Sun et al., ICML 2025), from its formulas. When a prompt has been read, its keys before the rotary embedding,
// all KV heads side by side, are replaced by a factorisation of rank 160; chunks of 8 tokens are found by the mean of their
// rotated keys (landmarks). Per KV head, the 48 chunks whose keys resemble their landmark least, the prompt's last 4 chunks
// and everything generated are attended exactly; of the other chunks the best budget / 8, with the factorisation's keys and
// the exact values. A chunk's score is the largest over the query heads of the softmax over landmarks, in bf16.
// The budget counts the selected tokens alone.
#include <algorithm>
#include <cmath>

#include <Eigen/Eigenvalues>

#include "selectors/rotary.h"
#include "selectors/support.h"

namespace locks::selectors {
namespace {

constexpr int kChunk = 8;
constexpr int kTailChunks = 4;
constexpr int kRowsAtOnce = 256;

class ShadowKv final : public Selector {
 public:
  ShadowKv(const SelectorConfig& config, const Geometry& geometry)
      : Selector(config, geometry),
        rotary_(config.rope, geometry.head_dim),
        heads_(static_cast<std::size_t>(geometry.kv_heads)) {}

  void read_prompt(const Sequence& sequence, int kv_head, View<const float, 3> /*queries*/) override {
    if (kv_head != 0) return;  // the prompt is the same for all
    prompt_tokens_ = sequence.tokens;
    factored_ = false;
  }

  /// A prompt that was not seen, in a restored cache, is all but the token being decoded.
  void begin_step(const Sequence& sequence) override {
    if (prompt_tokens_ == 0 || sequence.tokens <= prompt_tokens_) {
      prompt_tokens_ = sequence.tokens - 1;
      factored_ = false;
    }
    if (factored_) return;
    num_chunks_ = std::max(0, prompt_tokens_ / kChunk - kTailChunks);
    factorise(sequence);
    for (Head& head : heads_) head.landmarks.clear();
    factored_ = true;
  }

  void append(const Sequence& sequence, int kv_head) override {
    Head& head = heads_[static_cast<std::size_t>(kv_head)];
    if (num_chunks_ > 0 && head.landmarks.empty()) place_landmarks(sequence, kv_head, head);
  }

  [[nodiscard]] Selection select(const Sequence& sequence, int kv_head, View<const float, 2> queries) const override {
    const Head& head = heads_[static_cast<std::size_t>(kv_head)];
    const auto dims = static_cast<std::size_t>(geometry().head_dim);
    std::vector<float> most(head.chunks.size());
    for (std::int64_t query = 0; query < queries.shape[0]; ++query) {
      std::vector<float> weights;
      for (std::size_t i = 0; i < head.chunks.size(); ++i) {
        weights.push_back(geometry().softmax_scale *
                          dot(queries.at(query), head.landmarks.data() + i * dims, geometry().head_dim));
      }
      normalise(weights);
      for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], rounded(weights[i]));
    }
    Selection out;
    ListBuilder list;
    for (const std::int32_t chunk : head.outliers) list.add(chunk * kChunk, (chunk + 1) * kChunk);
    list.add(num_chunks_ * kChunk, sequence.tokens);
    out.lists.push_back(list.take());
    const std::vector<std::int32_t> best = largest(most, config().budget_tokens / kChunk);
    for (std::int64_t query = 0; query < queries.shape[0]; ++query) {
      out.stand_in.emplace_back(2 + dims)[0] = kNone;
    }
    std::vector<float> key(dims);
    std::vector<float> value(dims);
    for (const std::int32_t i : best) {
      const int chunk = head.chunks[static_cast<std::size_t>(i)];
      for (int token = chunk * kChunk; token < (chunk + 1) * kChunk; ++token) {
        rebuild_key(kv_head, token, key.data());
        load_rows(sequence, sequence.values, kv_head, token, token + 1, geometry().head_dim, value.data());
        for (std::int64_t query = 0; query < queries.shape[0]; ++query) {
          add_token(geometry().softmax_scale * dot(queries.at(query), key.data(), geometry().head_dim), value,
                    out.stand_in[static_cast<std::size_t>(query)]);
        }
      }
    }
    out.stand_in_tokens = static_cast<std::int64_t>(best.size()) * kChunk;
    const std::int64_t value_bytes = row_bytes(sequence.values.dtype, geometry().head_dim);
    out.stand_in_bytes = out.stand_in_tokens * (2 * rank_ + value_bytes) + std::int64_t{2} * rank_ * geometry().head_dim;
    return out;
  }
  [[nodiscard]] std::int64_t score_bytes(const Sequence& /*sequence*/) const noexcept override {
    return 2 * static_cast<std::int64_t>(heads_[0].landmarks.size());
  }
  /// The left factor is shared by the KV heads.
  [[nodiscard]] std::int64_t held_bytes(const Sequence& sequence) const noexcept override {
    const std::int64_t left = std::int64_t{2} * rank_ * prompt_tokens_ / geometry().kv_heads;
    return score_bytes(sequence) + left + std::int64_t{2} * rank_ * geometry().head_dim;
  }

 private:
  struct Head {
    std::vector<std::int32_t> outliers;  // chunks, ascending
    std::vector<std::int32_t> chunks;    // the others
    std::vector<float> landmarks;        // [chunks, head_dim], of the others
  };

  [[nodiscard]] int width() const noexcept { return geometry().kv_heads * geometry().head_dim; }

  /// Keys before the rotary embedding, [last - first, kv_heads * head_dim].
  [[nodiscard]] Eigen::MatrixXd plain_keys(const Sequence& sequence, int first, int last) const {
    const int head_dim = geometry().head_dim;
    Eigen::MatrixXd keys(last - first, width());
    std::vector<float> row(static_cast<std::size_t>(head_dim));
    for (int token = first; token < last; ++token) {
      for (int kv_head = 0; kv_head < geometry().kv_heads; ++kv_head) {
        load_rows(sequence, sequence.keys, kv_head, token, token + 1, head_dim, row.data());
        rotary_.turn(-token, row.data());
        for (int dim = 0; dim < head_dim; ++dim) {
          const float component = row[static_cast<std::size_t>(dim)];
          // One key that is not finite must not spoil the factors of all.
          keys(token - first, kv_head * head_dim + dim) = std::isfinite(component) ? static_cast<double>(component) : 0.0;
        }
      }
    }
    return keys;
  }

  /// X = U S V^T by the eigenvectors V of X^T X:  U = X V / S, kept with S V^T, both in bf16.
  void factorise(const Sequence& sequence) {
    rank_ = std::min({config().rank, width(), std::max(1, prompt_tokens_)});
    Eigen::MatrixXd gram = Eigen::MatrixXd::Zero(width(), width());
    for (int first = 0; first < prompt_tokens_; first += kRowsAtOnce) {
      const Eigen::MatrixXd rows = plain_keys(sequence, first, std::min(first + kRowsAtOnce, prompt_tokens_));
      gram.selfadjointView<Eigen::Lower>().rankUpdate(rows.transpose());
    }
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(gram);
    const Eigen::MatrixXd basis = solver.eigenvectors().rightCols(rank_);  // ascending eigenvalues
    const Eigen::VectorXd scale = solver.eigenvalues().tail(rank_).cwiseMax(1e-30).cwiseSqrt();
    right_.assign(static_cast<std::size_t>(rank_ * width()), 0.0F);
    for (int r = 0; r < rank_; ++r) {
      for (int i = 0; i < width(); ++i) {
        right_[static_cast<std::size_t>(r * width() + i)] = rounded(static_cast<float>(scale(r) * basis(i, r)));
      }
    }
    left_.assign(static_cast<std::size_t>(prompt_tokens_) * static_cast<std::size_t>(rank_), 0.0F);
    for (int first = 0; first < prompt_tokens_; first += kRowsAtOnce) {
      const Eigen::MatrixXd rows = plain_keys(sequence, first, std::min(first + kRowsAtOnce, prompt_tokens_)) * basis;
      for (Eigen::Index row = 0; row < rows.rows(); ++row) {
        for (int r = 0; r < rank_; ++r) {
          left_[static_cast<std::size_t>((first + row) * rank_ + r)] = rounded(static_cast<float>(rows(row, r) / scale(r)));
        }
      }
    }
  }

  void rebuild_key(int kv_head, int token, float* key) const {
    const int head_dim = geometry().head_dim;
    std::fill_n(key, head_dim, 0.0F);
    for (int r = 0; r < rank_; ++r) {
      const float factor = left_[static_cast<std::size_t>(token * rank_ + r)];
      const float* const row = right_.data() + static_cast<std::size_t>(r * width() + kv_head * head_dim);
      for (int dim = 0; dim < head_dim; ++dim) key[dim] += factor * row[dim];
    }
    rotary_.turn(token, key);
  }

  void place_landmarks(const Sequence& sequence, int kv_head, Head& head) const {
    const int head_dim = geometry().head_dim;
    const auto dims = static_cast<std::size_t>(head_dim);
    std::vector<float> all(static_cast<std::size_t>(num_chunks_) * dims);
    std::vector<float> unlike;  // the larger, the less its least similar key resembles the landmark
    std::vector<float> keys(kChunk * dims);
    for (int chunk = 0; chunk < num_chunks_; ++chunk) {
      load_rows(sequence, sequence.keys, kv_head, chunk * kChunk, (chunk + 1) * kChunk, head_dim, keys.data());
      float* const landmark = all.data() + static_cast<std::size_t>(chunk) * dims;
      for (std::size_t dim = 0; dim < dims; ++dim) {
        float sum = 0.0F;
        for (int token = 0; token < kChunk; ++token) sum += keys[static_cast<std::size_t>(token) * dims + dim];
        landmark[dim] = rounded(sum / kChunk);
      }
      float least = 2.0F;
      for (int token = 0; token < kChunk; ++token) {
        const float* const key = keys.data() + static_cast<std::size_t>(token) * dims;
        const float lengths = std::sqrt(dot(key, key, head_dim) * dot(landmark, landmark, head_dim));
        least = std::min(least, lengths > 0.0F ? dot(key, landmark, head_dim) / lengths : 0.0F);
      }
      unlike.push_back(-least);
    }
    head.outliers = largest(unlike, config().outlier_chunks);
    head.chunks.clear();
    std::vector<float> landmarks;
    for (int chunk = 0; chunk < num_chunks_; ++chunk) {
      if (std::ranges::binary_search(head.outliers, chunk)) continue;
      head.chunks.push_back(chunk);
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(chunk) * head_dim;
      landmarks.insert(landmarks.end(), from, from + head_dim);
    }
    head.landmarks = std::move(landmarks);
  }

  static void add_token(float logit, const std::vector<float>& value, std::vector<float>& state) {
    if (!(logit > kNone)) return;
    if (logit > state[0]) {
      const float factor = std::exp(state[0] - logit);
      for (std::size_t i = 1; i < state.size(); ++i) state[i] *= factor;
      state[0] = logit;
    }
    const float weight = std::exp(logit - state[0]);
    state[1] += weight;
    for (std::size_t dim = 0; dim < value.size(); ++dim) state[2 + dim] += weight * value[dim];
  }

  Rotary rotary_;
  int prompt_tokens_ = 0;
  int num_chunks_ = 0;
  bool factored_ = false;
  int rank_ = 0;
  std::vector<float> left_;   // [prompt tokens, rank]
  std::vector<float> right_;  // [rank, kv_heads * head_dim]
  std::vector<Head> heads_;
};

}  // namespace

std::unique_ptr<Selector> make_shadowkv(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<ShadowKv>(config, geometry);
}

}  // namespace locks::selectors
