// SPDX-License-Identifier: MIT
#include <unitscale/optim/rescale_state.hpp>

#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/rescale.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

using namespace unitscale;
using optim::rescale_state;
using optim::StoredTensor;

namespace {

constexpr std::size_t length = 1500;

/// Optimiser state of one parameter: a master copy and two moments.
struct State {
    StoredTensor<float> master{}, first{}, second{};
    template <class Visitor>
    void visit_state(Visitor&& visitor, const std::string& name) {
        if (!master.empty()) master.visit_state(visitor, name + "/master");
        first.visit_state(visitor, name + "/first_moment");
        second.visit_state(visitor, name + "/second_moment");
    }
};

std::vector<float> normals(double size, std::uint64_t stream = 1) {
    const Tensor<float> x = normal<float>({length}, {1, stream}, size);
    return {x.span().begin(), x.span().end()};
}

template <class T>
std::vector<double> values_of(const Tensor<T>& x) {
    std::vector<double> values;
    for (const T element : x.span()) values.push_back(widest(element) * x.scale());
    return values;
}
std::vector<double> values_of(const StoredTensor<float>& x) { return values_of(x.values()); }

template <class T>
double rms_of_data(const Tensor<T>& x) {
    double sum = 0.0;
    for (const T element : x.span()) sum += widest(element) * widest(element);
    return std::sqrt(sum / static_cast<double>(x.size()));
}

}  // namespace

TEMPLATE_TEST_CASE("rescale_state: the data of a weight gets unit size, and no value changes", "", Half, BFloat16,
                   float, double) {
    using T = TestType;
    for (const double size : {0.02, 0.7, 1.0, 2.4, 300.0}) {
        INFO("size " << size);
        Tensor<T> weight = normal<T>({length}, {1, 2}, size);
        weight.set_scale(0x1p-6);
        const std::vector<double> before = values_of(weight);
        const double rms = rms_of_data(weight);
        State none;
        rescale_state("w", weight, none);
        CHECK(values_of(weight) == before);
        CHECK(weight.scale() == 0x1p-6 * std::exp2(std::floor(std::log2(rms))));
        CHECK(rms_of_data(weight) >= 1.0);
        CHECK(rms_of_data(weight) < 2.0);
    }
}

TEST_CASE(
    "rescale_state: a weight of zeros, or one that is not finite, stays; one rescaling divides by 2^-14 at least") {
    State none;
    Tensor<float> weight = zeros<float>({length});
    rescale_state("w", weight, none);
    CHECK(weight.scale() == 1.0);
    weight.data()[3] = std::numeric_limits<float>::infinity();
    rescale_state("w", weight, none);
    CHECK(weight.scale() == 1.0);
    Tensor<float> small = full<float>({length}, 0x1p-30f);
    rescale_state("w", small, none);
    CHECK(small.scale() == 0x1p-14);
    CHECK(small.data()[0] == 0x1p-16f);
}

TEST_CASE("rescale_state: a master copy goes with its weight, whatever its form") {
    for (const StateFormat& how :
         {StateFormat{}, StateFormat{.format = fp16}, StateFormat{.format = fp16, .block = 128},
          StateFormat{.format = bf16, .scaled = false}}) {
        State state;
        state.master = StoredTensor<float>({length}, how);
        state.master.assign(normals(9.0));
        Tensor<Half> weight({length});
        const Tensor<float> exact = state.master.values();
        for (std::size_t i = 0; i < length; ++i) weight.data()[i] = Half(exact.data()[i]);
        const std::vector<double> before = values_of(state.master);
        rescale_state("w", weight, state);
        CHECK(weight.scale() == 8.0);
        const std::vector<double> after = values_of(state.master);  // in units of the weight's data
        for (std::size_t i = 0; i < length; ++i) REQUIRE(after[i] * 8.0 == before[i]);
    }
}

TEST_CASE("unit_scale: a power of two times the scale, by the root mean square of the data") {
    Tensor<float> x({2}, {12.0f, -4.0f});  // rms 8.9
    x.set_scale(0.25);
    CHECK(optim::unit_scale(x) == 2.0);
    CHECK(optim::unit_scale(full<float>({3}, 0x1p-3f)) == 0x1p-3);
    CHECK(optim::unit_scale(full<float>({3}, 0x1p-20f)) == 0x1p-14);
    CHECK(optim::unit_scale(zeros<float>({3})) == 1.0);
}

TEST_CASE("rescale_state: moments with a propagated scale get unit codes and keep their values; others stay") {
    State state;
    state.first = StoredTensor<float>({length}, {.format = fp16, .propagated = true});
    state.second = StoredTensor<float>({length}, {.format = fp16});
    state.first.expect_sum(0.5, 0x1p-10, true);
    StoredTensor<float>::Chunk chunk{};
    const std::vector<float> values = normals(0.3);
    for (std::ptrdiff_t begin = 0; begin < static_cast<std::ptrdiff_t>(length); begin += state.first.chunk) {
        const std::ptrdiff_t count = std::min(state.first.chunk, static_cast<std::ptrdiff_t>(length) - begin);
        std::copy_n(values.begin() + begin, count, chunk.begin());
        state.first.store(begin, count, chunk);
    }
    state.first.finish();
    state.second.assign(normals(0.3));
    REQUIRE(state.first.scale() == 0x1p-10);
    const double other = state.second.scale();
    const std::vector<double> first = values_of(state.first), second = values_of(state.second);
    Tensor<float> weight = full<float>({length}, 1.0f);
    rescale_state("w", weight, state);
    CHECK(state.first.scale() == 0x1p-2);  // 0.3 * 2^10 is between 2^8 and 2^9
    CHECK(values_of(state.first) == first);
    CHECK(state.second.scale() == other);
    CHECK(values_of(state.second) == second);
}

