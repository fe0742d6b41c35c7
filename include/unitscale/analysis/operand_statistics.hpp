// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/statistics.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/float_arithmetic.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/hadamard.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/scaling/tensor_scale.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace unitscale::analysis {

/// What rounding does to an operand x of a product, which multiplies Q(x) instead. Counts and sums are over the
/// tensor's data, without the tensor's scale. A rotated operand's elements are the rotated ones.
struct OperandSummary {
    std::size_t count = 0;
    std::size_t saturated = 0;   ///< finite elements that would round to more than the largest number of their scale
    std::size_t flushed = 0;     ///< elements other than zero that become zero
    std::size_t non_finite = 0;  ///< x or Q(x) is not finite; not in the sums
    double signal = 0.0;         ///< sum of x^2
    double error = 0.0;          ///< sum of (Q(x) - x)^2
    std::size_t scales = 0;      ///< one for the tensor, or one for each row, column or block
    /// Exponents of the least and the largest scale s, 2^e <= s < 2^(e+1). A number of the format times s is an element
    /// of Q(x). A bias b is the scale 2^-b. Scales that are 0 or NaN are left out.
    int lowest_scale = 0, highest_scale = 0;
    double tensor_scale = 1.0;  ///< of the tensor: its values are data times it

    /// A count as a share of all elements; 0 for an empty tensor.
    [[nodiscard]] double share(std::size_t elements) const noexcept {
        return count == 0 ? 0.0 : static_cast<double>(elements) / static_cast<double>(count);
    }
    /// Signal-to-noise ratio in dB, 10 log10(signal / error). Infinite without an error; NaN if x or Q(x) has an
    /// element that is not finite.
    [[nodiscard]] double snr() const noexcept {
        if (non_finite > 0) return std::numeric_limits<double>::quiet_NaN();
        return error > 0.0 ? 10.0 * std::log10(signal / error) : std::numeric_limits<double>::infinity();
    }
    /// Root mean square of the values: of x times the tensor's scale.
    [[nodiscard]] double rms() const noexcept {
        if (count == 0) return 0.0;
        if (count == non_finite) return std::numeric_limits<double>::quiet_NaN();
        return std::sqrt(signal / static_cast<double>(count - non_finite)) * std::abs(tensor_scale);
    }
};

/// A summary, and how many scales have which exponent.
struct OperandStatistics : OperandSummary {
    ExponentHistogram scale_exponents{};

    [[nodiscard]] static bool is_finite(double x) noexcept {
        constexpr std::uint64_t exponent = std::uint64_t{0x7FF} << 52;
        return (std::bit_cast<std::uint64_t>(x) & exponent) != exponent;
    }

    /// Adds elements x with their rounded numbers q. Elements above `largest` saturate.
    template <class X, class Q>
    void add(const X* x, const Q* q, std::size_t elements, double largest) noexcept {
        count += elements;
        for (std::size_t i = 0; i < elements; ++i) {
            const auto exact = static_cast<double>(x[i]), rounded = static_cast<double>(q[i]);
            const bool known = is_finite(exact);
            saturated += known && std::abs(exact) > largest ? 1U : 0U;
            if (!known || !is_finite(rounded)) {
                ++non_finite;
                continue;
            }
            flushed += exact != 0.0 && rounded == 0.0 ? 1U : 0U;
            const double distance = rounded - exact;
            signal = multiply_add(exact, exact, signal);
            error = multiply_add(distance, distance, error);
        }
    }
    void add_scale(double scale) noexcept {
        ++scales;
        if (!is_finite(scale) || scale == 0.0) return;
        int exponent = 0;
        static_cast<void>(std::frexp(scale, &exponent));
        ++scale_exponents.at(exponent - 1);
    }
    void operator+=(const OperandStatistics& part) noexcept {
        count += part.count;
        saturated += part.saturated;
        flushed += part.flushed;
        non_finite += part.non_finite;
        signal += part.signal;
        error += part.error;
        scales += part.scales;
        for (std::size_t i = 0; i < scale_exponents.counts.size(); ++i)
            scale_exponents.counts[i] += part.scale_exponents.counts[i];
    }
    void find_scale_range() noexcept {
        const auto& counts = scale_exponents.counts;
        const auto used = [](std::uint64_t n) { return n > 0; };
        const auto first = std::find_if(counts.begin(), counts.end(), used);
        if (first == counts.end()) return;
        const auto last = std::find_if(counts.rbegin(), counts.rend(), used);
        lowest_scale = ExponentHistogram::lowest + static_cast<int>(first - counts.begin());
        highest_scale = ExponentHistogram::highest - static_cast<int>(last - counts.rbegin());
    }
};

