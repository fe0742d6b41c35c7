// SPDX-License-Identifier: MIT
#include <unitscale/optim/lamb.hpp>
#include <unitscale/scaling/parametrisation.hpp>
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

constexpr std::size_t length = 2131;  // two full chunks of the norms and a part of one

double norm(const std::vector<double>& x) {
    double sum = 0.0;
    for (const double element : x) sum += element * element;
    return std::sqrt(sum);
}

/// LAMB of one tensor in double, in the form of the paper's algorithm 2.
struct Naive {
    LambOptions o;
    std::vector<double> p, m = std::vector<double>(p.size()), v = m;
    int t = 0;
    double ratio = 0.0;
    void update(const std::vector<double>& gradient, double lr) {
        ++t;
        const WeightDecay decay = o.decay.value_or(WeightDecay::coupled);
        std::vector<double> u(p.size());
        for (std::size_t i = 0; i < p.size(); ++i) {
            const double g = gradient[i] + (decay == WeightDecay::gradient ? o.weight_decay * p[i] : 0.0);
            m[i] = o.beta1 * m[i] + (1.0 - o.beta1) * g;
            v[i] = o.beta2 * v[i] + (1.0 - o.beta2) * g * g;
            const double mean = o.bias_correction ? m[i] / (1.0 - std::pow(o.beta1, t)) : m[i];
            const double square = o.bias_correction ? v[i] / (1.0 - std::pow(o.beta2, t)) : v[i];
            u[i] = mean / (std::sqrt(square) + o.epsilon);
            if (decay == WeightDecay::coupled) u[i] += o.weight_decay * p[i];
        }
        const double size = std::min(std::max(norm(p), o.least_norm), o.most_norm);
        ratio = size == 0.0 || norm(u) == 0.0 ? 1.0 : size / norm(u);
        const double lost = decay == WeightDecay::independent ? o.weight_decay * (lr / o.peak_learning_rate) : 0.0;
        for (std::size_t i = 0; i < p.size(); ++i) p[i] = (1.0 - lost) * p[i] - lr * ratio * u[i];
    }
};

template <class T>
std::vector<double> doubles(const Tensor<T>& tensor) {
    std::vector<double> result;
    for (const T x : tensor.span()) result.push_back(static_cast<double>(static_cast<Accum<T>>(x)) * tensor.scale());
    return result;
}

/// The largest difference between the optimiser and the naive loop over 100 steps with a moving learning rate.
template <class T>
double worst_difference(const LambOptions& options) {
    Parameter<T> parameter("p", Shape{length}, {});
    fill_normal(parameter.write(), {1, 1});
    Naive naive{options, doubles(parameter.value())};
    Lamb<T> lamb({&parameter}, options);
    double worst = 0.0;
    for (int t = 1; t <= 100; ++t) {
        const double lr = 0.02 * (t <= 50 ? t / 50.0 : (150.0 - t) / 100.0);
        parameter.add_gradient(gradient_of<T>(t, length));
        lamb.step({}, lr);
        lamb.clear_gradients();
        naive.update(doubles(gradient_of<T>(t, length)), lr);
        const std::vector<double> got = doubles(parameter.value());
        for (std::size_t i = 0; i < length; ++i) worst = std::max(worst, std::abs(naive.p[i] - got[i]));
        worst = std::max(worst, std::abs(lamb.trust_ratios()[0] / naive.ratio - 1.0));
    }
    return worst;
}

double rms(const std::vector<double>& x) { return norm(x) / std::sqrt(static_cast<double>(x.size())); }

}  // namespace

