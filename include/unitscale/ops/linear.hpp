// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/matmul.hpp>
#include <unitscale/kernels/reduce.hpp>
#include <unitscale/ops/operands.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct LinearOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

struct LinearFactors {
    double alpha = 1.0, beta_x = 1.0, beta_weight = 1.0;
    JoinedBy joined_by = JoinedBy::plan;
};

/// Ideal factors of a linear layer under `unit`: see `linear`.
[[nodiscard]] inline LinearFactors linear_unit_factors(std::size_t in, std::size_t out, std::size_t rows) noexcept {
    return {.alpha = rsqrt_count(in), .beta_x = rsqrt_count(out), .beta_weight = rsqrt_count(rows)};
}

/// Records y = alpha (x weight^T + bias) with given factors and the formats that the recipe gives to products of this
/// kind here: the common part of `linear` and `readout`. All three products round their operands; sums and the bias'
/// gradient are not rounded. `factors_of(site, in, out, rows)` runs after the shapes are known to fit.
template <class T, class FactorsOf>
[[nodiscard]] Variable<T> record_linear(const char* op, ProductKind kind, Variable<T> x, Variable<T> weight,
                                        std::optional<Variable<T>> bias, FactorsOf&& factors_of) {
    Tape<T>& tape = x.tape(op);
    const Tensor<T>& input = x.value();
    const Tensor<T>& w = weight.value();
    check(w.rank() == 2, op, ": weight ", to_string(w.shape()), " is not a matrix [out,in]");
    const std::size_t out = w.dim(0), in = w.dim(1), rows = row_count(input.shape()),
                      columns = last_extent(op, "x", input.shape());
    check(columns == in, op, ": x ", to_string(input.shape()), " and weight ", to_string(w.shape()),
          " do not contract: ", columns, " != ", in);
    if (bias)
        check(bias->shape() == Shape{out}, op, ": bias ", to_string(bias->shape()), " does not fit weight ", to_string(w.shape()),
              "; expected [", out, "]");
    const Site site = tape.next_site(op);
    const ProductFormats formats = tape.state().formats(site, kind, tape.recipe());
    const RandomKey activation_key = tape.random_key(site, activation_part), weight_key = tape.random_key(site, weight_part),
                    gradient_key = tape.random_key(site, gradient_part);
    const LinearFactors factors = tape.unit_scaled() ? factors_of(site, in, out, tape.step_rows(rows)) : LinearFactors{};
    const auto m = static_cast<std::ptrdiff_t>(rows), n = static_cast<std::ptrdiff_t>(out), k = static_cast<std::ptrdiff_t>(in);

    Tensor<T> output = tape.make(with_last_extent(input.shape(), out));
    kernels::matmul<T>(tape.execution(), {.m = m,
                                          .n = n,
                                          .k = k,
                                          .a = {input.data(), k, 1},
                                          .b = {w.data(), 1, k},
                                          .c = {output.data(), n, 1},
                                          .alpha = static_cast<Accum<T>>(factors.alpha),
                                          .bias = bias ? bias->value().data() : nullptr,
                                          .round_a = pointer(formats.activation),
                                          .round_b = pointer(formats.weight),
                                          .key_a = activation_key,
                                          .key_b = weight_key});

    auto backward = [=](BackwardContext<T>& g) {
        const T* dy = g.output_gradient().data();
        if (g.needs(0)) {
            Tensor<T> dx = g.make(g.input(0).shape());
            kernels::matmul<T>(g.execution(), {.m = m,
                                               .n = k,
                                               .k = n,
                                               .a = {dy, n, 1},
                                               .b = {g.input(1).data(), k, 1},
                                               .c = {dx.data(), k, 1},
                                               .alpha = static_cast<Accum<T>>(g.beta(0)),
                                               .round_a = pointer(formats.gradient),
                                               .round_b = pointer(formats.weight),
                                               .key_a = gradient_key,
                                               .key_b = weight_key});
            g.add(0, std::move(dx));
        }
        if (g.needs(1)) {
            Tensor<T> dw = g.make(g.input(1).shape());
            kernels::matmul<T>(g.execution(), {.m = n,
                                               .n = k,
                                               .k = m,
                                               .a = {dy, 1, n},
                                               .b = {g.input(0).data(), k, 1},
                                               .c = {dw.data(), k, 1},
                                               .alpha = static_cast<Accum<T>>(g.beta(1)),
                                               .round_a = pointer(formats.gradient),
                                               .round_b = pointer(formats.activation),
                                               .key_a = gradient_key,
                                               .key_b = activation_key});
            g.add(1, std::move(dw));
        }
    };
    if (!bias)
        return tape.record({op, site, factors.alpha, {factors.beta_x, factors.beta_weight}, factors.joined_by, rows * in * out},
                           {x, weight}, std::move(output), backward);
    return tape.record(
        {op, site, factors.alpha, {factors.beta_x, factors.beta_weight, factors.beta_weight}, factors.joined_by, rows * in * out},
        {x, weight, *bias}, std::move(output), [=](BackwardContext<T>& g) {
            backward(g);
            if (!g.needs(2)) return;
            Tensor<T> db = g.make(Shape{out});
            kernels::column_sums<T>(g.execution(), g.output_gradient().data(), db.data(), m, n, static_cast<Accum<T>>(g.beta(2)));
            g.add(2, std::move(db));
        });
}

/// Unit-scaled linear layer.
///   y = alpha (x weight^T + bias)    x [...,in]   weight [out,in]   bias [out]   y [...,out]
///   dx = beta_x dy weight            dweight = beta_w dy^T x        dbias = beta_w sum over rows of dy
/// Factors under `unit`, entries independent with zero mean and unit variance: a sum of r products has variance r, hence
/// alpha = in^-1/2, beta_x = out^-1/2, beta_w = N^-1/2 for the N rows of the whole step; alpha and beta_x share one value
/// (the constraint), weight and bias are cut-edges. Under `none` all factors are 1.
/// Rounding: by the recipe, kind `linear`: x as activation, weight as weight, dy as gradient, in all three products.
/// Errors: weight not a matrix; x and weight do not contract; bias of another length.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/linear_test.cpp
template <class T>
[[nodiscard]] Variable<T> linear(Variable<T> x, Variable<T> weight, std::optional<Variable<T>> bias = {},
                                 const LinearOptions& options = {}) {
    const auto factors_of = [&](Site site, std::size_t in, std::size_t out, std::size_t rows) {
        LinearFactors factors = linear_unit_factors(in, out, rows);
        factors.joined_by = join_factors("linear", site, x.tape("linear"), options.constraint, factors.alpha, factors.beta_x);
        return factors;
    };
    return record_linear("linear", ProductKind::linear, x, weight, bias, factors_of);
}
template <class T>
[[nodiscard]] Variable<T> linear(Variable<T> x, Variable<T> weight, const LinearOptions& options) {
    return linear(x, weight, std::optional<Variable<T>>{}, options);
}

}  // namespace unitscale::ops
