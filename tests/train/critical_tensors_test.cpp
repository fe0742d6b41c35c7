// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/critical_tensors.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

struct Tracked {
    std::vector<train::CriticalProduct> products{};
    analysis::Track track{};
};

/// Two steps of a small decoder, with weights doubled between the steps.
Tracked tracked(const Recipe& recipe, const std::vector<std::string>& patterns = {"*"}) {
    test::LanguageModel<float> model(recipe, {.vocabulary = 50, .width = 32, .depth = 1, .heads = 2, .length = 16});
    analysis::Tracker<float> tracker({.every = 1, .patterns = patterns});
    model.tape.set_observer(&tracker);
    for (int step = 0; step < 2; ++step) {
        model.tape.begin_step();
        model.tape.backward(model.loss(test::random_batch(4, 16, 50)));
        for (Parameter<float>* parameter : model.decoder.parameters()) {
            parameter->clear_gradient();
            for (float& x : parameter->write().span()) x *= 2.0f;
        }
    }
    return {train::critical_products(tracker.finish(), model.state), tracker.finish()};
}

}  // namespace

TEST_CASE(
    "critical products are the unrounded products of a recipe that rounds others, with their inputs and weights") {
    const Tracked seen = tracked(find_recipe("umup-fp8"));
    std::vector<std::string> paths;
    for (const train::CriticalProduct& one : seen.products) {
        INFO(one.path);
        paths.push_back(one.path);
        CHECK(one.weight == one.path.substr(0, one.path.rfind('/')) + "/weight");
        CHECK(one.weight_rms.last == Approx(2.0 * one.weight_rms.first));
        CHECK(one.weight_rms.largest == one.weight_rms.last);
        CHECK(one.input_rms.largest >= one.input_rms.first);
        CHECK(one.input_rms.largest >= one.input_rms.last);
        CHECK(one.input_rms.first != one.input_rms.last);
        CHECK(one.first_step == 1);
        CHECK(one.last_step == 2);
        // Compare with the track itself.
        std::size_t found = 0;
        for (const analysis::TrackedTensor& tensor : seen.track.tensors)
            if (tensor.label() == one.input && tensor.value.steps.front().summary.rms == one.input_rms.first) ++found;
        CHECK(found >= 1);
    }
    CHECK(paths == std::vector<std::string>{"decoder/block0/attention/out/linear", "decoder/block0/ffn/down/linear",
                                            "decoder/readout/readout"});
}

TEST_CASE("no product is critical under a recipe that rounds all products or none, or if it was not tracked") {
    CHECK(tracked(find_recipe("fp32")).products.empty());
    CHECK(tracked(find_recipe("umup-fp32")).products.empty());
    Recipe all = find_recipe("umup-fp8");
    const ProductFormats formats = all.formats(ProductKind::linear, "decoder/block0/ffn/up");
    REQUIRE(formats.activation.has_value());
    all.products = {{.kind = ProductKind::linear, .formats = formats},
                    {.kind = ProductKind::readout, .formats = formats}};
    CHECK(tracked(all).products.empty());
    const Tracked some = tracked(find_recipe("umup-fp8"), {"decoder/block0/ffn*"});
    REQUIRE(some.products.size() == 1);
    CHECK(some.products[0].path == "decoder/block0/ffn/down/linear");
    CHECK(train::critical_table({}).empty());
}

TEST_CASE("the table of critical products has a line each, with the rms of input and weight over the run") {
    const auto steps = [](std::vector<double> rms) {
        std::vector<analysis::TrackedStep> result;
        for (const double one : rms) {
            result.emplace_back();
            result.back().summary.rms = one;
        }
        return result;
    };
    const train::CriticalProduct product{.path = "a/linear",
                                         .input = "x",
                                         .weight = "w",
                                         .input_rms = train::RmsCourse(steps({1.0, 8.25, 4.0})),
                                         .weight_rms = train::RmsCourse(steps({1.0, 1.0, 1.125})),
                                         .first_step = 1,
                                         .last_step = 40};
    CHECK(
        train::critical_table({product}) ==
        "product left in high precision  input's rms: step 1  largest  step 40  weight's rms: step 1  largest  step "
        "40\n"
        "a/linear                        1                    8.25     4        1                     1.12     1.12\n");
}
