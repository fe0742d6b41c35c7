// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/kernels/attention_operand.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

constexpr std::ptrdiff_t rows = 5, columns = 32, size = rows * columns;

std::vector<float> normals() {
    std::vector<float> x(static_cast<std::size_t>(2 * size));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random_normal({3, 1}, i));
    return x;
}

}  // namespace

TEST_CASE("an operand of attention leaves rounding to nearest to the product", "[kernels]") {
    const std::vector<float> x = normals();
    const AttentionOperand plain, nearest{.quantiser = Quantiser{e4m3}};
    for (const AttentionOperand& rule : {plain, nearest}) {
        CHECK_FALSE(AttentionOperandRows<float>::has_own_pass(rule));
        const AttentionOperandRows<float> operand({}, rule, x.data(), 0, rows, columns, Contracted::columns);
        CHECK_FALSE(operand.matrix().numbers.has_value());
        CHECK(operand.matrix().view.data == x.data());
        CHECK(operand.matrix().quantiser == rule.quantiser);
        CHECK(operand.transposed().view.at(3, 2) == x.data() + 2 * columns + 3);
    }
}

TEST_CASE("an operand of attention has stochastic numbers of its own item, in any number of threads", "[kernels]") {
    const std::vector<float> x = normals();
    const AttentionOperand rule{.quantiser = Quantiser{.format = e4m3, .rounding = Rounding::stochastic},
                                .key = {5, 6}};
    CHECK(AttentionOperandRows<float>::has_own_pass(rule));
    for (const int threads : {1, 2}) {
        const AttentionOperandRows<float> operand({threads, nullptr}, rule, x.data() + size, 1, rows, columns,
                                                  Contracted::columns);
        const auto& numbers = operand.matrix().numbers;
        REQUIRE(numbers.has_value());
        CHECK(numbers->exact_in_bf16);
        for (std::ptrdiff_t i = 0; i < size; ++i) {
            const auto place = static_cast<std::size_t>(size + i);
            REQUIRE(numbers->view.data[i] ==
                    quantise(e4m3, x[place], rule.quantiser->options(rule.key), static_cast<std::uint64_t>(place)));
        }
        CHECK(*operand.transposed().numbers->view.at(3, 2) == *numbers->view.at(2, 3));
    }
}

TEST_CASE("an operand of attention in blocks has the numbers of round_blocks along the contraction", "[kernels]") {
    const std::vector<float> x = normals();
    const AttentionOperand rule{.quantiser = Quantiser{e2m1}, .blocks = mxfp4};
    CHECK(AttentionOperandRows<float>::has_own_pass(rule));
    for (const Contracted contracted : {Contracted::columns, Contracted::rows}) {
        std::vector<float> want(static_cast<std::size_t>(size));
        BlockOptions how;
        how.element = rule.quantiser->options(rule.key);
        const bool transposed =
            round_blocks<float>({}, mxfp4, how, {}, x.data(), want.data(), rows, columns, contracted).transposed;
        const AttentionOperandRows<float> operand({}, rule, x.data(), 0, rows, columns, contracted);
        for (std::ptrdiff_t i = 0; i < rows; ++i)
            for (std::ptrdiff_t j = 0; j < columns; ++j)
                REQUIRE(*operand.matrix().numbers->view.at(i, j) ==
                        want[static_cast<std::size_t>(transposed ? j * rows + i : i * columns + j)]);
    }
}

TEST_CASE("an operand of attention with NaN for a format without NaN is an error", "[kernels]") {
    std::vector<float> x = normals();
    x[static_cast<std::size_t>(columns + 3)] = std::numeric_limits<float>::quiet_NaN();
    const AttentionOperand nearest{.quantiser = Quantiser{e2m1}},
        stochastic{.quantiser = Quantiser{.format = e2m1, .rounding = Rounding::stochastic}};
    CHECK(AttentionOperandRows<float>::has_own_pass(nearest));  // the product finds it, in no parallel region
    CHECK_THROWS_WITH(AttentionOperandRows<float>({}, stochastic, x.data(), 0, rows, columns, Contracted::columns),
                      "attention: e2m1 has no NaN: element [1,3] is NaN");
}
