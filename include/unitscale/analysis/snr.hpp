// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/parse_number.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/int8.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::analysis {

/// Density and upper tail of the unit normal.
[[nodiscard]] inline double normal_density(double u) noexcept {
    return std::exp(-0.5 * u * u) * (0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
}
[[nodiscard]] inline double normal_tail(double u) noexcept { return 0.5 * std::erfc(u * (0.5 * std::numbers::sqrt2)); }

/// The integral of (u - q)^2 over [a, b] under the unit normal; b may be infinite. With D the density and P the mass:
///   (1 + q^2) P(a, b) + (a - 2 q) D(a) - (b - 2 q) D(b)
/// Over a short interval these terms cancel. There the integrand is smooth, and five Gauss points give 1e-10.
[[nodiscard]] inline double squared_error(double q, double a, double b) noexcept {
    if (b - a > 0.5) {
        const double end = std::isinf(b) ? 0.0 : (b - 2.0 * q) * normal_density(b);
        return (1.0 + q * q) * (normal_tail(a) - normal_tail(b)) + (a - 2.0 * q) * normal_density(a) - end;
    }
    constexpr std::array<double, 3> nodes = {0.0, 0.53846931010568309, 0.90617984593866399};
    constexpr std::array<double, 3> weights = {0.56888888888888889, 0.47862867049936647, 0.23692688505618909};
    const double middle = 0.5 * (a + b), half = 0.5 * (b - a);
    const auto at = [q](double u) { return (u - q) * (u - q) * normal_density(u); };
    double sum = weights[0] * at(middle);
    for (std::size_t i = 1; i < nodes.size(); ++i)
        sum += weights[i] * (at(middle - half * nodes[i]) + at(middle + half * nodes[i]));
    return sum * half;
}

/// The signal-to-noise ratio E[x^2] / E[(x - Q(x))^2] of a normal tensor of standard deviation `sigma`. Q rounds to
/// nearest and saturates. The error is integrated over the gaps between the format's numbers, not sampled. In a gap of
/// width h, x is rounded to the nearer end; above the largest number, to the largest number. Where h is below
/// sigma / 10^4, the mean square error of a whole binade is h^2 / 12 to eight digits.
/// Errors: a format for unsigned numbers; sigma not positive. Reference: Blake, Orr, Luschi 2023, figures 2 and A.1.
/// Test: tests/analysis/snr_test.cpp
[[nodiscard]] inline double signal_to_noise(const FloatFormat& format, double sigma) {
    check(format.is_signed() && format.has_zero(), "signal_to_noise: ", name(format),
          " is not a format for signed numbers");
    check(sigma > 0.0 && std::isfinite(sigma), "signal_to_noise: sigma is ", sigma, "; expected a positive number");
    constexpr double far = 40.0;  // standard deviations: the mass above is negligible
    const double largest = static_cast<double>(format.max()) / sigma;
    double noise = 0.0;
    // Exponent field 0 holds the subnormal numbers; field 1 has an equal step.
    for (std::uint32_t first = 0; first < format.max_code(); first += std::uint32_t{1} << format.mantissa_bits) {
        const std::uint32_t last = std::min(first + (std::uint32_t{1} << format.mantissa_bits), format.max_code());
        const double low = format.magnitude<double>(first) / sigma, high = format.magnitude<double>(last) / sigma;
        if (low > far) break;
        const double step = (high - low) / static_cast<double>(last - first);
        if (step < 1e-4) {
            noise += step * step / 12.0 * (normal_tail(low) - normal_tail(high));
            continue;
        }
        for (std::uint32_t code = first; code < last; ++code) {
            const double below = format.magnitude<double>(code) / sigma,
                         above = format.magnitude<double>(code + 1) / sigma;
            if (below > far) break;
            const double middle = 0.5 * (below + above);
            noise += squared_error(below, below, middle) + squared_error(above, middle, above);
        }
    }
    if (largest < far) noise += squared_error(largest, largest, std::numeric_limits<double>::infinity());
    return noise > 0.0 ? 0.5 / noise : std::numeric_limits<double>::infinity();
}

/// A row-major matrix of unit normal numbers, for formats whose scales depend on the numbers beside an element.
struct NormalMatrix {
    std::size_t lines = 256, length = 1024;
    std::vector<float> numbers{};

    explicit NormalMatrix(std::size_t line_count = 256, std::size_t line_length = 1024, RandomKey key = {1, 1})
        : lines(line_count), length(line_length), numbers(line_count * line_length) {
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(random_normal(key, i));
    }
};

/// The signal-to-noise ratio of the matrix times `sigma` in blocks along its lines, rounded to nearest even. It is
/// sampled, not integrated. With 256 x 1024 numbers another key moves it by about 1 %.
/// Errors: a format that makes no sense; sigma not positive. Test: tests/analysis/snr_test.cpp
[[nodiscard]] inline double signal_to_noise(const BlockFormat& format, double sigma, const NormalMatrix& normal) {
    check(sigma > 0.0 && std::isfinite(sigma), "signal_to_noise: sigma is ", sigma, "; expected a positive number");
    std::vector<float> x(normal.numbers.size()), rounded(x.size());
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(sigma * static_cast<double>(normal.numbers[i]));
    quantise_blocks(format, {x.data(), normal.lines, normal.length, normal.length},
                    {rounded.data(), normal.lines, normal.length, normal.length});
    double signal = 0.0, noise = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const auto exact = static_cast<double>(x[i]);
        const double error = static_cast<double>(rounded[i]) - exact;
        signal = multiply_add(exact, exact, signal);
        noise = multiply_add(error, error, noise);
    }
    return noise > 0.0 ? signal / noise : std::numeric_limits<double>::infinity();
}