TEST_CASE("LAMB agrees with the paper's algorithm in double over 100 steps, under every option") {
    CHECK(worst_difference<double>({}) < 1e-11);
    CHECK(worst_difference<double>({.beta1 = 0.5, .beta2 = 0.9, .epsilon = 1e-2, .weight_decay = 0.0}) < 1e-11);
    CHECK(worst_difference<double>({.bias_correction = false}) < 1e-11);
    CHECK(worst_difference<double>({.weight_decay = 0.5}) < 1e-11);
    CHECK(worst_difference<double>({.weight_decay = 0.1, .decay = WeightDecay::gradient}) < 1e-11);
    CHECK(worst_difference<double>({.decay = WeightDecay::independent, .peak_learning_rate = 0.03}) < 1e-11);
    CHECK(worst_difference<double>({.most_norm = 10.0}) < 1e-11);
    CHECK(worst_difference<double>({.least_norm = 100.0, .most_norm = 200.0}) < 1e-11);
}

TEST_CASE("LAMB in float stays within its rounding of the naive loop") {
    const double worst = worst_difference<float>({});
    CHECK(worst < 2e-5);
    CHECK(worst > 0.0);
}

TEST_CASE(
    "a step of LAMB moves a parameter by the learning rate relative to it, whatever its size and the gradient's") {
    for (const double size : {1e-3, 1.0, 50.0})
        for (const double slope : {1e-2, 1.0, 1e5}) {
            Parameter<double> p("p", Shape{length}, {});
            fill_normal(p.write(), {1, 1}, size);
            const std::vector<double> before = doubles(p.value());
            Lamb<double> lamb({&p}, {.epsilon = 0.0, .weight_decay = 0.0});
            p.add_gradient(normal<double>(Shape{length}, {1, 2}, slope));
            lamb.step({}, 0.125);
            std::vector<double> change = doubles(p.value());
            for (std::size_t i = 0; i < length; ++i) change[i] -= before[i];
            CHECK(norm(change) == Approx(0.125 * norm(before)).epsilon(1e-12));
            CHECK(lamb.trust_ratios()[0] == Approx(rms(before)).epsilon(1e-12));  // the first u is the gradient's sign
        }
}

TEST_CASE("with a parametrisation LAMB changes every weight by the same share at all widths as Adam does") {
    for (const Parametrisation kind :
         {Parametrisation::standard, Parametrisation::unit, Parametrisation::mup, Parametrisation::umup}) {
        std::vector<double> shares;  // LAMB's change / Adam's change
        for (const std::size_t width : {64u, 1024u}) {
            const ParametrisationRule rule{.kind = kind};
            const ParameterFacts facts{.fan_in = width, .fan_out = width, .depth = 9, .width = width};
            std::vector<double> changes;
            for (const bool with_lamb : {false, true}) {
                Parameter<double> p("p", Shape{length}, facts);
                fill_normal(p.write(), {1, 1}, parameter_scaling(rule, facts).initial_stddev);
                const std::vector<double> before = doubles(p.value());
                Adam<double> adam({&p}, {.parametrisation = rule});
                Lamb<double> lamb({&p}, {.weight_decay = 0.0, .parametrisation = rule});
                p.add_gradient(normal<double>(Shape{length}, {1, 2}));
                if (with_lamb) lamb.step({}, 0.5);
                else adam.step({}, 0.5);
                std::vector<double> change = doubles(p.value());
                for (std::size_t i = 0; i < length; ++i) change[i] -= before[i];
                changes.push_back(rms(change));
            }
            shares.push_back(changes[1] / changes[0]);
        }
        INFO(name(kind));
        CHECK(shares[1] == Approx(shares[0]).epsilon(1e-3));
    }
    // The parametrisation gives the kind of decay too.
    Parameter<float> p("p", Shape{1}, {});
    REQUIRE_THROWS_WITH(Lamb<float>({&p}, {.parametrisation = ParametrisationRule{.kind = Parametrisation::umup}}),
                        "Lamb: independent weight decay needs peak_learning_rate, the largest of the run; it is 0");
}

