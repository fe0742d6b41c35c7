// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/operand.hpp>
#include <unitscale/products/product.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

std::vector<FloatFormat> byte_formats() {
    std::vector<FloatFormat> formats;
    for (const auto& [known, format] : named_formats)
        if (format.code_bits() <= 8) formats.push_back(format);
    for (const auto& [width, precision] :
         {std::pair{8, 1}, {8, 4}, {7, 3}, {6, 6}})  // without subnormals, and of odd widths
        for (const Signedness signedness : {Signedness::signed_format, Signedness::unsigned_format})
            for (const Domain domain : {Domain::extended, Domain::finite})
                if (precision < width - 1 || signedness == Signedness::unsigned_format)
                    formats.push_back(p3109(width, precision, signedness, domain));
    formats.push_back(
        // Numbers below float's normal range need more than the upper half of a float.
        make_format({4, 3, 140}));
    return formats;
}

/// Whether T holds every number of the format.
template <class T>
bool holds(const FloatFormat& format) {
    for (std::uint32_t code = 0; code < format.code_count(); ++code) {
        const float number = decode(format, code);
        if (!is_nan(number) && element_cast<float>(element_cast<T>(number)) != number) return false;
    }
    return true;
}

/// An operand [rows,cols] for each of `batch` items, in one of six layouts: codes, and their numbers.
template <class T>
struct CodedNumbers {
    FloatFormat format;
    std::vector<std::uint8_t> codes;
    std::vector<T> numbers;
    MatrixView<const T> view;

    CodedNumbers(const FloatFormat& of, std::uint64_t stream, std::ptrdiff_t rows, std::ptrdiff_t cols,
                 std::ptrdiff_t batch, std::size_t layout)
        : format(of) {
        const std::ptrdiff_t extra = layout / 3 % 2 == 0 ? 0 : 3;  // lines that are longer than needed
        const std::ptrdiff_t row = layout % 3 == 0 ? cols + extra : layout % 3 == 1 ? 1 : 2 * cols + extra;
        const std::ptrdiff_t col = layout % 3 == 0 ? 1 : layout % 3 == 1 ? rows + extra : 2;
        const std::ptrdiff_t item = (rows - 1) * row + (cols - 1) * col + 1 + extra;
        codes.resize(static_cast<std::size_t>(batch * item));
        numbers.resize(codes.size());
        const int exponent = (format.min_exponent() + format.max_exponent()) / 2;
        for (std::size_t i = 0; i < codes.size(); ++i) {
            const double x = std::ldexp(random_normal({9, stream}, i), exponent);
            codes[i] = static_cast<std::uint8_t>(encode(format, format.is_signed() ? x : std::abs(x)));
            numbers[i] = element_cast<T>(decode(format, codes[i]));
        }
        view = {numbers.data(), row, col, batch == 1 ? 0 : item};
    }
    CodedNumbers(const CodedNumbers&) = delete;

    [[nodiscard]] CodedMatrix coded() const {
        return {{codes.data(), view.row_stride, view.col_stride, view.batch_stride}, format};
    }
    [[nodiscard]] double number(std::ptrdiff_t b, std::ptrdiff_t i, std::ptrdiff_t j) const {
        return element_cast<double>(*view.item(b).at(i, j));
    }
};

/// Two operands, and the product of their numbers.
template <class T>
struct Case {
    using P = Accum<T>;
    CodedNumbers<T> a, b;
    MatmulArguments<T> args;
    std::vector<T> start;

    Case(const FloatFormat& of_a, const FloatFormat& of_b, std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k,
         std::ptrdiff_t batch, bool share_b, std::size_t layout_a, std::size_t layout_b)
        : a(of_a, 1, m, k, batch, layout_a),
          b(of_b, 2, k, n, share_b ? 1 : batch, layout_b),
          start(static_cast<std::size_t>(batch * m * n)) {
        for (std::size_t i = 0; i < start.size(); ++i) start[i] = element_cast<T>(random_normal({9, 3}, i));
        args.m = m, args.n = n, args.k = k, args.batch = batch;
        args.a = {a.view, Quantiser{.format = of_a}}, args.b = {b.view, Quantiser{.format = of_b}};
        args.alpha = P(0.25), args.gamma = P(-0.5);
    }
    Case(const Case&) = delete;

