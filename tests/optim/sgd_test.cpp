// SPDX-License-Identifier: MIT
#include <unitscale/optim/sgd.hpp>
#include <unitscale/tensor/rescale.hpp>

#include "support/catch.hpp"
#include "support/optimiser_checks.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::optim;
using unitscale::test::gradient_of;

namespace {

constexpr std::size_t length = 131;  // two full blocks and a part of one

/// SGD of one element in double, in the form of the definition.
struct Naive {
    SgdOptions o;
    double u = 0.0;
    double update(double p, double g, double lr) {
        if (o.decay.value_or(WeightDecay::gradient) == WeightDecay::gradient) g += o.weight_decay * p;
        u = o.momentum * u + g;
        double decay = 0.0;
        if (o.decay == WeightDecay::coupled) decay = lr * o.weight_decay;
        if (o.decay == WeightDecay::independent) decay = o.weight_decay * (lr / o.peak_learning_rate);
        return p - decay * p - lr * (o.nesterov ? g + o.momentum * u : u);
    }
};

template <class T>
double worst_difference(const SgdOptions& options) {
    Parameter<T> parameter("p", Shape{length}, {});
    fill_normal(parameter.write(), {1, 1});
    std::vector<double> expected(parameter.value().span().begin(), parameter.value().span().end());
    std::vector<Naive> naive(length, Naive{options});
    Sgd<T> sgd({&parameter}, options);
    double worst = 0.0;
    for (int t = 1; t <= 200; ++t) {
        const double lr = 0.05 * (t <= 100 ? t / 100.0 : (300.0 - t) / 200.0);
        const Tensor<T> g = gradient_of<T>(t, length);
        parameter.add_gradient(Tensor<T>(g));
        sgd.step({}, lr);
        sgd.clear_gradients();
        for (std::size_t i = 0; i < length; ++i) {
            expected[i] = naive[i].update(expected[i], static_cast<double>(g.data()[i]), lr);
            worst = std::max(worst, std::abs(expected[i] - static_cast<double>(parameter.value().data()[i])));
        }
    }
    return worst;
}

}  // namespace

TEST_CASE("SGD agrees with the naive loop in double over 200 steps, under every option") {
    REQUIRE(worst_difference<double>({}) < 1e-12);
    REQUIRE(worst_difference<double>({.momentum = 0.9}) < 1e-12);
    REQUIRE(worst_difference<double>({.momentum = 0.9, .nesterov = true}) < 1e-12);
    REQUIRE(worst_difference<double>({.momentum = 0.5, .weight_decay = 0.1}) < 1e-12);
    REQUIRE(worst_difference<double>({.weight_decay = 0.1, .decay = WeightDecay::coupled}) < 1e-12);
    REQUIRE(
        worst_difference<double>(
            {.momentum = 0.9, .weight_decay = 0.01, .decay = WeightDecay::independent, .peak_learning_rate = 0.06}) <
        1e-12);
    REQUIRE(worst_difference<float>({.momentum = 0.9, .nesterov = true}) < 2e-4);
}

TEST_CASE("momentum by hand: a constant gradient of 1 moves by lr, then lr 1.5, then lr 1.75 at momentum one half") {
    Parameter<double> p("p", Shape{1}, {});
    Sgd<double> sgd({&p}, {.momentum = 0.5});
    p.add_gradient(Tensor<double>(Shape{1}, {1.0}));
    for (const double expected : {-1.0, -2.5, -4.25}) {
        sgd.step({}, 1.0);
        REQUIRE(p.value().data()[0] == expected);
    }
    REQUIRE(p.version() == 3);
}

