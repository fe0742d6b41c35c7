// SPDX-License-Identifier: MIT
// Products of a program that was built with UNITSCALE_BLAS.
// Products for the BLAS are counted when they are passed to it, and agree with the definition.
// Results have equal bits for any number of threads.
#include <unitscale/base/random.hpp>
#include <unitscale/products/product.hpp>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

// The linker's option --wrap=sgemm_ sends every call of sgemm_ to __wrap_sgemm_, and of __real_sgemm_ to the BLAS.
template <class T>
using Routine = void(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const T* alpha,
                     const T* a, const int* lda, const T* b, const int* ldb, const T* beta, T* c, const int* ldc,
                     std::size_t, std::size_t);
Routine<float> real_sgemm __asm__("__real_sgemm_"), counted_sgemm __asm__("__wrap_sgemm_");
Routine<double> real_dgemm __asm__("__real_dgemm_"), counted_dgemm __asm__("__wrap_dgemm_");
std::atomic<int> calls = 0;
[[gnu::weak]] int openblas_setting() __asm__("openblas_get_num_threads");

void counted_sgemm(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const float* alpha,
                   const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
                   const int* ldc, std::size_t one, std::size_t also_one) {
    ++calls;
    real_sgemm(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, one, also_one);
}
void counted_dgemm(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const double* alpha,
                   const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
                   const int* ldc, std::size_t one, std::size_t also_one) {
    ++calls;
    real_dgemm(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, one, also_one);
}

namespace {

void require(bool good, std::string_view what) {
    if (good) return;
    std::printf("%.*s\n", static_cast<int>(what.size()), what.data());
    std::exit(1);
}

/// A batch of matrices, by rows or by columns, with gaps between the matrices.
template <class T>
struct Dense {
    std::vector<T> data;
    MatrixView<T> view;

