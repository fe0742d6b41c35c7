// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/pack_pairs.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

TEST_CASE(
    "formats of up to 8 bits are exact in bf16, those with finer or "
    "subnormal numbers are not",
    "[kernels][matmul]") {
    for (const FloatFormat& format : {e5m2, e4m3, e5m2fnuz, e4m3fnuz, e3m2, e2m3, e2m1}) {
        REQUIRE(exact_in_bf16(format));
        for (std::uint32_t code = 0; code <= format.max_code(); ++code) {
            const auto bits = std::bit_cast<std::uint32_t>(format.magnitude<float>(code));
            REQUIRE((bits & 0xFFFFu) == 0);
            REQUIRE((bits == 0 || bits >= 0x00800000u));
        }
    }
    for (const FloatFormat& format : {fp32, tf32, fp16, bf16})
        REQUIRE_FALSE(exact_in_bf16(format));  // bf16 has subnormals
}

TEST_CASE("p3109_k15p8sf is exact in bf16, and rounds as bf16 does from 2^-63 to 2^64") {
    const FloatFormat format = find_format("p3109_k15p8sf");
    REQUIRE(exact_in_bf16(format));
    REQUIRE(format.min_normal() == 0x1p-63f);
    const float largest = format.max();
    REQUIRE(largest > 0x1.fap63f);
    std::size_t compared = 0;
    for (std::uint32_t word = std::bit_cast<std::uint32_t>(0x1p-63f); word <= std::bit_cast<std::uint32_t>(largest);
         word += 0x4001, ++compared) {  // a quarter of bf16's step, and one place: ties and their neighbours
        const float x = std::bit_cast<float>(word);
        REQUIRE(quantise(format, x) == quantise(bf16, x));
        REQUIRE(quantise(format, -x) == quantise(bf16, -x));
    }
    REQUIRE(compared > 60000);
}

#if UNITSCALE_X86

namespace {

float half_of(Pair pair, std::ptrdiff_t half) {
    return std::bit_cast<float>(half == 0 ? pair << 16 : pair & 0xFFFF0000u);
}

/// Whether a and b are equal, or both NaN. (A zero's sign may get lost.)
bool same(float a, float b) { return a == b || (is_nan(a) && is_nan(b)); }

/// Values at which quantising to a format can go wrong: its numbers, the middles between them and the neighbours of
/// both, and values out of range.
std::vector<float> boundaries(const FloatFormat& format) {
    std::vector<float> values;
    const float infinity = std::numeric_limits<float>::infinity();
    const auto add = [&](float x) {
        for (const float y : {x, std::nextafter(x, infinity), std::nextafter(x, -infinity)})
            values.insert(values.end(), {y, -y});
    };
    for (std::uint32_t code = 0; code <= format.max_code(); ++code) {
        const float x = format.magnitude<float>(code);
        add(x);
        add(code < format.max_code() ? 0.5f * (x + format.magnitude<float>(code + 1)) : 1.03f * x);
    }
    for (const float x : {infinity, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                          std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::quiet_NaN(),
                          std::bit_cast<float>(0x7F800001u)})  // a signalling NaN
        values.insert(values.end(), {x, -x});
    return values;
}

template <class T>
std::vector<T> numbers(std::ptrdiff_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = element_cast<T>(random_normal({7, 1}, i));
    return values;
}

}  // namespace

TEST_CASE("rounding in a register gives the numbers of quantise", "[kernels][matmul]") {
    if (active_isa() != Isa::avx512) return;
    std::size_t formats = 0;
    for (const auto& [known, format] : named_formats) {
        const Quantiser round{.format = format};
        if (!quantises_to_pairs(round)) continue;
        ++formats;
        std::vector<float> values = boundaries(format);
        for (std::size_t i = 0; i < 4096; ++i)  // any exponent
            values.push_back(std::bit_cast<float>(random_word({8, 1}, i)));
        if (!format.has_nan())
            std::replace_if(
                values.begin(), values.end(), [](float x) { return is_nan(x); }, 1.0f);
        const auto n = static_cast<std::ptrdiff_t>(values.size());
        std::vector<float> buffer(static_cast<std::size_t>(pair_buffer));
        for (const bool along : {false, true}) {  // read across k, and along k
            const MatrixView<const float> view{values.data(), along ? 1 : n, along ? n : 1};
            const std::ptrdiff_t rows = along ? n : 1, cols = along ? 1 : n;
            std::vector<Pair> packed(static_cast<std::size_t>(packed_right_pairs_size(rows, cols)));
            const auto panels = pack_right_pairs(view, rows, cols, &round, packed.data(), buffer.data());
            std::size_t wrong = 0;
            for (std::ptrdiff_t i = 0; i < n; ++i) {
                const std::ptrdiff_t p = along ? i : 0, j = along ? 0 : i, q = j / pair_columns;
                const Pair pair = panels.panel(q)[p / 2 * panels.padded_columns(q) + j % pair_columns];
                wrong += !same(half_of(pair, p % 2), quantise(format, values[static_cast<std::size_t>(i)]));
            }
            CAPTURE(known, along);
            REQUIRE(wrong == 0);
        }
    }
    REQUIRE(formats >= 9);
}

