// SPDX-License-Identifier: MIT
// Ops that add or choose elements of two tensors, where the tensors' scales are far apart: 2^-140 and 2^120.
// float holds neither the ratio of these scales nor its inverse. As a factor it would be 0 or infinite, and would make
// NaN of infinity or of 0. The reference is the plain function of the values in double.
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/lerp.hpp>
#include <unitscale/ops/maximum.hpp>
#include <unitscale/ops/minimum.hpp>
#include <unitscale/ops/multiplier.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/ops/select.hpp>
#include <unitscale/ops/sub.hpp>
#include <unitscale/ops/weighted_add.hpp>

#include "support/propagate_checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double low = 0x1p-140, high = 0x1p120;

template <class T>
Tensor<T> tensor(const std::vector<double>& data, double scale, bool any_scale = false) {
    Tensor<T> result(Shape{data.size()});
    std::transform(data.begin(), data.end(), result.data(), [](double x) { return static_cast<T>(x); });
    result.set_scale(scale);
    result.set_any_scale(any_scale);
    return result;
}

/// The relative rounding error of an element, and the smallest positive element.
template <class T>
std::pair<double, double> precision() {
    if constexpr (std::is_same_v<T, Half>) return {0x1p-10, 0x1p-24};
    else return {2.0 * std::numeric_limits<T>::epsilon(), std::numeric_limits<T>::denorm_min()};
}

template <class T>
void check_values(const Tensor<T>& y, const std::vector<double>& expected) {
    REQUIRE(y.size() == expected.size());
    const auto [relative, smallest] = precision<T>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO("element " << i << ", scale " << y.scale());
        const double value = static_cast<double>(y.data()[i]) * y.scale();
        if (std::isfinite(expected[i]))
            CHECK(std::abs(value - expected[i]) <= relative * std::abs(expected[i]) + smallest * y.scale());
        else CHECK(value == expected[i]);
    }
}

/// Checks op(x, z) against f, element by element, for x and z of far scales, and for one of them of any scale.
template <class T, class Op, class F>
void check_far(const std::string& name, Op op, F f) {
    const std::vector<double> numbers_x = {1, -2, 0, infinity, -1, 0, 3, 1},
                              numbers_z = {1, 1, 0, 1, 0, -1, -infinity, 0},
                              free_x = {0, 0, 0, infinity, 0, 0, -infinity, 0};
    const auto check_one = [&](const Tensor<T>& x, const Tensor<T>& z) {
        INFO(name << ": scales " << x.scale() << " and " << z.scale() << (x.any_scale() ? ", any for x" : "")
                  << (z.any_scale() ? ", any for z" : ""));
        test::OpTape<T> t(Scaling::propagate);
        const auto u = t.tape.input(x, true), v = t.tape.input(z, true);
        const Variable<T> y = op(u, v);
        std::vector<double> expected;
        for (std::size_t i = 0; i < x.size(); ++i)
            expected.push_back(
                f(static_cast<double>(x.data()[i]) * x.scale(), static_cast<double>(z.data()[i]) * z.scale()));
        check_values(y.scaled(), expected);
        CHECK(y.scaled().any_scale() == (x.any_scale() && z.any_scale()));
        t.tape.backward(analysis::project(y, full<T>(y.shape(), T(1.0f))));
        for (const auto& input : {u, v})
            for (const T gradient : input.gradient().span()) CHECK(std::isfinite(static_cast<double>(gradient)));
    };
    for (const double s : {low, 1.0, high})
        for (const double t : {low, 1.0, high}) {
            check_one(tensor<T>(numbers_x, s), tensor<T>(numbers_z, t));
            check_one(tensor<T>(free_x, s, true), tensor<T>({1, -1, 0, 2, 3, -2, 1, 0}, t));
            check_one(tensor<T>({1, -1, 0, 2, 3, -2, 1, 0}, t), tensor<T>(free_x, s, true));
            check_one(tensor<T>(free_x, s, true), tensor<T>(free_x, t, true));
        }
}

