// SPDX-License-Identifier: MIT
#include <unitscale/analysis/grad_check.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
/// y = forward x^2, dx = backward 2 x dy: correct under `none` if `forward` and `backward` are 1.
auto square(double forward, double backward) {
    return [=]<class T>(Tape<T>& tape, std::vector<Variable<T>>& v) {
        const double alpha = tape.unit_scaled() ? forward : 1.0, beta = tape.unit_scaled() ? backward : 1.0;
        Tensor<T> y = tape.make(v[0].shape());
        for (std::size_t i = 0; i < y.size(); ++i)
            y.data()[i] = static_cast<T>(alpha) * v[0].value().data()[i] * v[0].value().data()[i];
        return tape.record({"square", tape.next_site("square"), alpha, {beta}}, {v[0]}, std::move(y),
                           [](BackwardContext<T>& g) {
                               Tensor<T> dx = g.take_output_gradient();
                               for (std::size_t i = 0; i < dx.size(); ++i)
                                   dx.data()[i] *= static_cast<T>(2.0 * g.beta(0)) * g.input(0).data()[i];
                               g.add(0, std::move(dx));
                           });
    };
}
/// A square with a wrong gradient: the factor 2 is missing.
const auto wrong_square = []<class T>(Tape<T>& tape, std::vector<Variable<T>>& v) {
    Tensor<T> y = tape.make(v[0].shape());
    for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = v[0].value().data()[i] * v[0].value().data()[i];
    return tape.record({"square", tape.next_site("square"), 1.0, {1.0}}, {v[0]}, std::move(y),
                       [](BackwardContext<T>& g) {
                           Tensor<T> dx = g.take_output_gradient();
                           for (std::size_t i = 0; i < dx.size(); ++i) dx.data()[i] *= g.input(0).data()[i];
                           g.add(0, std::move(dx));
                       });
};
const std::vector<Tensor<double>> inputs = {normal<double>({3, 4}, {1, 1})};
}  // namespace

TEST_CASE("grad_check: a right gradient passes, a wrong one is seen") {
    CHECK(analysis::grad_check(inputs, square(1.0, 1.0)).at(0) < 1e-8);
    CHECK(analysis::grad_check(inputs, wrong_square).at(0) == Approx(0.5).epsilon(0.01));
}

TEST_CASE("factor_check: finds alpha and beta, and sees factors that are not constant") {
    const auto report = analysis::factor_check(inputs, square(0.25, 3.0));
    CHECK(report.alpha.factor == Approx(0.25));
    CHECK(report.alpha.error < 1e-14);
    CHECK(report.betas.at(0).factor == Approx(3.0));
    CHECK(report.betas.at(0).error < 1e-14);
    const Tensor<double> reference({2}, {1.0, 2.0}), bent({2}, {1.0, 3.0});
    CHECK(analysis::fit_factor(bent, reference).error > 0.1);
}

TEST_CASE("relative_error: largest distance over largest magnitude; NaN is not hidden") {
    const Tensor<double> actual({2}, {1.0, 4.5}), expected({2}, {1.0, 5.0});
    CHECK(analysis::relative_error(actual, expected) == Approx(0.1));
    CHECK(analysis::relative_error(actual, Tensor<double>({2}, {0.5, 2.25}), 2.0) == 0.0);
    CHECK(std::isnan(analysis::relative_error(Tensor<double>({2}, {1.0, std::nan("")}), expected)));
    REQUIRE_THROWS_WITH(analysis::relative_error(actual, Tensor<double>({1}, {1.0})),
                        "relative_error: shapes [2] and [1] differ");
}

TEST_CASE("project: the loss has the direction as its gradient") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2}, {3.0, 5.0}), true);
    const Tensor<double> direction({2}, {2.0, -1.0});
    const auto loss = analysis::project(x, direction);
    CHECK(loss.item() == 1.0);
    t.tape.backward(loss, 10.0);
    CHECK(x.gradient()(0) == 20.0);
    CHECK(x.gradient()(1) == -10.0);
    REQUIRE_THROWS_WITH(analysis::project(x, Tensor<double>({3})), "project: y [2] and direction [3] differ in shape");
}
