// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/limited_sums.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

std::vector<Isa> instruction_sets() {
    std::vector<Isa> all;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (isa <= active_isa()) all.push_back(isa);
    return all;
}

std::uint32_t word_of(float x) { return std::bit_cast<std::uint32_t>(x); }
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The reference: sums in double and in integers, one after the other.

/// x rounded to a format whose bias is its exponent bits' usual one.
double rounded(const FloatFormat& format, const Accumulate& options, Rounding rounding, double x) {
    if (!std::isfinite(x)) return x;
    const int bits = format.mantissa_bits, least = 2 - (1 << (format.exponent_bits - 1));
    if (!options.subnormals && std::abs(x) < std::ldexp(1.0, least)) {
        const bool up = rounding == Rounding::nearest_even && std::abs(x) > std::ldexp(0.75, least);
        return std::copysign(up ? std::ldexp(1.0, least) : 0.0, x);
    }
    const int step = std::max(x == 0 ? least : std::ilogb(x), least) - bits;
    const double steps = std::ldexp(x, -step);
    const double y = std::ldexp(rounding == Rounding::toward_zero ? std::trunc(steps) : std::nearbyint(steps), step);
    const double largest = (2 - std::ldexp(1.0, -bits)) * std::ldexp(1.0, 1 - least);
    if (std::abs(y) <= largest) return y;
    const bool infinite = options.overflow == Overflow::to_infinity && rounding == Rounding::nearest_even;
    return std::copysign(infinite ? HUGE_VAL : largest, x);
}

/// A number as significand 2^exponent, with the significand in units of the least exponent's last place at most.
struct Parts {
    std::int64_t significand = 0;  ///< 24 bits and a sign
    int exponent = -126;           ///< of the leading place: value = significand 2^(exponent - 23)
};
Parts parts_of(float x, int least) {
    if (x == 0) return {};
    const int exponent = std::max(std::ilogb(x), least);
    return {static_cast<std::int64_t>(std::ldexp(double{x}, 23 - exponent)), exponent};
}
std::int64_t cut(std::int64_t value, int left) {  // value 2^left, toward zero
    if (left >= 0) return value * (std::int64_t{1} << left);
    if (left < -62) return 0;
    return value / (std::int64_t{1} << -left);
}

/// One aligned step on integers. Operands are finite, and their numbers have at most 24 significant bits.
float aligned_step(const Accumulate& options, float acc, const std::vector<std::pair<Parts, Parts>>& factors) {
    if (std::isinf(acc)) return acc;  // an earlier step overflowed
    const int fraction = options.fraction_bits, bits = options.sums.mantissa_bits;
    const Parts old = parts_of(acc, -126);
    int top = old.exponent;
    for (const auto& [a, b] : factors)
        if (a.significand != 0 && b.significand != 0) top = std::max(top, a.exponent + b.exponent);
    std::int64_t sum = cut(old.significand, fraction - 23 + old.exponent - top);
    for (const auto& [a, b] : factors)
        sum += cut(a.significand * b.significand, fraction - 46 + a.exponent + b.exponent - top);
    if (sum == 0) return 0;
    const auto size = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
    const int leading = static_cast<int>(std::bit_width(size)) - 1 + top - fraction;
    const int last = std::max(leading, -126) - bits;
    return static_cast<float>(std::ldexp(static_cast<double>(cut(sum, top - fraction - last)), last));
}

float reference(const Accumulate& options, const std::vector<float>& a, const std::vector<float>& b, int least_a,
                int least_b) {
    const auto k = a.size(), run = options.run_length == 0 ? k : static_cast<std::size_t>(options.run_length);
    float total = 0;
    for (std::size_t begin = 0; begin < k; begin += run) {
        const std::size_t end = std::min(k, begin + run);
        float acc = 0;
        std::vector<std::pair<Parts, Parts>> group;
        for (std::size_t p = begin; p < end; ++p) {
            if (options.summation == Summation::aligned) {
                group.emplace_back(parts_of(a[p], least_a), parts_of(b[p], least_b));
                if (group.size() < static_cast<std::size_t>(options.group) && p + 1 < end) continue;
                acc = aligned_step(options, acc, group);
                group.clear();
            } else if (options.fused) {
                acc = static_cast<float>(
                    rounded(options.sums, options, options.rounding, double{std::fma(a[p], b[p], acc)}));
            } else {
                // The product is exact in double, and so is the sum of two floats of like size.
                const auto product = static_cast<float>(double{a[p]} * double{b[p]});
                const double term = rounded(options.products, options, options.rounding, double{product});
                const auto sum = static_cast<float>(double{acc} + term);
                acc = static_cast<float>(rounded(options.sums, options, options.rounding, double{sum}));
            }
        }
        if (options.run_length == 0) {
            total = acc;
        } else {
            const auto sum = static_cast<float>(double{total} + double{acc});
            total = static_cast<float>(rounded(options.totals, options, Rounding::nearest_even, double{sum}));
        }
    }
    return std::isnan(total) ? std::numeric_limits<float>::quiet_NaN() : total + 0.0f;
}

