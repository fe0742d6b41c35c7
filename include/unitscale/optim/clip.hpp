// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/coding.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/scaling/propagate.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

namespace unitscale::optim {

/// Whether an optimiser's step and the gradient norm include the parameter.
template <class T>
[[nodiscard]] bool is_updated(const Parameter<T>& parameter) noexcept {
    return parameter.requires_gradient() && parameter.has_gradient();
}

/// Elements of a gradient in one chunk. One thread sums the squares of a chunk, in one order.
inline constexpr std::ptrdiff_t norm_chunk = 4096;

/// Sum of squares of `count` elements in double.
/// Element i goes into running sum i mod 8; the eight sums are then added in turn.
template <class T>
[[nodiscard]] double sum_of_squares(const T* x, std::ptrdiff_t count) noexcept {
    std::array<double, 8> sums{};
    const auto add = [&sums](const T* values) {
#pragma GCC unroll 1
        for (std::size_t lane = 0; lane < 8; ++lane) {
            const auto value = static_cast<double>(static_cast<Accum<T>>(values[lane]));
            sums[lane] = multiply_add(value, value, sums[lane]);
        }
    };
    std::ptrdiff_t i = 0;
    for (; i + 8 <= count; i += 8) add(x + i);
    if (i < count) {
        std::array<T, 8> rest;
        rest.fill(T(0));  // adds nothing
        std::copy(x + i, x + count, rest.begin());
        add(rest.data());
    }
    double total = 0.0;
    for (const double sum : sums) total += sum;
    return total;
}

/// Calls take(result) with result(x, count) of each chunk of a gradient, in the order of the chunks.
/// x points to the chunk's `count` elements of T, or to the numbers of its codes as float; the scale is left out.
/// The execution provides scratch of one result per chunk.
template <class T, class Of, class Take>
void for_each_chunk(const Execution& execution, const Parameter<T>& parameter, Of&& result, Take&& take) {
    using Result = std::invoke_result_t<Of&, const T*, std::ptrdiff_t>;
    const auto size = static_cast<std::ptrdiff_t>(parameter.size());
    const std::ptrdiff_t chunks = (size + norm_chunk - 1) / norm_chunk;
    Scratch<Result> results(execution, static_cast<std::size_t>(chunks));
    const CodedTensor* const coded = parameter.coded_gradient();
    const T* const data = parameter.gradient_data();
    Result* const out = results.data();
    parallel_for(execution.threads, chunks, kernels::work_threshold / norm_chunk,
                 [=, &result](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t chunk = begin; chunk < end; ++chunk) {
                         const std::ptrdiff_t start = chunk * norm_chunk;
                         const std::ptrdiff_t count = std::min(norm_chunk, size - start);
                         if (coded == nullptr) {
                             out[chunk] = result(data + start, count);
                             continue;
                         }
                         std::array<float, static_cast<std::size_t>(norm_chunk)> numbers;
                         kernels::decode<float>(Execution{}, coded->codes.data() + start, numbers.data(), count,
                                                coded->format);
                         out[chunk] = result(std::as_const(numbers).data(), count);
                     }
                 });
    for (const Result& one : results.span()) take(one);
}

/// Sum of squares of a gradient's data, or of its codes' numbers, without the gradient's scale.
/// Squares are summed in double over chunks of fixed length: the result has the same bits for any thread count.
template <class T>
[[nodiscard]] double gradient_squares(const Execution& execution, const Parameter<T>& parameter) {
    double sum = 0.0;
    for_each_chunk(
        execution, parameter, [](const auto* x, std::ptrdiff_t count) { return sum_of_squares(x, count); },
        [&sum](double part) { sum += part; });
    return sum;
}

/// The scale under which a gradient's data has unit size: its scale times `rescaling` of the root mean square of its
/// data. Scales of moments follow from it. The gradient's own scale does not tell its size: data grows in training.
template <class T>
[[nodiscard]] double gradient_unit(const Execution& execution, const Parameter<T>& parameter) {
    return parameter.gradient_scale() * rms_rescaling(gradient_squares(execution, parameter), parameter.size());
}

/// Adds the numbers of processes that hold a part of the gradients each: numbers[i] := the sum of all numbers[i]. Each
/// number is 0 in all processes but the one that holds its gradient, so the sum is exact.
/// Empty: this process holds all.
using SumOfProcesses = std::function<void(std::span<double> numbers)>;

/// The Euclidean norm of all gradients together, without parameters that are frozen or have no gradient. It has equal
/// bits whichever process holds a gradient. The execution provides scratch of two numbers per parameter.
/// Test: tests/optim/clip_test.cpp
template <class T>
[[nodiscard]] double gradient_norm(const Execution& execution, std::span<Parameter<T>* const> parameters,
                                   const SumOfProcesses& sum = {}) {
    Scratch<double> parts(execution, 2 * parameters.size());  // of each gradient: squares times scale, and scale
    double* part = parts.data();
    for (const Parameter<T>* parameter : parameters) {
        const bool updated = is_updated(*parameter);
        const double scale = updated ? parameter->gradient_scale() : 0.0;
        *part++ = updated ? gradient_squares(execution, *parameter) * scale : 0.0;
        *part++ = scale;
    }
    if (sum) sum(parts.span());
    double total = 0.0;
    for (part = parts.data(); part != parts.data() + parts.span().size(); part += 2)
        total = multiply_add(part[0], part[1], total);
    return std::sqrt(total);
}

/// Multiplies all gradients by max_norm / norm where their norm is above max_norm.
/// Returns the norm before the multiplication.
/// A norm that is not finite is returned unchanged, and no gradient is changed: the caller decides how to go on.
/// Under unit scaling each parameter's gradient carries its own constant, so that the joint norm means little.
/// Leave clipping off there.
/// `sum` as in gradient_norm. Error: max_norm not positive.
/// Reference: Pascanu, Mikolov, Bengio 2013, arXiv:1211.5063. Test: tests/optim/clip_test.cpp
template <class T>
double clip_gradients(const Execution& execution, std::span<Parameter<T>* const> parameters, double max_norm,
                      const SumOfProcesses& sum = {}) {
    check(max_norm > 0.0, "clip_gradients: max_norm is ", max_norm, "; expected a positive number");
    const double norm = gradient_norm(execution, parameters, sum);
    for (Parameter<T>* parameter : parameters) parameter->mark(GradientStep::clip);
    if (!std::isfinite(norm) || norm <= max_norm) return norm;
    const auto factor = static_cast<Accum<T>>(max_norm / norm);
    for (Parameter<T>* parameter : parameters) {
        if (!is_updated(*parameter)) continue;
        if (HalfElement<T> || parameter->coded_gradient() != nullptr) {
            // Into the scale: data of 16 bits or less would round, and lose small elements.
            parameter->set_gradient_scale(parameter->gradient_scale() * (max_norm / norm));
            continue;
        }
        T* data = parameter->gradient().data();
        parallel_for(execution.threads, static_cast<std::ptrdiff_t>(parameter->size()), kernels::work_threshold,
                     [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                         for (std::ptrdiff_t i = begin; i < end; ++i)
                             data[i] = static_cast<T>(static_cast<Accum<T>>(data[i]) * factor);
                     });
    }
    return norm;
}

}  // namespace unitscale::optim
