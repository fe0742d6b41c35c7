// SPDX-License-Identifier: MIT
#include <unitscale/ops/cast.hpp>

#include "support/propagate_checks.hpp"

#include <vector>

using namespace unitscale;

namespace {
auto forward(Quantiser quantiser) {
    return [=](auto&, auto& v) { return ops::cast_on_forward(v[0], quantiser); };
}
auto backward(Quantiser quantiser) {
    return [=](auto&, auto& v) { return ops::cast_on_backward(v[0], quantiser); };
}
template <class T>
Tensor<T> rounded(const Tensor<T>& tensor, const Quantiser& quantiser) {
    Tensor<T> result(tensor.shape());
    quantise(quantiser.format, tensor.span(), result.span(), quantiser.options());
    return result;
}
const Quantiser coarse{.format = e4m3};
}  // namespace

TEST_CASE("cast_on_forward and cast_on_backward: where nothing is lost they are the identity, with factors 1") {
    // Eighths within [-2, 2] are e4m3 numbers, and so are their multiples by the factors 1. Where no bits are lost, the
    // gradients equal the gradients of the identity.
    const std::vector<Tensor<double>> inputs = {Tensor<double>({2, 2}, {0.125, -1.5, 0.75, 2.0})};
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        const Tensor<double> dy({2, 2}, {1.0, -0.5, 3.0, 0.25});
        for (const bool on_forward : {true, false}) {
            const auto run =
                on_forward ? analysis::run_op<double>(analysis::plain_recipe(scaling), inputs, forward(coarse), dy)
                           : analysis::run_op<double>(analysis::plain_recipe(scaling), inputs, backward(coarse), dy);
            CHECK(analysis::relative_error(run.value, inputs[0]) == 0.0);
            CHECK(analysis::relative_error(run.gradients[0], dy) == 0.0);
        }
    }
    const std::vector<Tensor<double>> normals = test::normal_inputs<double>({{3, 4}});
    for (const auto& report :
         {analysis::factor_check(normals, forward(coarse)), analysis::factor_check(normals, backward(coarse))}) {
        CHECK(report.alpha.factor == 1.0);
        CHECK(report.betas[0].factor == 1.0);
    }
}

TEST_CASE("cast_on_forward: the value is rounded, the gradient untouched") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        const std::vector<Tensor<float>> inputs = test::normal_inputs<float>({{5, 7}});
        const Tensor<float> dy = normal<float>({5, 7}, {2, 2});
        const auto run = analysis::run_op<float>(analysis::plain_recipe(scaling), inputs, forward(coarse), dy);
        CHECK(analysis::relative_error(run.value, rounded(inputs[0], coarse)) == 0.0);
        CHECK(analysis::relative_error(run.value, inputs[0]) > 1e-3);
        CHECK(analysis::relative_error(run.gradients[0], dy) == 0.0);
    }
    test::OpTape<double> t;
    const auto y = ops::cast_on_forward(t.tape.input(Tensor<double>({3}, {1.0 / 3, 1000.0, -1e-9})), coarse);
    CHECK(y.value()(0) == 0.34375);
    CHECK(y.value()(1) == 448.0);  // saturates
    CHECK(y.value()(2) == 0.0);
}

TEST_CASE("cast_on_backward: the gradient is rounded, the value untouched") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        const std::vector<Tensor<float>> inputs = test::normal_inputs<float>({{5, 7}});
        const Tensor<float> dy = normal<float>({5, 7}, {2, 2});
        const auto run = analysis::run_op<float>(analysis::plain_recipe(scaling), inputs, backward(coarse), dy);
        CHECK(analysis::relative_error(run.value, inputs[0]) == 0.0);
        CHECK(analysis::relative_error(run.gradients[0], rounded(dy, coarse)) == 0.0);
        CHECK(analysis::relative_error(run.gradients[0], dy) > 1e-3);
    }
}