    /// C after `multiply(args)`.
    std::vector<T> result(auto multiply) const {
        std::vector<T> c = start;
        MatmulArguments<T> own = args;
        own.c = {c.data(), args.n, 1, args.m * args.n};
        multiply(own);
        return c;
    }

    /// Number of elements of C that differ from sums in double by more than rounding explains.
    [[nodiscard]] std::size_t wrong(const std::vector<T>& c) const {
        const double unit = std::is_same_v<P, double> ? 0x1p-52 : 0x1p-23,
                     last = std::is_same_v<T, Half> ? 0x1p-11 : unit;
        const auto alpha = static_cast<double>(args.alpha), gamma = static_cast<double>(args.gamma);
        std::size_t count = 0, at = 0;
        for (std::ptrdiff_t item = 0; item < args.batch; ++item)
            for (std::ptrdiff_t i = 0; i < args.m; ++i)
                for (std::ptrdiff_t j = 0; j < args.n; ++j, ++at) {
                    const double old = gamma * element_cast<double>(start[at]);
                    double sum = old, size = std::abs(old);
                    for (std::ptrdiff_t p = 0; p < args.k; ++p) {
                        const double product = alpha * a.number(item, i, p) * b.number(item, p, j);
                        sum += product, size += std::abs(product);
                    }
                    const double error = std::abs(element_cast<double>(c[at]) - sum);
                    count +=
                        !(error <= size * unit * static_cast<double>(args.k + 4) + std::abs(sum) * last + 0x1p-126);
                }
        return count;
    }
};

}  // namespace

TEMPLATE_TEST_CASE("a product of codes has the bits of the one of their numbers, and is right", "[kernels][matmul]",
                   float, double, Half) {
    std::vector<FloatFormat> formats = byte_formats();
    std::erase_if(formats, [](const FloatFormat& format) { return !holds<TestType>(format); });
    std::size_t count = 0;
    for (std::size_t round = 0; round < 4; ++round)
        for (std::size_t f = 0; f < formats.size(); ++f, ++count) {
            auto any = [&, draw = std::uint64_t{0}](std::ptrdiff_t most) mutable {
                return 1 +
                       static_cast<std::ptrdiff_t>(random_word({31, count}, draw++) % static_cast<std::uint32_t>(most));
            };
            const std::ptrdiff_t m = any(round == 0 ? 8 : 70), n = any(90), k = any(round == 1 ? 700 : 90),
                                 batch = any(3);
            const Case<TestType> test(formats[f], formats[(f + 5 * round) % formats.size()], m, n, k, batch, round == 2,
                                      count % 6, count / 6 % 6);
            const CodedMatrix a = test.a.coded(), b = test.b.coded();
            for (const test::MatmulPath& path : test::matmul_paths()) {
                const auto plain = test.result([&](const auto& args) { matmul_with(path.isa, {}, args, path.pairs); });
                CAPTURE(name(a.format), name(b.format), m, n, k, batch, count, int(path.isa), int(path.pairs));
                REQUIRE(test.wrong(plain) == 0);
                for (const auto& [threads, with_a, with_b] : {std::tuple{1, true, true},
                                                              {2, true, true},
                                                              {1, true, false},
                                                              {2, true, false},
                                                              {1, false, true},
                                                              {2, false, true}}) {
                    const Execution execution{.threads = threads};
                    const auto with = test.result([&, a_too = with_a, b_too = with_b](MatmulArguments<TestType> args) {
                        if (a_too) args.a = {.codes = a};
                        if (b_too) args.b = {.codes = b};
                        matmul_with(path.isa, execution, args, path.pairs);
                    });
                    CAPTURE(execution.threads, with_a, with_b);
                    REQUIRE(test::same_bits(plain, with));
                }
            }
        }
    REQUIRE(count >= 36);  // every pair of layouts
}

