// SPDX-License-Identifier: MIT
#include <unitscale/optim/quantise_gradients.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::optim;

namespace {

constexpr std::size_t length = 3000;

template <class T>
std::vector<double> rounded_gradient(const Storage& storage, ParameterRole role, double size, int threads = 1,
                                     RandomKey key = {}) {
    Parameter<T> p("p", Shape{length}, {.role = role});
    p.add_gradient(normal<T>(Shape{length}, {1, 2}, size));
    const std::vector<Parameter<T>*> all{&p};
    quantise_weight_gradients<T>({threads, nullptr}, all, storage, key);
    std::vector<double> values;
    for (const T x : p.gradient().span()) values.push_back(static_cast<double>(static_cast<Accum<T>>(x)));
    return values;
}

template <class T>
std::vector<double> plain_gradient(double size) {
    return rounded_gradient<T>({}, ParameterRole::weight, size);
}

}  // namespace

TEST_CASE("weight gradients are rounded to the format, gradients of other parameters are not") {
    const Storage storage{.weight_gradient = Quantiser{.format = e5m2}};
    for (const double size : {1.0, 1e-3}) {
        const std::vector<double> plain = plain_gradient<float>(size);
        const std::vector<double> rounded = rounded_gradient<float>(storage, ParameterRole::weight, size);
        for (std::size_t i = 0; i < length; ++i)
            REQUIRE(rounded[i] == static_cast<double>(decode(e5m2, encode(e5m2, plain[i]))));
        for (const ParameterRole role :
             {ParameterRole::bias, ParameterRole::norm, ParameterRole::embedding, ParameterRole::readout})
            REQUIRE(rounded_gradient<float>(storage, role, size) == plain);
    }
}

TEST_CASE("weight gradients may be brought to the format's range first, by their largest or by a constant") {
    const double size = 1e-7;  // below the range of E5M2
    const std::vector<double> plain = plain_gradient<float>(size);
    double largest = 0.0;
    for (const double x : plain) largest = std::max(largest, std::abs(x));
    const auto check_bias = [&](const ScaleRule& rule, int bias) {
        const Storage storage{.weight_gradient = Quantiser{.format = e5m2}, .weight_gradient_scale = rule};
        const std::vector<double> rounded = rounded_gradient<float>(storage, ParameterRole::weight, size);
        for (std::size_t i = 0; i < length; ++i)
            REQUIRE(rounded[i] ==
                    std::ldexp(static_cast<double>(decode(e5m2, encode(e5m2, std::ldexp(plain[i], bias)))), -bias));
    };
    check_bias({.source = ScaleSource::amax}, static_cast<int>(std::floor(std::log2(57344.0 / largest))));
    check_bias({.source = ScaleSource::amax, .margin = 2},
               static_cast<int>(std::floor(std::log2(57344.0 / largest))) - 2);
    check_bias({.source = ScaleSource::constant, .bias = 20}, 20);
    check_bias({}, 0);
}

TEST_CASE("weight gradients of every element type are kept in it") {
    const Storage storage{.weight_gradient = Quantiser{.format = e4m3},
                          .weight_gradient_scale = {.source = ScaleSource::amax}};
    const std::vector<double> half = rounded_gradient<Half>(storage, ParameterRole::weight, 1.0),
                              brain = rounded_gradient<BFloat16>(storage, ParameterRole::weight, 1.0),
                              in_double = rounded_gradient<double>(storage, ParameterRole::weight, 1.0);
    const std::vector<double> plain = plain_gradient<double>(1.0);
    for (std::size_t i = 0; i < length; ++i) {
        REQUIRE(std::abs(in_double[i] - plain[i]) <= std::max(0x1p-4 * std::abs(plain[i]), 0x1p-14));
        REQUIRE(half[i] == Approx(in_double[i]).epsilon(0.13).margin(1e-3));
        REQUIRE(brain[i] == Approx(in_double[i]).epsilon(0.13).margin(1e-3));
    }
    CHECK(half != plain_gradient<Half>(1.0));
}

TEST_CASE("a weight gradient with an infinite element stays as it is, for who looks for one") {
    Parameter<float> p("p", Shape{3}, {});
    const float infinity = std::numeric_limits<float>::infinity();
    p.add_gradient(Tensor<float>(Shape{3}, {1.03f, infinity, -1.0f}));
    const std::vector<Parameter<float>*> all{&p};
    quantise_weight_gradients<float>({}, all, {.weight_gradient = Quantiser{.format = e4m3}});
    CHECK(p.gradient().data()[0] == 1.03f);
    CHECK(p.gradient().data()[1] == infinity);
}

TEST_CASE("weight gradients: without a format nothing is rounded, nor where there is no gradient") {
    Parameter<float> p("p", Shape{1}, {});
    const std::vector<Parameter<float>*> all{&p};
    CHECK_NOTHROW(quantise_weight_gradients<float>({}, all, {.weight_gradient = Quantiser{.format = e4m3}}));
    p.add_gradient(Tensor<float>(Shape{1}, {1.03f}));
    quantise_weight_gradients<float>({}, all, {});
    CHECK(p.gradient().data()[0] == 1.03f);
}

TEST_CASE("stochastic rounding of weight gradients: the bits depend on the key, not on the threads") {
    const Storage storage{.weight_gradient = Quantiser{.format = e5m2, .rounding = Rounding::stochastic}};
    const auto gradient = [&](int threads, RandomKey key) {
        return rounded_gradient<float>(storage, ParameterRole::weight, 1.0, threads, key);
    };
    CHECK(gradient(1, {1, 1}) == gradient(2, {1, 1}));
    CHECK(gradient(1, {1, 1}) != gradient(1, {1, 2}));
}

TEST_CASE("weight gradients are kept as codes of at most 8 bits, longer ones in their type, and are rounded once") {
    for (const FloatFormat& format : {e5m2, e3m2, fp16}) {
        const Storage storage{.weight_gradient = Quantiser{.format = format},
                              .weight_gradient_scale = {.source = ScaleSource::amax}};
        Parameter<Half> p("p", Shape{length}, {.role = ParameterRole::weight}),
            bias("bias", Shape{length}, {.role = ParameterRole::bias});
        for (Parameter<Half>* parameter : {&p, &bias}) parameter->add_gradient(normal<Half>(Shape{length}, {1, 2}));
        const std::vector<Parameter<Half>*> all{&p, &bias};
        quantise_weight_gradients<Half>({}, all, storage);
        CHECK((p.coded_gradient() != nullptr) == (format.code_bits() <= 8));
        CHECK(bias.coded_gradient() == nullptr);
        const CodedTensor* const coded = p.coded_gradient();
        quantise_weight_gradients<Half>({}, all, storage);  // again
        CHECK(p.coded_gradient() == coded);
        CHECK(p.has_made(GradientStep::round));
    }
}
