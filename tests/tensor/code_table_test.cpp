// SPDX-License-Identifier: MIT
#include <unitscale/tensor/code_table.hpp>

#include "support/catch.hpp"

#include <bit>

using namespace unitscale;

TEST_CASE("a code table holds the number of every code", "[tensor]") {
    const FloatFormat format = GENERATE(e4m3, e5m2, e4m3fnuz, e3m2, e2m1, e8m0);
    CAPTURE(name(format));
    const CodeTable<float> table(format);
    const CodeTable<double> doubles(format);
    for (std::uint32_t code = 0; code < 256; ++code) {
        const float number = decode(format, code & static_cast<std::uint32_t>(format.code_count() - 1));
        CAPTURE(code, number);
        CHECK(std::bit_cast<std::uint32_t>(table.values[code]) == std::bit_cast<std::uint32_t>(number));
        CHECK((doubles.values[code] == static_cast<double>(number) || is_nan(number)));
        if (!table.has_words) continue;
        std::uint16_t word = table.words[code % 128] | (code < 128 ? std::uint16_t{0} : table.sign_word);
        if (word == table.wrong_word) word = CodeTable<float>::nan_word;
        CHECK(std::uint32_t{word} << 16 == std::bit_cast<std::uint32_t>(number));
    }
    CHECK(table.has_words == (format != e8m0));  // its codes above 127 are no negatives
}
