// SPDX-License-Identifier: MIT
// The whole decoder in the 16-bit types, forward and backward, compared with float.
// Single ops are tested by half_*_test.cpp beside this file.
#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/cast.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

using namespace unitscale;

TEST_CASE("runs: every header of ops is tested in the 16-bit types") {
    const std::filesystem::path tests = std::filesystem::path(UNITSCALE_TEST_DATA).parent_path();
    std::ostringstream text;
    for (const char* name : {"half_elementwise", "half_products", "half_rows"}) {
        std::ifstream file(tests / "runs" / (std::string(name) + "_test.cpp"));
        REQUIRE(file.is_open());
        text << file.rdbuf();
    }
    std::size_t headers = 0;
    for (const auto& entry : std::filesystem::directory_iterator(tests.parent_path() / "include/unitscale/ops")) {
        if (entry.path().extension() != ".hpp") continue;
        ++headers;
        INFO(entry.path().filename().string());
        CHECK(text.str().find("#include <unitscale/ops/" + entry.path().filename().string() + ">") !=
              std::string::npos);
    }
    CHECK(headers > 40);
}

TEMPLATE_TEST_CASE("runs: a decoder in 16 bits agrees with float within the type's accuracy", "", Half, BFloat16) {
    const double unit_roundoff = std::is_same_v<TestType, Half> ? 0x1p-11 : 0x1p-8;
    const nn::DecoderConfig config{.vocabulary = 7,
                                   .width = 8,
                                   .depth = 1,
                                   .heads = 2,
                                   .length = 6,
                                   .feed_forward = nn::FeedForwardKind::gated_silu,
                                   .norm = {.kind = nn::NormKind::layer, .gains = true},
                                   .bias = true};
    const auto batch = test::random_batch(4, 6, 7);
    for (const char* recipe : {"fp32", "unit-fp8"}) {
        test::LanguageModel<float> wide(analysis::plain_recipe(find_recipe(recipe).scaling), config);
        test::LanguageModel<TestType> narrow(wide.recipe, config);
        test::randomise(narrow.decoder.parameters(), wide.tape.unit_scaled() ? 1.0 : 0.3);
        const auto from = narrow.decoder.parameters();
        const auto to = wide.decoder.parameters();
        for (std::size_t i = 0; i < to.size(); ++i)
            to[i]->write() = cast<float>(from[i]->value());  // exact, so both models are equal
        wide.tape.begin_step();
        narrow.tape.begin_step();
        const auto want = wide.loss(batch);
        const auto loss = narrow.loss(batch);
        CHECK(loss.item() == Approx(want.item()).epsilon(4.0 * unit_roundoff));
        // The seed undoes the division by 24 rows in the mean.
        // Otherwise gradients under `none` would be near FP16's smallest numbers.
        wide.tape.backward(want, 24.0f);
        narrow.tape.backward(loss, 24.0f);
        for (std::size_t i = 0; i < to.size(); ++i) {
            INFO(recipe << ", " << to[i]->name());
            if (to[i]->name().ends_with("key/bias")) continue;  // its gradient is 0, apart from rounding
            CHECK(analysis::relative_error(cast<float>(from[i]->gradient()), to[i]->gradient()) < 40.0 * unit_roundoff);
        }
    }
}
