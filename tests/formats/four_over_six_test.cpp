// SPDX-License-Identifier: MIT
#include <unitscale/formats/four_over_six.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

using namespace unitscale;
using reference::to_double;

TEST_CASE("Four Over Six takes 4 where it has strictly the smaller error") {
    BlockFormat format = nvfp4;
    format.four_over_six = FourOverSix::absolute_error;
    const auto choice = [&](std::vector<float> x, float tensor_amax) {
        x.resize(16);
        float amax = 0;
        for (const float e : x) amax = std::max(amax, std::abs(e));
        const TensorNumbers tensor = tensor_numbers(format, tensor_amax);
        const BlockScale got = four_over_six_scale(format, amax, tensor, {x.data(), 1, 16, 16});
        return to_double(got.value) / to_double(block_scale(format, amax, tensor).value);
    };
    // A = 1536 makes the scale the amax over 6. 3 4: halves and 4 are exact under 6; 3 of 4 is exact under 4.
    CHECK(choice({6, 4, 3, 2, 1}, 1536) == 1.0);
    CHECK(choice({6, 4.5, 3}, 1536) == 1.5);     // 4, 3, 2 under the scale 1.5
    CHECK(choice({6}, 1536) == 1.0);             // both exact: a tie
    CHECK(choice({6, -4.5, 0.5}, 1536) == 1.5);  // errors 0.5 against 0.25
    CHECK(choice({6, -4.5, -0.5, 0.5, 1}, 1536) == 1.0);
    format.four_over_six_max = 448;
    CHECK(choice({2688, 2016, 1344}, 2688) == 1.0);  // 1.5 * 448 is saturated to 448
    CHECK(choice({6, 4.5, 3}, 2688) == 1.5);

    // The sums by hand.
    const std::vector<float> x{6, 5, 4.5, 4.5, 0.5, 0.5, 0.5};
    format.four_over_six_max = 256;
    const TensorNumbers tensor = tensor_numbers(format, 1536);
    const BlockScale six = block_scale(format, 6, tensor), four = block_scale(format, 6, tensor, true);
    const MatrixLines<const float> block{x.data(), 1, x.size(), x.size()};
    CHECK(four.value == 1.5f);
    CHECK(four_over_six_error(format, six, 1536, block) == 2.0f);    // 5, 4.5, 4.5 become 4
    CHECK(four_over_six_error(format, four, 1536, block) == 1.25f);  // 5 becomes 4.5, 0.5 becomes 0.75
    format.four_over_six = FourOverSix::squared_error;
    CHECK(four_over_six_error(format, six, 1536, block) == 1.5f);
    CHECK(four_over_six_error(format, four, 1536, block) == 0.4375f);
}

TEST_CASE("the errors of a square are added line by line, then as a tree") {
    BlockFormat format = nvfp4_square;
    format.four_over_six = FourOverSix::absolute_error;
    // One error to a line: of line 0 a large one, of the others half an ulp of it. In a row they would all be lost.
    std::vector<float> x(16 * 20, 0.0f);
    for (std::size_t line = 0; line < 16; ++line) x[line * 20 + 3] = line == 0 ? 0.25f : 0x1p-26f;
    const TensorNumbers tensor = tensor_numbers(format, 1536);
    const BlockScale six = block_scale(format, 6, tensor);
    REQUIRE(six.value == 1.0f);
    CHECK(four_over_six_error(format, six, 1536, {x.data(), 16, 16, 20}) == 0.25f + 14 * 0x1p-26f);
    CHECK(four_over_six_error(format, six, 1536, {x.data(), 3, 16, 20}) == 0.25f);
    x[3 + 20] = 0x1p-24f;
    CHECK(four_over_six_error(format, six, 1536, {x.data(), 2, 16, 20}) == 0.25f + 0x1p-24f);
}
