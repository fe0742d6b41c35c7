// SPDX-License-Identifier: MIT
#include <unitscale/optim/adam.hpp>
#include <unitscale/tensor/rescale.hpp>

#include "support/any_state.hpp"
#include "support/catch.hpp"
#include "support/optimiser_checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::optim;
using unitscale::test::AnyState;
using unitscale::test::gradient_of;

namespace {

constexpr std::size_t length = 131;  // two full blocks and a part of one

/// Adam of one element in double, in the form of the papers.
struct Naive {
    AdamOptions o;
    double m = 0.0, v = 0.0;
    int t = 0;
    double update(double p, double g, double lr) {
        if (o.decay == WeightDecay::gradient) g += o.weight_decay * p;
        ++t;
        m = o.beta1 * m + (1.0 - o.beta1) * g;
        v = o.beta2 * v + (1.0 - o.beta2) * g * g;
        const double mean = o.bias_correction ? m / (1.0 - std::pow(o.beta1, t)) : m;
        const double square = o.bias_correction ? v / (1.0 - std::pow(o.beta2, t)) : v;
        double decay = 0.0;
        if (o.decay.value_or(WeightDecay::coupled) == WeightDecay::coupled) decay = lr * o.weight_decay;
        if (o.decay == WeightDecay::independent) decay = o.weight_decay * (lr / o.peak_learning_rate);
        return p - decay * p - lr * mean / (std::sqrt(square) + o.epsilon);
    }
};

/// The largest difference between the optimiser and the naive loop over 200 steps with a moving learning rate.
template <class T>
double worst_difference(const AdamOptions& options) {
    Parameter<T> parameter("p", Shape{length}, {});
    fill_normal(parameter.write(), {1, 1});
    std::vector<double> expected(parameter.value().span().begin(), parameter.value().span().end());
    std::vector<Naive> naive(length, Naive{options});
    Adam<T> adam({&parameter}, options);
    double worst = 0.0;
    for (int t = 1; t <= 200; ++t) {
        const double lr = 0.05 * (t <= 100 ? t / 100.0 : (300.0 - t) / 200.0);
        parameter.add_gradient(gradient_of<T>(t, length));
        const Tensor<T> g = gradient_of<T>(t, length);
        adam.step({}, lr);
        adam.clear_gradients();
        for (std::size_t i = 0; i < length; ++i) {
            expected[i] = naive[i].update(expected[i], static_cast<double>(g.data()[i]), lr);
            worst = std::max(worst, std::abs(expected[i] - static_cast<double>(parameter.value().data()[i])));
        }
    }
    return worst;
}

}  // namespace

TEST_CASE("the vectorised root is within an ulp of the true one from the smallest numbers to the largest") {
    double worst = 0.0;
    for (float x = 0x1p-100f; x < 1e38f; x *= 1.0173f) {
        const double exact = std::sqrt(static_cast<double>(x));
        const double ulp = static_cast<double>(std::nextafter(static_cast<float>(exact), 1e38f)) -
                           static_cast<double>(static_cast<float>(exact));
        worst = std::max(worst, std::abs(static_cast<double>(positive_root(x)) - exact) / ulp);
    }
    REQUIRE(worst <= 1.0);
    for (double x = 1e-307; x < 1e300; x *= 37.3)
        REQUIRE(positive_root(x) == Approx(std::sqrt(x + 0x1p-1022)).epsilon(4e-16));
    REQUIRE(positive_root(0.0f) == Approx(0x1p-63f));
    REQUIRE(positive_root(0.0) > 0.0);
    REQUIRE(positive_root(4.0f) == 2.0f);
}

TEST_CASE("Adam agrees with the naive loop in double over 200 steps, under every option") {
    REQUIRE(worst_difference<double>({}) < 1e-12);
    REQUIRE(worst_difference<double>({.beta1 = 0.5, .beta2 = 0.9, .epsilon = 1e-2}) < 1e-12);
    REQUIRE(worst_difference<double>({.bias_correction = false}) < 1e-12);
    REQUIRE(worst_difference<double>({.weight_decay = 0.1, .decay = WeightDecay::gradient}) < 1e-12);
    REQUIRE(worst_difference<double>({.weight_decay = 0.1, .decay = WeightDecay::coupled}) < 1e-12);
    REQUIRE(worst_difference<double>(
                {.weight_decay = 0.01, .decay = WeightDecay::independent, .peak_learning_rate = 0.06}) < 1e-12);
}

