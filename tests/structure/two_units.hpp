// SPDX-License-Identifier: MIT
#pragma once

// What the two units of this check do, each for itself: the functions are static, so that each unit compiles its own
// copy for its own instruction set, while the inline functions of the library are merged by the linker.

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

/// Everything about our types that must not depend on compiler flags or on what was included before.
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

/// A tensor [3, 37] of numbers over many binades, from the pool.
static Tensor<float> make(const std::shared_ptr<MemoryPool>& pool) {
    Tensor<float> x({3, 37}, pool);
    for (std::size_t i = 0; i < x.size(); ++i) {
        x.data()[i] = static_cast<float>(unitscale::random_normal({.seed = 7, .stream = 1}, i) * (1 << (i % 12)));
    }
    return x;
}

/// The tensor rounded to 16 bits at random, then to 8 bits, by storage and shape of the argument: takes it over,
/// replaces its memory, gives it back.
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

/// A product x^T x, rows and reductions through the kernels, which take and give back scratch memory: sums that a wider
/// register may form in another order.
/// Eigen's own matrices and products must not be used here nor in the library: they allocate in one unit and free in
/// the other, and what they allocate has a header or not, by -march.
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
                                                   .a = {.data = x.data(), .row_stride = 1, .col_stride = columns},
                                                   .b = {.data = activated.data(), .row_stride = columns},
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