/// Operands [m,k] and [k,n] with the numbers of a format, in one of four layouts, and the product's arguments.
struct Case {
    std::ptrdiff_t m, n, k, batch;
    FloatFormat format_a, format_b;
    std::vector<float> a, b;
    bool transposed_a, transposed_b, spread;

    Case(std::ptrdiff_t rows, std::ptrdiff_t cols, std::ptrdiff_t depth, const FloatFormat& of_a,
         const FloatFormat& of_b, double scale = 1, int layout = 0, std::ptrdiff_t items = 1)
        : m(rows),
          n(cols),
          k(depth),
          batch(items),
          format_a(of_a),
          format_b(of_b),
          a(static_cast<std::size_t>(items * rows * depth * 2)),
          b(static_cast<std::size_t>(items * cols * depth * 2)),
          transposed_a(layout % 2 == 1),
          transposed_b(layout / 2 % 2 == 1),
          spread(layout >= 4) {
        for (std::size_t i = 0; i < a.size(); ++i) a[i] = number(format_a, {7, 1}, i, scale);
        for (std::size_t i = 0; i < b.size(); ++i) b[i] = number(format_b, {7, 2}, i, scale);
    }
    static float number(const FloatFormat& format, RandomKey key, std::size_t i, double scale) {
        return quantise(format, static_cast<float>(scale * random_normal(key, i)));
    }
    static MatrixView<float> view(float* data, std::ptrdiff_t rows, std::ptrdiff_t cols, bool transposed, bool spread) {
        MatrixView<float> result{data, transposed ? 1 : cols, transposed ? rows : 1, rows * cols};
        if (spread) result.row_stride *= 2, result.col_stride *= 2, result.batch_stride *= 2;
        return result;
    }
    LimitedArguments arguments(float* c) {
        return {.m = m,
                .n = n,
                .k = k,
                .batch = batch,
                .a = view(a.data(), m, k, transposed_a, spread),
                .b = view(b.data(), k, n, transposed_b, spread),
                .c = view(c, m, n, transposed_b, spread),
                .format_a = format_a,
                .format_b = format_b};
    }
    std::vector<float> result(auto multiply) {
        std::vector<float> c(static_cast<std::size_t>(2 * batch * m * n), -7.0f);
        multiply(arguments(c.data()));
        return c;
    }
    std::vector<float> expected(const Accumulate& options) {
        return result([&](const LimitedArguments& args) {
            for (std::ptrdiff_t item = 0; item < batch; ++item)
                for (std::ptrdiff_t i = 0; i < m; ++i)
                    for (std::ptrdiff_t j = 0; j < n; ++j) {
                        std::vector<float> left, right;
                        for (std::ptrdiff_t p = 0; p < k; ++p) {
                            left.push_back(*args.a.item(item).at(i, p));
                            right.push_back(*args.b.item(item).at(p, j));
                        }
                        *args.c.item(item).at(i, j) =
                            reference(options, left, right, 2 - (1 << (format_a.exponent_bits - 1)),
                                      2 - (1 << (format_b.exponent_bits - 1)));
                    }
        });
    }
};

/// The fast product, with every instruction set and one or two threads, and the naive one give `expected`.
void require_all(Case& test, const Accumulate& options, const std::vector<float>& expected) {
    for (const Isa isa : instruction_sets())
        for (const int threads : {1, 2}) {
            CAPTURE(name(isa), threads);
            REQUIRE(same_bits(expected, test.result([&](const LimitedArguments& args) {
                limited_product_with(isa, {.threads = threads}, options, args);
            })));
        }
    REQUIRE(
        same_bits(expected, test.result([&](const LimitedArguments& args) { limited_product_naive(options, args); })));
}

