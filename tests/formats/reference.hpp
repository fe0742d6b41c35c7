// SPDX-License-Identifier: MIT
#pragma once

// An independent model of the formats for the tests: values from decode tables, rounding by search among them in exact
// arithmetic. All arithmetic is on doubles and integers built from bits, so that fast-math and flushing change nothing.

#include <unitscale/base/random.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/rounding.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
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

/// The float word of a double that is exact in float: by integers, so that float subnormals survive flushing.
inline std::uint32_t to_word(double x, bool negative) {
    const std::uint32_t sign = negative ? 0x80000000u : 0u;
    const double magnitude = x < 0 ? -x : x;
    if (magnitude == 0) return sign;
    int exponent = 0;
    const double fraction = std::frexp(magnitude, &exponent);  // [1/2, 1)
    if (exponent < -125) return sign | static_cast<std::uint32_t>(std::ldexp(fraction, exponent + 149));
    return sign | ((static_cast<std::uint32_t>(exponent + 126) << 23) +
                   static_cast<std::uint32_t>(std::ldexp(fraction, 24)) - 0x800000u);
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
    std::string table;
    FloatFormat format;
};

/// The format of a decode table. Error: there is no format of this name.
inline FloatFormat format_of_table(const std::string& table) {
    if (table == "binary16") return fp16;
    if (table == "bfloat16") return bf16;
    return find_format(table.starts_with("ocp_") ? table.substr(4) : table);
}

/// Every format with a decode table. Tables of formats up to 8 bits hold every code; tables of binary16 and bfloat16
/// hold some.
inline std::vector<TestedFormat> formats_with_tables() {
    std::vector<TestedFormat> formats;
    for (const auto& entry : std::filesystem::directory_iterator(UNITSCALE_TEST_DATA "/formats")) {
        const std::string stem = entry.path().stem().string();
        if (entry.path().extension() != ".csv" || !stem.starts_with("decode_"))
            throw std::runtime_error("not a decode table: " + entry.path().string());
        const std::string table = stem.substr(std::string("decode_").size());
        formats.push_back({table, format_of_table(table)});
    }
    std::sort(formats.begin(), formats.end(), [](const auto& x, const auto& y) { return x.table < y.table; });
    return formats;
}

/// The formats of up to 8 bits: their tables hold every code.
inline std::vector<TestedFormat> tested_formats() {
    std::vector<TestedFormat> formats = formats_with_tables();
    std::erase_if(formats, [](const TestedFormat& tested) { return tested.format.code_bits() > 8; });
    return formats;
}

/// The result of rounding: a magnitude code, infinity or NaN.
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

/// The place of a number among the numbers of a format.
struct Place {
    bool negative = false;
    bool infinite = false;
    bool zero = false;
    /// Code of the largest magnitude that does not exceed the number. One above the largest code: beyond the format.
    std::uint32_t below = 0;
    double rest = 0;  ///< distance from this magnitude, in steps to the next magnitude, exact: 0 <= rest < 1
};

