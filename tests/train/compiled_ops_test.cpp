// SPDX-License-Identifier: MIT
#include <unitscale/train/compiled_ops.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

using namespace unitscale;

// This source holds no op: that it links says that another one has compiled those that it calls.
TEMPLATE_TEST_CASE("ops compiled elsewhere train a decoder of any kind", "", float, double, Half, BFloat16) {
    for (const nn::FeedForwardKind kind : {nn::FeedForwardKind::gelu, nn::FeedForwardKind::gated_silu})
        for (const nn::NormKind norm : {nn::NormKind::layer, nn::NormKind::rms})
            for (const nn::Positions positions : {nn::Positions::learned, nn::Positions::rotary}) {
                test::LanguageModel<TestType> model(find_recipe("unit-fp8"), {.vocabulary = 7,
                                                                              .width = 8,
                                                                              .heads = 2,
                                                                              .length = 6,
                                                                              .feed_forward = kind,
                                                                              .norm = {.kind = norm, .gains = true},
                                                                              .positions = positions,
                                                                              .dropout = 0.1});
                model.tape.begin_step();
                const auto loss = model.loss(test::random_batch(2, 6, 7));
                CHECK(loss.item() > 0.0);
                CHECK(loss.item() < 6.0);
                model.tape.backward(loss);
                for (const auto* parameter : model.decoder.parameters()) CHECK(parameter->has_gradient());
            }
}

TEST_CASE("every op that modules call is among those compiled elsewhere") {
    const auto include = std::filesystem::path(UNITSCALE_TEST_DATA).parent_path().parent_path() / "include/unitscale";
    const auto text_of = [](const std::filesystem::path& path) {
        std::ifstream file(path);
        REQUIRE(file.is_open());
        return (std::ostringstream{} << file.rdbuf()).str();
    };
    const std::string listed = text_of(include / "train/compiled_ops.hpp");
    std::set<std::string> called;
    for (const auto& header : std::filesystem::directory_iterator(include / "nn")) {
        const std::string text = text_of(header.path());
        for (std::size_t at = text.find("ops::"); at != std::string::npos; at = text.find("ops::", at)) {
            at += 5;
            const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", at);
            if (text[end] == '(') called.insert(text.substr(at, end - at));
        }
    }
    CHECK(called.size() > 10);
    for (const std::string& op : called) {
        INFO(op);
        CHECK(listed.find(" " + op + "<T>(") != std::string::npos);
    }
}
