// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/random.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/tensor/cast.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace unitscale::test {

/// The instruction sets that this processor can run.
[[nodiscard]] inline std::vector<Isa> available_isas() {
    std::vector<Isa> all{Isa::baseline};
    for (const Isa isa : {Isa::avx2, Isa::avx512})
        if (isa <= active_isa()) all.push_back(isa);
    return all;
}

/// Standard normal numbers, rounded to T.
template <class T>
[[nodiscard]] std::vector<T> numbers(std::ptrdiff_t count, std::uint64_t stream = 1, std::uint64_t seed = 7) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = element_cast<T>(random_normal({seed, stream}, i));
    return values;
}

template <class T>
[[nodiscard]] bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// An instruction set of the product's kernels, with or without instructions that multiply pairs.
struct MatmulPath {
    Isa isa;
    products::PairKernel pairs;
};

/// The paths that this processor can run.
[[nodiscard]] inline std::vector<MatmulPath> matmul_paths() {
    using products::PairKernel;
    std::vector<MatmulPath> all;
    for (const Isa isa : available_isas()) all.push_back({isa, PairKernel::none});
    if (has_avx512_bf16()) all.push_back({Isa::avx512, PairKernel::dot});
    if (products::has_amx_bf16()) all.push_back({Isa::avx512, PairKernel::matrix});
    return all;
}

}  // namespace unitscale::test
