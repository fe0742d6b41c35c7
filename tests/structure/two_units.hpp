// SPDX-License-Identifier: MIT
#pragma once

// Functions that both units of this check run.
// They are static, so that each unit compiles its own copy for its own instruction set.
// The linker merges the inline functions of the library.

#include <unitscale/unitscale.hpp>

#include <cmath>
#include <cstddef>
#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

namespace two_units {

using unitscale::MemoryPool;
using unitscale::Tensor;

/// Sizes, alignments and names of our types. They must not depend on compiler flags or on earlier includes.
static std::vector<std::size_t> layout() {
    return {sizeof(Tensor<float>),
            alignof(Tensor<float>),
            sizeof(unitscale::Array<float>),
            alignof(unitscale::Array<float>),
            sizeof(unitscale::Shape),
            sizeof(unitscale::PoolAllocator<float>),
            sizeof(unitscale::MemoryPool),
            typeid(Tensor<float>).hash_code(),
            typeid(unitscale::Array<float>).hash_code(),
            typeid(unitscale::Array<float>::storage_type).hash_code()};
}

/// A tensor [3,37] from the pool, with numbers in many binades.
static Tensor<float> make(const std::shared_ptr<MemoryPool>& pool) {
    Tensor<float> x({3, 37}, pool);
    for (std::size_t i = 0; i < x.size(); ++i) {
        x.data()[i] = static_cast<float>(unitscale::random_normal({.seed = 7, .stream = 1}, i) * (1 << (i % 12)));
    }
    return x;
}

/// The tensor rounded to 16 bits stochastically, then to 8 bits, in the shape [37,3].
/// The function takes the argument over, replaces its memory and returns it.
static Tensor<float> rounded(Tensor<float> x) {
    Tensor<float> y(x.shape());
    const unitscale::QuantiseOptions stochastic{.rounding = unitscale::Rounding::stochastic,
                                                .key = {.seed = 1, .stream = 2}};
    unitscale::quantise(unitscale::fp16, std::as_const(x).span(), y.span(), stochastic);
    unitscale::quantise(unitscale::e4m3, std::as_const(y).span(), y.span());
    x = y;
    x.reshape({37, 3});
    return x;
}

/// Results of the product x^T softmax(gelu(x)), with its kernels on rows, and of reductions. All use scratch memory.
/// Wider registers may add the terms of these sums in another order.
/// Eigen's own matrices and products must not be used here or in the library.
/// They may allocate in one unit and free in the other, and the layout of their allocations depends on -march.
static std::vector<float> sums(const Tensor<float>& x, const std::shared_ptr<MemoryPool>& pool) {
    const unitscale::Execution execution{.threads = 2, .pool = pool.get()};
    const auto rows = static_cast<std::ptrdiff_t>(x.dim(0));
    const auto columns = static_cast<std::ptrdiff_t>(x.dim(1));
    Tensor<float> activated(x.shape(), pool);
    unitscale::kernels::gelu_forward(execution, x.data(), activated.data(), rows * columns, 0.1f, 1.0f);
    unitscale::kernels::softmax_forward(execution, activated.data(), activated.data(), rows, columns, 0.1f, 1.0f);

    Tensor<float> product({x.dim(1), x.dim(1)}, pool);
    unitscale::products::matmul<float>(execution, {.m = columns,
                                                   .n = columns,
                                                   .k = rows,
                                                   .a = {{.data = x.data(), .row_stride = 1, .col_stride = columns}},
                                                   .b = {{.data = activated.data(), .row_stride = columns}},
                                                   .c = {.data = product.data(), .row_stride = columns}});
    std::vector<float> result(product.data(), product.data() + product.size());
    result.resize(product.size() + x.dim(1));
    unitscale::kernels::column_sums(execution, x.data(), result.data() + product.size(), rows, columns);
    result.push_back(0);
    for (const float value : x.array()) result.back() += std::abs(value);
    return result;
}

std::vector<std::size_t> layout_avx2();
Tensor<float> make_avx2(const std::shared_ptr<MemoryPool>& pool);
Tensor<float> rounded_avx2(Tensor<float> x);
std::vector<float> sums_avx2(const Tensor<float>& x, const std::shared_ptr<MemoryPool>& pool);

}  // namespace two_units