/// The sum of the statistics of parts: `measure(begin, end, part)` adds items [begin, end). Parts do not depend on the
/// number of threads and are added in order, so that bits do not either.
template <class Measure>
[[nodiscard]] OperandStatistics sum_of_parts(std::size_t items, int threads, Measure&& measure) {
    constexpr std::size_t most_parts = 64;
    std::vector<OperandStatistics> parts(std::min(items, most_parts));
    parallel_for(threads, static_cast<std::ptrdiff_t>(parts.size()), 1, [&](std::ptrdiff_t first, std::ptrdiff_t last) {
        for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i)
            measure(items * i / parts.size(), items * (i + 1) / parts.size(), parts[i]);
    });
    OperandStatistics all;
    for (const OperandStatistics& part : parts) all += part;
    all.find_scale_range();
    return all;
}

/// x [n] without its NaN: a format may have none, and an error is the product's to raise.
template <class T>
void copy_without_nan(const T* x, T* y, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) {
        const auto value = static_cast<double>(x[i]);
        const bool nan = !OperandStatistics::is_finite(value) && std::bit_cast<std::uint64_t>(value) << 12 != 0;
        y[i] = nan ? T(0) : x[i];
    }
}

/// The whole tensor under one bias.
template <class T>
[[nodiscard]] OperandStatistics tensor_operand_statistics(const OperandEvent<T>& operand, int threads) {
    using A = Accum<T>;
    constexpr std::size_t chunk = 2048;
    const Quantiser& quantiser = *operand.quantiser;
    const T* const x = operand.tensor->data();
    const std::size_t n = operand.tensor->size();
    const double largest = largest_kept(quantiser.format);
    check_options("operand_statistics", quantiser.format, quantiser.options());  // before the parallel region
    OperandStatistics result =
        sum_of_parts((n + chunk - 1) / chunk, threads, [&](std::size_t first, std::size_t last, auto& part) {
            std::array<A, chunk> exact, rounded;
            QuantiseOptions options = quantiser.options(operand.key);
            for (std::size_t begin = first * chunk; begin < std::min(last * chunk, n); begin += chunk) {
                const std::size_t count = std::min(chunk, n - begin);
                for (std::size_t i = 0; i < count; ++i) exact[i] = static_cast<A>(x[begin + i]);
                copy_without_nan(exact.data(), rounded.data(), count);
                options.first_index = begin;
                const auto numbers = std::span(rounded).first(count);
                quantise(quantiser.format, std::span<const A>(numbers), numbers, options);
                part.add(exact.data(), rounded.data(), count, largest);
            }
        });
    result.add_scale(std::ldexp(1.0, operand.rule.element->format.bias - quantiser.format.bias));
    result.find_scale_range();
    return result;
}

/// A bias for each row or column, as `ops::PreparedOperand` finds and applies it.
template <class T>
[[nodiscard]] OperandStatistics line_operand_statistics(const OperandEvent<T>& operand, int threads) {
    const Quantiser& quantiser = *operand.rule.element;
    const std::size_t columns = operand.columns, rows = columns == 0 ? 0 : operand.tensor->size() / columns;
    const bool by_row = operand.rule.scale.granularity == ScaleGranularity::row;
    const std::size_t lines = by_row ? rows : columns, length = by_row ? columns : rows;
    check_options("operand_statistics", quantiser.format, quantiser.options());
    return sum_of_parts(lines, threads, [&](std::size_t first, std::size_t last, auto& part) {
        std::vector<T> exact(length), rounded(length);
        const auto n = static_cast<std::ptrdiff_t>(length);
        for (std::size_t line = first; line < last; ++line) {
            for (std::size_t i = 0; i < length; ++i)
                exact[i] = operand.tensor->data()[by_row ? line * columns + i : i * columns + line];
            Quantiser own = quantiser;
            own.format = shifted(own.format, amax_bias(own.format, kernels::amax(Execution{}, exact.data(), n),
                                                       operand.rule.scale.margin));
            copy_without_nan(exact.data(), rounded.data(), length);
            kernels::round_elements<T>(Execution{}, "operand_statistics", own,
                                       {operand.key.seed, mix(operand.key.stream, line)}, rounded.data(),
                                       rounded.data(), n);
            part.add(exact.data(), rounded.data(), length, largest_kept(own.format));
            part.add_scale(std::ldexp(1.0, quantiser.format.bias - own.format.bias));
        }
    });
}