TEST_CASE("cast_on_forward and cast_on_backward: unit scale, nothing at all, and no backward pass") {
    test::check_unit_scale({{200, 100}}, forward(coarse), 1.0, {1.0}, 0.02);
    test::check_unit_scale({{200, 100}}, backward({.format = e5m2}), 1.0, {1.0}, 0.02);
    test::check_nothing(
        {{0, 3}}, [](auto&, auto& v) { return ops::cast_on_backward(ops::cast_on_forward(v[0], coarse), coarse); },
        {0, 3});
    test::OpTape<float> t(Scaling::unit, {.gradients = false});
    const auto x = t.input({1});
    CHECK(ops::cast_on_backward(x, coarse).value()(0) == x.value()(0));
}

TEST_CASE("cast_on_forward and cast_on_backward: stochastic rounding differs by site and step") {
    const Quantiser stochastic{.format = e5m2, .rounding = Rounding::stochastic};
    test::OpTape<float> t;
    const auto x = t.input({500});
    const Tensor<float> first = ops::cast_on_forward(x, stochastic).value(),
                        second = ops::cast_on_forward(x, stochastic).value();
    CHECK(analysis::relative_error(first, second) > 0.0);
    const auto run = [&](std::uint64_t seed) {
        return analysis::run_op<float>(analysis::plain_recipe(Scaling::none), test::normal_inputs<float>({{500}}),
                                       backward(stochastic), normal<float>({500}, {2, 2}), seed)
            .gradients[0];
    };
    CHECK(analysis::relative_error(run(1), run(1)) == 0.0);
    CHECK(analysis::relative_error(run(1), run(2)) > 0.0);
}

TEST_CASE("cast_on_forward and cast_on_backward: errors name the op") {
    test::OpTape<float> t;
    const auto bad = t.tape.input(full<float>({2}, std::nanf("")), true);
    REQUIRE_THROWS_WITH(ops::cast_on_forward(bad, {.format = e2m1}),
                        "cast_on_forward: e2m1 has no NaN: element 0 is NaN");
    const auto one = t.input({1});
    const auto poison =
        analysis::project(ops::cast_on_backward(one, {.format = e2m1}), full<float>({1}, std::nanf("")));
    REQUIRE_THROWS_WITH(t.tape.backward(poison), "cast_on_backward: e2m1 has no NaN: element 0 is NaN");
    const Quantiser no_bits{.format = e4m3, .rounding = Rounding::stochastic, .bits = 0};
    REQUIRE_THROWS_WITH(ops::cast_on_forward(t.input({2}), no_bits), "cast_on_forward: bits is 0; expected 1 to 24");
    REQUIRE_THROWS_WITH(ops::cast_on_backward(t.input({2}), no_bits), "cast_on_backward: bits is 0; expected 1 to 24");
}

TEST_CASE("casts: propagate scales; data is rounded") {
    const auto both = [](auto&, auto& v) {
        return ops::cast_on_backward(ops::cast_on_forward(v[0], {.format = fp32}), {.format = fp32});
    };
    test::check_propagate_at({Tensor<double>({3}, {0.125, -1.5, 0.75})}, forward({.format = fp16}));
    test::check_propagate({{3, 7}}, both, 1e-6);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, both, 0.25) == std::vector{8.0, 0.25});
    test::OpTape<double> t(Scaling::propagate);
    Tensor<double> data({2}, {1.0 / 3, 410.0});
    data.set_scale(0x1p-60);
    const auto x = t.tape.input(data, true);
    const auto y = ops::cast_on_forward(x, coarse);
    CHECK(y.scaled()(0) == 0.34375);
    CHECK(y.value()(1) == 416.0 * 0x1p-60);
    t.tape.backward(
        analysis::project(ops::cast_on_backward(y, coarse), Tensor<double>({2}, {0x1p40 / 3, 0x1p40}), 0x1p40));
    CHECK(x.gradient().scale() == 0x1p40);
    CHECK(x.gradient()(0) == 0.34375);
}