/// Rounding by search. The format's features (-0, infinity, NaN, sign) are read off its table.
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
        // One number more, as if the exponent range continued: the last step, which a power of two doubles.
        const std::size_t last = values.size() - 1;
        const bool one_per_binade =
            values.size() > 4 && values[last] == 2 * values[last - 1] && values[last - 1] == 2 * values[last - 2];
        const double step = values[last] - values[last - 1];
        beyond = one_per_binade ? 2 * values[last] : values[last] + (is_power_of_two(values[last]) ? 2 * step : step);
    }

    [[nodiscard]] double max() const { return values.back(); }

    /// The place of a float that is no NaN. Every step is a power of two, so the quotient is exact.
    [[nodiscard]] Place find(float x) const {
        const std::uint32_t word = bits_of(x);
        Place place{.negative = (word >> 31) != 0, .infinite = (word & 0x7FFFFFFFu) == infinity_bits};
        if (place.infinite) return place;
        const double magnitude = to_double(from_bits(word & 0x7FFFFFFFu));
        place.zero = magnitude == 0;
        if (magnitude <= values[0]) return place;
        const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
        place.below = static_cast<std::uint32_t>(above - values.begin()) - 1;
        const double low = values[place.below];
        const double high = above == values.end() ? beyond : *above;
        if (magnitude >= beyond) ++place.below;
        else place.rest = (magnitude - low) / (high - low);
        return place;
    }

    /// The result of rounding, decided between the two neighbours.
    [[nodiscard]] Result round(const Place& x, Rounding rounding, Overflow overflow, int bits,
                               std::uint32_t random) const {
        const bool saturate = overflow == Overflow::saturate;
        const Result nan{Kind::nan, false, 0, 0};
        const Result unbounded = has_infinity ? Result{Kind::infinity, x.negative, 0, 0} : nan;
        const auto count = static_cast<std::uint32_t>(values.size());
        const Result largest{Kind::finite, x.negative, count - 1, max()};
        const std::uint32_t code = x.below + (x.rest != 0 && goes_away(x, rounding, bits, random) ? 1u : 0u);
        if (x.negative && !is_signed && !x.zero) {  // zero is left, where there is one
            const bool to_zero = values[0] == 0 && (saturate || (!x.infinite && code == 0));
            return to_zero ? Result{} : nan;
        }
        if (x.infinite) return saturate ? largest : unbounded;
        if (code < count) {
            const bool keeps_sign = x.negative && is_signed && (code != 0 || has_negative_zero);
            return {Kind::finite, keeps_sign, code, values[code]};
        }
        const bool bounded = rounding == Rounding::toward_zero || (rounding == Rounding::down && !x.negative) ||
                             (rounding == Rounding::up && x.negative);
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

    static bool goes_away(const Place& x, Rounding rounding, int bits, std::uint32_t random) {
        switch (rounding) {
            case Rounding::nearest_even:
                return x.rest > 0.5 || (x.rest == 0.5 && x.below % 2 == 1);
            case Rounding::nearest_away:
                return x.rest >= 0.5;
            case Rounding::toward_zero:
                return false;
            case Rounding::up:
                return !x.negative;
            case Rounding::down:
                return x.negative;
            case Rounding::stochastic:
                break;
        }
        const auto steps = static_cast<std::uint32_t>(x.rest * static_cast<double>(1u << bits));  // floor
        return steps + (random >> (32 - bits)) >= 1u << bits;
    }
};

/// Floats for which roundings differ, no NaN. They are every number of the format, every midpoint, the neighbours of
/// these, some numbers beyond the range, and `count` random ones. A quarter of the random numbers lie anywhere. The
/// others lie evenly by exponent from just below the range to just above it.
inline std::vector<float> rounding_cases(const Lattice& lattice, std::size_t count) {
    std::vector<float> floats;
    const auto add = [&floats](std::uint32_t word) {
        for (const std::uint32_t sign : {0u, 0x80000000u}) floats.push_back(from_bits(word | sign));
    };
    const auto add_near = [&add](double x) {
        if (x > 3.4e38) return;
        const std::uint32_t word = to_word(x, false);
        if (to_double(from_bits(word)) != x) return;  // a midpoint below float's range
        for (const std::uint32_t near : {word - 1, word, word + 1})
            if (near < infinity_bits) add(near);
    };
    for (const std::uint32_t word : {0x0u, 0x1u, 0x2u, 0x007FFFFFu, 0x00800000u, 0x7F7FFFFFu, infinity_bits}) add(word);
    for (std::size_t i = 0; i < lattice.values.size(); ++i) {
        const double next = i + 1 < lattice.values.size() ? lattice.values[i + 1] : lattice.beyond;
        add_near(lattice.values[i]);
        add_near(lattice.values[i] + (next - lattice.values[i]) / 2);
    }
    add_near(lattice.values[1] / 4);
    add_near(lattice.beyond);
    add_near(2 * lattice.beyond);
    const auto field_of = [](double x) { return static_cast<int>(to_word(x, false) >> 23); };
    const int low = std::max(0, field_of(lattice.values[1]) - 3);
    const int high = std::min(254, field_of(lattice.max()) + 2);
    std::vector<std::uint32_t> random(2 * count);
    fill_random_words({11, 12}, 0, random);
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t word = random[2 * i];
        const std::uint32_t magnitude = word & 0x7FFFFFFFu;
        const std::uint32_t field =
            static_cast<std::uint32_t>(low) + random[2 * i + 1] % static_cast<std::uint32_t>(high - low + 1);
        const std::uint32_t in_range = (word & 0x7FFFFFu) | (field << 23);
        floats.push_back(from_bits((i % 4 == 0 ? magnitude % infinity_bits : in_range) | (word & 0x80000000u)));
    }
    return floats;
}

inline constexpr Rounding all_roundings[] = {Rounding::nearest_even, Rounding::toward_zero,  Rounding::up,
                                             Rounding::down,         Rounding::nearest_away, Rounding::stochastic};

}  // namespace reference