TEMPLATE_TEST_CASE("the other operand of a product of codes may be plain, rounded at random, or packed",
                   "[kernels][matmul]", float, double, Half) {
    const Quantiser stochastic{.format = e5m2, .rounding = Rounding::stochastic};
    for (const std::size_t layout : {0u, 1u}) {
        const Case<TestType> test(e4m3, e5m2, 33, 70, 50, 2, true, layout, layout);
        const CodedMatrix a = test.a.coded(), b = test.b.coded();
        for (const test::MatmulPath& path : test::matmul_paths()) {
            const auto check_same = [&](bool left, const std::optional<Quantiser>& other) {
                const auto run = [&](bool coded) {
                    return test.result([&](MatmulArguments<TestType> args) {
                        args.a.key = {1, 2}, args.b.key = {3, 4};
                        (left ? args.b : args.a).quantiser = other;
                        // Kernels are chosen by the format of the numbers. Codes name it, and so does the quantiser.
                        if (coded) (left ? args.a : args.b) = {.codes = left ? a : b};
                        matmul_with(path.isa, {}, args, path.pairs);
                    });
                };
                return test::same_bits(run(false), run(true));
            };
            CAPTURE(layout, int(path.isa), int(path.pairs));
            for (const auto& other : {std::optional<Quantiser>(), {stochastic}, {Quantiser{.format = e5m2}}}) {
                REQUIRE(check_same(true, other));
                REQUIRE(check_same(false, other));
            }
            const auto packed = pack_weights_with(path.isa, test.args, path.pairs);
            const auto plain = test.result([&](const auto& args) { matmul_with(path.isa, {}, args, path.pairs); });
            REQUIRE(test::same_bits(plain, test.result([&](MatmulArguments<TestType> args) {
                args.a = {.codes = a}, args.b = {.packed = &packed};
                matmul_with(Isa::baseline, {}, args);
            })));
        }
        const auto plain =
            test.result([&](const auto& args) { matmul_with(active_isa(), {}, args, active_pair_kernel()); });
        REQUIRE(test::same_bits(plain, test.result([&](MatmulArguments<TestType> args) {
            args.a = {.codes = a}, args.b = {.codes = b};
            matmul({}, args);
        })));
        REQUIRE(test::same_bits(plain, test.result([&](const auto& args) { matmul({}, args); })));
    }
}

TEST_CASE("every code of a byte is read as its number, NaN and infinity included", "[kernels][matmul]") {
    std::vector<std::uint8_t> codes(256);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
    const float one = 1;
    const Quantiser e4{.format = e4m3};
    for (const FloatFormat& format : byte_formats())
        for (const test::MatmulPath& path : test::matmul_paths())
            for (const bool left : {false, true})
                for (const std::ptrdiff_t step : {1, 256}) {  // lines along and across k
                    std::vector<float> c(256);
                    MatmulArguments<float> args{.k = 1, .a = {{&one}, e4}, .b = {{&one}, e4}};
                    args.m = left ? 256 : 1, args.n = left ? 1 : 256;
                    args.c = {c.data(), left ? 1 : 256, 1};
                    const CodedMatrix coded{{codes.data(), left ? 1 : step, left ? step : 1}, format};
                    (left ? args.a : args.b) = {.codes = coded};
                    matmul_with(path.isa, {}, args, path.pairs);
                    std::size_t wrong = 0;
                    for (std::size_t i = 0; i < c.size(); ++i) {
                        const float expected =
                            decode(format, codes[i] & static_cast<std::uint32_t>(format.code_count() - 1));
                        wrong += is_nan(expected) ? !is_nan(c[i]) : c[i] != expected;
                    }
                    CAPTURE(name(format), int(path.isa), int(path.pairs), left, step);
                    REQUIRE(wrong == 0);
                }
}

TEST_CASE("codes wider than a byte, and invalid formats, are errors with the reason", "[kernels][matmul]") {
    const Case<float> test(e4m3, e4m3, 3, 20, 10, 1, false, 0, 0);
    const CodedMatrix wide{{}, fp16}, nonsense{{}, {.exponent_bits = 9, .mantissa_bits = 1, .bias = 3}};
    const auto coded = [&](bool left, const CodedMatrix& matrix) {
        MatmulArguments<float> args = test.args;
        (left ? args.a : args.b) = {.codes = matrix};
        return args;
    };
    REQUIRE_THROWS_WITH(matmul({}, coded(false, wide)), "matmul: b: codes of fp16 do not fit a byte");
    REQUIRE_THROWS_WITH(matmul({}, coded(true, wide)), "matmul: a: codes of fp16 do not fit a byte");
    REQUIRE_THROWS_WITH(matmul({}, coded(true, nonsense)),
                        "matmul: a: format: exponent_bits must be 1 to 8, so that values are exact in float");
    REQUIRE_THROWS_WITH(pack_weights(coded(false, test.b.coded())),
                        "pack_weights: b: is given by codes or numbers; expected elements");
    const auto packed = pack_weights(test.args);
    MatmulArguments<float> args = coded(true, test.a.coded());
    args.b = {.packed = &packed}, args.n = 19;
    REQUIRE_THROWS_WITH(matmul({}, args), "matmul: packed b is [10,20]; expected [10,19]");
}

