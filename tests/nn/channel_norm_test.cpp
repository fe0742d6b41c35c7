// SPDX-License-Identifier: MIT
#include <unitscale/nn/channel_norm.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/module.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

using namespace unitscale;

namespace {

/// Mean and variance of channel c of x [B,C,R].
struct Moments {
    double mean = 0.0, variance = 0.0;
};
Moments moments(const Tensor<double>& x, std::size_t c, std::size_t first = 0, std::size_t last = 1000) {
    double sum = 0.0, squares = 0.0, count = 0.0;
    for (std::size_t b = first; b < std::min(last, x.dim(0)); ++b)
        for (std::size_t i = 0; i < x.dim(2); ++i) {
            sum += x(b, c, i);
            squares += x(b, c, i) * x(b, c, i);
            count += 1.0;
        }
    return {sum / count, squares / count - sum / count * (sum / count)};
}

}  // namespace

TEST_CASE("GroupNorm: groups of channels of an example have mean 0 and variance 1") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        nn::GroupNorm<double> norm("net/norm", {.channels = 4, .groups = 4, .gains = false, .epsilon = 0.0});
        CHECK(nn::parameters_of<double>(norm).empty());
        test::OpTape<double> run(scaling);
        const auto y = norm(run.input({2, 4, 50})).value();
        for (std::size_t b = 0; b < 2; ++b)
            for (std::size_t c = 0; c < 4; ++c) {
                CHECK(moments(y, c, b, b + 1).mean == Approx(0.0).margin(1e-12));
                CHECK(moments(y, c, b, b + 1).variance == Approx(1.0));
            }
    }
    CHECK_THROWS_WITH((nn::GroupNorm<double>("net", {.channels = 4, .groups = 3})),
                      "GroupNorm net: groups is 3; expected a divisor of 4 channels");
    test::OpTape<double> run;
    nn::GroupNorm<double> norm("net", {.channels = 4, .groups = 2});
    CHECK_THROWS_WITH(norm(run.input({2, 3, 5})), "GroupNorm: x [2,3,5]; expected [B,4,...]");
}

TEST_CASE("channel gains: multiply and shift each channel, with gradients of unit size") {
    nn::GroupNorm<double> norm("net/norm", {.channels = 2, .groups = 2, .epsilon = 0.0});
    auto parameters = nn::parameters_of<double>(norm);
    REQUIRE(parameters.size() == 2);
    CHECK(parameters[0]->facts().role == ParameterRole::norm);
    CHECK(parameters[1]->facts().role == ParameterRole::bias);
    parameters[0]->write() = Tensor<double>({2}, {2.0, 3.0});
    parameters[1]->write() = Tensor<double>({2}, {0.5, -0.5});
    test::OpTape<double> run(Scaling::unit);
    const auto y = norm(run.input({8, 2, 100}));
    CHECK(moments(y.value(), 0, 0, 1).mean == Approx(0.5));
    CHECK(moments(y.value(), 1, 0, 1).variance == Approx(9.0));
    run.tape.backward(analysis::project(y, normal<double>({8, 2, 100}, {1, 2})));
    for (const Parameter<double>* parameter : parameters)
        for (std::size_t c = 0; c < 2; ++c) CHECK(std::abs(parameter->gradient()(c)) < 4.0);
    double squares = 0.0;
    for (const Parameter<double>* parameter : parameters)
        for (std::size_t c = 0; c < 2; ++c) squares += parameter->gradient()(c) * parameter->gradient()(c);
    CHECK(squares / 4.0 > 0.05);
}

