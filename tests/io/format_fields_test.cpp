// SPDX-License-Identifier: MIT
#include <unitscale/io/format_fields.hpp>

#include "support/catch.hpp"

#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;

namespace {

/// A visitor that writes the names of fields, and words of choices.
struct Names {
    std::vector<std::string> seen{};

    template <class T>
    void field(const char* name, T&) {
        seen.emplace_back(name);
    }
    template <class T>
    void format(const char* name, T&) {
        seen.emplace_back(name);
    }
    template <class Enum, class Words>
    void choice(const char* name, Enum& value, const Words& words) {
        seen.push_back(std::string(name) + '=' + std::string(words[static_cast<std::size_t>(value)]));
    }
};

}  // namespace

TEST_CASE("format fields: block formats, and what describing them leaves as it is") {
    BlockFormat format = nvfp4;
    Names names;
    io::describe_blocks(names, format);
    CHECK(names.seen.size() == 15);
    CHECK(names.seen.front() == "element");
    CHECK(names.seen[3] == "form=code");
    CHECK(names.seen.back() == "flush_subnormal_blocks");
    CHECK(format == nvfp4);
}

TEST_CASE("format fields: limited sums") {
    Accumulate sums = hopper_sums_promoted;
    Names names;
    io::describe_accumulate(names, sums);
    CHECK(names.seen.size() == 11);
    CHECK(names.seen.front() == "summation=aligned");
    CHECK(names.seen.back() == "totals");
    CHECK(sums == hopper_sums_promoted);
}

TEST_CASE("format fields: block formats by name") {
    CHECK(io::known_block_format("mxfp4") == mxfp4);
    CHECK(io::known_block_format("nvfp4_square") == nvfp4_square);
    CHECK(io::known_block_format("mxfp4_rceil")->exponent == ExponentRounding::rceil);
    CHECK_FALSE(io::known_block_format("mxfp5"));
}