TEST_CASE("the trust ratio is 1 where parameter or update is zero, and for biases and gains unless told otherwise") {
    const auto first_step = [](ParameterRole role, double value, double slope, const LambOptions& options) {
        Parameter<double> p("p", Shape{4}, {.role = role});
        fill_constant(p.write(), value);
        Lamb<double> lamb({&p}, options);
        p.add_gradient(Tensor<double>(Shape{4}, {slope, slope, slope, slope}));
        lamb.step({}, 0.25);
        return p.value().data()[2];
    };
    const LambOptions plain{.epsilon = 0.0, .weight_decay = 0.0};
    CHECK(first_step(ParameterRole::weight, 8.0, 3.0, plain) == Approx(6.0));
    CHECK(first_step(ParameterRole::weight, 0.0, 3.0, plain) == Approx(-0.25));
    CHECK(first_step(ParameterRole::weight, 8.0, 0.0, plain) == 8.0);
    CHECK(first_step(ParameterRole::bias, 8.0, 3.0, plain) == Approx(7.75));
    CHECK(first_step(ParameterRole::norm, 8.0, 3.0, plain) == Approx(7.75));
    LambOptions all = plain;
    all.adapt_bias_and_norm = true;
    CHECK(first_step(ParameterRole::bias, 8.0, 3.0, all) == Approx(6.0));
    CHECK(first_step(ParameterRole::norm, 8.0, 3.0, all) == Approx(6.0));
    // Decay with a gradient of 0: u is wd p, so the step is lr p. With a trust ratio of 1 the step is lr wd p.
    LambOptions decaying{.weight_decay = 0.5, .decay_bias_and_norm = true};
    CHECK(first_step(ParameterRole::weight, 8.0, 0.0, decaying) == Approx(6.0));
    CHECK(first_step(ParameterRole::bias, 8.0, 0.0, decaying) == Approx(7.0));
    decaying.decay_bias_and_norm = false;
    CHECK(first_step(ParameterRole::bias, 8.0, 0.0, decaying) == 8.0);
}

TEST_CASE("LAMB's groups set factor, decay and training; frozen parameters keep value and state") {
    Parameter<double> a("a", Shape{1}, {}), b("b", Shape{1}, {}), frozen("frozen", Shape{1}, {});
    for (auto* p : {&a, &b, &frozen}) fill_constant(p->write(), 4.0);
    Lamb<double> lamb({&a, &b, &frozen}, {.epsilon = 0.0,
                                          .weight_decay = 0.0,
                                          .groups = {{.pattern = "b", .learning_rate_factor = 0.5},
                                                     {.pattern = "frozen", .trained = false}}});
    CHECK_FALSE(frozen.requires_gradient());
    for (auto* p : {&a, &b, &frozen}) p->add_gradient(Tensor<double>(Shape{1}, {1.0}));
    const std::uint64_t version = frozen.version();
    lamb.step({}, 0.5);
    CHECK(a.value().data()[0] == Approx(2.0));
    CHECK(b.value().data()[0] == Approx(3.0));
    CHECK(frozen.value().data()[0] == 4.0);
    CHECK(frozen.version() == version);
    CHECK(lamb.trust_ratios()[2] == 1.0);
    frozen.set_requires_gradient(true);  // unfrozen late: this is its first step
    lamb.step({}, 0.5);
    CHECK(frozen.value().data()[0] == Approx(2.0));
    lamb.clear_gradients();
    CHECK_FALSE(a.has_gradient());
}

TEST_CASE("LAMB updates data by value and gradient of any scales as it updates plain numbers") {
    const std::vector<LambOptions> cases = {
        {},
        {.epsilon = 0.01, .weight_decay = 0.1, .decay = WeightDecay::gradient},
        {.bias_correction = false, .weight_decay = 0.1, .most_norm = 20.0},
        {.weight_decay = 0.1, .decay = WeightDecay::independent, .peak_learning_rate = 0.06},
    };
    for (const LambOptions& options : cases) test::check_scaled_updates<Lamb>(options, length);
}

TEST_CASE("LAMB's update has the same bits for any thread count") { test::check_thread_counts<Lamb>(LambOptions{}); }