TEST_CASE("Adam in float stays within its rounding of the naive loop") {
    const double worst = worst_difference<float>({.weight_decay = 0.1});
    REQUIRE(worst < 2e-5);
    REQUIRE(worst > 0.0);
}

TEST_CASE("with bias correction the first step is the learning rate times the gradient's sign, whatever its size") {
    for (const double size : {1e-4, 1.0, 1e6}) {
        Parameter<double> p("p", Shape{2}, {});
        Adam<double> adam({&p}, {.epsilon = 0.0});
        p.add_gradient(Tensor<double>(Shape{2}, {size, -size}));
        adam.step({}, 0.125);
        REQUIRE(p.value().data()[0] == Approx(-0.125).epsilon(1e-12));
        REQUIRE(p.value().data()[1] == Approx(0.125).epsilon(1e-12));
    }
}

TEST_CASE("without epsilon a gradient that is always zero moves nothing") {
    Parameter<float> p("p", Shape{3}, {});
    fill_constant(p.write(), 2.0f);
    Adam<float> adam({&p}, {.epsilon = 0.0});
    for (int t = 0; t < 3; ++t) {
        p.clear_gradient();
        p.add_gradient(Tensor<float>(Shape{3}, {0.0f, 1e-30f, 1.0f}));
        adam.step({}, 0.5);
    }
    REQUIRE(p.value().data()[0] == 2.0f);
    REQUIRE(std::isfinite(p.value().data()[1]));
    REQUIRE(p.value().data()[2] == Approx(0.5f));
}

TEST_CASE("independent decay does not depend on the learning rate, coupled decay does") {
    const auto left_after_one = [](WeightDecay decay, double lr) {
        Parameter<double> p("p", Shape{1}, {});
        p.write().data()[0] = 1.0;
        p.add_gradient(Tensor<double>(Shape{1}, {0.0}));
        Adam<double> adam({&p}, {.weight_decay = 0.25, .decay = decay, .peak_learning_rate = lr});
        adam.step({}, lr);
        return p.value().data()[0];
    };
    REQUIRE(left_after_one(WeightDecay::independent, 1.0) == 0.75);
    REQUIRE(left_after_one(WeightDecay::independent, 0.001) == 0.75);
    REQUIRE(left_after_one(WeightDecay::coupled, 1.0) == 0.75);
    REQUIRE(left_after_one(WeightDecay::coupled, 0.5) == 0.875);
}

TEST_CASE("groups set Adam's learning-rate factor, decay and training; an option exempts biases and norms from decay") {
    Parameter<double> weight("block/weight", Shape{1}, {}), bias("block/bias", Shape{1}, {.role = ParameterRole::bias}),
        gain("block/gain", Shape{1}, {.role = ParameterRole::norm}), table("table", Shape{1}, {});
    for (auto* p : {&weight, &bias, &gain, &table}) p->write().data()[0] = 1.0;
    Adam<double> adam({&weight, &bias, &gain, &table}, {.epsilon = 0.0,
                                                        .weight_decay = 0.5,
                                                        .decay_bias_and_norm = false,
                                                        .groups = {{.pattern = "block/*", .learning_rate_factor = 0.25},
                                                                   {.pattern = "*gain", .weight_decay = 1.0},
                                                                   {.pattern = "table", .trained = false}}});
    REQUIRE_FALSE(table.requires_gradient());
    REQUIRE(weight.requires_gradient());
    for (auto* p : {&weight, &bias, &gain, &table}) p->add_gradient(Tensor<double>(Shape{1}, {1.0}));
    adam.step({}, 0.5);
    REQUIRE(weight.value().data()[0] == Approx(1.0 - 0.125 * 0.5 - 0.125));  // the group's lr is in the decay as well
    REQUIRE(bias.value().data()[0] == Approx(1.0 - 0.125));
    REQUIRE(gain.value().data()[0] == Approx(1.0 - 0.125 - 0.125));
    REQUIRE(table.value().data()[0] == 1.0);
}

TEST_CASE("Adam writes through the version and skips parameters that are frozen or have no gradient") {
    Parameter<float> a("a", Shape{1}, {}), b("b", Shape{1}, {});
    Adam<float> adam({&a, &b});
    a.add_gradient(Tensor<float>(Shape{1}, {1.0f}));
    adam.step({}, 0.1);
    REQUIRE(a.version() == 1);
    REQUIRE(b.version() == 0);
    REQUIRE(a.has_gradient());  // only clear_gradients clears it
    a.set_requires_gradient(false);
    const float before = a.value().data()[0];
    b.add_gradient(Tensor<float>(Shape{1}, {1.0f}));
    adam.step({}, 0.1);
    REQUIRE(a.value().data()[0] == before);
    REQUIRE(b.value().data()[0] == Approx(-0.1f));  // b's first step, where its bias correction starts
    adam.clear_gradients();
    REQUIRE_FALSE(a.has_gradient());
    REQUIRE_FALSE(b.has_gradient());
}

