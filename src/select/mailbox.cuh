// What the thread blocks of a gang write into each other's shared memory without a meeting. A meeting waits until all writes
// of all threads have arrived everywhere; whoever waits for a mailbox waits for its own bytes alone.
#pragma once

#include "select/gang.cuh"

namespace locks::cuda::select_kernels {

/// Counts the bytes that come. It lies in dynamic shared memory at the same place in all blocks, and is used once. Blocks of
/// a gang of one write plainly.
class Mailbox {
 public:
#ifdef LOCKS_EMULATED
  using Word = emulator::Mailbox;
#else
  using Word = std::uint64_t;
#endif

  __device__ Mailbox(Word* word, const Gang& gang) : word_(word), gang_(gang) {}

  /// `bytes` will come. By one thread; then the gang meets (Gang::arrive()), and then they may be sent.
  __device__ void open([[maybe_unused]] int bytes) const {
#if __CUDA_ARCH__ >= 900
    const std::uint32_t own = address_of(word_);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(own) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(own), "r"(bytes) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#elif defined(LOCKS_EMULATED)
    word_->open(bytes);
#endif
  }

  /// To the place in block `rank` that this one has at `own`: 8 or 16 bytes.
  template <class T>
  __device__ void send(T* own, const T& value, int rank) const {
    static_assert(sizeof(T) == 8 || sizeof(T) == 16);
#if __CUDA_ARCH__ >= 900
    if (gang_.size() > 1) {
      const std::uint32_t to = in_block(address_of(own), rank);
      const std::uint32_t box = in_block(address_of(word_), rank);
      if constexpr (sizeof(T) == 8) {
        const auto words = __builtin_bit_cast(uint2, value);
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
                     "r"(words.x), "r"(words.y), "r"(box)
                     : "memory");
      } else {
        const auto words = __builtin_bit_cast(uint4, value);
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                     "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(box)
                     : "memory");
      }
      return;
    }
#elif defined(LOCKS_EMULATED)
    if (gang_.size() > 1) return emulator::at(word_, rank)->put(emulator::at(own, rank), value);
#endif
    *own = value;
  }

  /// All has come, and what threads of the block itself wrote is there too. All of them come here.
  __device__ void wait() const {
    __syncthreads();
    if (gang_.size() == 1) return;
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred come;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 come, [%0], 0;\n"
        "@!come bra again;\n"
        "}\n" ::"r"(address_of(word_))
        : "memory");
#elif defined(LOCKS_EMULATED)
    word_->wait();
#endif
  }

 private:
#if __CUDA_ARCH__ >= 900
  static __device__ std::uint32_t address_of(const void* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  }
  static __device__ std::uint32_t in_block(std::uint32_t own, int rank) {
    std::uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
    return there;
  }
#endif

  Word* word_;
  const Gang& gang_;
};

}  // namespace locks::cuda::select_kernels
