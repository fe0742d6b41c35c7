// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/products/product.hpp>

#include <vector>

namespace unitscale::test {

/// An instruction set of the product's kernels, with or without instructions that multiply pairs.
struct MatmulPath {
    Isa isa;
    products::PairKernel pairs;
};

/// The paths that this processor can run.
[[nodiscard]] inline std::vector<MatmulPath> matmul_paths() {
    using products::PairKernel;
    std::vector<MatmulPath> all{{Isa::baseline, PairKernel::none}};
    for (const Isa isa : {Isa::avx2, Isa::avx512})
        if (isa <= active_isa()) all.push_back({isa, PairKernel::none});
    if (has_avx512_bf16()) all.push_back({Isa::avx512, PairKernel::dot});
    if (products::has_amx_bf16()) all.push_back({Isa::avx512, PairKernel::matrix});
    return all;
}

}  // namespace unitscale::test