/// The contracted lines of an operand in floats, rotated if its rule says so, in blocks as `kernels::round_blocks` cuts
/// them. A double is rounded to float first, as there.
template <class T>
[[nodiscard]] OperandStatistics block_operand_statistics(const OperandEvent<T>& operand, int threads) {
    const BlockFormat& format = *operand.rule.scale.blocks;
    const std::size_t columns = operand.columns, n = operand.tensor->size(), matrices = operand.matrices,
                      rows = columns == 0 ? 0 : n / columns / matrices;
    const bool turned = operand.contracts_rows;
    const std::size_t lines = turned ? columns : rows, length = turned ? rows : columns;  // of a matrix
    std::vector<float> x(n);
    for (std::size_t matrix = 0; matrix < matrices; ++matrix)
        for (std::size_t line = 0; line < lines; ++line)
            for (std::size_t k = 0; k < length; ++k)
                x[(matrix * lines + line) * length + k] = static_cast<float>(
                    operand.tensor
                        ->data()[turned ? (matrix * rows + k) * columns + line : (matrix * rows + line) * columns + k]);
    const Execution execution{.threads = threads};
    const auto signed_lines = static_cast<std::ptrdiff_t>(matrices * lines),
               signed_length = static_cast<std::ptrdiff_t>(length);
    if (operand.rotation)
        kernels::rotate<float>(execution, *operand.rotation, x.data(), signed_lines, signed_length, signed_length, 1);

    BlockOptions options = block_options(format, *operand.rule.element, operand.key);
    quantise_blocks(format, MatrixLines<const float>{}, MatrixLines<float>{}, options);  // checks format and options
    options.tensor_amax = kernels::amax(execution, x.data(), static_cast<std::ptrdiff_t>(n));
    const double largest = largest_kept(format.element);
    const std::size_t across =
        format.across == whole_dimension ? std::max<std::size_t>(lines, 1) : static_cast<std::size_t>(format.across);
    const std::size_t block_rows = n == 0 ? 0 : (lines + across - 1) / across;  // of a matrix
    const auto measure = [&](std::size_t begin, std::size_t end, OperandStatistics& part) {
        const float* const own = x.data() + begin * length;
        BlockOptions own_options = options;
        own_options.element.first_index += begin * length;
        BlockWalk walk("operand_statistics", format, {own, end - begin, length, length}, own_options);
        std::array<float, BlockWalk::piece> values;
        walk.run(
            [&](std::size_t, std::span<const BlockScale> scales) {
                for (const BlockScale& scale : scales) {
                    const auto factor = static_cast<double>(scale.decode.value);
                    part.add_scale(scale.decode.divides ? 1.0 / factor : factor);
                }
            },
            [&](std::size_t from, std::size_t count) {
                const auto v = std::span(values).first(count);
                walk.load(from, v);
                for (const float scaled : v) {
                    const auto size = std::abs(static_cast<double>(scaled));
                    part.saturated += OperandStatistics::is_finite(size) && size > largest ? 1U : 0U;
                }
                walk.round_by_rule(from, v);
                quantise(format.element, v, v, walk.piece_options(from));
                walk.segments(from, count,
                              [&](std::size_t line, std::size_t position, std::size_t offset, std::size_t size,
                                  const BlockScale& scale) {
                                  float* const q = v.data() + offset;
                                  if (scale.nan()) std::fill_n(q, size, std::numeric_limits<float>::quiet_NaN());
                                  else BlockScaler::decode(format.element, scale.decode, q, q, size);
                                  // Saturated elements are counted above, where the scale is divided out.
                                  part.add(own + line * length + position, q, size,
                                           std::numeric_limits<double>::infinity());
                              });
            });
    };
    return sum_of_parts(matrices * block_rows, threads, [&](std::size_t first, std::size_t last, auto& part) {
        while (first < last) {
            const std::size_t matrix = first / block_rows, next = std::min(last, (matrix + 1) * block_rows);
            const auto line_of = [&](std::size_t row) {
                return matrix * lines + std::min((row - matrix * block_rows) * across, lines);
            };
            measure(line_of(first), line_of(next), part);
            first = next;
        }
    });
}

/// The statistics of an operand's rounding, from the numbers that the product multiplies. Sums are formed in double;
/// the bits do not depend on the number of threads. T: float, double, Half, BFloat16.
/// Error: an event without a tensor. Test: tests/analysis/operand_statistics_test.cpp
template <class T>
[[nodiscard]] OperandStatistics operand_statistics(const OperandEvent<T>& operand, int threads = 1) {
    check(operand.tensor != nullptr, "operand_statistics: ", operand.path, ' ', name(operand.slot),
          " has no tensor; the forward pass has shown it");
    OperandStatistics result = operand.rule.scale.blocks        ? block_operand_statistics(operand, threads)
                               : operand.rule.scale.by_tensor() ? tensor_operand_statistics(operand, threads)
                                                                : line_operand_statistics(operand, threads);
    result.tensor_scale = operand.tensor->scale();
    return result;
}

}  // namespace unitscale::analysis
