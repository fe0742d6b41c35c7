// SPDX-License-Identifier: MIT
#include <unitscale/kernels/elementwise.hpp>

#include "kernels/kernel_checks.hpp"

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

const std::vector<std::pair<Shape, Shape>> pairs{{{2, 3, 4}, {2, 3, 4}},
                                                 {{2, 3, 4}, {4}},
                                                 {{2, 3, 4}, {3, 1}},
                                                 {{2, 3, 4}, {2, 1, 4}},
                                                 {{2, 3, 4}, {2, 1, 1}},
                                                 {{2, 3, 4}, {1}},
                                                 {{}, {2, 2}},
                                                 {{2, 1, 5}, {3, 1}},
                                                 {{1, 4}, {4, 1}},
                                                 {{}, {}},
                                                 {{3, 1, 2, 1, 4}, {1, 5, 1, 3, 1}},
                                                 {{0, 3}, {3}},
                                                 {{70, 3}, {70, 1}},
                                                 {{2, 70}, {1, 70}},
                                                 {{2, 70, 3}, {70, 1}}};

}  // namespace

TEST_CASE("scaled sums and products of arrays agree with plain loops", "[kernels]") {
    const auto run = [](auto zero, double tolerance) {
        using T = decltype(zero);
        using A = Accum<T>;
        const std::size_t size = 150;
        const auto u = normal_data<T>(size, 1), v = normal_data<T>(size, 2), w = normal_data<T>(size, 3);
        const Doubles ud = doubles(u), vd = doubles(v), wd = doubles(w);
        std::vector<T> y(size);
        Doubles expected(size);
        const auto compare = [&](auto f) {
            for (std::size_t i = 0; i < size; ++i) expected[i] = f(ud[i], vd[i], wd[i]);
            CHECK(largest_error(y, expected) < tolerance);
        };
        const auto n = size_of(u);
        kernels::scale(Execution{}, u.data(), y.data(), n, A(0.3));
        compare([](double a, double, double) { return 0.3 * a; });
        multiply(Execution{}, u.data(), v.data(), y.data(), n, A(0.3));
        compare([](double a, double b, double) { return 0.3 * a * b; });
        const std::array<const T*, 3> inputs{u.data(), v.data(), w.data()};
        const std::array<A, 3> weights{A(0.5), A(-2), A(0.25)};
        weighted_sum<T>(Execution{}, inputs, weights, y.data(), n);
        compare([](double a, double b, double c) { return 0.5 * a - 2.0 * b + 0.25 * c; });
        y = v;
        add_scaled(Execution{}, u.data(), A(0.3), y.data(), A(-1.5), y.data(), n);
        compare([](double a, double b, double) { return 0.3 * a - 1.5 * b; });
    };
    run(0.0, 1e-14);
    run(0.0f, 3e-7);
    run(Half(0), 6e-4);
    run(BFloat16(0), 5e-3);
}

TEST_CASE("broadcast add and the sum that is its backward agree with plain loops for every pattern", "[kernels]") {
    for (const auto& [first, second] : pairs)
        for (const bool swapped : {false, true}) {
            const Shape u_shape = swapped ? second : first, v_shape = swapped ? first : second;
            const Shape shape = broadcast_shape("add", u_shape, v_shape);
            const auto u = normal_data<double>(element_count(u_shape), 1),
                       v = normal_data<double>(element_count(v_shape), 2);
            std::vector<double> y(element_count(shape)), expected(y.size());
            for (std::size_t i = 0; i < y.size(); ++i)
                expected[i] = 2.0 * u[broadcast_index(i, shape, u_shape)] - 0.5 * v[broadcast_index(i, shape, v_shape)];
            broadcast_add(Execution{}, u.data(), u_shape, 2.0, v.data(), v_shape, -0.5, y.data());
            INFO(to_string(u_shape) << " + " << to_string(v_shape));
            CHECK(largest_error(y, expected) < 1e-14);

            const auto dy = normal_data<double>(y.size(), 3);
            std::vector<double> du(u.size(), 99.0), sums(u.size());
            for (std::size_t i = 0; i < dy.size(); ++i) sums[broadcast_index(i, shape, u_shape)] += 3.0 * dy[i];
            sum_to_shape(Execution{}, dy.data(), shape, du.data(), u_shape, 3.0);
            CHECK(largest_error(du, sums) < 1e-13);
        }
    std::vector<Half> dy(5000, Half(1.0f));
    Half total(0.0f);
    sum_to_shape(Execution{}, dy.data(), Shape{5000}, &total, Shape{}, 1.0f);
    CHECK(static_cast<float>(total) == 5000.0f);
}

TEST_CASE("the square norm is summed in double", "[kernels]") {
    const auto x = normal_data<float>(40000, 5);
    double expected = 0.0;
    for (const float v : x) expected += static_cast<double>(v) * static_cast<double>(v);
    CHECK(square_norm(Execution{}, x.data(), 40000) == Approx(expected).epsilon(1e-13));
    const std::vector<float> large{3e30f, 4e30f};
    CHECK(square_norm(Execution{}, large.data(), 2) == Approx(25e60).epsilon(1e-6));
    CHECK(square_norm<float>(Execution{}, nullptr, 0) == 0.0);
}

TEST_CASE("element-wise kernels give the same bits for any thread count", "[kernels]") {
    const auto u = normal_data<float>(300 * 200, 6), v = normal_data<float>(300, 7);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(u.size() + 301);
        broadcast_add(execution, u.data(), Shape{100, 3, 200}, 1.0f, v.data(), Shape{100, 3, 1}, 1.0f, out.data());
        sum_to_shape(execution, u.data(), Shape{100, 3, 200}, out.data() + u.size(), Shape{100, 3, 1}, 1.0f);
        out.back() = static_cast<float>(square_norm(execution, u.data(), size_of(u)));
        return out;
    }));
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(3);
        sum_to_shape(execution, u.data(), Shape{100, 3, 200}, out.data(), Shape{3, 1}, 1.0f);
        return out;
    }));
}
