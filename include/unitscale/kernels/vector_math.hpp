// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/vectors.hpp>
#include <unitscale/kernels/exponential.hpp>
#include <unitscale/tensor/half_lanes.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <tuple>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Functions and loops that the row and element-wise kernels share. Compilers vectorise the functions: they have no
// branch, no call and no table. The loops work on blocks of fixed length. A block is widened to Accum<T> into local
// arrays, processed there, and rounded once on the way out. So one loop serves every element type and in-place calls.
// The constant trip count lets builds at -O2 vectorise it.
namespace unitscale::kernels {

/// Elements of a block, and lanes of every vectorised sum: the order of additions depends on neither the instruction
/// set nor the address.
inline constexpr std::ptrdiff_t block_size = 64;

/// Elements per thread below which a row or element-wise kernel does not start another thread.
inline constexpr std::ptrdiff_t work_threshold = 16384;

/// Rows for each thread, so that a thread has at least `work_threshold` elements.
[[nodiscard]] constexpr std::ptrdiff_t row_grain(std::ptrdiff_t row_elements) noexcept {
    return (work_threshold + row_elements - 1) / std::max<std::ptrdiff_t>(row_elements, 1);
}

template <class A>
using Block = std::array<A, static_cast<std::size_t>(block_size)>;

/// Lanes that a loop over a block processes at a time. A short block costs its own length, rounded up to this number.
inline constexpr std::size_t group_size = 16;
[[nodiscard]] constexpr std::size_t used_lanes(std::ptrdiff_t count) noexcept {
    return (static_cast<std::size_t>(count) + group_size - 1) / group_size * group_size;
}

/// Runs body(l) for every used lane of a block of `count` elements, in groups of constant length. GCC vectorises such a
/// group. It would unroll a loop over a short body instead.
template <class Body>
[[gnu::always_inline]] inline void for_lanes(std::ptrdiff_t count, Body&& body) noexcept {
    const std::size_t used = used_lanes(count);
    for (std::size_t group = 0; group < used; group += group_size) {
#pragma GCC unroll 1
        for (std::size_t l = 0; l < group_size; ++l) body(group + l);
    }
}

/// Widens `count` <= block_size elements; the used lanes after them become zero. Inlined for whole blocks: a call would
/// cost as much as the work.
template <class T>
[[gnu::noinline]] void load_part(const T* x, std::ptrdiff_t count, Block<Accum<T>>& out) noexcept {
    const auto size = static_cast<std::size_t>(count);
    std::size_t l = 0;
    for (; l + group_size <= size; l += group_size) load_lanes<group_size>(x + l, out.data() + l);
    for (; l < size; ++l) out[l] = widen(x[l]);
    for (; l < used_lanes(count); ++l) out[l] = Accum<T>(0);
}
template <class T>
[[gnu::always_inline]] inline void load_block(const T* x, std::ptrdiff_t count, Block<Accum<T>>& out) noexcept {
    if (count != block_size) return load_part(x, count, out);
    if constexpr (HalfElement<T> && !converts_by_instruction<T>) {
        typedef std::uint16_t Word __attribute__((may_alias));
        const auto* const words = reinterpret_cast<const Word*>(x);
        for (std::size_t l = 0; l < out.size(); ++l) out[l] = widen_code<T>(words[l]);
    } else {
        load_lanes<static_cast<std::size_t>(block_size)>(x, out.data());
    }
}

/// A block to be read only: a whole block of Accum<T> in place, else `block`, loaded. A loop over it writes to local
/// arrays.
template <class T>
[[nodiscard, gnu::always_inline]] inline const Accum<T>* read_block(const T* x, std::ptrdiff_t count,
                                                                    Block<Accum<T>>& block) noexcept {
    if constexpr (std::is_same_v<T, Accum<T>>)
        if (count == block_size) return x;
    load_block(x, count, block);
    return block.data();
}

/// Rounds the first `count` lanes to T.
template <class T>
[[gnu::noinline]] void store_part(const Block<Accum<T>>& values, std::ptrdiff_t count, T* y) noexcept {
    const auto size = static_cast<std::size_t>(count);
    std::size_t l = 0;
    for (; l + group_size <= size; l += group_size) store_lanes<group_size>(values.data() + l, y + l);
    for (; l < size; ++l) y[l] = narrow<T>(values[l]);
}
template <class T>
[[gnu::always_inline]] inline void store_block(const Block<Accum<T>>& values, std::ptrdiff_t count, T* y) noexcept {
    if (count == block_size) store_lanes<static_cast<std::size_t>(block_size)>(values.data(), y);
    else store_part(values, count, y);
}

/// ln x for every float, within 1 ulp: x = m 2^k, m in [0.707, 1.414), ln m = f - f^2/2 + f^3 P(f), f = m - 1. ln 0 is
/// -infinity; ln of a negative number is NaN.
/// Reference: the Cephes library's logf. Test: tests/kernels/vector_math_test.cpp
[[nodiscard, gnu::always_inline]] inline float logarithm(float x) noexcept {
    constexpr std::uint32_t low = 0x3F3504F3u;  // square root of 1/2: the smallest m
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), infinity = 0x7F800000u;
    const bool subnormal = bits < 0x00800000u;
    const std::uint32_t above = select(subnormal, std::bit_cast<std::uint32_t>(x * 0x1p23f), bits) - low;
    const float k =
        static_cast<float>((static_cast<std::int32_t>(above) >> 23) - static_cast<std::int32_t>(subnormal) * 23);
    const float f = std::bit_cast<float>((above & 0x007FFFFFu) + low) - 1.0f, square = f * f;
    float p = 7.0376836292e-2f;
    p = multiply_add(p, f, -1.1514610310e-1f);
    p = multiply_add(p, f, 1.1676998740e-1f);
    p = multiply_add(p, f, -1.2420140846e-1f);
    p = multiply_add(p, f, 1.4249322787e-1f);
    p = multiply_add(p, f, -1.6668057665e-1f);
    p = multiply_add(p, f, 2.0000714765e-1f);
    p = multiply_add(p, f, -2.4999993993e-1f);
    p = multiply_add(p, f, 3.3333331174e-1f);
    const float rest =
        multiply_add(-0.5f, square, multiply_add(f * square, p, -2.12194440e-4f * k));  // ln 2 in two parts
    float result = multiply_add(0.693359375f, k, f + rest);
    result = select(bits >= infinity, select(bits == infinity, x, std::bit_cast<float>(0x7FC00000u)), result);
    return select((bits & 0x7FFFFFFFu) == 0, std::bit_cast<float>(infinity | 0x80000000u), result);
}
[[nodiscard]] inline double logarithm(double x) noexcept { return std::log(x); }

