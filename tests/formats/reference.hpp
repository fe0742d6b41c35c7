// SPDX-License-Identifier: MIT
#pragma once

// An independent account of the formats for the tests: values from decode tables, rounding by search among them in exact
// arithmetic. Everything is double and integer, built from bits, so that fast-math and flushing change nothing.

#include <unitscale/formats/format.hpp>
#include <unitscale/formats/rounding.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace reference {

using namespace unitscale;

constexpr std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
constexpr float from_bits(std::uint32_t word) { return std::bit_cast<float>(word); }
constexpr std::uint32_t nan_bits = 0x7FC00000u;
constexpr std::uint32_t infinity_bits = 0x7F800000u;

/// A finite float as a double, by integers: float subnormals survive a processor that flushes them.
inline double to_double(float x) {
    const std::uint32_t word = bits_of(x);
    const int field = static_cast<int>(word >> 23) & 0xFF;
    const auto significand = static_cast<double>((word & 0x7FFFFFu) + (field > 0 ? 0x800000u : 0u));
    const double magnitude = std::ldexp(significand, (field > 0 ? field : 1) - 150);
    return (word >> 31) != 0 ? -magnitude : magnitude;
}

/// The float word of a double that is a float: by integers, for the same reason.
inline std::uint32_t to_word(double x, bool negative) {
    const std::uint32_t sign = negative ? 0x80000000u : 0u;
    const double magnitude = x < 0 ? -x : x;
    if (magnitude == 0) return sign;
    int exponent = 0;
    const double fraction = std::frexp(magnitude, &exponent);  // [1/2, 1)
    if (exponent < -125) return sign | static_cast<std::uint32_t>(std::ldexp(fraction, exponent + 149));
    return sign | ((static_cast<std::uint32_t>(exponent + 126) << 23) + static_cast<std::uint32_t>(std::ldexp(fraction, 24)) -
                   0x800000u);
}

enum class Kind { finite, infinity, nan };

struct TableRow {
    std::uint32_t code = 0;
    Kind kind = Kind::finite;
    bool negative = false;
    double value = 0;
};

/// The rows of a decode table: `code,value`, both in hexadecimal.
inline std::vector<TableRow> read_table(const std::string& name) {
    std::string path = UNITSCALE_TEST_DATA;
    path += "/formats/decode_";
    path += name;
    path += ".csv";
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot read " + path);
    std::vector<TableRow> rows;
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
        const auto comma = line.find(',');
        if (comma == std::string::npos) continue;
        const std::string text = line.substr(comma + 1);
        TableRow row;
        row.code = static_cast<std::uint32_t>(std::strtoul(line.c_str(), nullptr, 16));
        row.negative = text[0] == '-';
        if (text.find("nan") != std::string::npos) row.kind = Kind::nan;
        else if (text.find("inf") != std::string::npos) row.kind = Kind::infinity;
        else row.value = std::strtod(text.c_str(), nullptr);
        rows.push_back(row);
    }
    return rows;
}

struct TestedFormat {
    const char* table;
    FloatFormat format;
};

inline std::vector<TestedFormat> tested_formats() {
    std::vector<TestedFormat> formats{{"ocp_e5m2", e5m2},           {"ocp_e4m3", e4m3}, {"e5m2fnuz", e5m2fnuz},
                                      {"e4m3fnuz", e4m3fnuz},       {"e3m4", e3m4},     {"e4m3_ieee", e4m3_ieee},
                                      {"e4m3b11fnuz", e4m3b11fnuz}, {"ocp_e8m0", e8m0}, {"ocp_e3m2", e3m2},
                                      {"ocp_e2m3", e2m3},           {"ocp_e2m1", e2m1}};
    for (const char* name :
         {"p3109_k3p2sf", "p3109_k4p2sf", "p3109_k6p3sf", "p3109_k6p4sf", "p3109_k8p1se", "p3109_k8p1ue", "p3109_k8p2se",
          "p3109_k8p3se", "p3109_k8p3sf", "p3109_k8p3ue", "p3109_k8p3uf", "p3109_k8p4se", "p3109_k8p4sf", "p3109_k8p4ue",
          "p3109_k8p4uf", "p3109_k8p5se", "p3109_k8p6se", "p3109_k8p7se", "p3109_k8p7sf", "p3109_k8p8uf"})
        formats.push_back({name, find_format(name)});
    return formats;
}

/// What rounding gives: a magnitude code, infinity or NaN.
struct Result {
    Kind kind = Kind::finite;
    bool negative = false;
    std::uint32_t code = 0;
    double value = 0;

    /// As a float word; NaN is the positive quiet one.
    [[nodiscard]] std::uint32_t word() const {
        if (kind == Kind::nan) return nan_bits;
        if (kind == Kind::infinity) return infinity_bits | (negative ? 0x80000000u : 0u);
        return to_word(value, negative);
    }
};

/// Rounding by search. What a format has (-0, infinity, NaN, sign) is read off its table.
class Lattice {
public:
    explicit Lattice(const std::string& table) {
        for (const TableRow& row : read_table(table)) {
            has_infinity = has_infinity || row.kind == Kind::infinity;
            has_nan = has_nan || row.kind == Kind::nan;
            is_signed = is_signed || (row.kind == Kind::finite && row.negative);
            has_negative_zero = has_negative_zero || (row.kind == Kind::finite && row.negative && row.value == 0);
            if (row.kind == Kind::finite && !row.negative) values.push_back(row.value);  // in the order of their codes
        }
        // One number more, as if the exponent went on: the last step, which a power of two doubles.
        const std::size_t last = values.size() - 1;
        const bool one_per_binade =
            values.size() > 4 && values[last] == 2 * values[last - 1] && values[last - 1] == 2 * values[last - 2];
        const double step = values[last] - values[last - 1];
        beyond = one_per_binade ? 2 * values[last] : values[last] + (is_power_of_two(values[last]) ? 2 * step : step);
    }

