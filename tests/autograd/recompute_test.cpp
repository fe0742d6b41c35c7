// SPDX-License-Identifier: MIT
#include <unitscale/autograd/recompute.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <unitscale/autograd/tape.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

namespace {

/// y = x plus noise from the op's own random stream.
Variable<double> with_noise(Variable<double> x) {
    Tape<double>& tape = x.tape("with_noise");
    const Site site = tape.next_site("with_noise");
    Tensor<double> y = normal<double>(x.shape(), tape.random_key(site));
    for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] += x.value().data()[i];
    return tape.record({.name = "with_noise", .site = site, .betas = {1.0}, .reads = reads_nothing}, {x}, std::move(y),
                       [](BackwardContext<double>& g) { g.add(0, g.take_output_gradient()); });
}

struct Setting {
    Recipe recipe{};
    ScalingState state{3};
    Tape<double> tape{recipe, state};
    Parameter<double> weight{"weight", Shape{1000}, {}};
    Setting() { fill_normal(weight.write(), {1, 2}); }

    /// weight^4 x^4 times noise. One op draws random numbers, and the layer puts a tensor on the tape.
    [[nodiscard]] auto layer() {
        return [this](Variable<double> x) {
            const auto scope = tape.scope("layer");
            const auto y = mul(square(x), square(tape.parameter(weight)));
            const auto parts = split(y);
            const auto noise = with_noise(tape.input(full<double>({1000}, 0.5)));
            return mul(mul(parts[0], noise), parts[1]);
        };
    }
    struct Outcome {
        double loss = 0.0;
        std::vector<double> dx, dw;
        std::size_t peak = 0, kept = 0;
    };
    [[nodiscard]] Outcome run(bool again) {
        Outcome outcome;
        weight.clear_gradient();
        tape.begin_step();
        const auto x = tape.input(normal<double>({1000}, {5, 6}), true);
        Variable<double> y = x;
        for (int i = 0; i < 4; ++i) y = again ? tape.recompute(y, layer()) : layer()(y);
        const auto loss = sum(y);
        y = {};
        static_cast<void>(tape.make(Shape{1}));
        outcome.kept = tape.pool()->live_bytes();
        outcome.loss = loss.item();
        tape.backward(loss);
        outcome.dx = elements(x.gradient());
        outcome.dw = elements(weight.gradient());
        return outcome;
    }
};

}  // namespace

TEST_CASE("recompute gives the same bits and keeps the inputs of its parts only") {
    Setting plain, again;
    for (int step = 0; step < 3; ++step) {  // each step has other random numbers
        const auto want = plain.run(false), have = again.run(true);
        CHECK(have.loss == want.loss);
        CHECK(have.dx == want.dx);
        CHECK(have.dw == want.dw);
        CHECK(have.kept < want.kept / 2);
        CHECK(again.tape.node_count() == plain.tape.node_count());
    }
}

TEST_CASE_METHOD(Setting, "recompute runs its function twice in a step with a backward pass, else once") {
    int runs = 0;
    const auto counted = [&runs](Variable<double> x) {
        ++runs;
        return square(x);
    };
    const auto count = [&](const StepOptions& options) {
        runs = 0;
        tape.begin_step(options);
        const auto x = vector_input<double>(tape, {3.0});
        const auto loss =
            sum(tape.recompute(x, [&](Variable<double> y) { return tape.recompute(square(y), counted); }));
        if (options.gradients) {
            tape.backward(loss);
            CHECK(x.gradient().data()[0] == 108.0);
        }
        CHECK(runs > 0);
        return runs;
    };
    CHECK(count({}) == 2);  // a segment inside a segment is not a segment of its own
    CHECK(count({.gradients = false}) == 1);
    CHECK(count({.retain = true}) == 1);
    tape.begin_step();
    const auto x = vector_input<double>(tape, {3.0});
    tape.backward(sum(tape.recompute(x, [](Variable<double> y) { return y; })));  // no ops at all
    CHECK(x.gradient().data()[0] == 1.0);
}

TEST_CASE_METHOD(Setting, "an input of a part that is used elsewhere too has the gradient of both uses") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {3.0});
    const auto y = square(x);
    const auto z = tape.recompute(y, [](Variable<double> v) { return square(v); });
    tape.backward(sum(mul(z, y)));  // x^6
    CHECK(x.gradient().data()[0] == 6.0 * 243.0);
}

TEST_CASE_METHOD(Setting, "a function that records other ops the second time is an error, and the tape stays usable") {
    const auto step = [&](auto f) {
        tape.begin_step();
        tape.backward(sum(tape.recompute(vector_input<double>(tape, {3.0}), f)));
    };
    const std::string other = "is run in the backward pass in another place than in the forward pass";
    int run = 0;
    CHECK_THROWS_WITH(step([&run](Variable<double> x) { return run++ == 0 ? square(x) : mul(x, x); }),
                      "recompute: mul " + other);
    run = 0;
    CHECK_THROWS_WITH(step([&run](Variable<double> x) { return run++ == 0 ? square(x) : square(square(x)); }),
                      "recompute: square " + other);
    run = 0;
    CHECK_THROWS_WITH(step([&run](Variable<double> x) { return run++ == 0 ? square(square(x)) : square(x); }),
                      "recompute: 1 ops of the forward pass were not run again");
    run = 0;
    CHECK_THROWS_WITH(step([&](Variable<double> x) {
                          Parameter<double>& used = weight;
                          return run++ == 0 ? square(x) : (static_cast<void>(tape.parameter(used)), square(x));
                      }),
                      "recompute: parameter weight is used in the backward pass only");
    run = 0;
    CHECK_THROWS_WITH(step([&](Variable<double> x) {
                          if (run++ > 0) static_cast<void>(vector_input<double>(tape, {1.0}));
                          return square(x);
                      }),
                      "recompute: input " + other);
    step([](Variable<double> x) { return square(x); });
}