/// A number format with a scale: x is divided by the scale before rounding. `int8:R` stands for the integers -127 to
/// 127, scaled to span -R to R. Or a format of blocks, which find their own scales.
struct ScaledFormat {
    std::string label{};
    FloatFormat format{};
    double scale = 1.0;
    std::optional<BlockFormat> blocks{};  ///< in place of format and scale

    [[nodiscard]] double signal_to_noise(double sigma) const {
        if (!blocks) return analysis::signal_to_noise(format, sigma / scale);
        static const NormalMatrix normal;
        return analysis::signal_to_noise(*blocks, sigma, normal);
    }
};

/// The format of a name: a name that `find_format` or `find_block_format` knows, or int8:R with a positive number R.
/// Error: an unknown name; the message lists the known names.
[[nodiscard]] inline ScaledFormat find_scaled_format(std::string_view wanted) {
    constexpr std::string_view prefix = "int8:";
    if (wanted.starts_with(prefix)) {
        const double range = parse_number(wanted.substr(prefix.size())).value_or(0.0);
        check(range > 0.0 && std::isfinite(range), "format: '", wanted,
              "' has no range; expected int8: and a positive number, such as int8:180");
        return {.label = std::string(wanted), .format = int8_grid, .scale = range / 127.0};
    }
    std::string known;
    for (const NamedFormat& candidate : named_formats) {
        if (!candidate.format.is_signed()) continue;
        if (candidate.name == wanted) return {.label = std::string(wanted), .format = candidate.format};
        (known += candidate.name) += ", ";
    }
    if (wanted.starts_with("p3109_k")) {
        const FloatFormat format = find_format(wanted);
        check(format.is_signed(), "format: ", wanted, " is not a format for signed numbers");
        return {.label = std::string(wanted), .format = format};
    }
    std::optional<BlockFormat> blocks;
    each_named_block_format([&](std::string_view base, std::string_view suffix, const BlockFormat& format) {
        if (suffix.empty()) (known += base) += ", ";
        if (wanted == (suffix.empty() ? std::string(base) : concatenate(base, '_', suffix))) blocks = format;
    });
    if (blocks) return {.label = std::string(wanted), .format = blocks->element, .blocks = blocks};
    fail("format: unknown name '", wanted, "'; expected ", known,
         "a variant such as mxfp4_rceil or nvfp4_torchao, p3109_k<width>p<precision>s<e|f> or int8:<range>");
}

/// The signal-to-noise ratio over scales: powers of two from 2^low to 2^high, `per_octave` points per octave.
struct SnrCurve {
    ScaledFormat format{};
    std::vector<double> exponents{}, ratios{};

    [[nodiscard]] std::size_t best() const noexcept {
        std::size_t best = 0;
        for (std::size_t i = 1; i < ratios.size(); ++i)
            if (ratios[i] > ratios[best]) best = i;
        return best;
    }
    /// The range of exponents around the best one in which the ratio is at least half of the best.
    [[nodiscard]] std::array<double, 2> good_range() const noexcept {
        std::size_t low = best(), high = low;
        while (low > 0 && ratios[low - 1] >= 0.5 * ratios[best()]) --low;
        while (high + 1 < ratios.size() && ratios[high + 1] >= 0.5 * ratios[best()]) ++high;
        return {exponents[low], exponents[high]};
    }
};

[[nodiscard]] inline SnrCurve snr_curve(const ScaledFormat& format, int low, int high, int per_octave) {
    check(low < high && per_octave >= 1, "snr_curve: from 2^", low, " to 2^", high, " in steps of 1/", per_octave,
          " is no range");
    SnrCurve curve{.format = format};
    for (int i = low * per_octave; i <= high * per_octave; ++i) {
        curve.exponents.push_back(static_cast<double>(i) / per_octave);
        curve.ratios.push_back(format.signal_to_noise(std::exp2(curve.exponents.back())));
    }
    return curve;
}

}  // namespace unitscale::analysis
