// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>

// The other libraries that bench/products/product_bench.cpp measures, behind one interface.
namespace unitscale::bench {

/// A batch of float products C = A B, with every matrix contiguous: A [m,k], or [k,m] read transposed; B [k,n], or
/// [n,k] read transposed; C [m,n].
struct Problem {
    std::ptrdiff_t m = 0, n = 0, k = 0, batch = 1;
    bool a_transposed = false, b_transposed = false;

    [[nodiscard]] std::ptrdiff_t a_size() const { return m * k; }
    [[nodiscard]] std::ptrdiff_t b_size() const { return k * n; }
    [[nodiscard]] std::ptrdiff_t c_size() const { return m * n; }
};

/// One product, ready to be run repeatedly.
using Product = std::function<void()>;

/// Eigen's product. product_eigen.cpp compiles it for each instruction set, so that the program starts on any
/// processor.
using EigenProduct = void(const Problem&, const float* a, const float* b, float* c, int threads);
EigenProduct eigen_product_baseline, eigen_product_avx2, eigen_product_avx512;

/// OpenBLAS: sgemm. oneDNN: matmul of float, or of bf16 inputs (converted before, not timed) with a float result. Each
/// is in product_<library>.cpp, and absent if the library is. oneDNN has no bf16 product for some processors, and the
/// result is empty then.
[[nodiscard]] Product openblas_product(const Problem&, const float* a, const float* b, float* c, int threads);
[[nodiscard]] Product onednn_product(const Problem&, const float* a, const float* b, float* c, int threads, bool bf16);
/// The processor type that OpenBLAS detected.
[[nodiscard]] const char* openblas_core();
/// The instruction set that oneDNN uses (environment variable ONEDNN_MAX_CPU_ISA).
[[nodiscard]] const char* onednn_isa();

}  // namespace unitscale::bench
