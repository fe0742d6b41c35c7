// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace unitscale::report {

/// Escapes text for HTML and SVG: between tags and in quoted attributes. Test: tests/report/markup_test.cpp
[[nodiscard]] inline std::string escaped(std::string_view text) {
    std::string safe;
    for (const char c : text) {
        if (c == '<') safe += "&lt;";
        else if (c == '&') safe += "&amp;";
        else if (c == '"') safe += "&quot;";
        else safe += c;
    }
    return safe;
}

/// A finite number with a fixed number of decimals, as text for cells and coordinates.
/// Test: tests/report/markup_test.cpp
[[nodiscard]] inline std::string fixed_decimals(double value, int decimals) {
    char text[352];  // the largest double has 309 digits before the point
    std::snprintf(text, sizeof text, "%.*f", decimals, value);
    return text;
}

/// The origin of a page. Empty fields are left out. The date is an argument, so that a page is a function of its input.
struct PageSource {
    std::string data{};     ///< the files that were read
    std::string date{};     ///< such as 2026-11-23
    std::string command{};  ///< the command line
    std::string machine{};  ///< the processor's kernels and caches
};

/// The origin as plain text; empty without any field. Test: tests/report/markup_test.cpp
[[nodiscard]] inline std::string source_text(const PageSource& source) {
    std::string text;
    const auto add = [&text](std::string_view name, const std::string& value) {
        if (value.empty()) return;
        ((text += text.empty() ? "" : "; ") += name) += value;
    };
    add("data: ", source.data);
    add("date: ", source.date);
    add("command: ", source.command);
    add("processor: ", source.machine);
    return text;
}

/// The origin as a paragraph on a line of its own; empty without any field.
[[nodiscard]] inline std::string source_paragraph(const PageSource& source) {
    const std::string text = source_text(source);
    return text.empty() ? "" : "\n<p class=\"soft source\">" + escaped(text) + "</p>\n";
}

/// A whole HTML page. `title` is text, `style` CSS, `body` markup.
[[nodiscard]] inline std::string html_page(std::string_view title, std::string_view style, std::string_view body) {
    std::string page =
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>";
    page += escaped(title);
    (page += "</title><style>") += style;
    (page += "</style></head><body>") += body;
    return page += "</body></html>\n";
}

}  // namespace unitscale::report
