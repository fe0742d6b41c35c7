// SPDX-License-Identifier: MIT
#include <unitscale/kernels/block_lines.hpp>

#include "kernels/block_formats.hpp"
#include "kernels/kernel_checks.hpp"
#include "support/matmul_paths.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;
using unitscale::test::available_isas;
using unitscale::test::block_formats;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

bool same(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

}  // namespace

TEST_CASE("lines are quantised to the numbers of quantise_blocks, by every instruction set", "[kernels]") {
    for (const std::ptrdiff_t length : {1, 16, 37, 200}) {
        const std::ptrdiff_t lines = 32;
        auto x = normal_data<float>(static_cast<std::size_t>(lines * length), 5);
        std::fill_n(x.begin(), std::min<std::ptrdiff_t>(40, lines * length), 0.0f);  // blocks of zeros
        x.back() = 1e-5f;
        for (const BlockFormat& format : block_formats())
            for (const Rounding rounding :
                 {Rounding::nearest_even, Rounding::nearest_away, Rounding::toward_zero, Rounding::stochastic}) {
                BlockOptions options;
                options.element = {.rounding = rounding, .bits = 12, .key = {5, 6}, .first_index = 3};
                options.tensor_apart = true;
                std::vector<float> want = x;
                const auto size = static_cast<std::size_t>(length);
                const MatrixLines<float> matrix{want.data(), static_cast<std::size_t>(lines), size, size};
                quantise_blocks(format, matrix, matrix, options);
                float amax = 0;
                for (const float v : x) amax = std::max(amax, std::abs(v));
                TensorNumbers tensor = tensor_numbers(format, amax);
                tensor.apart = true;
                for (const Isa isa : available_isas()) {
                    BlockLines quantiser(isa, Execution{}, format, tensor, options.element, length);
                    std::vector<float> have(x.size());
                    const std::ptrdiff_t across = std::min<std::ptrdiff_t>(format.across, lines);
                    bool refused = false, exact = true;
                    for (std::ptrdiff_t line = 0; line < lines; line += across) {
                        const auto result =
                            quantiser.quantise(x.data() + line * length, have.data() + line * length, line, across);
                        refused = refused || result == BlockResult::refused;
                        exact = exact && result == BlockResult::exact_in_bf16;
                    }
                    const bool divides = format.rule == BlockRule::deepseek || format.rule == BlockRule::torchao_float8;
                    INFO(name(format) << ' ' << length << ' ' << name(rounding) << ' ' << name(isa));
                    CHECK(refused == divides);
                    if (divides) continue;
                    CHECK(std::equal(have.begin(), have.end(), want.begin()));
                    if (exact)
                        CHECK(std::all_of(have.begin(), have.end(),
                                          [](float v) { return (std::bit_cast<std::uint32_t>(v) & 0xFFFFu) == 0; }));
                    if (format.has_exponent_codes() || format == nvfp4) CHECK(exact);
                }
            }
    }
}

TEST_CASE("refused lines stay as they were", "[kernels]") {
    auto x = normal_data<float>(64, 5);
    x[40] = not_a_number;
    const std::vector<float> before = x;
    BlockLines quantiser(active_isa(), Execution{}, mxfp4, {}, {}, 64);
    CHECK(quantiser.quantise(x.data(), x.data(), 0, 1) == BlockResult::refused);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(same(x[i], before[i]));
}

TEST_CASE("with one scale for the tensor elements are encoded, and not decoded", "[kernels]") {
    const auto x = normal_data<float>(64, 5);
    for (const Isa isa : available_isas()) {
        std::vector<float> y = x;
        BlockLines quantiser(isa, Execution{}, float8_tensor, {}, {}, 32, WholeScale{8.0f, 1.0f});
        CHECK(quantiser.quantise(y.data(), y.data(), 0, 2) == BlockResult::exact_in_bf16);
        for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == quantise(e4m3, 8.0f * x[i]));
    }
}
