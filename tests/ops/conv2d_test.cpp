// SPDX-License-Identifier: MIT
#include <unitscale/ops/conv2d.hpp>

#include "support/propagate_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/autograd/tape.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

using namespace unitscale;

namespace {

auto with(const ops::Conv2dOptions& options) {
    return [=](auto&, auto& v) {
        return ops::conv2d(v[0], v[1], v.size() > 2 ? std::optional(v[2]) : std::nullopt, options);
    };
}
const ops::Conv2dOptions uneven{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}};

/// The definition, in double.
Tensor<double> by_definition(const Tensor<double>& x, const Tensor<double>& w, const Tensor<double>* bias,
                             const ops::Conv2dOptions& o) {
    const auto signed_size = [](std::size_t n) { return static_cast<std::ptrdiff_t>(n); };
    const auto count = [&](std::size_t axis) {
        return (x.dim(signed_size(2 + axis)) + 2 * o.padding[axis] -
                (w.dim(signed_size(2 + axis)) - 1) * o.dilation[axis] - 1) /
                   o.stride[axis] +
               1;
    };
    Tensor<double> y({x.dim(0), w.dim(0), count(0), count(1)});
    const std::size_t in = w.dim(1), out = w.dim(0) / o.groups;
    for (std::size_t b = 0; b < y.dim(0); ++b)
        for (std::size_t k = 0; k < y.dim(1); ++k)
            for (std::size_t i = 0; i < y.dim(2); ++i)
                for (std::size_t j = 0; j < y.dim(3); ++j) {
                    double sum = bias != nullptr ? (*bias)(k) : 0.0;
                    for (std::size_t c = 0; c < in; ++c)
                        for (std::size_t u = 0; u < w.dim(2); ++u)
                            for (std::size_t v = 0; v < w.dim(3); ++v) {
                                const auto row = signed_size(i * o.stride[0] + u * o.dilation[0]) -
                                                 signed_size(o.padding[0]),
                                           column = signed_size(j * o.stride[1] + v * o.dilation[1]) -
                                                    signed_size(o.padding[1]);
                                if (row < 0 || column < 0 || row >= signed_size(x.dim(2)) ||
                                    column >= signed_size(x.dim(3)))
                                    continue;
                                sum += w(k, c, u, v) * x(b, k / out * in + c, row, column);
                            }
                    y(b, k, i, j) = sum;
                }
    return y;
}

}  // namespace

TEST_CASE("conv2d: the value is the definition's, with groups, strides, padding and dilation") {
    struct Case {
        Shape x, w;
        ops::Conv2dOptions options;
    };
    const std::vector<Case> cases = {{{2, 3, 5, 6}, {4, 3, 3, 3}, {.padding = {1, 1}}},
                                     {{2, 4, 7, 9}, {6, 2, 2, 3}, {.stride = {2, 1}, .dilation = {1, 2}, .groups = 2}},
                                     {{1, 4, 4, 4}, {4, 1, 3, 3}, {.groups = 4}},
                                     {{2, 3, 7, 8}, {5, 3, 3, 2}, uneven}};
    for (const Case& one : cases) {
        test::OpTape<double> t(Scaling::none);
        const auto x = t.input(one.x, 1), w = t.input(one.w, 2), b = t.input({one.w[0]}, 3);
        const Tensor<double> y = ops::conv2d(x, w, b, one.options).value(), bias = b.value(),
                             expected = by_definition(x.value(), w.value(), &bias, one.options);
        REQUIRE(y.shape() == expected.shape());
        CHECK(analysis::relative_error(y, expected) < 1e-14);
    }
}

TEST_CASE("conv2d: gradient and factors") {
    const double alpha = 1.0 / std::sqrt(3.0 * 6.0);
    const double positions = 1.0 / std::sqrt(2.0 * 4.0 * 10.0);
    test::check_gradient_and_factors({{2, 3, 7, 8}, {5, 3, 3, 2}, {5}}, with(uneven), alpha,
                                     {alpha, positions, positions});
    test::check_gradient_and_factors({{2, 4, 3, 3}, {4, 2, 1, 1}}, with({.groups = 2}), 1.0 / std::sqrt(2.0),
                                     {1.0 / std::sqrt(2.0), 1.0 / std::sqrt(18.0)});
    test::check_nothing({{0, 3, 4, 4}, {5, 3, 3, 3}}, with({}), {0, 5, 2, 2});
}

TEST_CASE("conv2d: unit scale of the value, and of the gradients where sizes are alike") {
    // 16 channels of 3x3 taps in and out: alpha is the ideal beta_x too. Borders are a small part of 40x40 images.
    test::check_unit_scale({{4, 16, 40, 40}, {16, 16, 3, 3}}, with({}), 1.0, {1.0, 1.0}, 0.08);
}

TEST_CASE("conv2d: propagates scales") {
    test::check_propagate({{2, 3, 7, 8}, {5, 3, 3, 2}, {5}}, with(uneven));
    test::check_propagate({{2, 4, 5, 5}, {4, 2, 3, 3}}, with({.groups = 2}));
}

TEST_CASE("conv2d: errors") {
    test::OpTape<float> t;
    const auto x = t.input({2, 4, 8, 8});
    CHECK_THROWS_WITH(ops::conv2d(t.input({4, 8, 8}), t.input({6, 4, 3, 3})), "conv2d: x [4,8,8] is not [B,C,H,W]");
    CHECK_THROWS_WITH(ops::conv2d(x, t.input({6, 4, 3})), "conv2d: weight [6,4,3] is not [out,in/groups,kh,kw]");
    CHECK_THROWS_WITH(ops::conv2d(x, t.input({6, 3, 3, 3})),
                      "conv2d: x [2,4,8,8] and weight [6,3,3,3] do not fit in 1 group: 4 != 3");
    CHECK_THROWS_WITH(ops::conv2d(x, t.input({6, 4, 3, 3}), {.groups = 3}),
                      "conv2d: groups is 3; expected a divisor of 4 input and 6 output channels");
    CHECK_THROWS_WITH(ops::conv2d(x, t.input({6, 4, 3, 3}), t.input({4})),
                      "conv2d: bias [4] does not fit weight [6,4,3,3]; expected [6]");
    CHECK_THROWS_WITH(ops::conv2d(x, t.input({6, 4, 9, 3})),
                      "conv2d: axis 2 of x [2,4,8,8] with padding is 8 long; the kernel reaches over 9");
}