    [[nodiscard]] double max() const { return values.back(); }

    /// x = +-magnitude, or an infinity.
    [[nodiscard]] Result round(double magnitude, bool negative, bool infinite, Rounding rounding, Overflow overflow, int bits,
                               std::uint32_t random) const {
        const bool saturate = overflow == Overflow::saturate;
        const Result nan{Kind::nan, false, 0, 0};
        const Result unbounded = has_infinity ? Result{Kind::infinity, negative, 0, 0} : nan;
        const Result largest{Kind::finite, negative, static_cast<std::uint32_t>(values.size() - 1), max()};
        const bool scale = values[0] != 0;
        if (negative && !is_signed && (infinite || magnitude != 0)) {
            const bool to_zero = !scale && !infinite && rounds_to_zero(magnitude, rounding, bits, random);
            return !scale && (saturate || to_zero) ? Result{} : nan;
        }
        if (infinite) return saturate ? largest : unbounded;
        if (magnitude <= values[0]) return finish(0, negative);

        const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
        const auto lower_code = static_cast<std::size_t>(above - values.begin()) - 1;
        const double low = values[lower_code];
        const double high = above == values.end() ? beyond : *above;
        std::size_t code = lower_code;
        if (magnitude >= beyond) code = values.size();
        else if (magnitude > low && goes_away(magnitude, low, high, lower_code % 2 == 1, negative, rounding, bits, random))
            ++code;
        if (code < values.size()) return finish(code, negative);
        const bool bounded = rounding == Rounding::toward_zero || (rounding == Rounding::down && !negative) ||
                             (rounding == Rounding::up && negative);
        return saturate || bounded ? largest : unbounded;
    }

    std::vector<double> values;
    double beyond = 0;
    bool has_infinity = false;
    bool has_nan = false;
    bool has_negative_zero = false;
    bool is_signed = false;

private:
    static bool is_power_of_two(double x) {
        int exponent = 0;
        return std::frexp(x, &exponent) == 0.5;
    }

    static bool goes_away(double x, double low, double high, bool low_is_odd, bool negative, Rounding rounding, int bits,
                          std::uint32_t random) {
        const double middle = low + (high - low) / 2;
        switch (rounding) {
            case Rounding::nearest_even:
                return x > middle || (x == middle && low_is_odd);
            case Rounding::nearest_away:
                return x >= middle;
            case Rounding::toward_zero:
                return false;
            case Rounding::up:
                return !negative;
            case Rounding::down:
                return negative;
            case Rounding::stochastic:
                break;
        }
        const double steps = std::floor(std::ldexp((x - low) / (high - low), bits));
        return steps + static_cast<double>(random >> (32 - bits)) >= std::ldexp(1.0, bits);
    }

    [[nodiscard]] bool rounds_to_zero(double magnitude, Rounding rounding, int bits, std::uint32_t random) const {
        return magnitude < values[1] && !goes_away(magnitude, 0, values[1], false, true, rounding, bits, random);
    }

    [[nodiscard]] Result finish(std::size_t code, bool negative) const {
        const bool keeps_sign = negative && is_signed && (code != 0 || has_negative_zero);
        return {Kind::finite, keeps_sign, static_cast<std::uint32_t>(code), values[code]};
    }
};

/// Floats that tell roundings apart: every number of the format, every midpoint, what lies just beside them, some beyond
/// the range, and `count` random ones, half of them anywhere and half within the range; all with both signs.
inline std::vector<float> telling_floats(const Lattice& lattice, std::size_t count) {
    std::vector<std::uint32_t> words{0, 1, 2, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, infinity_bits};
    const auto add = [&words](double x) {
        if (x > 3.4e38) return;
        const std::uint32_t word = to_word(x, false);
        if (to_double(from_bits(word)) != x) return;  // a midpoint below float's range
        for (std::uint32_t near : {word - 1, word, word + 1})
            if (near < infinity_bits) words.push_back(near);
    };
    for (std::size_t i = 0; i < lattice.values.size(); ++i) {
        add(lattice.values[i]);
        const double next = i + 1 < lattice.values.size() ? lattice.values[i + 1] : lattice.beyond;
        add(lattice.values[i] + (next - lattice.values[i]) / 2);
        add(lattice.values[i] / 2);
    }
    add(lattice.beyond);
    add(2 * lattice.beyond);
    const std::uint32_t low = to_word(lattice.values[1], false) >> 23;
    const std::uint32_t high = to_word(lattice.max(), false) >> 23;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t word = random_word({11, 12}, 2 * i) & 0x7FFFFFFFu;
        const std::uint32_t span = high - low + 6;
        const std::uint32_t field = std::min(254u, low + random_word({11, 12}, 2 * i + 1) % span - std::min(low, 3u));
        words.push_back(i % 2 == 0 ? word % infinity_bits : (word & 0x7FFFFFu) | (field << 23));
    }
    std::vector<float> floats;
    floats.reserve(2 * words.size());
    for (const std::uint32_t word : words) {
        floats.push_back(from_bits(word));
        floats.push_back(from_bits(word | 0x80000000u));
    }
    return floats;
}

inline constexpr Rounding all_roundings[] = {Rounding::nearest_even, Rounding::toward_zero,  Rounding::up,
                                             Rounding::down,         Rounding::nearest_away, Rounding::stochastic};

}  // namespace reference
