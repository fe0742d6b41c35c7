// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/embedding.hpp>
#include <unitscale/record/ids.hpp>
#include <unitscale/record/op.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace unitscale::ops {

struct EmbeddingOptions {
    std::optional<std::size_t> step_lookups{};  ///< N of the whole step; empty: the micro-batches are alike
};

/// The factor of the table's gradient under `unit`: see `embedding`.
[[nodiscard]] inline double embedding_unit_beta(std::size_t vocabulary, std::size_t lookups) noexcept {
    return lookups == 0 ? 1.0 : std::sqrt(static_cast<double>(vocabulary) / static_cast<double>(lookups));
}

/// Unit-scaled lookup in a table.
///   y[i] = table[ids[i]]       dtable[v] = beta (sum over i with ids[i] = v of dy[i])
///   table [V,d]   ids [...]   y [...,d]
/// Factors under `unit`: rows are copied, so alpha = 1; a row of the gradient gathers N/V of the N lookups of the step
/// on average, hence beta = (V/N)^1/2. Ids that every micro-batch looks up again and that are not rows of its batch
/// (positions) are no further lookups of the step: give their number as `step_lookups`.
/// Scale under `propagate`: the table's; its gradient: dy's / beta, rounded.
/// Ids are integers of any type.
/// Errors: table not a matrix; an id outside [0, V).
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/embedding_test.cpp
template <class T>
[[nodiscard]] Variable<T> embedding(Variable<T> table, const Tensor<std::int32_t>& ids,
                                    const EmbeddingOptions& options = {}) {
    auto op = begin_op("embedding", table);
    const CodedWeight* const codes = op.tape().coded(table);
    const Shape& rows = table.shape();
    check(rows.size() == 2, "embedding: table ", shape_text(rows), " is not a matrix [V,d]");
    const auto vocabulary = static_cast<std::ptrdiff_t>(rows[0]), width = static_cast<std::ptrdiff_t>(rows[1]);
    const auto count = static_cast<std::ptrdiff_t>(ids.size());
    const std::ptrdiff_t bad = kernels::first_outside(ids.data(), count, vocabulary);
    check(bad == count, "embedding: ids[", bad, "] is ", bad < count ? ids.data()[bad] : 0,
          "; expected a number in [0,", vocabulary, ")");
    const std::size_t lookups = options.step_lookups.value_or(op.tape().step_rows(ids.size()));
    op.set_factors({.betas = {embedding_unit_beta(rows[0], lookups)}});
    Shape shape(ids.rank() + 1);
    std::copy(ids.shape().begin(), ids.shape().end(), shape.begin());
    shape[ids.rank()] = rows[1];
    Tensor<T> output = op.make(shape);
    if (codes != nullptr) {
        kernels::coded_embedding_forward<T>(op.execution(), *codes, ids.data(), output.data(), count);
        return op.record(std::move(output), 1.0, {.reads = reads_nothing}, [](BackwardContext<T>&) {});
    }
    const Tensor<T>& value = op.input(0);
    kernels::embedding_forward<T>(op.execution(), value.data(), ids.data(), output.data(), count, width, Accum<T>(1));
    Tensor<std::int32_t> kept(ids.shape(), op.tape().pool());
    std::copy_n(ids.data(), ids.size(), kept.data());
    return op.record(std::move(output), value.scale(), {.reads = reads_nothing, .any_scale = value.any_scale()},
                     [=, kept = std::move(kept)](BackwardContext<T>& g) {
                         const Scaled scaled = g.scaled_beta(0);
                         Tensor<T> dtable = g.make(g.input_shape(0));
                         kernels::embedding_backward<T>(g.execution(), g.output_gradient().data(), kept.data(),
                                                        dtable.data(), count, vocabulary, width,
                                                        static_cast<Accum<T>>(scaled.factor));
                         g.add(0, std::move(dtable), scaled.scale);
                     });
}

template <class T, OtherId I>
[[nodiscard]] Variable<T> embedding(Variable<T> table, const Tensor<I>& ids, const EmbeddingOptions& options = {}) {
    const auto narrow = narrow_ids("embedding", "ids", ids, table.tape("embedding").pool());
    return embedding(std::move(table), narrow, options);
}

}  // namespace unitscale::ops