struct Named {
    std::string name;
    Accumulate options;
};
std::vector<Named> all_options() {
    std::vector<Named> all;
    for (const FloatFormat& sums : {e8m13, fp16, bf16, fp32, e5m2, e4m3_ieee}) {
        const std::string of = name(sums);
        all.push_back({"fused " + of, mptorch_sums(sums)});
        all.push_back({"cuda " + of, mptorch_cuda_sums(sums)});
        for (const FloatFormat& products : {e4m3_ieee, sums}) {
            all.push_back({"two formats " + of, mptorch_sums(sums, products)});
            all.push_back({"cuda two formats " + of, mptorch_cuda_sums(sums, products)});
        }
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::toward_zero})
            for (const Overflow overflow : {Overflow::to_infinity, Overflow::saturate})
                for (const bool subnormals : {true, false}) {
                    const Accumulate options{.sums = sums,
                                             .rounding = rounding,
                                             .overflow = overflow,
                                             .subnormals = subnormals,
                                             .run_length = 20};
                    all.push_back({concatenate(of, ' ', name(rounding), ' ', int(overflow), ' ', subnormals), options});
                    Accumulate two = options;
                    two.fused = false, two.products = e4m3_ieee;
                    all.push_back({all.back().name + " two formats", two});
                }
    }
    all.push_back({"hopper", hopper_sums});
    all.push_back({"hopper promoted", hopper_sums_promoted});
    all.push_back({"blackwell", blackwell_sums});
    Accumulate small = hopper_sums;
    small.group = 4, small.run_length = 12, small.fraction_bits = 5;
    all.push_back({"groups of 4", small});
    small.group = 64, small.fraction_bits = 28, small.sums = fp32, small.run_length = 0;
    all.push_back({"groups of 64", small});
    return all;
}

}  // namespace

TEST_CASE("every limited sum is the reference's, with every instruction set and number of threads",
          "[kernels][matmul]") {
    // Scales at which sums overflow, are ordinary, and are subnormal in the small formats.
    for (const Named& named : all_options())
        for (const double scale : {30.0, 1.0, 0.02}) {
            CAPTURE(named.name, scale);
            Case test(9, 35, 70, e4m3, e5m2, scale);
            require_all(test, named.options, test.expected(named.options));
        }
}

TEST_CASE("limited products take any shape, strides, orientation and batch", "[kernels][matmul]") {
    const std::ptrdiff_t shapes[][3] = {{1, 1, 1}, {4, 32, 32}, {5, 33, 1}, {3, 7, 257}, {65, 17, 40}, {300, 1, 12}};
    for (const Accumulate& options :
         {mptorch_sums(e8m13), mptorch_cuda_sums(fp16), hopper_sums_promoted, blackwell_sums})
        for (const auto& [m, n, k] : shapes)
            for (int layout = 0; layout < 8; ++layout) {
                CAPTURE(m, n, k, layout);
                Case test(m, n, k, e4m3, e4m3, 1, layout, layout % 3 == 0 ? 2 : 1);
                require_all(test, options, test.expected(options));
            }
    // A shared operand, and no products at all.
    Case test(6, 40, 33, e4m3, e4m3, 1, 0, 3);
    for (const auto& options : {mptorch_sums(bf16), hopper_sums}) {
        const auto shared = test.result([&](LimitedArguments args) {
            args.a.batch_stride = 0;
            limited_product({.threads = 2}, options, args);
        });
        const auto naive = test.result([&](LimitedArguments args) {
            args.a.batch_stride = 0;
            limited_product_naive(options, args);
        });
        REQUIRE(same_bits(shared, naive));
        const auto none = test.result([&](LimitedArguments args) {
            args.k = 0;
            limited_product({}, options, args);
        });
        REQUIRE(std::all_of(none.begin(), none.begin() + 3 * 6 * 40, [](float x) { return word_of(x) == 0; }));
        REQUIRE(none[3 * 6 * 40] == -7.0f);
    }
}

