// SPDX-License-Identifier: MIT
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/quantise_gradients.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

/// One step of a scaler. The gradient's `data` is the loss scale times the gradient.
template <class T>
bool step_with(optim::LossScaler& scaler, const std::vector<T>& data, const Execution& execution = {}) {
    Parameter<T> weight("weight", Shape{data.size()}, {});
    weight.add_gradient(Tensor<T>(Shape{data.size()}, data));
    const std::vector<Parameter<T>*> all = {&weight};
    scaler.unscale<T>(all);
    scaler.measure<T>(execution, all);
    return scaler.update(std::isfinite(optim::gradient_norm<T>(execution, all)));
}

/// One step of a scaler with FP16 gradients, which overflow if the loss scale is too large.
bool step_of(optim::LossScaler& scaler, const std::vector<double>& gradient) {
    std::vector<Half> data;
    for (const double g : gradient) data.push_back(static_cast<Half>(static_cast<float>(g * scaler.scale())));
    return step_with<Half>(scaler, data);
}

/// `count` elements, of which the first `above` are the number above the default edge of FP16, 2^-3 65504 = 8188.
std::vector<Half> histogram_of(std::size_t count, std::size_t above) {
    std::vector<Half> data(count, static_cast<Half>(8188.0f));
    for (std::size_t i = 0; i < above; ++i) data[i] = static_cast<Half>(i % 2 == 0 ? 8192.0f : -8192.0f);
    return data;
}

/// Saves state, or loads it.
struct StateVisitor {
    std::map<std::string, std::pair<double, std::uint64_t>>& saved;
    bool load;
    void number(const std::string& name, double& value) {
        load ? void(value = saved.at(name).first) : void(saved[name].first = value);
    }
    void scalar(const std::string& name, std::uint64_t& value) {
        load ? void(value = saved.at(name).second) : void(saved[name].second = value);
    }
};

/// Log-normal magnitudes around 2^-9; `deviation` is that of their log2.
std::vector<double> magnitudes(std::size_t count, double deviation = 1.0) {
    const auto exponents = normal<double>(Shape{count}, {7, 1}, deviation);
    std::vector<double> all;
    for (const double x : exponents.span()) all.push_back(std::exp2(x - 9.0));
    return all;
}

}  // namespace

TEST_CASE("loss scaler: automatic backs off when a step overflows and grows after good steps") {
    optim::LossScaler scaler(
        {.kind = LossScaleKind::automatic, .initial = 1024.0, .growth = 2.0, .backoff = 0.25, .interval = 3});
    CHECK(scaler.scale() == 1024.0);
    CHECK(scaler.update(true));
    CHECK(scaler.update(true));
    CHECK_FALSE(scaler.update(false));  // the count of good steps starts again
    CHECK(scaler.scale() == 256.0);
    CHECK_FALSE(scaler.update(false));
    CHECK(scaler.scale() == 64.0);
    CHECK(scaler.skipped_in_a_row() == 2);
    for (int i = 0; i < 2; ++i) CHECK(scaler.update(true));
    CHECK(scaler.scale() == 64.0);
    CHECK(scaler.update(true));
    CHECK(scaler.scale() == 128.0);
    CHECK(scaler.skipped() == 2);
    CHECK(scaler.skipped_in_a_row() == 0);
    for (int i = 0; i < 200; ++i) CHECK_FALSE(scaler.update(false));
    CHECK(scaler.scale() == 0x1p-126);
}

TEST_CASE("loss scaler: constant skips and stays, none does neither") {
    optim::LossScaler constant({.kind = LossScaleKind::constant, .initial = 8.0});
    CHECK_FALSE(constant.update(false));
    CHECK(constant.update(true));
    CHECK(constant.scale() == 8.0);
    CHECK(constant.skipped() == 1);
    optim::LossScaler none;
    CHECK(none.scale() == 1.0);
    CHECK(none.update(false));
    CHECK(none.skipped() == 0);
    CHECK_THROWS_WITH(optim::LossScaler({.backoff = 2.0}), "loss_scaling: backoff is 2; expected less than 1");
}