TEST_CASE("LAMB with 16-bit weights and a float master has the weights of float, rounded") {
    Parameter<Half> coded("p", Shape{length}, {});
    Parameter<float> in_float("p", Shape{length}, {});
    fill_normal(coded.write(), {1, 1});
    in_float.write() = cast<float>(coded.value());
    Lamb<Half> one({&coded}, {.storage = {.master = StateFormat{}}});
    Lamb<float> other({&in_float}, {});
    for (int t = 1; t <= 50; ++t) {
        coded.add_gradient(gradient_of<Half>(t, length));
        in_float.add_gradient(cast<float>(coded.gradient()));
        one.step({}, 0.003);
        other.step({}, 0.003);
        one.clear_gradients();
        other.clear_gradients();
    }
    for (std::size_t i = 0; i < length; ++i) REQUIRE(coded.value().data()[i] == Half(in_float.value().data()[i]));
}

TEST_CASE("LAMB with state in codes goes on bit for bit, and has the same bits for any thread count") {
    const test::AnyState state = test::check_resumes<Lamb, Half>(LambOptions{.storage = test::coded_storage()}, 70001);
    CHECK(state.bytes.size() == 4);  // master, first moment and its scales, second moment
    CHECK(state.bytes.at("p/master").size() == 2 * 70001);
    CHECK(state.bytes.at("p/first_moment").size() == 70001);
    CHECK(state.scalars == std::map<std::string, std::uint64_t>{{"p/updates", 3}});
}

TEST_CASE("a step of LAMB after the first allocates nothing") {
    test::check_no_allocation<Lamb, float>(LambOptions{});
    test::check_no_allocation<Lamb, Half>(LambOptions{.storage = test::coded_storage()});
}

TEST_CASE("LAMB refuses invalid options and learning rates") {
    Parameter<float> p("p", Shape{1}, {});
    const std::vector<Parameter<float>*> all{&p};
    REQUIRE_THROWS_WITH(Lamb<float>(all, {.beta1 = 1.0}), "Lamb: beta1 is 1; expected a number from 0 to below 1");
    REQUIRE_THROWS_WITH(Lamb<float>(all, {.beta2 = -0.5}), "Lamb: beta2 is -0.5; expected a number from 0 to below 1");
    REQUIRE_THROWS_WITH(Lamb<float>(all, {.epsilon = -1.0}),
                        "Lamb: epsilon is -1; expected a finite number, not negative");
    REQUIRE_THROWS_WITH(Lamb<float>(all, {.decay = WeightDecay::independent}),
                        "Lamb: independent weight decay needs peak_learning_rate, the largest of the run; it is 0");
    REQUIRE_THROWS_WITH(
        Lamb<float>(all, {.least_norm = 2.0, .most_norm = 1.0}),
        "Lamb: the norm in the trust ratio is held from 2 to 1; expected a finite number, not negative, and one "
        "that is not below it");
    REQUIRE_THROWS_WITH(Lamb<float>(all, {.groups = {{.pattern = "q*"}}}),
                        "Lamb: group pattern 'q*' matches none of the 1 parameters");
    REQUIRE_THROWS_WITH(Lamb<float>(all, {.storage = {.second_moment = {.format = e8m0}}}),
                        "storage.second_moment: e8m0 has no zero; expected a format with zero, NaN and sign");
    REQUIRE_THROWS_WITH(Lamb<float>({}, {}), "Lamb: no parameters to train");
    Lamb<float> lamb(all);
    REQUIRE_THROWS_WITH(lamb.step({}, -0.5), "Lamb: learning rate is -0.5; expected a finite number, not negative");
    REQUIRE_THROWS(lamb.step({}, std::numeric_limits<double>::quiet_NaN()));
}

TEST_CASE("LAMB updates by gradients in codes as by their numbers, with and without state in codes") {
    test::check_coded_gradients<Lamb, float>(LambOptions{});
    test::check_coded_gradients<Lamb, Half>(LambOptions{});
    test::check_coded_gradients<Lamb, double>(LambOptions{});
    test::check_coded_gradients<Lamb, Half>(LambOptions{.storage = test::coded_storage()});
}