/// 1 / (1 + e^-x), accurate to a few ulp on both sides.
template <class A>
[[nodiscard, gnu::always_inline]] inline A logistic(A x) noexcept {
    return A(1) / (A(1) + exponential(-x));
}

/// Phi(z) = (1 + erf(z / sqrt 2)) / 2 and phi(z) = exp(-z^2 / 2) / sqrt(2 pi).
template <class A>
struct NormalValues {
    A cdf;
    A density;
};

/// The lower tail is Phi(-t) = exp(-t^2/2) u P(u), u = 1 / (1 + 0.24 t), with P of degree 9 (relative error 4e-9 on [0,
/// 13.2]). The upper tail is 1 minus it. t^2 is split so that its rounding does not reach the exponential. Relative
/// error of both values under 6e-7 (1 - 3 ulp for most z) for |z| <= 13; beyond, z counts as +-13.
/// Test: tests/kernels/vector_math_test.cpp
[[nodiscard, gnu::always_inline]] inline NormalValues<float> normal_values(float z) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(z) & 0x7FFFFFFFu;
    const float t = std::bit_cast<float>(std::min(bits, std::bit_cast<std::uint32_t>(13.0f)));
    const float top =
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(t) & 0xFFFFF000u);  // 12 bits: its square is exact
    const auto [rest, k] = reduced_exponent(-0.5f * top * top);
    const float e = small_exponential(multiply_add(-0.5f * (t - top), t + top, rest)) * power_of_two(k);
    const float u = 1.0f / multiply_add(0.24f, t, 1.0f);
    float p = 0.0254010161413f;
    p = multiply_add(p, u, -0.123965238421f);
    p = multiply_add(p, u, 0.203910973935f);
    p = multiply_add(p, u, -0.142182731306f);
    p = multiply_add(p, u, 0.139705591323f);
    p = multiply_add(p, u, 0.0291059735455f);
    p = multiply_add(p, u, 0.08742438014f);
    p = multiply_add(p, u, 0.089009755877f);
    p = multiply_add(p, u, 0.0958476780967f);
    p = multiply_add(p, u, 0.095742601984f);
    const float share = p * u;
    return {select(z < 0.0f, share * e, multiply_add(-share, e, 1.0f)), 0.398942280401f * e};
}
[[nodiscard]] inline NormalValues<double> normal_values(double z) noexcept {
    return {0.5 * std::erfc(-z / std::numbers::sqrt2),
            std::exp(-0.5 * z * z) * std::numbers::inv_sqrtpi / std::numbers::sqrt2};
}