TEST_CASE("SGD applies groups and skips parameters that are frozen or have no gradient") {
    Parameter<double> a("a", Shape{1}, {}), b("b", Shape{1}, {.role = ParameterRole::bias}), c("c", Shape{1}, {}),
        d("d", Shape{1}, {});
    for (auto* p : {&a, &b, &c}) p->add_gradient(Tensor<double>(Shape{1}, {1.0}));
    for (auto* p : {&a, &b, &c, &d}) p->write().data()[0] = 1.0;
    Sgd<double> sgd({&a, &b, &c, &d},
                    {.weight_decay = 0.5,
                     .decay_bias_and_norm = false,
                     .groups = {{.pattern = "a", .learning_rate_factor = 0.5}, {.pattern = "c", .trained = false}}});
    sgd.step({}, 0.25);
    REQUIRE(a.value().data()[0] == 1.0 - 0.125 * 1.5);
    REQUIRE(b.value().data()[0] == 0.75);
    REQUIRE(c.value().data()[0] == 1.0);
    REQUIRE(d.value().data()[0] == 1.0);
    REQUIRE(d.version() == 1);
    sgd.clear_gradients();
    REQUIRE_FALSE(a.has_gradient());
}

TEST_CASE("SGD's update has the same bits for any thread count") {
    test::check_thread_counts<Sgd>(SgdOptions{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1});
}

TEST_CASE("SGD trains 16-bit parameters with a velocity in float") {
    Parameter<BFloat16> p("p", Shape{1}, {});
    p.write().data()[0] = BFloat16(1.0f);
    p.add_gradient(Tensor<BFloat16>(Shape{1}, {BFloat16(0.5f)}));
    Sgd<BFloat16> sgd({&p}, {.momentum = 0.5});
    struct Names {
        std::vector<std::string> seen{};
        void tensor(const std::string& name, Tensor<float>& tensor) {
            seen.push_back(name + " " + to_string(tensor.shape()));
        }
        void scalar(const std::string& name, std::uint64_t&) { seen.push_back(name); }
    } names;
    sgd.visit_state(names);
    REQUIRE(names.seen == std::vector<std::string>{"p/velocity [1]"});
    sgd.step({}, 0.5);
    REQUIRE(static_cast<float>(p.value().data()[0]) == 0.75f);
}

TEST_CASE("a step of SGD after the first allocates nothing") {
    test::check_no_allocation<Sgd, float>(SgdOptions{.momentum = 0.9});
    test::check_no_allocation<Sgd, Half>(SgdOptions{.momentum = 0.9, .storage = test::coded_storage()});
}

TEST_CASE("SGD with state in codes goes on bit for bit, and has the same bits for any thread count") {
    const test::AnyState state =
        test::check_resumes<Sgd, Half>(SgdOptions{.momentum = 0.9, .storage = test::coded_storage()}, 70001);
    CHECK(state.bytes.size() == 3);  // master, velocity and its scales
    CHECK(state.scalars == std::map<std::string, std::uint64_t>{{"p/updates", 3}});
}

TEST_CASE("SGD refuses invalid options and learning rates") {
    Parameter<float> p("p", Shape{1}, {});
    const std::vector<Parameter<float>*> all{&p};
    REQUIRE_THROWS_WITH(Sgd<float>(all, {.momentum = 1.0}), "Sgd: momentum is 1; expected a number from 0 to below 1");
    REQUIRE_THROWS_WITH(Sgd<float>(all, {.nesterov = true}), "Sgd: nesterov needs a momentum above 0");
    REQUIRE_THROWS_WITH(Sgd<float>(all, {.decay = WeightDecay::independent}),
                        "Sgd: independent weight decay needs peak_learning_rate, the largest of the run; it is 0");
    REQUIRE_THROWS_WITH(Sgd<float>({}), "Sgd: no parameters to train");
    Sgd<float> sgd(all);
    REQUIRE_THROWS_WITH(sgd.step({}, -0.5), "Sgd: learning rate is -0.5; expected a finite number, not negative");
}