TEST_CASE("BatchNorm: channels of a batch have mean 0 and variance 1; the running statistics follow") {
    nn::BatchNorm<double> norm("net/norm", {.channels = 3, .gains = false, .momentum = 0.25, .epsilon = 0.0});
    const auto parameters = nn::parameters_of<double>(norm);
    REQUIRE(parameters.size() == 2);
    CHECK(parameters[0]->name() == "net/norm/running_mean");
    CHECK(parameters[1]->name() == "net/norm/running_variance");
    for (const Parameter<double>* statistic : parameters) CHECK_FALSE(statistic->requires_gradient());
    nn::initialise(parameters, find_recipe("unit-fp32"), 1);
    CHECK(parameters[1]->value()(0) == 1.0);

    test::OpTape<double> run(Scaling::unit);
    const auto x = run.input({5, 3, 20});
    const auto y = norm(x).value();
    for (std::size_t c = 0; c < 3; ++c) {
        const Moments of_x = moments(x.value(), c);
        CHECK(moments(y, c).mean == Approx(0.0).margin(1e-12));
        CHECK(moments(y, c).variance == Approx(1.0));
        CHECK(parameters[0]->value()(c) == Approx(0.25 * of_x.mean));
        CHECK(parameters[1]->value()(c) == Approx(0.75 + 0.25 * of_x.variance * 100.0 / 99.0));
    }
    // Steps without training use them and leave them alone.
    const std::uint64_t version = parameters[0]->version();
    run.tape.begin_step({.training = false, .gradients = false});
    Tensor<double> twos({1, 3, 2});
    fill_constant(twos, 2.0);
    const auto in_use = norm(run.tape.input(std::move(twos))).value();
    for (std::size_t c = 0; c < 3; ++c)
        CHECK(in_use(0, c, 1) ==
              Approx((2.0 - parameters[0]->value()(c)) / std::sqrt(parameters[1]->value()(c))).epsilon(1e-12));
    CHECK(parameters[0]->version() == version);
}

TEST_CASE("BatchNorm: the running statistics count the scale of x") {
    nn::BatchNorm<double> norm("net/norm", {.channels = 2, .momentum = 1.0});
    const auto parameters = nn::parameters_of<double>(norm);
    nn::initialise(parameters, find_recipe("fp32"), 1);
    test::OpTape<double> run(Scaling::propagate);
    Tensor<double> x = normal<double>({5, 2, 20}, {1, 1});
    const Moments of_data = moments(x, 1);
    x.set_scale(8.0);
    static_cast<void>(norm(run.tape.input(std::move(x))));
    CHECK(parameters[2]->value()(1) == Approx(8.0 * of_data.mean));
    CHECK(parameters[3]->value()(1) == Approx(64.0 * of_data.variance * 100.0 / 99.0));
}

TEST_CASE("BatchNorm: a part that runs again moves the running statistics once") {
    const auto running = [](bool again) {
        nn::BatchNorm<double> norm("net/norm", {.channels = 2});
        const auto parameters = nn::parameters_of<double>(norm);
        nn::initialise(parameters, find_recipe("fp32"), 1);
        test::OpTape<double> run(Scaling::none, {});
        const auto x = run.input({4, 2, 3});
        const auto f = [&norm](Variable<double> v) { return norm(v); };
        run.tape.backward(test::sum(again ? run.tape.recompute(x, f) : f(x)));
        return parameters[2]->value()(1);
    };
    CHECK(running(true) == running(false));
    CHECK(running(true) != 0.0);
}

TEST_CASE("BatchNorm: errors") {
    CHECK_THROWS_WITH((nn::BatchNorm<double>("net", {.channels = 2, .momentum = 1.5})),
                      "BatchNorm net: momentum is 1.5; expected 0 to 1");
    nn::BatchNorm<double> norm("net", {.channels = 2});
    test::OpTape<double> run;
    CHECK_THROWS_WITH(norm(run.input({2, 3})), "BatchNorm: x [2,3]; expected [B,2,...]");
    CHECK_THROWS_WITH(norm(run.input({1, 2})), "BatchNorm: x [1,2] has fewer than 2 numbers of each channel");
    run.tape.begin_step({.training = false, .gradients = false});
    CHECK_THROWS_WITH(norm(run.input({4, 2})),
                      "parameter net/running_mean: was never written; expected nn::initialise or loaded weights");
}