/// Asks for the block of results that a loop writes 2 KiB later. An address past the end is harmless. The processor
/// foresees reads better than writes: on a Xeon, a sum of two arrays of 8 MB takes 0.76 of its time.
template <class T>
[[gnu::always_inline]] inline void ask_for_output(const T* y) noexcept {
    const auto ahead = reinterpret_cast<std::uintptr_t>(y) + 2048;
    for (std::size_t line = 0; line < static_cast<std::size_t>(block_size) * sizeof(T); line += 64)
        prefetch_to_write(reinterpret_cast<const void*>(ahead + line));
}

/// y[i] = f(x0[i], x1[i], ...) for i in [begin, end), in Accum<T>, rounded once. y may be one of the inputs. The
/// function is flattened: a loop with a call of f is not vectorised.
template <class T, class F, class... X>
[[gnu::flatten]] void map_range(std::ptrdiff_t begin, std::ptrdiff_t end, T* y, F f, const X*... x) noexcept {
    using A = Accum<T>;
    std::tuple<Block<Accum<X>>...> blocks;
    Block<A> out;
    for (std::ptrdiff_t i = begin; i < end; i += block_size) {
        const std::ptrdiff_t count = std::min(block_size, end - i);
        ask_for_output(y + i);
        const auto map = [&](const auto*... in) { for_lanes(count, [&](std::size_t l) { out[l] = f(in[l]...); }); };
        std::apply([&](auto&... block) { map(read_block(x + i, count, block)...); }, blocks);
        store_block(out, count, y + i);
    }
}

/// `map_range` over [0, n), in parallel.
template <class T, class F, class... X>
void map_elements(const Execution& execution, std::ptrdiff_t n, T* y, F f, const X*... x) {
    parallel_for(execution.threads, n, work_threshold,
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) { map_range(begin, end, y, f, x...); });
}

/// Square roots of the used lanes of a block, rounded to nearest. Computed by instructions: compilers keep std::sqrt
/// out of vectorised loops because it may set errno.
template <class A>
inline void square_roots(const Block<A>& x, std::ptrdiff_t count, Block<A>& roots) noexcept {
#if defined(__SSE2__)
    const std::size_t used = used_lanes(count);
    if constexpr (std::is_same_v<A, float>)
        for (std::size_t l = 0; l < used; l += 4) _mm_storeu_ps(&roots[l], _mm_sqrt_ps(_mm_loadu_ps(&x[l])));
    else
        for (std::size_t l = 0; l < used; l += 2) _mm_storeu_pd(&roots[l], _mm_sqrt_pd(_mm_loadu_pd(&x[l])));
#else
    for_lanes(count, [&](std::size_t l) { roots[l] = std::sqrt(x[l]); });
#endif
}

