// SPDX-License-Identifier: MIT
#include <unitscale/record/packed_weight.hpp>

#include "support/op_checks.hpp"

#include <unitscale/ops/linear.hpp>

#include <vector>

using namespace unitscale;

namespace {

struct Model {
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    ScalingState state{};
    Parameter<float> weight{"weight", {40, 70}, {}};
    Tensor<float> x = normal<float>({3, 70}, {1, 1});
    explicit Model(const Quantiser& rounding)
        : Model(ProductFormats{.activation = rounding, .weight = rounding, .gradient = rounding}) {}
    explicit Model(const ProductFormats& formats) {
        recipe.products.push_back({.formats = formats});
        fill_normal(weight.write(), {2, 2});
    }
    [[nodiscard]] std::vector<float> run(Tape<float>& tape, bool gradients) {
        tape.begin_step({.training = false, .gradients = gradients});
        const auto y = ops::linear(tape.input(x), tape.parameter(weight));
        return {y.value().data(), y.value().data() + y.value().size()};
    }
    [[nodiscard]] std::shared_ptr<const products::PackedRight<float>> packed(Tape<float>& tape,
                                                                             const Quantiser& rounding,
                                                                             bool gradients = false) {
        tape.begin_step({.training = false, .gradients = gradients});
        const products::MatmulArguments<float> product{
            .m = 3, .n = 40, .k = 70, .a = {.quantiser = rounding}, .b = {{weight.value().data(), 1, 70}, rounding}};
        return ops::packed_weight(tape, tape.parameter(weight), product);
    }
};

}  // namespace

TEST_CASE("packed_weight: the same bits with and without, before and after the weight is written") {
    for (const FloatFormat& format : {e4m3, e5m2, fp16, e2m1}) {
        INFO(name(format));
        Model model({.format = format});
        Tape<float> tape(model.recipe, model.state);
        CHECK(model.run(tape, false) == model.run(tape, true));
        const auto old = model.run(tape, false);
        fill_normal(model.weight.write(), {3, 3});
        CHECK(model.run(tape, false) == model.run(tape, true));
        CHECK(model.run(tape, false) != old);
    }
}

TEST_CASE("packed_weight: numbers in blocks are kept, too, until the weight is written") {
    for (const BlockFormat& format : {mxfp8_e4m3, nvfp4, nvfp4_square, float8_tensor}) {
        INFO(name(format));
        ProductFormats formats;
        formats.set(OperandSlot::forward_w, OperandRule::in_blocks(format));
        Model model(formats);
        Tape<float> tape(model.recipe, model.state);
        CHECK(model.run(tape, false) == model.run(tape, true));
        const auto old = model.run(tape, false);
        CHECK(model.run(tape, false) == old);
        fill_normal(model.weight.write(), {3, 3});
        CHECK(model.run(tape, false) == model.run(tape, true));
        CHECK(model.run(tape, false) != old);
        // Another rule for the same weight.
        model.recipe.products.back().formats.set(OperandSlot::forward_w, OperandRule::in_blocks(mxfp4));
        ScalingState state;
        Tape<float> other(model.recipe, state);
        CHECK(model.run(other, false) == model.run(other, true));
        CHECK(model.run(other, false) != model.run(tape, false));
    }
}

TEST_CASE("packed_weight: packed once for a rounding and a version of the weight") {
    const Quantiser e4{.format = e4m3}, e5{.format = e5m2};
    Model model(e4);
    Tape<float> tape(model.recipe, model.state), other(model.recipe, model.state);
    const auto first = model.packed(tape, e4);
    REQUIRE(first != nullptr);
    CHECK(first->n == 40);
    CHECK(model.packed(other, e4) == first);
    CHECK(model.packed(tape, e5) != first);
    CHECK(model.packed(tape, e4) == first);
    static_cast<void>(model.weight.write());
    CHECK(model.packed(tape, e4) != first);
    CHECK(first->k == 70);  // the pointer keeps the object alive
}

TEST_CASE(
    "packed_weight: none in a step with gradients, for stochastic rounding, or for a tensor that is no parameter") {
    const Quantiser e4{.format = e4m3};
    Model model(e4);
    Tape<float> tape(model.recipe, model.state);
    CHECK(model.packed(tape, e4, true) == nullptr);
    CHECK(model.packed(tape, {.format = e4m3, .rounding = Rounding::stochastic}) == nullptr);
    tape.begin_step({.gradients = false});
    CHECK(ops::packed_weight(tape, tape.input(normal<float>({40, 70}, {1, 1})), {.b = {.quantiser = e4}}) == nullptr);
    CHECK(ops::packed_weight(tape, tape.parameter(model.weight), {}) == nullptr);
}