namespace {

/// Trains one parameter for `steps` updates towards 0.9. Returns its values. The gradient's data is `times` its value.
template <class Optimiser, class Options>
std::vector<double> train(Options options, std::size_t every, int steps, double* scale = nullptr, double times = 8.0) {
    using T = Half;
    Parameter<T> p("p", Shape{length}, {.role = ParameterRole::weight});
    p.write() = set_scaling(normal<T>({length}, {1, 5}, 0.3), 0x1p-4);
    options.storage.rescale_every = every;
    Optimiser optimiser({&p}, options);
    for (int i = 0; i < steps; ++i) {
        optimiser.clear_gradients();
        Tensor<T> gradient({length});
        for (std::size_t k = 0; k < length; ++k)
            gradient.data()[k] =
                Half(static_cast<float>((widest(p.value().data()[k]) * p.value().scale() - 0.9) * times));
        gradient.set_scale(1.0 / times);
        p.add_gradient(std::move(gradient));
        optimiser.step({}, 0.01);
    }
    if (scale != nullptr) *scale = p.value().scale();
    return values_of(p.value());
}

}  // namespace

TEST_CASE("rescale_state: an optimiser calls it after every N-th update, and powers of two change no bit of a run") {
    const optim::AdamOptions adam{};
    for (const std::size_t every : {1u, 3u, 20u}) {
        double scale = 0.0;
        // Data is 5 at first, and 14 at the end.
        CHECK(train<optim::Adam<Half>>(adam, every, 60, &scale) == train<optim::Adam<Half>>(adam, 0, 60));
        CHECK(scale == 0.5);
        CHECK(train<optim::Sgd<Half>>(optim::SgdOptions{.momentum = 0.9}, every, 60) ==
              train<optim::Sgd<Half>>(optim::SgdOptions{.momentum = 0.9}, 0, 60));
    }
    double scale = 0.0;
    static_cast<void>(train<optim::Adam<Half>>(adam, 5, 4, &scale));
    CHECK(scale == 0x1p-4);
    static_cast<void>(train<optim::Adam<Half>>(adam, 5, 5, &scale));
    CHECK(scale == 0x1p-2);
}

TEST_CASE("rescale_state: propagated moments in FP16 train as moments with measured scales do") {
    const auto with = [](const StateFormat& moments) {
        optim::AdamOptions options{};
        options.storage.first_moment = options.storage.second_moment = moments;
        return options;
    };
    const std::vector<double> exact = train<optim::Adam<Half>>(with({}), 20, 200);
    for (const StateFormat& how : {StateFormat{.format = fp16}, StateFormat{.format = fp16, .propagated = true}}) {
        const std::vector<double> got = train<optim::Adam<Half>>(with(how), 20, 200);
        double worst = 0.0;
        for (std::size_t i = 0; i < length; ++i) worst = std::max(worst, std::abs(got[i] - exact[i]));
        CHECK(worst < 0.02);
        CHECK(worst > 0.0);
    }
    // Without rescaling the second moment's codes are 1 / (1 - beta2) times too large or more: they still fit FP16.
    const std::vector<double> never = train<optim::Adam<Half>>(with({.format = fp16, .propagated = true}), 0, 200);
    for (std::size_t i = 0; i < length; ++i) REQUIRE(std::abs(never[i] - exact[i]) < 0.02);
}

TEST_CASE("rescale_state: propagated moments follow the size of a gradient whose data is far from 1") {
    const auto worst = [](auto options, auto optimiser, double times) {
        using Optimiser = typename decltype(optimiser)::type;
        const std::vector<double> exact = train<Optimiser>(options, 0, 60, nullptr, times);
        options.storage.first_moment = options.storage.second_moment = {.format = fp16, .propagated = true};
        const std::vector<double> got = train<Optimiser>(options, 0, 60, nullptr, times);
        double difference = 0.0;
        for (std::size_t i = 0; i < length; ++i) difference = std::max(difference, std::abs(got[i] - exact[i]));
        return difference;
    };
    // The square of 2^12 or 2^-12 is outside FP16.
    for (const double times : {0x1p-12, 1.0, 0x1p12}) {
        CAPTURE(times);
        CHECK(worst(optim::AdamOptions{}, std::type_identity<optim::Adam<Half>>{}, times) < 0.02);
        CHECK(worst(optim::SgdOptions{.momentum = 0.9}, std::type_identity<optim::Sgd<Half>>{}, times) < 0.02);
    }
}

TEST_CASE("rescale_state: the updates since the last rescaling are part of the optimiser's state") {
    struct Counts {
        std::map<std::string, std::uint64_t> found{};
        void stored(const std::string&, StoredTensor<float>&) {}
        void scalar(const std::string& name, std::uint64_t& value) { found[name] = value; }
    };
    for (const std::size_t every : {std::size_t{0}, std::size_t{3}}) {
        Parameter<float> p("p", Shape{4}, {.role = ParameterRole::weight});
        p.write() = full<float>({4}, 1.0f);
        optim::AdamOptions options{};
        options.storage.rescale_every = every;
        optim::Adam<float> adam({&p}, options);
        for (int i = 0; i < 5; ++i) {
            p.clear_gradient();
            p.add_gradient(full<float>({4}, 1.0f));
            adam.step({}, 0.01);
        }
        Counts counts;
        adam.visit_state(counts);
        CHECK(counts.found.contains("p/rescale") == (every > 0));
        if (every > 0) CHECK(counts.found["p/rescale"] == 2);
    }
}