TEST_CASE("a carried scale of value or gradient changes nothing but the representation") {
    std::vector<double> values;
    for (const bool scaled : {false, true}) {
        Parameter<double> p("p", Shape{1}, {});
        p.write().data()[0] = scaled ? 0.25 : 1.0;
        if (scaled) p.write().set_scale(4.0);
        Adam<double> adam({&p}, {.epsilon = 0.5, .weight_decay = 0.25, .decay = WeightDecay::gradient});
        Tensor<double> g(Shape{1}, {scaled ? 6.0 : 3.0});
        if (scaled) g.set_scale(0.5);
        p.add_gradient(std::move(g));
        adam.step({}, 0.5);
        values.push_back(p.value().data()[0] * p.value().scale());
    }
    REQUIRE(values[0] != 1.0);
    REQUIRE(values[1] == Approx(values[0]).epsilon(1e-14));
}

TEST_CASE("Adam's update has the same bits for any thread count") {
    test::check_thread_counts<Adam>(AdamOptions{.weight_decay = 0.1});
}

namespace {
struct Names {
    std::vector<std::string>& seen;
    void tensor(const std::string& name, Tensor<float>& tensor) {
        seen.push_back(name + " " + to_string(tensor.shape()));
    }
    void scalar(const std::string& name, std::uint64_t& value) { seen.push_back(name + " " + std::to_string(value)); }
};
}  // namespace

TEST_CASE("Adam names its state, which carries a run on bit for bit") {
    Parameter<float> p("p", Shape{length}, {}), frozen("frozen", Shape{1}, {});
    frozen.set_requires_gradient(false);
    Adam<float> adam({&p, &frozen});
    std::vector<std::string> seen;
    adam.visit_state(Names{seen});
    REQUIRE(seen == std::vector<std::string>{"p/first_moment [131]", "p/second_moment [131]", "p/updates 0"});
    test::check_resumes<Adam, float>(AdamOptions{}, length);
}

TEST_CASE("a step of Adam after the first allocates nothing") {
    test::check_no_allocation<Adam, float>(AdamOptions{});
    test::check_no_allocation<Adam, Half>(AdamOptions{.storage = test::coded_storage()});
}

TEST_CASE("Adam refuses invalid options and learning rates") {
    Parameter<float> p("p", Shape{1}, {});
    const std::vector<Parameter<float>*> all{&p};
    REQUIRE_THROWS_WITH(Adam<float>(all, {.beta1 = 1.0}), "Adam: beta1 is 1; expected a number from 0 to below 1");
    REQUIRE_THROWS_WITH(Adam<float>(all, {.beta2 = -0.5}), "Adam: beta2 is -0.5; expected a number from 0 to below 1");
    REQUIRE_THROWS_WITH(Adam<float>(all, {.epsilon = -1.0}),
                        "Adam: epsilon is -1; expected a finite number, not negative");
    REQUIRE_THROWS_WITH(Adam<float>(all, {.decay = WeightDecay::independent}),
                        "Adam: independent weight decay needs peak_learning_rate, the largest of the run; it is 0");
    REQUIRE_THROWS_WITH(Adam<float>(all, {.groups = {{.pattern = "q*"}}}),
                        "Adam: group pattern 'q*' matches none of the 1 parameters");
    Adam<float> adam(all);
    REQUIRE_THROWS_WITH(adam.step({}, -0.5), "Adam: learning rate is -0.5; expected a finite number, not negative");
    REQUIRE_THROWS(adam.step({}, std::numeric_limits<double>::quiet_NaN()));
}

TEST_CASE("Adam updates data by value and gradient of any scales as it updates plain numbers") {
    const std::vector<AdamOptions> cases = {
        {},
        {.epsilon = 0.01, .weight_decay = 0.1, .decay = WeightDecay::gradient},
        {.bias_correction = false, .weight_decay = 0.1},
        {.weight_decay = 0.1, .decay = WeightDecay::independent, .peak_learning_rate = 0.06},
    };
    for (const AdamOptions& options : cases) test::check_scaled_updates<Adam>(options, length);
}