TEST_CASE("loss scaler: the scale leaves gradients through their scale, data untouched") {
    optim::LossScaler scaler({.kind = LossScaleKind::constant, .initial = 8.0});
    Parameter<float> weight("weight", Shape{2}, {}), untouched("untouched", Shape{2}, {});
    weight.add_gradient(Tensor<float>(Shape{2}, {16.0f, -4.0f}));
    const std::vector<Parameter<float>*> parameters = {&weight, &untouched};
    scaler.unscale<float>(parameters);
    CHECK(weight.gradient().data()[0] == 16.0f);
    CHECK(weight.gradient().scale() == 0.125);
    CHECK_FALSE(untouched.has_gradient());
}

TEST_CASE("loss scaler: a visitor reads and writes its state") {
    const LossScaling how{.kind = LossScaleKind::automatic, .interval = 2};
    optim::LossScaler first(how), second(how);
    first.update(false);
    first.update(true);
    std::map<std::string, std::pair<double, std::uint64_t>> saved;
    first.visit_state(StateVisitor{saved, false});
    CHECK(saved.size() == 4);  // as in checkpoints of earlier versions
    second.visit_state(StateVisitor{saved, true});
    for (const bool finite : {true, false, true}) {
        first.update(finite);
        second.update(finite);
        CHECK(first.scale() == second.scale());
        CHECK(first.skipped() == second.skipped());
    }
}

TEST_CASE("loss scaler: histogram backs off where the share of large elements is above `most`, exactly") {
    optim::LossScaler scaler({.kind = LossScaleKind::histogram,
                              .initial = 1024.0,
                              .growth = 4.0,
                              .backoff = 0.5,
                              .interval = 2,
                              .most = 0.25});
    CHECK(step_with(scaler, histogram_of(8, 2)));  // 2/8 is not above 1/4; 8188 itself is not above the edge
    CHECK(scaler.scale() == 1024.0);
    CHECK(step_with(scaler, histogram_of(8, 3)));  // finite, so the step is taken; the good steps are counted anew
    CHECK(scaler.scale() == 512.0);
    CHECK(step_with(scaler, histogram_of(8, 0)));
    CHECK(scaler.scale() == 512.0);
    CHECK(step_with(scaler, histogram_of(8, 1)));  // the second good step in a row
    CHECK(scaler.scale() == 2048.0);
    CHECK(step_with(scaler, histogram_of(8, 1)));
    CHECK(scaler.scale() == 2048.0);
    std::vector<Half> infinite = histogram_of(8, 0);
    infinite[7] = std::numeric_limits<Half>::infinity();
    CHECK_FALSE(step_with(scaler, infinite));
    CHECK(scaler.scale() == 1024.0);
    CHECK(scaler.skipped() == 1);
    CHECK(step_with(scaler, std::vector<Half>(3, Half(0.0f))));
    CHECK(scaler.skipped_in_a_row() == 0);

    // The edge is a share of the element type's largest number, and the usual share of 1e-7 allows no element of few.
    optim::LossScaler of_floats({.kind = LossScaleKind::histogram, .initial = 1024.0, .edge = 0x1p-120});
    const float edge = std::numeric_limits<float>::max() * 0x1p-120f;
    CHECK(step_with<float>(of_floats, {edge, -edge, 0.0f}));
    CHECK(of_floats.scale() == 1024.0);
    CHECK(step_with<float>(of_floats, {0.0f, -std::nextafter(edge, 1e30f), 0.0f}));
    CHECK(of_floats.scale() == 512.0);
    CHECK(optim::count_above(std::vector<double>{2.0, -3.0, 2.5, 1.0}.data(), 4, 2.0) == 2);
}

