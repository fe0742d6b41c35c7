// SPDX-License-Identifier: MIT
#include <unitscale/kernels/softmax.hpp>

#include "kernels/kernel_checks.hpp"

#include <limits>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

Doubles reference_softmax(const Doubles& x, std::size_t n, double m) {
    Doubles y(x.size());
    for (std::size_t row = 0; row < x.size(); row += n) {
        double largest = -1e300, total = 0.0;
        for (std::size_t j = 0; j < n; ++j) largest = std::max(largest, m * x[row + j]);
        for (std::size_t j = 0; j < n; ++j) total += y[row + j] = std::exp(m * x[row + j] - largest);
        for (std::size_t j = 0; j < n; ++j) y[row + j] /= total;
    }
    return y;
}

Doubles mapped(Doubles values, const std::function<double(double)>& f) {
    for (double& value : values) value = f(value);
    return values;
}

double reference_loss(const Doubles& x, const std::vector<std::int32_t>& labels, std::size_t n, double m,
                      std::int32_t ignored) {
    const Doubles p = reference_softmax(x, n, m);
    double loss = 0.0;
    for (std::size_t row = 0; row < labels.size(); ++row)
        if (labels[row] != ignored) loss -= std::log(p[row * n + static_cast<std::size_t>(labels[row])]);
    return loss;
}

constexpr std::int32_t ignored = -100;

std::vector<std::int32_t> some_labels(std::size_t rows, std::size_t n) {
    std::vector<std::int32_t> labels(rows);
    for (std::size_t row = 0; row < rows; ++row)
        labels[row] = row % 4 == 2 ? ignored : static_cast<std::int32_t>(row * 7 % n);
    return labels;
}

}  // namespace

TEST_CASE("softmax and log softmax agree with a plain reference", "[kernels]") {
    const auto run = [](auto zero, std::size_t n, double m, double floor) {
        using T = decltype(zero);
        using A = Accum<T>;
        const std::ptrdiff_t rows = 6, size = static_cast<std::ptrdiff_t>(n);
        const auto x = normal_data<T>(6 * n, 1, 3.0);
        std::vector<T> y(x.size());
        softmax_forward(Execution{}, x.data(), y.data(), rows, size, static_cast<A>(m), A(5));
        const Doubles p = reference_softmax(doubles(x), n, m);
        const double first = largest_error(y, mapped(p, [](double v) { return 5.0 * v; }), floor);
        log_softmax_forward(Execution{}, x.data(), y.data(), rows, size, static_cast<A>(m), A(0.5));
        return std::max(first, largest_error(y, mapped(p, [](double v) { return 0.5 * std::log(v); })));
    };
    for (const std::size_t n : {1u, 2u, 65u, 300u}) {
        CHECK(run(0.0, n, 1.5, 1e-6) < 1e-12);
        CHECK(run(0.0f, n, 1.5, 1e-6) < 3e-6);
    }
    CHECK(run(Half(0), 65, 1.0, 1e-2) < 1e-3);
    CHECK(run(BFloat16(0), 65, 1.0, 1e-2) < 8e-3);
}

TEST_CASE("softmax stays finite for huge logits and gives 0 for minus infinity", "[kernels]") {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> x{1e30f, -infinity, 1e30f, -1e30f};
    std::vector<float> y(4);
    softmax_forward(Execution{}, x.data(), y.data(), 1, 4, 1.0f, 1.0f);
    CHECK(y == std::vector<float>{0.5f, 0.0f, 0.5f, 0.0f});
    const std::vector<std::int32_t> label{2};
    float log_sum = 0.0f;
    CHECK(softmax_cross_entropy_forward(Execution{}, x.data(), label.data(), &log_sum, 1, 4, 1.0f, -1) ==
          Approx(std::log(2.0)));
    const std::vector<float> bad{1.0f, std::nanf(""), 0.0f};
    CHECK(std::isnan(softmax_cross_entropy_forward(Execution{}, bad.data(), label.data(), &log_sum, 1, 3, 1.0f, -1)));
}

TEST_CASE("backward of softmax and log softmax is the gradient, times beta", "[kernels]") {
    const std::size_t n = 9;
    const auto x = normal_data<double>(3 * n, 2), dy = normal_data<double>(3 * n, 3);
    std::vector<double> y(x.size()), dx(x.size());
    const double m = 0.7, alpha = 9.0;
    const auto numeric = [&](auto f) {
        return numeric_gradient(
            [&](const Doubles& v) {
                std::vector<double> out(v.size());
                f(v, out);
                return dot(out, dy);
            },
            x);
    };
    const auto soft = [&](const Doubles& v, Doubles& out) {
        softmax_forward(Execution{}, v.data(), out.data(), 3, 9, m, alpha);
    };
    soft(x, y);
    softmax_backward(Execution{}, y.data(), dy.data(), dx.data(), 3, 9, m, alpha, 2.0 * alpha);
    CHECK(largest_error(dx, mapped(numeric(soft), [](double v) { return 2.0 * v; })) < 1e-8);
    const auto logarithm = [&](const Doubles& v, Doubles& out) {
        log_softmax_forward(Execution{}, v.data(), out.data(), 3, 9, m, alpha);
    };
    logarithm(x, y);
    log_softmax_backward(Execution{}, y.data(), dy.data(), dx.data(), 3, 9, m, alpha, 2.0 * alpha);
    CHECK(largest_error(dx, mapped(numeric(logarithm), [](double v) { return 2.0 * v; })) < 1e-7);
}

