// SPDX-License-Identifier: MIT
#include <unitscale/analysis/statistics_kernels.hpp>
#include <unitscale/base/random.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

using namespace unitscale;
using namespace unitscale::analysis;

namespace {

template <Isa isa>
void check_kernels() {
    using Kernels = BlockKernels<isa>;
    INFO(name(isa));
    std::vector<float> x(statistics_block + 1), y(statistics_block + 1);
    for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(random_normal({1, 1}, i)) * std::ldexp(1.0F, static_cast<int>(i % 40) - 20);
        y[i] = x[i] * 1.25F;
    }
    x[77] = 0.0F;
    x[900] = -1e30F;
    const float* in = x.data() + 1;  // not aligned to a vector
    std::vector<std::uint8_t> fields(statistics_block);
    BlockScan scan;
    Kernels::scan(in, fields.data(), scan);
    double sum = 0.0, squares = 0.0, distance = 0.0;
    std::uint32_t smallest = BlockScan::none, largest = 0;
    std::vector<std::uint64_t> counts(256, 0);
    std::uint64_t between = 0;
    for (std::size_t i = 0; i < statistics_block; ++i) {
        const auto value = static_cast<double>(in[i]), other = static_cast<double>(y[i]);
        sum += value;
        squares += value * value;
        distance += (value - other) * (value - other);
        const std::uint32_t word = std::bit_cast<std::uint32_t>(in[i]) & 0x7FFFFFFFu;
        if (word != 0) smallest = std::min(smallest, word);
        largest = std::max(largest, word);
        CHECK(fields[i] == word >> 23);
        ++counts[word >> 23];
        between += word >= 0x3F000000u && word <= 0x3F900000u ? 1U : 0U;
    }
    CHECK(scan.sum == Approx(sum));
    CHECK(scan.squares == Approx(squares));
    CHECK(scan.smallest == smallest);
    CHECK(scan.largest == largest);
    CHECK(scan.has_zero);
    BlockScan quick;
    CHECK_FALSE(Kernels::quick_scan(in, quick));  // 1e30 is too large
    x[900] = -1e18F;
    quick = {};
    CHECK(Kernels::quick_scan(in, quick));
    CHECK(quick.sum == Approx(-1e18));
    CHECK(quick.squares == Approx(1e36));
    CHECK(quick.smallest == smallest);
    CHECK(quick.largest == std::bit_cast<std::uint32_t>(1e18F));
    CHECK(quick.has_zero);
    x[900] = -1e30F;
    CHECK(Kernels::distance(in, y.data()) == Approx(distance));
    CHECK(Kernels::between(in, 0x3F000000u, 0x3F900000u) == between);
    CHECK(Kernels::between(in, 0, 0) == 1);
    CHECK(Kernels::largest(in) == largest);
    CHECK(block_largest(isa, in) == largest);
    CHECK(Kernels::between(in, 0, 0x7F800000u) == statistics_block);
    std::vector<std::uint64_t> found(256, 0);
    Kernels::count(fields.data(), 0, 255, found.data());
    CHECK(found == counts);

    const std::vector<float> nothing(statistics_block, -0.0F), same(statistics_block, 1.5F);
    BlockScan empty;
    Kernels::scan(nothing.data(), fields.data(), empty);
    CHECK(empty.smallest == BlockScan::none);
    CHECK(empty.largest == 0);
    CHECK(empty.has_zero);
    BlockScan full;
    Kernels::scan(same.data(), fields.data(), full);
    CHECK_FALSE(full.has_zero);
    std::fill(found.begin(), found.end(), 0);
    Kernels::count(fields.data(), 127, 127, found.data());
    CHECK(found[127] == statistics_block);  // every one-byte counter reaches its maximum
}

}  // namespace

TEST_CASE("statistics kernels: every instruction set agrees with a plain loop") {
    check_kernels<Isa::baseline>();
#if UNITSCALE_X86
    if (active_isa() >= Isa::avx2) check_kernels<Isa::avx2>();
    if (active_isa() >= Isa::avx512) check_kernels<Isa::avx512>();
#endif
}
