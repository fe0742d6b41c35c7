// SPDX-License-Identifier: MIT
#include <unitscale/kernels/conv1d.hpp>

#include "kernels/kernel_checks.hpp"

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

/// Every size is different: two batch items of two groups, with stride, dilation and padding on both sides. y is 6
/// long.
constexpr Conv1dShape full_shape{.batch = 2,
                                 .in_channels = 4,
                                 .length = 11,
                                 .out_channels = 6,
                                 .out_length = 6,
                                 .taps = 3,
                                 .stride = 2,
                                 .dilation = 2,
                                 .left = 3,
                                 .groups = 2};
constexpr Conv1dShape point_shape{
    .batch = 2, .in_channels = 4, .length = 5, .out_channels = 6, .out_length = 5, .groups = 2};

/// The definition: calls term(index of y, index of x, index of the weight) for every product of the convolution.
void for_products(const Conv1dShape& s, const std::function<void(std::size_t, std::size_t, std::size_t)>& term) {
    for (std::ptrdiff_t b = 0; b < s.batch; ++b)
        for (std::ptrdiff_t o = 0; o < s.out_channels; ++o)
            for (std::ptrdiff_t l = 0; l < s.out_length; ++l)
                for (std::ptrdiff_t c = 0; c < s.group_in(); ++c)
                    for (std::ptrdiff_t t = 0; t < s.taps; ++t) {
                        const std::ptrdiff_t i = l * s.stride + t * s.dilation - s.left;
                        const std::ptrdiff_t channel = o / s.group_out() * s.group_in() + c;
                        if (i < 0 || i >= s.length) continue;
                        term(static_cast<std::size_t>((b * s.out_channels + o) * s.out_length + l),
                             static_cast<std::size_t>((b * s.in_channels + channel) * s.length + i),
                             static_cast<std::size_t>((o * s.group_in() + c) * s.taps + t));
                    }
}

template <class T>
struct Results {
    std::vector<T> y, dx, dw, db;
};

template <class T>
Results<T> run(const Conv1dShape& s, const std::vector<T>& x, const std::vector<T>& w, const std::vector<T>& bias,
               const std::vector<T>& dy, const std::optional<Quantiser>& round = {}, const Execution& execution = {}) {
    using A = Accum<T>;
    const products::Operand<T> in{{x.data()}, round, {1, 1}}, weight{{w.data()}, round, {1, 2}},
        gradient{{dy.data()}, round, {1, 3}};
    Results<T> r{std::vector<T>(dy.size(), T(9.0F)), std::vector<T>(x.size(), T(9.0F)),
                 std::vector<T>(w.size(), T(9.0F)), std::vector<T>(bias.size())};
    conv1d_forward<T>(execution, s, in, weight, bias.empty() ? nullptr : bias.data(), r.y.data(), A(0.5));
    conv1d_backward_x<T>(execution, s, gradient, weight, r.dx.data(), A(2));
    conv1d_backward_weight<T>(execution, s, gradient, in, r.dw.data(), A(3));
    if (!bias.empty()) conv1d_backward_bias<T>(execution, s, dy.data(), r.db.data(), A(4));
    return r;
}

template <class T>
void check_against_definition(const Conv1dShape& s, double tolerance, bool with_bias = true) {
    const auto count = [](std::ptrdiff_t n) { return static_cast<std::size_t>(n); };
    const auto x = normal_data<T>(count(s.x_size()), 1), w = normal_data<T>(count(s.weight_size()), 2),
               dy = normal_data<T>(count(s.y_size()), 3),
               bias = normal_data<T>(with_bias ? count(s.out_channels) : 0, 4);
    const Results<T> r = run(s, x, w, bias, dy);
    Doubles y(dy.size()), dx(x.size()), dw(w.size()), db(bias.size());
    for_products(s, [&](std::size_t o, std::size_t i, std::size_t k) {
        y[o] += 0.5 * static_cast<double>(x[i]) * static_cast<double>(w[k]);
        dx[i] += 2.0 * static_cast<double>(dy[o]) * static_cast<double>(w[k]);
        dw[k] += 3.0 * static_cast<double>(dy[o]) * static_cast<double>(x[i]);
    });
    for (std::size_t o = 0; with_bias && o < dy.size(); ++o) {
        const std::size_t channel = o / count(s.out_length) % count(s.out_channels);
        y[o] += 0.5 * static_cast<double>(bias[channel]);
        db[channel] += 4.0 * static_cast<double>(dy[o]);
    }
    CHECK(largest_error(r.y, y) < tolerance);
    CHECK(largest_error(r.dx, dx) < tolerance);
    CHECK(largest_error(r.dw, dw) < tolerance);
    CHECK(largest_error(r.db, db) < tolerance);
}

}  // namespace