namespace {

/// Least squares with noise: 256 equations in 32 unknowns, 400 steps on batches of 32.
/// Returns the mean loss over all equations after the last step.
template <class T>
double least_squares_loss(const AdamOptions& options) {
    constexpr std::size_t unknowns = 32, equations = 256, batch = 32;
    const Tensor<double> x = normal<double>(Shape{equations, unknowns}, {1, 1}),
                         truth = normal<double>(Shape{unknowns}, {1, 2}),
                         noise = normal<double>(Shape{equations}, {1, 3}, 0.3);
    const auto residual = [&](const std::vector<double>& w, std::size_t row) {
        double r = -noise.data()[row];
        for (std::size_t j = 0; j < unknowns; ++j) r += x.data()[row * unknowns + j] * (w[j] - truth.data()[j]);
        return r;
    };
    Parameter<T> p("p", Shape{unknowns}, {});
    Adam<T> adam({&p}, options);
    std::vector<double> w(unknowns);
    const auto read = [&] {
        for (std::size_t j = 0; j < unknowns; ++j)
            w[j] = static_cast<double>(static_cast<Accum<T>>(p.value().data()[j]));
    };
    for (std::size_t step = 0; step < 400; ++step) {
        read();
        Tensor<T> gradient(Shape{unknowns});
        std::vector<double> g(unknowns, 0.0);
        for (std::size_t b = 0; b < batch; ++b) {
            const std::size_t row = (step * batch + b) % equations;
            const double r = residual(w, row);
            for (std::size_t j = 0; j < unknowns; ++j)
                g[j] += r * x.data()[row * unknowns + j] / static_cast<double>(batch);
        }
        for (std::size_t j = 0; j < unknowns; ++j) gradient.data()[j] = element_cast<T>(g[j]);
        p.clear_gradient();
        p.add_gradient(std::move(gradient));
        adam.step({}, 0.05 * (1.0 - static_cast<double>(step) / 400.0));
    }
    read();
    double loss = 0.0;
    for (std::size_t row = 0; row < equations; ++row)
        loss += std::pow(residual(w, row), 2) / static_cast<double>(equations);
    return loss;
}

}  // namespace

TEST_CASE("Adam with 16-bit weights and a float master has the weights of float, rounded") {
    Parameter<Half> coded("p", Shape{length}, {});
    Parameter<float> in_float("p", Shape{length}, {});
    fill_normal(coded.write(), {1, 1});
    in_float.write() = cast<float>(coded.value());
    Adam<Half> one({&coded}, {.weight_decay = 0.1, .storage = {.master = StateFormat{}}});
    Adam<float> other({&in_float}, {.weight_decay = 0.1});
    for (int t = 1; t <= 100; ++t) {
        coded.add_gradient(gradient_of<Half>(t, length));
        in_float.add_gradient(gradient_of<float>(t, length));
        for (std::size_t i = 0; i < length; ++i)
            in_float.gradient().data()[i] = static_cast<float>(coded.gradient().data()[i]);
        one.step({}, 0.003);
        other.step({}, 0.003);
        one.clear_gradients();
        other.clear_gradients();
    }
    for (std::size_t i = 0; i < length; ++i) REQUIRE(coded.value().data()[i] == Half(in_float.value().data()[i]));
}

TEST_CASE("Adam without a master updates 16-bit weights in place, under the scale that they have") {
    Parameter<Half> p("p", Shape{2}, {});
    p.write() = Tensor<Half>(Shape{2}, {Half(1.0f), Half(-1.0f)});
    p.write().set_scale(0.25);
    Adam<Half> adam({&p},
                    {.epsilon = 0.0, .storage = {.first_moment = {.format = fp16}, .second_moment = {.format = fp16}}});
    p.add_gradient(Tensor<Half>(Shape{2}, {Half(3.0f), Half(0.01f)}));
    adam.step({}, 0.0625);
    CHECK(p.value().scale() == 0.25);
    CHECK(p.value().data()[0] == Half(0.75f));  // (0.25 - 0.0625) / 0.25
    CHECK(p.value().data()[1] == Half(-1.25f));
}

