// SPDX-License-Identifier: MIT
#include <unitscale/analysis/overflows.hpp>

#include <unitscale/analysis/gradient_zeros.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/sum.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using analysis::OverflowCounts;
using analysis::Overflows;

namespace {

/// Two layers in FP16: h = x w, y = h v, with x [rows,1], w and v 1 x 1; then sum(y c), so that the gradient of y is c.
struct Model {
    Recipe recipe = recipe_in<Half>({});
    ScalingState state{};
    Tape<Half> tape{recipe, state};
    Parameter<Half> w{"w", Shape{1, 1}, {}}, v{"v", Shape{1, 1}, {}};
    std::vector<float> x{1.0f}, c{1.0f};

    void set(float first, float second) {
        w.write().data()[0] = Half(first);
        v.write().data()[0] = Half(second);
    }
    static Tensor<Half> column(const std::vector<float>& values) {
        Tensor<Half> tensor(Shape{values.size(), 1});
        for (std::size_t i = 0; i < values.size(); ++i) tensor.data()[i] = Half(values[i]);
        return tensor;
    }
    void step(std::size_t micro_batch = 0, std::size_t micro_batches = 1) {
        tape.begin_step({.micro_batches = micro_batches, .micro_batch = micro_batch});
        const Variable<Half> h = ops::linear(tape.input(column(x), true), tape.parameter(w));
        const Variable<Half> y = ops::linear(h, tape.parameter(v));
        tape.backward(ops::sum(ops::mul(y, tape.input(column(c)))));
        for (Parameter<Half>* parameter : {&w, &v}) parameter->clear_gradient();
    }
};

}  // namespace

TEST_CASE("overflows: values count where finite inputs gave them, and what follows from them does not") {
    Model model;
    Overflows<Half> overflows(1);
    model.tape.set_observer(&overflows);
    model.set(1.0f, 1.0f);
    model.x = model.c = {1.0f, 2.0f, 3.0f};
    model.step();
    CHECK(overflows.counted_step() == 1);
    CHECK(overflows.counts().empty());
    model.set(0x1p15f, 2.0f);
    model.step();  // h is 2^15, infinite, infinite; y is infinite in all rows, and gradients of v are too
    CHECK(overflows.counts() == OverflowCounts{{"linear value", 2}});
    model.set(0x1p14f, 2.0f);
    model.step();  // h is finite; y is 2^15, infinite, infinite
    CHECK(overflows.counts() == OverflowCounts{{"linear value", 2}});
}

TEST_CASE("overflows: what follows from a weight or an input that is not finite does not count") {
    Model model;
    Overflows<Half> overflows(1);
    model.tape.set_observer(&overflows);
    model.set(std::numeric_limits<float>::quiet_NaN(), 1.0f);
    model.step();
    CHECK(overflows.counts().empty());
    model.set(1.0f, 1.0f);
    model.x = {std::numeric_limits<float>::infinity()};
    model.step();
    CHECK(overflows.counts().empty());
}

TEST_CASE("overflows: gradients count where finite gradients gave them") {
    Model model;
    Overflows<Half> overflows(1);
    model.tape.set_observer(&overflows);
    model.set(2.0f, 0x1p8f);
    model.x = {0x1p-4f, 0x1p-4f};
    model.c = {0x1p8f, 1.0f};
    model.step();  // y is 2^5. The gradient of h is 2^16 and 2^8. The gradients of w and x follow from it
    CHECK(overflows.counts() == OverflowCounts{{"linear gradient", 1}});

    model.set(0x1p-4f, 1.0f);
    model.x = {0x1p8f, 0x1p8f};
    model.c = {0x1p8f, 1.0f};
    model.step();  // dy x is 2^16 for w alone
    CHECK(overflows.counts() == OverflowCounts{{"parameter gradient", 1}});
}

TEST_CASE("overflows: limited sums overflow by the margin of their operands") {
    // Equal elements: with a bias from the largest magnitude, each operand becomes 240 2^-m rounded down to a power.
    constexpr std::size_t depth = 32;
    for (const int margin : {0, 1, 2, 3, 4, 5}) {
        Recipe recipe = recipe_in<float>({});
        const Quantiser fp8{.format = e4m3fnuz};
        const ScaleRule scale{.source = ScaleSource::amax, .margin = margin};
        ProductFormats formats{.activation = fp8, .weight = fp8, .activation_scale = scale, .weight_scale = scale};
        formats.accumulate[0] = mptorch_sums(fp16);
        recipe.products = {{.formats = formats}};
        ScalingState state;
        Tape<float> tape(recipe, state);
        Overflows<float> overflows(1);
        tape.set_observer(&overflows);
        Parameter<float> w("w", Shape{3, depth}, {});
        for (float& element : w.write().span()) element = 1.0f;
        Tensor<float> x(Shape{2, depth});
        for (float& element : x.span()) element = 1.0f;
        tape.begin_step();
        static_cast<void>(ops::linear(tape.input(std::move(x)), tape.parameter(w)));
        // 1 becomes 128 2^-margin. The sum of 32 squares is 2^19 4^-margin; FP16 ends at 65504.
        const bool fits = margin >= 2;
        CHECK(overflows.counts() == (fits ? OverflowCounts{} : OverflowCounts{{"linear value", 6}}));
    }
}

TEST_CASE("overflows: counted steps, micro-batches, and an observer behind it") {
    Model model;
    model.set(0x1p15f, 1.0f);
    model.x = model.c = {2.0f};
    analysis::GradientZeros<Half> zeros(1);
    Overflows<Half> overflows(3, 5, &zeros);
    model.tape.set_observer(&overflows);
    CHECK(overflows.counted_step() == 0);
    std::vector<std::uint64_t> seen;
    for (int step = 1; step <= 5; ++step) {
        model.step();
        seen.push_back(overflows.counted_step());
        CHECK(zeros.counted_step() == static_cast<std::uint64_t>(step));
    }
    CHECK(seen == std::vector<std::uint64_t>{1, 1, 1, 4, 5});
    CHECK(overflows.counts() == OverflowCounts{{"linear value", 1}});

    Overflows<Half> each(1);
    model.tape.set_observer(&each);
    model.set(0x1p-4f, 1.0f);
    model.x = model.c = {0x1p8f};
    model.step(0, 2);  // the gradient of w is infinite, and it is not whole yet
    model.step(1, 2);
    CHECK(each.counts().empty());
    REQUIRE_THROWS_WITH(Overflows<float>(0), "overflows: every is 0; expected at least 1");
}