TEST_CASE("conv1d kernels agree with the definition", "[kernels]") {
    for (const Conv1dShape& shape : {full_shape, point_shape}) {
        check_against_definition<double>(shape, 1e-13);
        check_against_definition<float>(shape, 2e-6);
        check_against_definition<Half>(shape, 6e-4);
        check_against_definition<BFloat16>(shape, 4e-3, false);
    }
    // An unfolded item has 72 numbers for each output: a third of what level 2 holds, so that parts have three items.
    const std::ptrdiff_t length = products::block_sizes().right / (3 * 72);
    const Conv1dShape large{
        .batch = 7, .in_channels = 12, .length = length, .out_channels = 2, .out_length = length, .taps = 6, .left = 5};
    CHECK(items_at_once(Execution{}, large) == 3);
    check_against_definition<double>(large, 1e-10);
    // Padding longer than the kernel's reach, so that some outputs see no element of x. A kernel that reaches past both
    // ends.
    check_against_definition<double>(
        {.batch = 1, .in_channels = 1, .length = 2, .out_channels = 1, .out_length = 12, .taps = 2, .left = 6}, 1e-14);
    check_against_definition<double>(
        {.batch = 1, .in_channels = 2, .length = 1, .out_channels = 2, .out_length = 1, .taps = 5, .left = 2}, 1e-14);
    check_against_definition<double>(
        {.batch = 1, .in_channels = 1, .length = 4, .out_channels = 1, .out_length = 2, .taps = 1, .stride = 3}, 1e-14);
}

TEST_CASE("conv1d unfolds patches with zeros outside, and folding is the transpose", "[kernels]") {
    const Conv1dShape s{
        .batch = 1, .in_channels = 1, .length = 4, .out_channels = 1, .out_length = 4, .taps = 3, .left = 1};
    const std::vector<double> x{1, 2, 3, 4};
    std::vector<double> columns(12, 9.0), folded(4, 9.0);
    unfold_group(Execution{}, s, 0, x.data(), columns.data());
    CHECK(columns == std::vector<double>{0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 0});
    fold_group(Execution{}, s, 0, columns.data(), folded.data());
    CHECK(folded == std::vector<double>{2, 6, 9, 8});
}

TEST_CASE("conv1d rounds an element that stands in several patches to one number, in all products", "[kernels]") {
    const auto x = normal_data<float>(88, 1), w = normal_data<float>(36, 2), dy = normal_data<float>(72, 3);
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        const Quantiser coarse{.format = e5m2, .rounding = rounding};
        const auto rounded = [&](std::vector<float> data, RandomKey key) {
            quantise(e5m2, std::span<const float>(data), std::span<float>(data), coarse.options(key));
            return data;
        };
        const Results<float> own = run<float>(full_shape, x, w, {}, dy, coarse);
        const Results<float> before =
            run<float>(full_shape, rounded(x, {1, 1}), rounded(w, {1, 2}), {}, rounded(dy, {1, 3}));
        CHECK(largest_error(own.y, doubles(before.y)) < 1e-6);
        CHECK(largest_error(own.dx, doubles(before.dx)) < 1e-6);
        CHECK(largest_error(own.dw, doubles(before.dw)) < 1e-6);
        CHECK(largest_error(own.y, doubles(run<float>(full_shape, x, w, {}, dy).y)) > 1e-3);
    }
    const Quantiser no_nan{.format = e2m1};
    std::vector<float> bad(x);
    bad[5] = std::nanf("");
    REQUIRE_THROWS_WITH(run<float>(full_shape, bad, w, {}, dy, no_nan),
                        "conv1d: x: e2m1 has no NaN: element [0,5] is NaN");
}

TEST_CASE("conv1d gives the same bits for any thread count", "[kernels]") {
    const Conv1dShape s{.batch = 5,
                        .in_channels = 32,
                        .length = 300,
                        .out_channels = 64,
                        .out_length = 150,
                        .taps = 7,
                        .stride = 2,
                        .left = 6,
                        .groups = 2};
    const auto x = normal_data<float>(5 * 32 * 300, 1), w = normal_data<float>(64 * 16 * 7, 2),
               bias = normal_data<float>(64, 3), dy = normal_data<float>(5 * 64 * 150, 4);
    CHECK(threads_agree([&](const Execution& execution) {
        Results<float> r = run<float>(s, x, w, bias, dy, {}, execution);
        for (const auto* part : {&r.dx, &r.dw, &r.db}) r.y.insert(r.y.end(), part->begin(), part->end());
        return r.y;
    }));
}

TEST_CASE("conv1d of an empty batch leaves zero gradients of the weight and the bias", "[kernels]") {
    const Conv1dShape s{.batch = 0, .in_channels = 2, .length = 4, .out_channels = 3, .out_length = 4};
    const Results<double> r = run<double>(s, {}, normal_data<double>(6, 1), {1, 2, 3}, {});
    CHECK(r.dw == std::vector<double>(6));
    CHECK(r.db == std::vector<double>(3));
}