TEST_CASE("loss scaler: all trained gradients are measured, in their scales and in their codes") {
    // Shares are of all elements of trained parameters together: 1 of 4 here.
    Parameter<Half> a("a", Shape{3}, {.role = ParameterRole::weight}), b("b", Shape{1}, {}),
        frozen("frozen", Shape{4}, {}), unused("unused", Shape{4}, {});
    const std::vector<Parameter<Half>*> all = {&a, &b, &frozen, &unused};
    const auto step = [&](optim::LossScaler& scaler, float large, double scale, bool codes) {
        for (Parameter<Half>* parameter : all) parameter->clear_gradient();
        a.add_gradient(Tensor<Half>(Shape{3}, {Half(0.0f), Half(-large), Half(1.0f)}));
        a.gradient().set_scale(scale);
        b.add_gradient(Tensor<Half>(Shape{1}, {Half(2.0f)}));
        frozen.add_gradient(Tensor<Half>(Shape{4}, std::vector<Half>(4, Half(60000.0f))));
        frozen.set_requires_gradient(false);
        if (codes) optim::quantise_weight_gradients<Half>({}, all, {.weight_gradient = Quantiser{.format = e5m2}});
        REQUIRE((a.coded_gradient() != nullptr) == codes);
        scaler.unscale<Half>(all);
        scaler.measure<Half>({}, all);
        REQUIRE((a.coded_gradient() != nullptr) == codes);  // still codes
        return scaler.update(true);
    };
    const auto backs_off = [&](double most, float large, double scale, bool codes = false) {
        optim::LossScaler scaler({.kind = LossScaleKind::histogram, .initial = 16.0, .most = most});
        CHECK(step(scaler, large, scale, codes));
        return scaler.scale() == 8.0;
    };
    CHECK(backs_off(0.24, 8192.0f, 1.0));
    CHECK_FALSE(backs_off(0.25, 8192.0f, 1.0));
    CHECK_FALSE(backs_off(0.24, 8188.0f, 1.0));
    CHECK_FALSE(backs_off(0.24, 8192.0f, 0.5));  // the gradient is 4096
    CHECK(backs_off(0.24, 4096.0f, 2.0));        // the gradient is 8192
    // E5M2 has 7168, 8192 and 10240: 8000 is kept as 8192.
    CHECK_FALSE(backs_off(0.24, 7168.0f, 1.0, true));
    CHECK(backs_off(0.24, 8192.0f, 1.0, true));
    CHECK(backs_off(0.24, 8000.0f, 1.0, true));
    CHECK_FALSE(backs_off(0.24, 8000.0f, 1.0));
    CHECK_FALSE(backs_off(0.24, 10240.0f, 0.5, true));

    // Largest magnitudes 512 and 512, of scale 1 and the loss scale 16, are 2^5: 2^floor(15.9993 - 5).
    for (const bool codes : {false, true}) {
        optim::LossScaler scaler({.kind = LossScaleKind::log_normal, .initial = 16.0});
        CHECK(step(scaler, 512.0f, 1.0, codes));
        CHECK(scaler.scale() == 16.0);  // no variance yet
        CHECK(step(scaler, 256.0f, 2.0, codes));
        CHECK(scaler.scale() == 1024.0);
    }
}

TEST_CASE("loss scaler: measurements of large gradients do not depend on the thread count") {
    const std::size_t count = 100'003;
    const auto values = normal<float>(Shape{count}, {5, 1}, 4000.0);
    std::vector<Half> data;
    for (const float x : values.span()) data.push_back(static_cast<Half>(x));
    double above = 0.0;
    for (const Half x : data) above += std::abs(static_cast<float>(x)) > 8188.0f ? 1.0 : 0.0;
    REQUIRE(above > 1000.0);
    MemoryPool pool;
    for (const int threads : {1, 2, 3, 8})
        for (const bool allowed : {false, true}) {
            const double most = (above - (allowed ? 0.0 : 1.0)) / static_cast<double>(count);
            optim::LossScaler scaler({.kind = LossScaleKind::histogram, .initial = 4.0, .most = most});
            CHECK(step_with<Half>(scaler, data, {threads, &pool}));
            CHECK(scaler.scale() == (allowed ? 4.0 : 2.0));
        }
    std::map<std::string, std::pair<double, std::uint64_t>> of_one, of_more;
    for (const int threads : {1, 2, 3, 8}) {
        optim::LossScaler scaler({.kind = LossScaleKind::log_normal, .initial = 4.0});
        for (int i = 0; i < 3; ++i) CHECK(step_with<Half>(scaler, data, {threads, &pool}));
        auto& saved = threads == 1 ? of_one : of_more;
        scaler.visit_state(StateVisitor{saved, false});
        if (threads > 1) CHECK(of_more == of_one);
    }
}