    Dense(std::ptrdiff_t rows, std::ptrdiff_t cols, std::ptrdiff_t batch, bool by_columns, std::ptrdiff_t gap,
          std::uint64_t stream) {
        const std::ptrdiff_t stride = (by_columns ? rows : cols) + gap;
        view = {nullptr, by_columns ? 1 : stride, by_columns ? stride : 1, stride * (by_columns ? cols : rows) + gap};
        data.resize(static_cast<std::size_t>(view.batch_stride * batch));
        for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<T>(random_normal({11, stream}, i));
        view.data = data.data();
    }
    Dense(const Dense&) = delete;
};

/// Equal, or both NaN, or within the error of summing k products of size `scale` in T.
template <class T>
bool agree(T value, double expected, double scale) {
    if (std::isnan(expected)) return std::isnan(value);
    if (std::isinf(expected)) return static_cast<double>(value) == expected;
    return std::abs(static_cast<double>(value) - expected) <=
           scale * static_cast<double>(std::numeric_limits<T>::epsilon());
}

template <class T>
std::vector<double> doubles(const std::vector<T>& data) {
    return {data.begin(), data.end()};
}

/// Small products of every orientation, factor and kind of number, by the BLAS and by the definition in double.
template <class T>
void check_random_products(unsigned seed, int count) {
    std::mt19937 generator(seed);
    const auto pick = [&](auto... values) {
        const std::array all{values...};
        return all[generator() % all.size()];
    };
    const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
    for (int trial = 0; trial < count; ++trial) {
        MatmulArguments<T> args;
        const auto [m, n] = pick(std::pair{1, 7}, std::pair{17, 1}, std::pair{33, 65}, std::pair{530, 9},
                                 std::pair{5, 1100});  // the last two shapes have several cells
        args.m = m, args.n = n, args.k = pick(1, 2, 19, 40), args.batch = pick(1, 1, 3);
        const auto operand = [&](std::ptrdiff_t rows, std::ptrdiff_t cols, std::uint64_t stream) {
            return Dense<T>(rows, cols, args.batch, generator() % 2 == 0, pick(0, 0, 3), stream);
        };
        Dense<T> a = operand(args.m, args.k, 1), b = operand(args.k, args.n, 2), c = operand(args.m, args.n, 3);
        const Dense<T> bias(1, args.n, 1, false, 0, 4);
        for (Dense<T>* x : {&a, &b})
            if (generator() % 4 == 0) x->data[generator() % x->data.size()] = pick(inf, -inf, nan, T(0));
        args.a = {a.view}, args.b = {b.view}, args.c = c.view;
        args.alpha = pick(T(1), T(-0.3)), args.gamma = pick(T(0), T(1), T(-0.7));
        if (args.gamma == 0) c.data[0] = nan;  // must not be read
        if (generator() % 2 == 0) args.bias = bias.data.data();

        const auto a_wide = doubles(a.data), b_wide = doubles(b.data), bias_wide = doubles(bias.data);
        auto expected = doubles(c.data);
        matmul_naive<double>({.m = args.m,
                              .n = args.n,
                              .k = args.k,
                              .batch = args.batch,
                              .a = {{a_wide.data(), a.view.row_stride, a.view.col_stride, a.view.batch_stride}},
                              .b = {{b_wide.data(), b.view.row_stride, b.view.col_stride, b.view.batch_stride}},
                              .c = {expected.data(), args.c.row_stride, args.c.col_stride, args.c.batch_stride},
                              .alpha = static_cast<double>(args.alpha),
                              .gamma = static_cast<double>(args.gamma),
                              .bias = args.bias != nullptr ? bias_wide.data() : nullptr});
        const auto before = c.data;
        std::vector<T> one;
        for (const int threads : {1, 2, 3}) {
            c.data = before;  // assigned, not moved, so that the views stay valid
            calls = 0;
            require(blas_can(args), "a product that a BLAS can do was found unfit");
            matmul_blas({.threads = threads}, args);
            require(calls > 0, "the BLAS was not called");
            if (threads == 1) one = c.data;
            for (std::size_t i = 0; i < one.size(); ++i)
                require(c.data[i] == one[i] || (std::isnan(c.data[i]) && std::isnan(one[i])), "threads change bits");
        }
        const double scale = 30 + 8 * static_cast<double>(args.k);
        for (std::size_t i = 0; i < one.size(); ++i) {
            if (!agree(one[i], expected[i], scale))
                std::printf("m %td n %td k %td: %g is not %g\n", args.m, args.n, args.k, double(one[i]), expected[i]);
            require(agree(one[i], expected[i], scale), "a product disagrees with the definition");
        }
    }
}

/// Checks the products that `matmul` passes to the BLAS: they agree with our kernels' results, within rounding.
template <class T>
void check_choice() {
    const std::ptrdiff_t m = 520, n = 1030, k = 502;  // 2 x 1 cells, by columns
    Dense<T> a(m, k, 1, true, 0, 1), b(k, n, 1, false, 0, 2), c(m, n, 1, false, 0, 3);
    MatmulArguments<T> args{.m = m, .n = n, .k = k, .a = {a.view}, .b = {b.view}, .c = c.view};
    matmul_with(active_isa(), {}, args);
    require(calls == 0, "matmul_with asked the BLAS");
    const auto ours = c.data;
    matmul({.threads = 2}, args);
    require(calls == 3, "a large product is not cut into three cells of the BLAS");
    for (std::size_t i = 0; i < ours.size(); ++i)
        require(agree(c.data[i], static_cast<double>(ours[i]), 8 * static_cast<double>(k)),
                "the BLAS disagrees with our kernels");
    const auto by_blas = c.data;

    if (openblas_threads != nullptr) openblas_threads(2);  // as user code may do
    std::vector<T> other(c.data.size());
    std::thread beside([&] {
        MatmulArguments<T> own = args;
        own.c.data = other.data();
        for (int i = 0; i < 2; ++i) matmul({.threads = 2}, own);
    });
    for (int i = 0; i < 2; ++i) matmul({.threads = 1}, args);
    beside.join();
    require(c.data == by_blas && other == by_blas, "products of two threads at a time differ from those of one");
    if (openblas_threads != nullptr && openblas_parallel() == 1)
        require(openblas_setting() == 1, "OpenBLAS kept threads of its own");

    calls = 0;
    const Quantiser round{.format = e4m3};
    args.a.quantiser = args.b.quantiser = round;
    matmul({}, args);
    args.a.quantiser.reset(), args.b.quantiser.reset();
    args.n = 100;
    matmul({}, args);
    require(calls == 0, "rounded or small products went to the BLAS");
}

}  // namespace

int main() {
    check_choice<float>();
    calls = 0;
    check_choice<double>();
    check_random_products<float>(1, 60);
    check_random_products<double>(2, 60);
    std::puts("good");
}