TEMPLATE_TEST_CASE("pairs hold every element, rounded once, and zeros beside them", "[kernels][matmul]", float, Half) {
    if (active_isa() != Isa::avx512) return;
    // Quantised in registers; quantised in a buffer; exact already.
    const Quantiser nearest{.format = e4m3}, down{.format = e4m3, .rounding = Rounding::down},
        unbounded{.format = e5m2, .overflow = Overflow::to_infinity};
    std::vector<float> buffer(static_cast<std::size_t>(pair_buffer));
    for (const std::ptrdiff_t size : {1, 12, 16, 17, 45, 100, 109, 333})
        for (const std::ptrdiff_t k : {1, 31, 32, 33, 75})
            for (const Quantiser* round : {&nearest, &down, &unbounded, static_cast<const Quantiser*>(nullptr)}) {
                auto data = numbers<TestType>(2 * (size + 4) * (k + 4));
                if (round == nullptr)
                    for (auto& x : data) x = element_cast<TestType>(quantise(e4m3, element_cast<float>(x)));
                const auto value = [&](const MatrixView<const TestType>& view, std::ptrdiff_t i, std::ptrdiff_t j) {
                    const auto x = element_cast<float>(*view.at(i, j));
                    return round == nullptr ? x : quantise(round->format, x, round->options());
                };
                std::size_t wrong = 0;
                for (const auto& view : {MatrixView<const TestType>{data.data(), size + 2, 1},
                                         MatrixView<const TestType>{data.data(), 1, k + 3},
                                         MatrixView<const TestType>{data.data(), 2 * size, 2}}) {  // B [k,size]
                    std::vector<Pair> out(static_cast<std::size_t>(packed_right_pairs_size(k, size)) + 1, 77u);
                    const auto panels = pack_right_pairs(view, k, size, round, out.data(), buffer.data());
                    REQUIRE(out.back() == 77u);
                    for (std::ptrdiff_t q = 0; q < panels.count(); ++q)
                        for (std::ptrdiff_t p = 0; p < 2 * pairs_of(k); ++p)
                            for (std::ptrdiff_t j = 0; j < panels.padded_columns(q); ++j) {
                                const Pair pair = panels.panel(q)[p / 2 * panels.padded_columns(q) + j];
                                const bool inside = p < k && j < panels.columns(q);
                                wrong +=
                                    !same(half_of(pair, p % 2), inside ? value(view, p, q * pair_columns + j) : 0.0f);
                            }
                }
                for (const std::ptrdiff_t group : {12, 16})
                    for (const auto& view : {MatrixView<const TestType>{data.data(), k + 2, 1},
                                             MatrixView<const TestType>{data.data(), 1, size + 3},
                                             MatrixView<const TestType>{data.data(), 2 * k, 2}}) {  // A [size,k]
                        const std::ptrdiff_t rows = round_up(size, group), pairs = pairs_of(k);
                        std::vector<Pair> out(static_cast<std::size_t>(rows * pairs) + 1, 77u);
                        pack_left_pairs(view, size, k, round, group, out.data(), buffer.data());
                        REQUIRE(out.back() == 77u);
                        for (std::ptrdiff_t i = 0; i < rows; ++i)
                            for (std::ptrdiff_t p = 0; p < 2 * pairs; ++p) {
                                const std::ptrdiff_t at =
                                    i / group * group * pairs + p / 32 * 16 * group + i % group * 16 + p % 32 / 2;
                                wrong += !same(half_of(out[static_cast<std::size_t>(at)], p % 2),
                                               p < k && i < size ? value(view, i, p) : 0.0f);
                            }
                    }
                CAPTURE(size, k);
                REQUIRE(wrong == 0);
            }
}

#endif