TEST_CASE("aligned sums of wide operands follow the model to the bit", "[kernels][matmul]") {
    for (const Named& named : all_options()) {
        const Accumulate& options = named.options;
        if (options.summation != Summation::aligned) continue;
        for (const FloatFormat& format : {fp32, bf16, fp16}) {
            Case test(5, 19, 100, format, format);
            const auto spread_exponents = [&](std::vector<float>& values, std::uint64_t stream, int range, int shift) {
                for (std::size_t i = 0; i < values.size(); ++i) {
                    const int by =
                        static_cast<int>(random_word({8, stream}, i) % static_cast<std::uint32_t>(range)) + shift;
                    values[i] = random_word({8, stream}, i + 99999) % 8 == 0
                                    ? 0.0f
                                    : quantise(format, std::ldexp(values[i], by));
                }
            };
            // Ordinary; wide; products above and below float's least exponent; sums that overflow float.
            const bool half = format == fp16;
            const std::vector<std::pair<int, int>> spreads =
                half ? std::vector<std::pair<int, int>>{{1, 0}, {20, -18}, {3, -16}, {3, 5}}
                     : std::vector<std::pair<int, int>>{{1, 0}, {60, -30}, {30, -75}, {8, -72}, {4, -66}, {30, 45}};
            for (const auto& [range, shift] : spreads) {
                Case own = test;
                spread_exponents(own.a, 1, range, shift);
                spread_exponents(own.b, 2, range, shift);
                CAPTURE(named.name, name(format), range, shift);
                require_all(own, options, own.expected(options));
            }
        }
    }
}

TEST_CASE("sums of float format are plain sums in order", "[kernels][matmul]") {
    Case test(7, 33, 120, fp32, fp32);
    std::vector<float> expected(static_cast<std::size_t>(2 * 7 * 33), -7.0f), unfused = expected;
    for (std::size_t i = 0; i < 7; ++i)
        for (std::size_t j = 0; j < 33; ++j) {
            float sum = 0, separate = 0;
            for (std::size_t p = 0; p < 120; ++p) {
                const float a = test.a[i * 120 + p], b = test.b[p * 33 + j];
                sum = std::fma(a, b, sum);
                const volatile float product = a * b;  // not to be contracted
                separate = separate + product;
            }
            expected[i * 33 + j] = sum;
            unfused[i * 33 + j] = separate;
        }
    require_all(test, mptorch_sums(fp32), expected);
    require_all(test, mptorch_sums(fp32, fp32), unfused);
}

TEST_CASE("NaN and infinity pass, zeros are positive, with every model", "[kernels][matmul]") {
    const float infinity = std::numeric_limits<float>::infinity(), nan = std::bit_cast<float>(0xFFFFFFFFu);
    for (const Named& named : all_options()) {
        CAPTURE(named.name);
        const Accumulate& options = named.options;
        Case test(5, 35, 40, e5m2, e5m2);
        test.a[0 * 40 + 3] = infinity;    // row 0
        test.a[1 * 40 + 39] = nan;        // row 1
        test.b[5 * 35 + 34] = -infinity;  // column 34
        for (std::size_t p = 0; p < 40; ++p) test.a[2 * 40 + p] = -0.0f;
        const auto c = test.result([&](const LimitedArguments& args) { limited_product({}, options, args); });
        REQUIRE(std::isinf(c[0]));
        REQUIRE(std::signbit(c[0]) == std::signbit(test.b[3 * 35]));
        for (std::size_t j = 0; j < 35; ++j) REQUIRE(word_of(c[35 + j]) == 0x7FC00000u);
        for (std::size_t j = 0; j < 34; ++j) REQUIRE(word_of(c[70 + j]) == 0);
        REQUIRE(word_of(c[70 + 34]) == 0x7FC00000u);  // -0 times infinity
        REQUIRE(std::isinf(c[3 * 35 + 34]));
        for (const Isa isa : instruction_sets())
            REQUIRE(same_bits(c, test.result([&](const LimitedArguments& args) {
                limited_product_with(isa, {.threads = 2}, options, args);
            })));
        REQUIRE(same_bits(c, test.result([&](const LimitedArguments& args) { limited_product_naive(options, args); })));
    }
}