TEST_CASE("an operand tells the format of its numbers, and whether they are multiplied as they are",
          "[kernels][matmul]") {
    const PackedRight<float> packed;
    const Operand<float> plain, coded{.codes = CodedMatrix{{}, e5m2}}, given{.packed = &packed},
        rounded{.quantiser = Quantiser{.format = e4m3}},
        random{.quantiser = Quantiser{.format = e4m3, .rounding = Rounding::stochastic}};
    CHECK_FALSE(plain.is_exact_in_bf16());
    CHECK(coded.is_exact_in_bf16());
    CHECK(rounded.is_exact_in_bf16());
    CHECK_FALSE(Operand<float>{.quantiser = Quantiser{.format = fp16}}.is_exact_in_bf16());
    CHECK(Operand<float>{.numbers = QuantisedNumbers<float>{.exact_in_bf16 = true}}.is_exact_in_bf16());
    CHECK_FALSE(Operand<float>{.numbers = QuantisedNumbers<float>{}}.is_plain());
    CHECK(plain.is_plain());
    for (const Operand<float>* operand : {&coded, &given, &rounded, &random}) CHECK_FALSE(operand->is_plain());
    for (const Operand<float>* operand : {&plain, &coded, &given, &rounded}) CHECK_FALSE(operand->is_stochastic());
    CHECK(random.is_stochastic());
}

TEST_CASE("sums are multiplied by the factors of numbers before bias, alpha and the columns' scales apply",
          "[kernels][matmul]") {
    const std::ptrdiff_t m = 5, n = 37, k = 64;
    std::vector<float> a(static_cast<std::size_t>(m * k)), b(static_cast<std::size_t>(k * n));
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = quantise(e2m1, test::numbers<float>(1, i)[0]);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = quantise(e2m1, test::numbers<float>(1, i, 9)[0]);
    const auto bias = test::numbers<float>(n, 3), scales = test::numbers<float>(n, 4);
    for (const test::MatmulPath& path : test::matmul_paths())
        for (const bool has_bias : {false, true})
            for (const bool scaled : {false, true})
                for (const auto& [fa, fb] : {std::pair{1.0f, 0.3f}, {0.7f, 1.0f}, {0.7f, 0.3f}}) {
                    std::vector<float> c(static_cast<std::size_t>(m * n)), want(c.size());
                    MatmulArguments<float> args{.m = m, .n = n, .k = k, .c = {c.data(), n, 1}, .alpha = 2.0f};
                    args.a.numbers = QuantisedNumbers<float>{{a.data(), k, 1}, true, fa};
                    args.b.numbers = QuantisedNumbers<float>{{b.data(), n, 1}, true, fb};
                    args.bias = has_bias ? bias.data() : nullptr;
                    args.col_scale = scaled ? scales.data() : nullptr;
                    matmul_with(path.isa, {}, args, path.pairs);
                    args.c.data = want.data();
                    matmul_naive(args);
                    double error = 0;
                    for (std::ptrdiff_t i = 0; i < m; ++i)
                        for (std::ptrdiff_t j = 0; j < n; ++j) {
                            double sum = 0;
                            for (std::ptrdiff_t p = 0; p < k; ++p)
                                sum += double{a[static_cast<std::size_t>(i * k + p)]} *
                                       double{b[static_cast<std::size_t>(p * n + j)]};
                            sum *= double{fa} * double{fb};
                            if (scaled) sum *= double{scales[static_cast<std::size_t>(j)]};
                            if (has_bias) sum += double{bias[static_cast<std::size_t>(j)]};
                            const auto at = static_cast<std::size_t>(i * n + j);
                            error = std::max(
                                {error, std::abs(double{c[at]} - 2 * sum), std::abs(double{want[at]} - 2 * sum)});
                        }
                    CAPTURE(int(path.isa), int(path.pairs), has_bias, scaled, fa, fb);
                    CHECK(error < 2e-5);
                }
}
