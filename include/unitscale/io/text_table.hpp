// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::io {

/// A number by a printf format that takes a double; `-` without a number, and for NaN and infinity.
[[nodiscard]] inline std::string cell(const char* format, std::optional<double> number) {
    if (!number || !std::isfinite(*number)) return "-";
    char text[64];
    std::snprintf(text, sizeof text, format, *number);
    return text;
}

/// Rows of cells as lines of text in aligned columns, two blanks apart, without blanks after the last cell of a row.
/// Widths count UTF-8 characters. Test: tests/io/text_table_test.cpp
[[nodiscard]] inline std::string text_table(const std::vector<std::vector<std::string>>& rows) {
    const auto width_of = [](const std::string& cell) {
        return static_cast<std::size_t>(std::count_if(
            cell.begin(), cell.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u; }));
    };
    std::vector<std::size_t> widths;
    for (const auto& row : rows) {
        widths.resize(std::max(widths.size(), row.size()), 0);
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
    }
    std::string text;
    for (const auto& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            text += row[i];
            if (i + 1 < row.size()) text.append(widths[i] - width_of(row[i]) + 2, ' ');
        }
        text += '\n';
    }
    return text;
}

}  // namespace unitscale::io