TEST_CASE("Sgd updates data by value and gradient of any scales as it updates plain numbers") {
    const std::vector<SgdOptions> cases = {
        {},
        {.momentum = 0.9, .nesterov = true, .weight_decay = 0.1},
        {.momentum = 0.9, .weight_decay = 0.1, .decay = WeightDecay::coupled},
        {.weight_decay = 0.1, .decay = WeightDecay::independent, .peak_learning_rate = 0.06},
    };
    for (const SgdOptions& options : cases) test::check_scaled_updates<Sgd>(options, length);
}

TEST_CASE("SGD with 16-bit weights, a float master and a velocity in FP16 follows the naive loop") {
    Parameter<Half> p("p", Shape{1500}, {});
    fill_normal(p.write(), {1, 1});
    std::vector<double> master, velocity(1500, 0.0);
    for (const Half x : p.value().span()) master.push_back(static_cast<double>(static_cast<float>(x)));
    Sgd<Half> sgd({&p}, {.momentum = 0.5, .storage = {.master = StateFormat{}, .first_moment = {.format = fp16}}});
    for (int t = 1; t <= 20; ++t) {
        p.add_gradient(normal<Half>(Shape{1500}, {2, static_cast<std::uint64_t>(t)}, t % 2 == 0 ? 100.0 : 0.1));
        double largest = 0.0;
        for (std::size_t i = 0; i < 1500; ++i) {
            velocity[i] = 0.5 * velocity[i] + static_cast<double>(static_cast<float>(p.gradient().data()[i]));
            master[i] -= 0.01 * velocity[i];
            largest = std::max(largest, std::abs(velocity[i]));
        }
        const double scale = std::exp2(-std::floor(std::log2(65504.0 / largest)));
        for (double& u : velocity) u = scale * static_cast<double>(decode(fp16, encode(fp16, u / scale)));
        sgd.step({}, 0.01);
        sgd.clear_gradients();
    }
    double worst = 0.0;
    for (std::size_t i = 0; i < 1500; ++i) {
        const auto weight = static_cast<double>(static_cast<float>(p.value().data()[i]));
        worst = std::max(worst, std::abs(weight - master[i]) / std::max(1.0, std::abs(master[i])));
    }
    CHECK(worst < 0x1p-10);  // from rounding the weights themselves
    CHECK(worst > 0.0);
}

TEST_CASE("SGD without momentum keeps only a master and the number of its updates") {
    Parameter<BFloat16> p("p", Shape{1}, {});
    p.write().data()[0] = BFloat16(1.0f);
    p.add_gradient(Tensor<BFloat16>(Shape{1}, {BFloat16(0.125f)}));
    Sgd<BFloat16> sgd({&p}, {.storage = {.master = StateFormat{.format = fp16}}});
    // Each step is 2^-10: a quarter of a unit of BF16 below 1, two units of FP16.
    for (int t = 0; t < 16; ++t) sgd.step({}, 0x1p-7);
    CHECK(static_cast<float>(p.value().data()[0]) == 1.0f - 0x1p-6f);
    struct Names {
        std::vector<std::string> seen{};
        void codes(const std::string& name, const FloatFormat& format, Tensor<std::uint16_t>&) {
            seen.push_back(name + " " + unitscale::name(format));
        }
        void scalar(const std::string& name, std::uint64_t& value) {
            seen.push_back(name + " " + std::to_string(value));
        }
    } names;
    sgd.visit_state(names);
    CHECK(names.seen == std::vector<std::string>{"p/master fp16", "p/updates 16"});
}

TEST_CASE("SGD updates by gradients in codes as by their numbers, with and without state in codes") {
    test::check_coded_gradients<Sgd, float>(SgdOptions{.momentum = 0.9});
    test::check_coded_gradients<Sgd, Half>(SgdOptions{.momentum = 0.9});
    test::check_coded_gradients<Sgd, double>(SgdOptions{.momentum = 0.9});
    test::check_coded_gradients<Sgd, Half>(SgdOptions{.momentum = 0.9, .storage = test::coded_storage()});
}