TEST_CASE("Adam's state in fewer bits changes the final loss by a few per cent at most") {
    const double in_float = least_squares_loss<float>({});
    CHECK(in_float > 0.05);  // due to the noise
    CHECK(in_float < 0.09);
    const StateFormat half{.format = fp16}, byte{.format = e4m3, .block = 128, .rounding = Rounding::stochastic};
    const auto off = [&](double loss) { return std::abs(loss / in_float - 1.0); };
    CHECK(off(least_squares_loss<float>({.storage = {.first_moment = half, .second_moment = half}})) < 0.01);
    CHECK(off(least_squares_loss<float>(
              {.storage = {.first_moment = {.format = bf16},
                           .second_moment = {.format = bf16, .rounding = Rounding::stochastic}}})) < 0.02);
    CHECK(off(least_squares_loss<float>({.storage = {.first_moment = byte, .second_moment = byte}})) < 0.03);
    CHECK(off(least_squares_loss<Half>(
              {.storage = {.master = StateFormat{}, .first_moment = half, .second_moment = half}})) < 0.02);
    CHECK(off(least_squares_loss<Half>({.storage = {.first_moment = half, .second_moment = half}})) < 0.02);
    CHECK(off(least_squares_loss<BFloat16>(
              {.storage = {.master = StateFormat{.format = fp16}, .first_moment = byte, .second_moment = byte}})) <
          0.03);
}

TEST_CASE("a second moment that falls follows in FP16; in E4M3 it needs stochastic rounding") {
    const auto second_moment = [](const StateFormat& how) {
        Parameter<float> p("p", Shape{64}, {});
        Adam<float> adam({&p}, {.beta2 = 0.99, .storage = {.second_moment = how}});
        for (int t = 0; t < 600; ++t) {
            p.clear_gradient();
            Tensor<float> gradient(Shape{64});
            for (std::size_t i = 0; i < 64; ++i)
                gradient.data()[i] = i == 0 || t < 100 ? 1.0f : 0.1f;  // element 0 stays large
            p.add_gradient(std::move(gradient));
            adam.step({}, 0.0);
        }
        AnyState state;
        adam.visit_state(state);
        double mean = 0.0;
        StoredTensor<float> kept(Shape{64}, how);
        state.write = true;
        kept.visit_state(state, "p/second_moment");
        StoredTensor<float>::Chunk values{};
        kept.load(0, 64, values);
        for (std::size_t i = 1; i < 64; ++i) mean += static_cast<double>(values[i]) / 63.0;
        return mean;
    };
    const double truth = 0.01 + (1.0 - std::pow(0.99, 100) - 0.01) * std::pow(0.99, 500);  // near 0.014
    CHECK(second_moment({}) == Approx(truth).epsilon(1e-3));
    CHECK(second_moment({.format = fp16}) == Approx(truth).epsilon(0.05));
    CHECK(second_moment({.format = e4m3}) > 10.0 * truth);
    CHECK(second_moment({.format = e4m3, .rounding = Rounding::stochastic}) == Approx(truth).epsilon(0.2));
}

TEST_CASE("a second moment far below the others does not make Adam's steps longer") {
    for (const StateFormat& how : {StateFormat{.format = fp16}, StateFormat{.format = e4m3, .block = 128}}) {
        Parameter<float> p("p", Shape{2}, {});
        Adam<float> adam({&p}, {.epsilon = 0.0, .storage = {.second_moment = how}});
        p.add_gradient(Tensor<float>(Shape{2}, {1.0f, 1e-9f}));
        adam.step({}, 0.125);
        const float before = p.value().data()[1];
        // Now the moments alone determine the step. If the second moment was lost, its root is near 0.
        p.gradient().data()[1] = 0.0f;
        adam.step({}, 0.125);
        CHECK(std::abs(p.value().data()[1] - before) < 0.125f);
    }
}

TEST_CASE("Adam with state in codes goes on bit for bit, and has the same bits for any thread count") {
    const test::AnyState state = test::check_resumes<Adam, Half>(AdamOptions{.storage = test::coded_storage()}, 70001);
    CHECK(state.bytes.size() == 4);  // master, first moment and its scales, second moment
    CHECK(state.bytes.at("p/master").size() == 2 * 70001);
    CHECK(state.bytes.at("p/first_moment").size() == 70001);
    CHECK(state.scalars == std::map<std::string, std::uint64_t>{{"p/updates", 3}});
}

TEST_CASE("Adam refuses invalid storage") {
    Parameter<float> p("p", Shape{1}, {});
    const std::vector<Parameter<float>*> all{&p};
    REQUIRE_THROWS_WITH(Adam<float>(all, {.storage = {.second_moment = {.format = e8m0}}}),
                        "storage.second_moment: e8m0 has no zero; expected a format with zero, NaN and sign");
}

TEST_CASE("Adam updates by gradients in codes as by their numbers, with and without state in codes") {
    test::check_coded_gradients<Adam, float>(AdamOptions{});
    test::check_coded_gradients<Adam, Half>(AdamOptions{});
    test::check_coded_gradients<Adam, double>(AdamOptions{});
    test::check_coded_gradients<Adam, Half>(AdamOptions{.storage = test::coded_storage()});
}
