// SPDX-License-Identifier: MIT
#include <unitscale/train/published_names.hpp>

#include "support/catch.hpp"

#include <set>
#include <string>
#include <string_view>

using namespace unitscale;
using train::PublishedFamily;

TEST_CASE("published names: one number stands for a pattern's star") {
    CHECK(train::match_numbered("h.*.ln_1.weight", "h.12.ln_1.weight") == std::string_view("12"));
    CHECK(train::match_numbered("wte.weight", "wte.weight") == std::string_view());
    for (const char* name : {"h..ln_1.weight", "h.01.ln_1.weight", "h.x.ln_1.weight", "h.1.ln_2.weight",
                             "h.1234567890.ln_1.weight", "h.1.ln_1.weight.scale"})
        CHECK_FALSE(train::match_numbered("h.*.ln_1.weight", name).has_value());
    CHECK(train::fill_number("h.*.ln_1.weight", "3") == "h.3.ln_1.weight");
    CHECK(train::fill_number("wte.weight", "3") == "wte.weight");
}

TEST_CASE("published names: every parameter has one place, and the parts of a tensor are all there") {
    for (const auto family : {PublishedFamily::gpt2, PublishedFamily::llama, PublishedFamily::bert}) {
        std::set<std::string_view> parameters;
        std::set<std::pair<std::string_view, std::size_t>> places;
        for (const train::PublishedName& row : train::published_names(family)) {
            CHECK(parameters.insert(row.parameter).second);
            CHECK(places.insert({row.tensor, row.part}).second);
            CHECK(row.part < row.parts);
            CHECK((row.parameter.find('*') == std::string_view::npos) ==
                  (row.tensor.find('*') == std::string_view::npos));
            CHECK((row.bias == train::PublishedBias::none || row.parameter.ends_with("/bias")));
        }
        for (const train::PublishedName& row : train::published_names(family))
            for (std::size_t part = 0; part < row.parts; ++part) CHECK(places.contains({row.tensor, part}));
    }
    CHECK(train::published_names(PublishedFamily::gpt2)[0].tensor == "wte.weight");
    CHECK(train::published_names(PublishedFamily::llama)[0].tensor == "embed_tokens.weight");
    CHECK(train::published_prefix(PublishedFamily::gpt2) == "transformer.");
    CHECK(train::published_prefix(PublishedFamily::llama) == "model.");
    CHECK(train::published_prefix(PublishedFamily::bert) == "bert.");
}