TEST_CASE("loss scaler: log_normal leaves deviations of past largest magnitudes below the largest number") {
    // x is 0, then 2. Weights are 0.99/1.99 and 1/1.99 in the mean: 1.00503. The variance of two is (2 - 0)^2 / 2.
    // 15.99930 - (1.00503 + 3.09 * 1.41421) = 10.62436.
    optim::LossScaler two({.kind = LossScaleKind::log_normal, .initial = 8.0});
    CHECK(step_of(two, {0.25, -1.0, 0.0}));
    CHECK(two.scale() == 8.0);
    CHECK(step_of(two, {4.0, 0.0, 0.0}));
    CHECK(two.scale() == 1024.0);
    // All gradients zero: the step is taken, and nothing is learnt from it.
    CHECK(step_of(two, {0.0, 0.0, 0.0}));
    CHECK(two.scale() == 1024.0);

    // Many steps, against sums over all of them.
    for (const auto& [mean_decay, variance_decay, deviations] :
         {std::array{0.99, 0.999, 3.09}, std::array{0.5, 0.9, 1.0}, std::array{0.9, 0.6, 0.0}}) {
        optim::LossScaler scaler({.kind = LossScaleKind::log_normal,
                                  .initial = 1.0,
                                  .deviations = deviations,
                                  .mean_decay = mean_decay,
                                  .variance_decay = variance_decay});
        const std::vector<double> all = magnitudes(300, 2.0);
        std::vector<double> seen;
        for (const double largest : all) {
            // FP32 gradients hold the magnitude to 24 bits, and never overflow.
            CHECK(step_with<float>(scaler, {static_cast<float>(largest * scaler.scale()), 0.0f}));
            seen.push_back(std::log2(static_cast<double>(static_cast<float>(largest))));
            if (seen.size() < 2) continue;
            const auto weights = [&](double decay) {
                std::vector<double> w(seen.size());
                double sum = 0.0;
                for (std::size_t i = 0; i < w.size(); ++i)
                    sum += w[i] = std::pow(decay, static_cast<double>(w.size() - 1 - i));
                for (double& one : w) one /= sum;
                return w;
            };
            const auto mean_of = [&](const std::vector<double>& w) {
                double mean = 0.0;
                for (std::size_t i = 0; i < w.size(); ++i) mean += w[i] * seen[i];
                return mean;
            };
            const std::vector<double> slow = weights(variance_decay);
            const double slow_mean = mean_of(slow);
            double variance = 0.0, squares = 0.0;
            for (std::size_t i = 0; i < slow.size(); ++i) {
                variance += slow[i] * (seen[i] - slow_mean) * (seen[i] - slow_mean);
                squares += slow[i] * slow[i];
            }
            const double sigma = std::sqrt(variance / (1.0 - squares));
            const double exponent = 128.0 - (mean_of(weights(mean_decay)) + deviations * sigma);
            INFO("step " << seen.size() << ", exponent " << exponent);
            // The largest float is 2^128 (1 - 2^-24): an exponent just above a whole number may lie below it.
            REQUIRE(std::abs(exponent - std::round(exponent)) > 1e-6);
            REQUIRE(scaler.scale() == std::exp2(std::min(std::floor(exponent), 127.0)));
        }
    }
}

TEST_CASE("loss scaler: of log-normal magnitudes, few steps overflow") {
    // The scale is also a power of two, so fewer than one step in 1000 overflows, and few skips are in a row.
    optim::LossScaler scaler({.kind = LossScaleKind::log_normal, .initial = 1.0});
    double lowest = 1e30, highest = 0.0;
    for (const double largest : magnitudes(5000)) {
        step_of(scaler, {largest});
        if (scaler.skipped() + 100 > 5000) break;
        lowest = std::min(lowest, scaler.scale());
        highest = std::max(highest, scaler.scale());
    }
    CHECK(scaler.skipped() <= 8);
    // 2^floor(16 + 9 - 3.09) = 2^21, where sigma is 1.
    CHECK(scaler.scale() >= 0x1p20);
    CHECK(scaler.scale() <= 0x1p22);
}

TEST_CASE("loss scaler: every kind recovers from a loss scale far too large, and far too small") {
    for (const LossScaleKind kind : {LossScaleKind::automatic, LossScaleKind::histogram, LossScaleKind::log_normal})
        for (const double initial : {0x1p127, 0x1p60, 0x1p-20}) {
            INFO(name(kind) << " from " << initial);
            optim::LossScaler scaler({.kind = kind, .initial = initial, .interval = 2});
            for (const double largest : magnitudes(400, 0.25)) step_of(scaler, {largest, 0.25 * largest});
            CHECK(scaler.skipped_in_a_row() <= 1);
            // 65504 over 2^-9 is 2^25 at most; a histogram keeps 8188 free.
            CHECK(scaler.scale() >= 0x1p19);
            CHECK(scaler.scale() <= 0x1p27);
            const std::uint64_t before = scaler.skipped();
            for (const double largest : magnitudes(100, 0.25)) step_of(scaler, {largest, 0.25 * largest});
            CHECK(scaler.skipped() - before <= (kind == LossScaleKind::automatic ? 50u : 2u));
        }
}