/// All lanes joined by f, as a tree: lane l with lane l + width / 2, and so on. Every level is unrolled: as one loop it
/// would stay scalar. f is a function object, not a lambda, so that it is inlined into code of any instruction set.
template <std::size_t width, class A, std::size_t count, class F>
[[nodiscard, gnu::always_inline]] inline A join_lanes(std::array<A, count>& lanes, F f) noexcept {
    if constexpr (width == 1) {
        return lanes[0];
    } else {
        for (std::size_t l = 0; l < width / 2; ++l) lanes[l] = f(lanes[l], lanes[l + width / 2]);
        return join_lanes<width / 2>(lanes, f);
    }
}
struct AddLanes {
    template <class A>
    [[nodiscard, gnu::always_inline]] A operator()(A a, A b) const noexcept {
        return a + b;
    }
};
struct LargerLane {
    template <class A>
    [[nodiscard, gnu::always_inline]] A operator()(A a, A b) const noexcept {
        return b > a ? b : a;
    }
};
template <class A, std::size_t count>
[[nodiscard, gnu::always_inline]] inline A sum_lanes(std::array<A, count>& lanes) noexcept {
    return join_lanes<count>(lanes, AddLanes{});
}
template <class A, std::size_t count>
[[nodiscard, gnu::always_inline]] inline A largest_lane(std::array<A, count>& lanes) noexcept {
    return join_lanes<count>(lanes, LargerLane{});
}

/// 64 running sums, each over every 64th i in [0, n), then added as a tree. f(sum, x0[i], x1[i], ...) is the sum with
/// one more term, so that a term that is a product is added by multiply_add.
template <class A, class F, class... X>
[[nodiscard, gnu::flatten]] A accumulate_range(std::ptrdiff_t n, F f, const X*... x) noexcept {
    std::tuple<Block<Accum<X>>...> blocks;
    Block<A> sums;
    sums.fill(A(0));
    for (std::ptrdiff_t i = 0; i < n; i += block_size) {
        const std::ptrdiff_t count = std::min(block_size, n - i);
        const auto accumulate = [&](const auto*... in) {
            if (count == block_size) for_lanes(block_size, [&](std::size_t l) { sums[l] = f(sums[l], in[l]...); });
            else
                for (std::size_t l = 0; l < static_cast<std::size_t>(count); ++l) sums[l] = f(sums[l], in[l]...);
        };
        std::apply([&](auto&... block) { accumulate(read_block(x + i, count, block)...); }, blocks);
    }
    return sum_lanes(sums);
}

/// sum over i in [0, n) of f(x0[i], x1[i], ...) in A, in the order of `accumulate_range`. f returns no product.
template <class A, class F, class... X>
[[nodiscard]] A sum_range(std::ptrdiff_t n, F f, const X*... x) noexcept {
    return accumulate_range<A>(
        n, [f](A sum, auto... terms) { return sum + static_cast<A>(f(terms...)); }, x...);
}

/// The largest of f(x[i]), i in [0, n), n >= 1.
template <class T, class F>
[[nodiscard, gnu::flatten]] Accum<T> max_range(std::ptrdiff_t n, F f, const T* x) noexcept {
    using A = Accum<T>;
    Block<A> in, best;
    best.fill(f(static_cast<A>(x[0])));
    for (std::ptrdiff_t i = 0; i < n; i += block_size) {
        const std::ptrdiff_t count = std::min(block_size, n - i);
        load_block(x + i, count, in);
        std::fill(in.begin() + count, in.begin() + static_cast<std::ptrdiff_t>(used_lanes(count)), widen(x[0]));
        for_lanes(count, [&](std::size_t l) {
            const A value = f(in[l]);
            best[l] = value > best[l] ? value : best[l];
        });
    }
    return largest_lane(best);
}

}  // namespace unitscale::kernels
