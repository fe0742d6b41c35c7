// SPDX-License-Identifier: MIT
#include <unitscale/record/linear_products.hpp>

#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/readout.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

TEST_CASE("linear products: sizes are the weight's and the rows of x") {
    test::OpTape<float> t;
    const auto x = t.input({2, 3, 5}), weight = t.input({4, 5}), bias = t.input({4});
    const auto op = ops::begin_op("layer", x, weight, std::optional(bias));
    const ops::LinearSizes size = ops::linear_sizes(op);
    CHECK(size.in == 5);
    CHECK(size.out == 4);
    CHECK(size.rows == 6);
    const auto fails = [&](const auto& a, const auto& w, const auto& b, const char* message) {
        const auto bad = ops::begin_op("layer", a, w, std::optional(b));
        CHECK_THROWS_WITH(ops::linear_sizes(bad), message);
    };
    fails(x, t.input({4}), bias, "layer: weight [4] is not a matrix [out,in]");
    fails(x, t.input({4, 6}), bias, "layer: x [2,3,5] and weight [4,6] do not contract: 5 != 6");
    fails(x, weight, t.input({5}), "layer: bias [5] does not fit weight [4,5]; expected [4]");
}

TEST_CASE("linear products: value and gradients of both ops that share them, against sums by hand") {
    for (const bool readout : {false, true}) {
        const auto f = [&](auto&, auto& v) {
            return readout ? ops::readout(v[0], v[1], v[2]) : ops::linear(v[0], v[1], v[2]);
        };
        const auto inputs = test::normal_inputs<double>({{3, 5}, {2, 5}, {2}});
        const auto run = analysis::run_op<double>(analysis::plain_recipe(Scaling::none), inputs, f);
        for (std::size_t i = 0; i < 3; ++i)
            for (std::size_t o = 0; o < 2; ++o) {
                double sum = inputs[2](o);
                for (std::size_t k = 0; k < 5; ++k) sum = multiply_add(inputs[0](i, k), inputs[1](o, k), sum);
                CHECK(run.value(i, o) == Approx(sum).epsilon(1e-13));
            }
        for (const double error : analysis::grad_check(inputs, f)) CHECK(error < 1e-8);
    }
}
