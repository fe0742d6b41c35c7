// SPDX-License-Identifier: MIT
#include <unitscale/kernels/broadcast.hpp>

#include "kernels/kernel_checks.hpp"

#include <cstdint>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

struct Case {
    Shape u, v, w;
};
const std::vector<Case> cases{{{2, 3, 4}, {2, 3, 4}, {2, 3, 4}},
                              {{2, 3, 4}, {4}, {3, 1}},
                              {{2, 1, 5}, {3, 1}, {}},
                              {{1}, {70, 3}, {70, 1}},
                              {{2, 70}, {1, 70}, {2, 1}},
                              {{200}, {1}, {200}},
                              {{}, {}, {}},
                              {{0, 3}, {3}, {1}},
                              {{3, 1, 2, 1, 4}, {1, 5, 1, 3, 1}, {2, 3, 4}}};

}  // namespace

TEST_CASE("a function of three broadcast arrays and its sum over copies agree with plain loops", "[kernels]") {
    for (const Case& c : cases) {
        const Shape shape = broadcast_shape("test", broadcast_shape("test", c.u, c.v), c.w);
        const auto u = normal_data<double>(element_count(c.u), 1), v = normal_data<double>(element_count(c.v), 2),
                   w = normal_data<double>(element_count(c.w), 3);
        std::vector<double> y(element_count(shape)), du(u.size(), 99.0), dv(v.size(), 99.0);
        Doubles expected(y.size()), sum_u(u.size()), sum_v(v.size());
        const auto f = [](double a, double b, double d) { return a * b - 2.0 * d; };
        for (std::size_t i = 0; i < y.size(); ++i) {
            expected[i] = f(u[broadcast_index(i, shape, c.u)], v[broadcast_index(i, shape, c.v)],
                            w[broadcast_index(i, shape, c.w)]);
            sum_u[broadcast_index(i, shape, c.u)] += expected[i];
            sum_v[broadcast_index(i, shape, c.v)] += expected[i];
        }
        const BroadcastInput a{u.data(), c.u}, b{v.data(), c.v}, d{w.data(), c.w};
        INFO(to_string(c.u) << to_string(c.v) << to_string(c.w));
        broadcast_map(Execution{}, shape, y.data(), f, a, b, d);
        CHECK(largest_error(y, expected) < 1e-14);
        broadcast_map_sum(Execution{}, shape, du.data(), c.u, f, a, b, d);
        CHECK(largest_error(du, sum_u) < 1e-12);
        broadcast_map_sum(Execution{}, shape, dv.data(), c.v, f, a, b, d);
        CHECK(largest_error(dv, sum_v) < 1e-12);
    }
}

TEST_CASE("inputs of other types are widened, sums of half are formed in float", "[kernels]") {
    const std::vector<std::uint8_t> mask{1, 0, 1};
    const std::vector<double> x{1.5, 2.5, 3.5};
    std::vector<double> y(3);
    const Shape shape{3}, one{1};
    broadcast_map(
        Execution{}, shape, y.data(), [](float m, double v) { return m > 0.0f ? v : 0.0; },
        BroadcastInput{mask.data(), shape}, BroadcastInput{x.data(), shape});
    CHECK(y == std::vector<double>{1.5, 0.0, 3.5});
    const std::vector<Half> ones(5000, Half(1.0f));
    const Shape many{5000};
    Half total(0.0f);
    broadcast_map_sum(
        Execution{}, many, &total, one, [](float v) { return v; }, BroadcastInput{ones.data(), many});
    CHECK(static_cast<float>(total) == 5000.0f);
}

TEST_CASE("broadcast functions give the same bits for any thread count and may work in place", "[kernels]") {
    const auto u = normal_data<float>(300 * 200, 6), v = normal_data<float>(300, 7);
    const Shape full{100, 3, 200}, part{100, 3, 1};
    const auto product = [](float a, float b) { return a * b; };
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out = u;
        broadcast_map(execution, full, out.data(), product, BroadcastInput{out.data(), full},
                      BroadcastInput{v.data(), part});
        out.resize(u.size() + v.size());
        broadcast_map_sum(execution, full, out.data() + u.size(), part, product, BroadcastInput{u.data(), full},
                          BroadcastInput{v.data(), part});
        return out;
    }));
}