TEST_CASE("cross-entropy sums the counted rows, saves the log sums, and its backward is the gradient", "[kernels]") {
    const std::size_t rows = 10, n = 13;
    const double m = 1.4;
    const auto labels = some_labels(rows, n);
    const auto x = normal_data<double>(rows * n, 4, 2.0);
    std::vector<double> log_sums(rows), dx(x.size(), 77.0);
    const double loss =
        softmax_cross_entropy_forward(Execution{}, x.data(), labels.data(), log_sums.data(), rows, n, m, ignored);
    CHECK(loss == Approx(reference_loss(x, labels, n, m, ignored)).epsilon(1e-13));
    double total = 0.0;
    for (std::size_t j = 0; j < n; ++j) total += std::exp(m * x[n + j]);
    CHECK(log_sums[1] == Approx(std::log(total)));
    CHECK(log_sums[2] == 0.0);
    softmax_cross_entropy_backward(Execution{}, x.data(), labels.data(), log_sums.data(), dx.data(), rows, n, m,
                                   3.0 * m, ignored);
    const auto numeric =
        numeric_gradient([&](const Doubles& v) { return 3.0 * reference_loss(v, labels, n, m, ignored); }, x);
    CHECK(largest_error(dx, numeric) < 1e-8);
    for (std::size_t j = 0; j < n; ++j) CHECK(dx[2 * n + j] == 0.0);

    const auto narrow_run = [&](auto zero, double tolerance) {
        using T = decltype(zero);
        const auto data = normal_data<T>(rows * n, 4, 2.0);
        std::vector<float> sums(rows);
        std::vector<T> gradient(data.size());
        const float value =
            softmax_cross_entropy_forward(Execution{}, data.data(), labels.data(), sums.data(), rows, n, 1.0f, ignored);
        CHECK(value == Approx(reference_loss(doubles(data), labels, n, 1.0, ignored)).epsilon(1e-6));
        softmax_cross_entropy_backward(Execution{}, data.data(), labels.data(), sums.data(), gradient.data(), rows, n,
                                       1.0f, 1.0f, ignored);
        Doubles expected = reference_softmax(doubles(data), n, 1.0);
        for (std::size_t i = 0; i < expected.size(); ++i) {
            if (labels[i / n] == static_cast<std::int32_t>(i % n)) expected[i] -= 1.0;
            if (labels[i / n] == ignored) expected[i] = 0.0;
        }
        CHECK(largest_error(gradient, expected) < tolerance);
    };
    narrow_run(0.0f, 1e-6);
    narrow_run(Half(0), 1e-3);
    narrow_run(BFloat16(0), 4e-3);
}

TEST_CASE("softmax kernels give the same bits for any thread count, in place too", "[kernels]") {
    const std::size_t rows = 1500, n = 65;
    const auto x = normal_data<float>(rows * n, 5);
    const auto labels = some_labels(rows, n);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(3 * x.size() + rows + 1);
        float *const y = out.data(), *const dx = y + x.size(), *const logits = dx + x.size(),
                     *const sums = logits + x.size();
        softmax_forward(execution, x.data(), y, rows, n, 1.0f, 1.0f);
        softmax_backward(execution, y, x.data(), dx, rows, n, 1.0f, 1.0f, 1.0f);
        std::copy(x.begin(), x.end(), logits);
        out.back() = softmax_cross_entropy_forward(execution, logits, labels.data(), sums, rows, n, 1.0f, ignored);
        softmax_cross_entropy_backward(execution, logits, labels.data(), sums, logits, rows, n, 1.0f, 1.0f, ignored);
        std::vector<float> apart(x.size());
        softmax_cross_entropy_backward(execution, x.data(), labels.data(), sums, apart.data(), rows, n, 1.0f, 1.0f,
                                       ignored);
        CHECK(std::memcmp(apart.data(), logits, apart.size() * sizeof(float)) == 0);
        return out;
    }));
    CHECK(softmax_cross_entropy_forward<float>(Execution{}, nullptr, nullptr, nullptr, 0, 5, 1.0f, -1) == 0.0f);
}