template <class T>
void check_sums() {
    check_far<T>(
        "add", [](auto x, auto z) { return ops::add(x, z); }, [](double x, double z) { return x + z; });
    check_far<T>(
        "residual_add", [](auto x, auto z) { return ops::residual_add(x, z, 1.0); },
        [](double x, double z) { return (x + z) * std::sqrt(0.5); });
    check_far<T>(
        "weighted_add",
        [](auto x, auto z) {
            return ops::weighted_add({x, z}, {0.5, 2.0});
        },
        [](double x, double z) { return 0.5 * x + 2.0 * z; });
    check_far<T>(
        "sub", [](auto x, auto z) { return ops::sub(x, ops::multiplier(z, -1.0)); },
        [](double x, double z) { return x + z; });
}

template <class T>
void check_choices() {
    check_far<T>(
        "maximum", [](auto x, auto z) { return ops::maximum(x, z); },
        [](double x, double z) { return std::max(x, z); });
    check_far<T>(
        "minimum", [](auto x, auto z) { return ops::minimum(x, z); },
        [](double x, double z) { return std::min(x, z); });
    for (const std::int32_t first : {0, 1}) {
        const Tensor<std::int32_t> condition({1}, {first});
        check_far<T>(
            "select", [&](auto x, auto z) { return ops::select(condition, x, z); },
            [=](double x, double z) { return first == 1 ? x : z; });
    }
}

}  // namespace

TEST_CASE("runs: sums of tensors of far scales have the values of the plain sums") {
    check_sums<Half>();
    check_sums<float>();
    check_sums<double>();
}

TEST_CASE("runs: choices between tensors of far scales have the values of the plain choices") {
    check_choices<Half>();
    check_choices<float>();
    check_choices<double>();
}

TEST_CASE("runs: maximum and minimum of far scales send the gradient to the element they take") {
    test::OpTape<float> t(Scaling::propagate);
    const auto x = t.tape.input(tensor<float>({1, -1, infinity, -infinity}, low), true),
               z = t.tape.input(tensor<float>({0, 0, 1, 1}, high), true);
    t.tape.backward(analysis::project(ops::maximum(x, z), full<float>({4}, 1.0f)));
    const bool from_x[] = {true, false, true, false};
    for (std::size_t i = 0; i < 4; ++i) {
        CHECK((x.gradient()(i) != 0.0f) == from_x[i]);
        CHECK((z.gradient()(i) != 0.0f) != from_x[i]);
    }
}

TEST_CASE("runs: a gate between tensors of far scales gives finite numbers and passes infinity") {
    const auto check_gate = []<class T>(T) {
        for (const double s : {low, 1.0, high})
            for (const double r : {low, 1.0, high}) {
                test::OpTape<T> t(Scaling::propagate);
                const auto x = t.tape.input(tensor<T>({1, -2, infinity, 0}, s), true),
                           z = t.tape.input(tensor<T>({1, 1, 1, 4}, r), true),
                           zero = t.tape.input(tensor<T>({0, 0, 0, 0}, s, true)),
                           gate = t.tape.input(tensor<T>({0, 0, 0, 0}, 1.0));
                check_values(ops::lerp(x, z, gate).scaled(), {0.5 * s + 0.5 * r, -s + 0.5 * r, infinity, 2.0 * r});
                const auto y = ops::lerp(zero, z, gate);
                check_values(y.scaled(), {0.5 * r, 0.5 * r, 0.5 * r, 2.0 * r});
            }
    };
    check_gate(Half{});
    check_gate(float{});
    check_gate(double{});
}

TEST_CASE("runs: parts of far scales stand side by side under the larger scale") {
    const auto check_parts = []<class T>(T) {
        for (const auto& [s, r] : {std::pair{low, high}, {high, low}}) {
            test::OpTape<T> t(Scaling::propagate);
            const auto x = t.tape.input(tensor<T>({1, -infinity}, s), true),
                       z = t.tape.input(tensor<T>({2, infinity}, r), true),
                       any = t.tape.input(tensor<T>({0, infinity}, low, true));
            check_values(ops::concatenate({x, z, any}, 0).scaled(), {s, -infinity, 2.0 * r, infinity, 0.0, infinity});
        }
    };
    check_parts(Half{});
    check_parts(float{});
    check_parts(double{});
}
