// SPDX-License-Identifier: MIT
#include <unitscale/ops/mse_loss.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
auto with(ops::MseLossOptions options) {
    return [=](auto&, auto& v) { return ops::mse_loss(v[0], v[1], options); };
}
const double root = std::sqrt(8.0);
}  // namespace

TEST_CASE("mse_loss: gradient, factors and value") {
    test::check_gradient_and_factors({{2, 3}, {2, 3}}, with({.reduction = ops::Reduction::sum}), 1.0,
                                     {1.0 / root, 1.0 / root});
    test::check_gradient_and_factors({{2, 3}, {2, 3}}, with({}), 1.0, {6.0 / root, 6.0 / root});
    test::check_gradient_and_factors({{1}, {1}}, with({}), 1.0, {1.0 / root, 1.0 / root});
    test::check_gradient_and_factors({{4}, {4}}, with({.step_elements = 10}), 1.0, {10.0 / root, 10.0 / root});
}

TEST_CASE("mse_loss: the value is the mean or sum of squared differences") {
    test::OpTape<double> t;
    const auto x = t.tape.input(Tensor<double>({2, 2}, {1.0, 2.0, 3.0, 4.0}), true);
    const auto y = t.tape.input(Tensor<double>({2, 2}, {1.0, 0.0, 0.0, 5.0}));
    CHECK(ops::mse_loss(x, y, {.reduction = ops::Reduction::sum}).item() == 14.0);
    const auto loss = ops::mse_loss(x, y);
    CHECK(loss.item() == 3.5);
    t.tape.backward(loss, 3.0);
    CHECK(x.gradient()(1, 0) == Approx(3.0 * 6.0 / root));
    CHECK(!t.tape.requires_gradient(y));
}

TEST_CASE("mse_loss: unit scale of both gradients") {
    const std::vector<Tensor<float>> inputs = test::normal_inputs<float>({{200, 300}, {200, 300}});
    for (const ops::Reduction reduction : {ops::Reduction::mean, ops::Reduction::sum}) {
        const auto run = analysis::run_op<float>(analysis::plain_recipe(Scaling::unit), inputs,
                                                 with({.reduction = reduction}), full<float>({1}, 1.0F));
        CHECK(analysis::moments(run.gradients[0]).std == Approx(1.0).epsilon(0.01));
        CHECK(analysis::moments(run.gradients[1]).std == Approx(1.0).epsilon(0.01));
    }
}

TEST_CASE("mse_loss: losses and gradients of micro-batches add up") {
    const auto inputs = test::normal_inputs<double>({{6}, {6}});
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        test::OpTape<double> whole(scaling);
        const auto all = whole.tape.input(inputs[0], true);
        const auto loss = ops::mse_loss(all, whole.tape.input(inputs[1]));
        whole.tape.backward(loss);
        double sum = 0.0;
        for (std::size_t part = 0; part < 2; ++part) {
            test::OpTape<double> t(scaling, {.micro_batches = 2, .micro_batch = part, .retain = true});
            const auto own = t.tape.input(Tensor<double>({3}, inputs[0].span().subspan(part * 3, 3)), true);
            const auto piece =
                ops::mse_loss(own, t.tape.input(Tensor<double>({3}, inputs[1].span().subspan(part * 3, 3))));
            t.tape.backward(piece);
            sum += piece.item();
            for (std::size_t i = 0; i < 3; ++i)
                CHECK(own.gradient()(i) == Approx(all.gradient()(part * 3 + i)).epsilon(1e-14));
        }
        CHECK(sum == Approx(loss.item()).epsilon(1e-14));
    }
}

TEST_CASE("mse_loss: nothing has the loss 0; shapes that differ are an error") {
    for (const ops::Reduction reduction : {ops::Reduction::mean, ops::Reduction::sum})
        test::check_nothing({{0, 3}, {0, 3}}, with({.reduction = reduction}), {1});
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::mse_loss(t.input({2, 3}), t.input({3})), "mse_loss: x [2,3] and y [3] differ in shape");
}

TEST_CASE("mse_loss: propagates scales") {
    for (const ops::Reduction reduction : {ops::Reduction::mean, ops::Reduction::sum})
        test::check_propagate({{4, 7}, {4, 7}},
                              [=](auto&, auto& v) { return ops::mse_loss(v[0], v[1], {.reduction = reduction}); });
    test::OpTape<double> t(Scaling::propagate);
    const auto x = t.tape.input(set_scaling(normal<double>({300}, {1, 1}, 0x1p-30), 0x1p-30), true);
    t.tape.backward(ops::mse_loss(x, t.tape.input(zeros<double>({300}))), 1e4);
    double sum = 0.0;
    for (const double g : x.gradient().span()) sum += g * g;
    CHECK(std::sqrt(sum / 300) > 0.9);  // the zeros take the scale of x
    CHECK(std::sqrt(sum / 300) < 4.2);  // seed and factor are both rounded down
}
