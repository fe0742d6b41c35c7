// SPDX-License-Identifier: MIT
// Compiled for the oldest x86-64 and linked with a unit compiled for AVX2.
// Exchanges tensors with this unit and compares results.
#include "two_units.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace {

int faults = 0;

void expect(bool good, const char* what) {
    if (good) return;
    std::printf("two units of different -march: %s\n", what);
    ++faults;
}

bool same_bits(const unitscale::Tensor<float>& a, const unitscale::Tensor<float>& b) {
    return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

int main() {
    using namespace two_units;
    expect(layout() == layout_avx2(), "types differ in size, alignment or name");

    const auto pool = std::make_shared<unitscale::MemoryPool>();
    {
        const Tensor<float> x = make(pool);
        const Tensor<float> y = make_avx2(pool);
        // Random numbers of both units are equal, apart from the contraction of products and sums.
        for (std::size_t i = 0; i < x.size(); ++i) {
            expect(std::abs(x.data()[i] - y.data()[i]) <= 1e-5f * std::abs(x.data()[i]), "random numbers differ");
        }
        // Each unit frees, copies and assigns tensors of the other unit.
        const Tensor<float> p = rounded(y);
        const Tensor<float> q = rounded_avx2(y);
        expect(p.dim(0) == 37 && same_bits(p, q), "quantise gives other bits");

        const std::vector<float> a = sums(p, pool);
        const std::vector<float> b = sums_avx2(q, pool);
        // Errors are relative to the last result, which is the sum of all magnitudes.
        expect(a.size() == b.size(), "sums differ in number");
        for (std::size_t i = 0; i < a.size(); ++i) {
            expect(std::abs(a[i] - b[i]) <= 1e-5f * a.back(), "sums differ");
        }
    }
    expect(pool->live_bytes() == 0, "a buffer was not given back to its pool");
    if (faults == 0) std::puts("two units of different -march: good");
    return faults == 0 ? 0 : 1;
}