TEST_CASE("sums overflow to infinity, or saturate and come back", "[kernels][matmul]") {
    const float a[] = {448.0f, 448.0f, 1.0f}, b[] = {100.0f, 100.0f, -32.0f};
    const auto sum = [&](const Accumulate& options) {
        float c = 0;
        limited_product({}, options, {.m = 1, .n = 1, .k = 3, .a = {a, 3, 1}, .b = {b, 1, 1}, .c = {&c, 1, 1}});
        return c;
    };
    REQUIRE(std::isinf(sum(mptorch_sums(fp16))));
    REQUIRE(sum({.sums = fp16, .overflow = Overflow::saturate}) == 65504.0f - 32.0f);
    REQUIRE(sum({.sums = fp16, .rounding = Rounding::toward_zero}) == 65504.0f - 32.0f);
    REQUIRE(sum(mptorch_sums(e8m13)) == 89568.0f);
}

TEST_CASE("errors of long sums of e4m3 numbers are as large as earlier measurements", "[kernels][matmul]") {
    constexpr std::ptrdiff_t m = 48, n = 64, k = 4096;
    std::vector<float> a(m * k), b(k * n), c(m * n);
    const auto fill = [](std::vector<float>& values, std::uint64_t stream, bool positive) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            const auto x = static_cast<float>(random_normal({21, stream}, i));
            values[i] = quantise(e4m3, positive ? std::abs(x) : x);
        }
    };
    struct Errors {
        double rms, mean;  ///< rms error over rms result; mean error over mean result
    };
    const auto errors = [&](const Accumulate& options) {
        limited_product({.threads = 2}, options,
                        {.m = m,
                         .n = n,
                         .k = k,
                         .a = {a.data(), k, 1},
                         .b = {b.data(), n, 1},
                         .c = {c.data(), n, 1},
                         .format_a = e4m3,
                         .format_b = e4m3});
        double squares = 0, square_errors = 0, sums = 0, sum_errors = 0;
        for (std::size_t i = 0; i < m; ++i)
            for (std::size_t j = 0; j < n; ++j) {
                double exact = 0;
                for (std::size_t p = 0; p < k; ++p) exact += double{a[i * k + p]} * double{b[p * n + j]};
                const double error = double{c[i * n + j]} - exact;
                squares += exact * exact, square_errors += error * error, sums += exact, sum_errors += error;
            }
        return Errors{std::sqrt(square_errors / squares), sum_errors / sums};
    };
    const auto promoted = [](const FloatFormat& sums) { return Accumulate{.sums = sums, .run_length = 128}; };
    fill(a, 1, false), fill(b, 2, false);
    // The root mean square of 3072 independent errors has a standard deviation of 1.3 %.
    REQUIRE(errors(mptorch_sums(e8m13)).rms == Approx(9.0e-4).epsilon(0.06));
    REQUIRE(errors(promoted(e8m13)).rms == Approx(1.07e-4).epsilon(0.06));
    REQUIRE(errors(mptorch_sums(fp16)).rms == Approx(9.4e-3).epsilon(0.06));
    REQUIRE(errors(promoted(fp16)).rms == Approx(1.4e-3).epsilon(0.06));
    REQUIRE(errors(mptorch_sums(bf16)).rms == Approx(7.0e-2).epsilon(0.06));
    REQUIRE(errors(promoted(bf16)).rms == Approx(1.3e-2).epsilon(0.06));
    REQUIRE(errors(hopper_sums).rms == Approx(1.29e-3).epsilon(0.06));
    REQUIRE(errors(hopper_sums_promoted).rms == Approx(1.33e-4).epsilon(0.06));
    fill(a, 3, true), fill(b, 4, true);
    REQUIRE(errors(hopper_sums).mean == Approx(-0.069).epsilon(0.05));
    REQUIRE(errors(hopper_sums_promoted).mean == Approx(-0.00064).epsilon(0.05));
}

TEST_CASE("bad options and formats are errors before anything is written", "[kernels][matmul]") {
    float c = 5;
    const auto of = [&](const Accumulate& options, const FloatFormat& format_b = fp32) {
        return test::error_of([&] { limited_product({}, options, {.m = 1, .n = 1, .c = {&c}, .format_b = format_b}); });
    };
    REQUIRE(of({.sums = fp16, .fused = false, .products = bf16}) ==
            "limited_product: accumulate.sums (fp16) cannot hold its products; expected a largest exponent of at least "
            "theirs");
    REQUIRE(of({}, {.exponent_bits = 9, .mantissa_bits = 1, .bias = 3}) ==
            "limited_product: format_b: exponent_bits must be 1 to 8, so that values are exact in float");
    REQUIRE(c == 5);
}
