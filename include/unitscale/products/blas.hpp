// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/products/pack.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

// Large float and double products by a BLAS, where the build asked for one (CMake: UNITSCALE_BLAS). Every build decides
// here which products go to a BLAS and how they are cut. A BLAS is needed, and called, only under UNITSCALE_USE_BLAS.
namespace unitscale::products {

template <class T>
struct MatmulArguments;  // product.hpp, which includes this

/// Whether `matmul` calls the BLAS: the default of the second template argument of `matmul`. A translation unit with
/// this setting and one without it instantiate two functions, not one name with two contents. Functions that call
/// matmul still have one name. So give every unit of a program one setting, as the CMake target does. Otherwise such a
/// product may run either way.
#if defined(UNITSCALE_USE_BLAS)
constexpr bool uses_blas = true;
#else
constexpr bool uses_blas = false;
#endif

/// The Fortran routines C = alpha op(A) op(B) + beta C on column-major matrices. The lengths of the texts come last.
/// They are declared under names of this library. Another header may declare them with const or plain pointers,
/// returning int or nothing: such declarations do no harm.
#if defined(__APPLE__)
#define UNITSCALE_SYMBOL(name) __asm__("_" name)
#else
#define UNITSCALE_SYMBOL(name) __asm__(name)
#endif
void blas_gemm(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const float* alpha,
               const float* a, const int* a_stride, const float* b, const int* b_stride, const float* beta, float* c,
               const int* c_stride, std::size_t op_a_length, std::size_t op_b_length) UNITSCALE_SYMBOL("sgemm_");
void blas_gemm(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const double* alpha,
               const double* a, const int* a_stride, const double* b, const int* b_stride, const double* beta,
               double* c, const int* c_stride, std::size_t op_a_length, std::size_t op_b_length)
    UNITSCALE_SYMBOL("dgemm_");
/// Functions of OpenBLAS, null in any other BLAS. `openblas_parallel` returns the kind of threads: 1 for its own, 2 for
/// OpenMP.
[[gnu::weak]] int openblas_parallel() UNITSCALE_SYMBOL("openblas_get_parallel");
[[gnu::weak]] void openblas_threads(int threads) UNITSCALE_SYMBOL("openblas_set_num_threads");
#undef UNITSCALE_SYMBOL

/// How a BLAS reads a matrix: column-major ('N'), or row-major, that is transposed ('T'). `stride` is the number of
/// elements from one column ('N') or row ('T') to the next.
struct BlasMatrix {
    char op = 'N';
    int stride = 0;
    friend bool operator==(const BlasMatrix&, const BlasMatrix&) = default;
};
/// Empty if the matrix is neither column-major nor row-major.
template <class T>
[[nodiscard]] std::optional<BlasMatrix> blas_matrix(const MatrixView<T>& view, std::ptrdiff_t rows,
                                                    std::ptrdiff_t cols) {
    constexpr std::ptrdiff_t most = std::numeric_limits<int>::max();
    const auto fits = [&](std::ptrdiff_t step, std::ptrdiff_t stride, std::ptrdiff_t length) {
        return step == 1 && stride >= std::max<std::ptrdiff_t>(length, 1) && stride <= most && rows <= most &&
               cols <= most;
    };
    if (fits(view.row_stride, view.col_stride, rows)) return BlasMatrix{'N', static_cast<int>(view.col_stride)};
    if (fits(view.col_stride, view.row_stride, cols)) return BlasMatrix{'T', static_cast<int>(view.row_stride)};
    return std::nullopt;
}

template <class T>
inline constexpr bool blas_type = std::is_same_v<T, float> || std::is_same_v<T, double>;

/// Whether a BLAS can compute the product. Elements are float or double in memory, not rounded, not packed, and not
/// scaled by row or column. alpha = 0 is excluded: a BLAS would not read A and B, so their NaN would be lost.
template <class T>
[[nodiscard]] bool blas_can(const MatmulArguments<T>& args) {
    if (!blas_type<T>) return false;
    if (!args.a.is_plain() || !args.b.is_plain()) return false;
    if (args.row_scale != nullptr || args.col_scale != nullptr || args.alpha == 0 || args.k <= 0) return false;
    return blas_matrix(args.a.view, args.m, args.k) && blas_matrix(args.b.view, args.k, args.n) &&
           blas_matrix(args.c, args.m, args.n);
}

/// Whether a BLAS is worth calling. Smaller products, and products with a short side, are faster by this library's
/// kernels, which also cut them into smaller jobs. Measured (docs/benchmarks.md).
[[nodiscard]] constexpr bool blas_pays(std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k) noexcept {
    constexpr std::ptrdiff_t side = 128;
    return m >= side && n >= side && k >= side && m * n >= (std::ptrdiff_t{1} << 28) / k;
}

/// C is cut into a grid of cells. One thread computes a cell by one call. The grid does not depend on the number of
/// threads, so bits do not either. Rows and columns are counted as the BLAS sees them; cutting columns costs it more.
inline constexpr std::ptrdiff_t blas_cell_rows = 512, blas_cell_cols = 1024;
/// Number of parts of `size`, of at most `most` each, and the begin of part p. For p = the number of parts: the end.
[[nodiscard]] constexpr std::ptrdiff_t blas_parts(std::ptrdiff_t size, std::ptrdiff_t most) noexcept {
    return (size + most - 1) / most;
}
[[nodiscard]] constexpr std::ptrdiff_t blas_part_begin(std::ptrdiff_t size, std::ptrdiff_t most,
                                                       std::ptrdiff_t p) noexcept {
    constexpr std::ptrdiff_t step = 16;  // whole vectors
    const std::ptrdiff_t steps = (size + step - 1) / step;
    return std::min(size, steps * p / blas_parts(size, most) * step);
}

/// Limits the BLAS to the calling thread, so that the bits of a cell depend on nothing else. OpenBLAS with threads of
/// its own has one setting for the process: the constructor sets it to 1 and leaves it there. A BLAS that uses OpenMP
/// (OpenBLAS, MKL) opens no region inside ours, and uses one thread where it asks OpenMP. Another BLAS must be told in
/// its own way (BLIS: BLIS_NUM_THREADS=1).
class OneBlasThread : OneThreadElsewhere {
public:
    OneBlasThread() {
        if (openblas_threads != nullptr && (openblas_parallel == nullptr || openblas_parallel() == 1))
            openblas_threads(1);
    }
};

/// `matmul` by the BLAS, for arguments with blas_can. Sums are in the order of the BLAS. The results equal the results
/// of our kernels within rounding, infinities and NaN included.
/// Reference: Dongarra, Du Croz, Hammarling, Duff 1990, "A set of level 3 basic linear algebra subprograms".
/// Test: tests/products/blas_test.cpp (which products are cut, and how), tests/consumers/blas (products)
template <class T>
void matmul_blas(const Execution& execution, const MatmulArguments<T>& args) {
    if (args.m <= 0 || args.n <= 0 || args.batch <= 0) return;
    // A row-major C is, read column by column, C^T = B^T A^T.
    const bool by_columns = blas_matrix(args.c, args.m, args.n)->op == 'N';
    const std::ptrdiff_t rows = by_columns ? args.m : args.n, cols = by_columns ? args.n : args.m;
    const MatrixView<const T> left = by_columns ? args.a.view : args.b.view.transposed(),
                              right = by_columns ? args.b.view : args.a.view.transposed();
    const MatrixView<T> c = by_columns ? args.c : args.c.transposed();
    const BlasMatrix a = *blas_matrix(left, rows, args.k), b = *blas_matrix(right, args.k, cols);
    const int c_stride = blas_matrix(c, rows, cols)->stride;
    const std::ptrdiff_t row_parts = blas_parts(rows, blas_cell_rows), col_parts = blas_parts(cols, blas_cell_cols);
    const std::ptrdiff_t cells = row_parts * col_parts;

    const OneBlasThread one_thread;
    parallel_for(execution.threads, args.batch * cells, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t job = begin; job < end; ++job) {
            const std::ptrdiff_t item = job / cells, cell = job % cells, row = cell % row_parts, col = cell / row_parts;
            const std::ptrdiff_t i0 = blas_part_begin(rows, blas_cell_rows, row),
                                 j0 = blas_part_begin(cols, blas_cell_cols, col);
            const auto m = static_cast<int>(blas_part_begin(rows, blas_cell_rows, row + 1) - i0);
            const auto n = static_cast<int>(blas_part_begin(cols, blas_cell_cols, col + 1) - j0);
            const auto k = static_cast<int>(args.k);
            const MatrixView<T> out = c.item(item).block(i0, j0);
            blas_gemm(&a.op, &b.op, &m, &n, &k, &args.alpha, left.item(item).at(i0, 0), &a.stride,
                      right.item(item).at(0, j0), &b.stride, &args.gamma, out.data, &c_stride, 1, 1);
            if (args.bias == nullptr) continue;
            for (std::ptrdiff_t j = 0; j < n; ++j)
                for (std::ptrdiff_t i = 0; i < m; ++i)
                    *out.at(i, j) = multiply_add(args.alpha, args.bias[by_columns ? j0 + j : i0 + i], *out.at(i, j));
        }
    });
}

}  // namespace unitscale::products