TEST_CASE("loss scaler: log_normal yields to tensors that overflow before the parameters' gradients do") {
    optim::LossScaler scaler({.kind = LossScaleKind::log_normal, .initial = 1.0, .interval = 50});
    const auto step = [&](double overflow_above) {
        Parameter<float> weight("weight", Shape{1}, {});
        const bool finite = scaler.scale() <= overflow_above;
        weight.add_gradient(Tensor<float>(
            Shape{1}, {finite ? static_cast<float>(scaler.scale()) : std::numeric_limits<float>::infinity()}));
        const std::vector<Parameter<float>*> all = {&weight};
        scaler.unscale<float>(all);
        scaler.measure<float>({}, all);
        return scaler.update(finite);
    };
    for (int i = 0; i < 2000; ++i) step(0x1p8);
    // From 2^127 to 2^8 in 119 steps, then one skipped step after each 50 good ones.
    CHECK(scaler.scale() >= 0x1p7);
    CHECK(scaler.scale() <= 0x1p9);
    CHECK(scaler.skipped() >= 119);
    CHECK(scaler.skipped() <= 119 + 2000 / 50);
    // Once the overflow is gone, the limit rises with `growth` again.
    const std::uint64_t before = scaler.skipped();
    for (int i = 0; i < 500; ++i) step(0x1p127);
    CHECK(scaler.skipped() == before);
    CHECK(scaler.scale() >= 0x1p17);
}

TEST_CASE("loss scaler: the measured kinds resume in the middle of a run") {
    for (const LossScaleKind kind : {LossScaleKind::histogram, LossScaleKind::log_normal}) {
        const LossScaling how{.kind = kind, .initial = 0x1p30, .interval = 3};
        optim::LossScaler whole(how), first(how), second(how);
        const std::vector<double> all = magnitudes(60);
        std::map<std::string, std::pair<double, std::uint64_t>> saved, of_whole, of_second;
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (i == 25) {
                first.visit_state(StateVisitor{saved, false});
                second.visit_state(StateVisitor{saved, true});
            }
            const bool taken = step_of(whole, {all[i]});
            CHECK(step_of(i < 25 ? first : second, {all[i]}) == taken);
            CHECK((i < 25 ? first : second).scale() == whole.scale());
        }
        CHECK(whole.skipped() > 0);
        whole.visit_state(StateVisitor{of_whole, false});
        second.visit_state(StateVisitor{of_second, false});
        CHECK(of_whole == of_second);
    }
}

TEST_CASE("loss scaler: a loop that leaves a call out gets an error that names it") {
    for (const LossScaleKind kind : {LossScaleKind::histogram, LossScaleKind::log_normal}) {
        optim::LossScaler scaler({.kind = kind, .initial = 2.0});
        const std::string message = "LossScaler: update of a step that was not measured; under " +
                                    std::string(name(kind)) + " expected optim::LossScaler::measure before";
        for (const bool finite : {true, false}) CHECK_THROWS_WITH(scaler.update(finite), message);
        CHECK(scaler.skipped() == 0);
        CHECK(step_of(scaler, {1.0}));
        CHECK_THROWS_WITH(scaler.update(true), message);  // each step is measured
        Parameter<float> weight("weight", Shape{1}, {});
        weight.add_gradient(Tensor<float>(Shape{1}, {1.0f}));
        const std::vector<Parameter<float>*> all = {&weight};
        CHECK_THROWS_WITH(scaler.measure<float>({}, all),
                          "LossScaler: parameter weight: measured with the loss scale in its gradient; expected "
                          "optim::LossScaler::unscale before");
    }
    // An infinite gradient that was called finite is not.
    optim::LossScaler scaler({.kind = LossScaleKind::log_normal, .initial = 2.0});
    Parameter<float> weight("weight", Shape{1}, {});
    weight.add_gradient(Tensor<float>(Shape{1}, {std::numeric_limits<float>::infinity()}));
    const std::vector<Parameter<float>*> all = {&weight};
    scaler.unscale<float>(all);
    scaler.measure<float>({}, all);
    CHECK_FALSE(scaler.update(true));
    CHECK(scaler.scale() == 1.0);
    // Other kinds need no measurement.
    optim::LossScaler automatic({.kind = LossScaleKind::automatic});
    automatic.measure<float>({}, all);
    CHECK(automatic.update(true));
}
