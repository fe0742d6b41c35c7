// SPDX-License-Identifier: MIT
#include <unitscale/kernels/norms.hpp>

#include "kernels/kernel_checks.hpp"

#include <limits>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

constexpr double epsilon = 1e-5;

/// y = w (x - mean) / sqrt(variance + epsilon) + c, or without the mean.
Doubles reference(const Doubles& x, const Doubles& w, const Doubles& c, std::size_t n, bool centred) {
    Doubles y(x.size());
    for (std::size_t row = 0; row < x.size() / n; ++row) {
        double mean = 0.0, square = 0.0;
        for (std::size_t j = 0; j < n; ++j) mean += x[row * n + j] / static_cast<double>(n);
        if (!centred) mean = 0.0;
        for (std::size_t j = 0; j < n; ++j) square += std::pow(x[row * n + j] - mean, 2) / static_cast<double>(n);
        for (std::size_t j = 0; j < n; ++j)
            y[row * n + j] = (x[row * n + j] - mean) / std::sqrt(square + epsilon) * (w.empty() ? 1.0 : w[j]) +
                             (c.empty() ? 0.0 : c[j]);
    }
    return y;
}

template <class T>
const T* pointer(const std::vector<T>& data) {
    return data.empty() ? nullptr : data.data();
}

/// Largest errors of layer and rms norm, with the given parameters, against the reference in double.
template <class T>
double worst_error(std::size_t rows, std::size_t n, const std::vector<T>& w, const std::vector<T>& c) {
    const Execution execution;
    const auto x = normal_data<T>(rows * n, 1, 3.0);
    std::vector<T> y(x.size());
    std::vector<Accum<T>> mean(rows), inverse(rows);
    const auto r = static_cast<std::ptrdiff_t>(rows), size = static_cast<std::ptrdiff_t>(n);
    layer_norm_forward(execution, x.data(), pointer(w), pointer(c), y.data(), mean.data(), inverse.data(), r, size,
                       epsilon);
    double worst = largest_error(y, reference(doubles(x), doubles(w), doubles(c), n, true));
    rms_norm_forward(execution, x.data(), pointer(w), y.data(), inverse.data(), r, size, epsilon);
    return std::max(worst, largest_error(y, reference(doubles(x), doubles(w), {}, n, false)));
}

}  // namespace

TEST_CASE("layer and rms norm agree with a plain reference, with and without parameters", "[kernels]") {
    for (const std::size_t n : {1u, 5u, 64u, 200u}) {
        const auto w = normal_data<double>(n, 2), c = normal_data<double>(n, 3);
        CHECK(worst_error<double>(7, n, {}, {}) < 1e-12);
        CHECK(worst_error<double>(7, n, w, {}) < 1e-12);
        CHECK(worst_error<double>(7, n, {}, c) < 1e-12);
        CHECK(worst_error<double>(7, n, w, c) < 1e-12);
        CHECK(worst_error<float>(7, n, normal_data<float>(n, 2), normal_data<float>(n, 3)) < 2e-6);
    }
    CHECK(worst_error<Half>(7, 100, normal_data<Half>(100, 2), normal_data<Half>(100, 3)) < 1e-3);
    CHECK(worst_error<BFloat16>(7, 100, normal_data<BFloat16>(100, 2), {}) < 8e-3);
    CHECK(worst_error<double>(0, 5, {}, {}) == 0.0);
}

TEST_CASE("norms save the row statistics and keep small variances above epsilon", "[kernels]") {
    const std::vector<double> x{1.0, 3.0, 1e-4, -1e-4};
    std::vector<double> y(4), mean(2), inverse(2);
    layer_norm_forward<double>(Execution{}, x.data(), nullptr, nullptr, y.data(), mean.data(), inverse.data(), 2, 2,
                               epsilon);
    CHECK(mean[0] == Approx(2.0));
    CHECK(mean[1] == Approx(0.0).margin(1e-20));
    CHECK(inverse[0] == Approx(1.0 / std::sqrt(1.0 + 1e-5)).epsilon(1e-14));
    CHECK(inverse[1] == Approx(1.0 / std::sqrt(1e-8 + 1e-5)).epsilon(1e-14));
    rms_norm_forward<double>(Execution{}, x.data(), nullptr, y.data(), inverse.data(), 2, 2, epsilon);
    CHECK(inverse[0] == Approx(1.0 / std::sqrt(5.0 + 1e-5)).epsilon(1e-14));
}

TEMPLATE_TEST_CASE("norms of a row with squares out of range equal norms of the row times a power of two", "[kernels]",
                   float, double) {
    const std::size_t rows = 3, n = 70;
    const double tolerance = std::is_same_v<TestType, float> ? 2e-6 : 1e-14;
    const auto x = normal_data<TestType>(rows * n, 1), w = normal_data<TestType>(n, 2),
               dy = normal_data<TestType>(rows * n, 3);
    const auto r = static_cast<std::ptrdiff_t>(rows), size = static_cast<std::ptrdiff_t>(n);
    // y, then dx times 2^exponent, for rows times 2^exponent.
    const auto run = [&](int exponent, bool centred) {
        auto scaled = x, out = x;
        for (TestType& v : scaled) v = std::ldexp(v, exponent);
        std::vector<TestType> mean(rows), inverse(rows), dx(x.size());
        const NormGradients<TestType> to{.dx = dx.data()};
        if (centred) {
            layer_norm_forward(Execution{}, scaled.data(), w.data(), w.data(), out.data(), mean.data(), inverse.data(),
                               r, size, 0.0);
            layer_norm_backward(Execution{}, scaled.data(), w.data(), dy.data(), mean.data(), inverse.data(), to, r,
                                size);
        } else {
            rms_norm_forward(Execution{}, scaled.data(), w.data(), out.data(), inverse.data(), r, size, 0.0);
            rms_norm_backward(Execution{}, scaled.data(), w.data(), dy.data(), inverse.data(), to, r, size);
        }
        for (const TestType v : dx) out.push_back(std::ldexp(v, exponent));
        return out;
    };
    const int top = std::numeric_limits<TestType>::max_exponent;
    for (const bool centred : {true, false})
        for (const int exponent : {top - 4, top - 9, top / 2, -top / 2, 10 - top}) {
            INFO("2^" << exponent << (centred ? ", centred" : ""));
            CHECK(largest_error(run(exponent, centred), doubles(run(0, centred))) < tolerance);
        }
}

TEST_CASE("an infinity or a NaN makes its row NaN, not 0, and changes no other row", "[kernels]") {
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {infinity, -infinity, std::nanf("")})
        for (const bool centred : {true, false}) {
            const std::vector<float> x{1.0f, 2.0f, 3.0f, 4.0f, bad, 6.0f, 7.0f, 8.0f, 9.0f};
            std::vector<float> y(9), mean(3), inverse(3);
            if (centred)
                layer_norm_forward<float>(Execution{}, x.data(), nullptr, nullptr, y.data(), mean.data(),
                                          inverse.data(), 3, 3);
            else rms_norm_forward<float>(Execution{}, x.data(), nullptr, y.data(), inverse.data(), 3, 3);
            for (std::size_t i = 0; i < 9; ++i) CHECK(std::isnan(y[i]) == (i / 3 == 1));
            CHECK(std::isnan(inverse[1]));
        }
}

TEST_CASE("backward of the norms is the gradient, times each factor", "[kernels]") {
    const std::size_t rows = 4, n = 19;
    const auto x = normal_data<double>(rows * n, 4), dy = normal_data<double>(rows * n, 5);
    const auto w = normal_data<double>(n, 6), c = normal_data<double>(n, 7);
    std::vector<double> y(x.size()), mean(rows), inverse(rows), dx(x.size()), dw(n), dc(n);
    const auto r = static_cast<std::ptrdiff_t>(rows), size = static_cast<std::ptrdiff_t>(n);
    const auto times = [](Doubles values, double factor) {
        for (double& value : values) value *= factor;
        return values;
    };
    for (const bool centred : {true, false})
        for (const bool gains : {true, false}) {
            const Doubles weights = gains ? w : Doubles{}, shifts = centred && gains ? c : Doubles{};
            const NormGradients<double> to{dx.data(), dw.data(), centred ? dc.data() : nullptr, 2.0, 0.5, 3.0};
            if (centred) {
                layer_norm_forward(Execution{}, x.data(), pointer(weights), pointer(shifts), y.data(), mean.data(),
                                   inverse.data(), r, size, epsilon);
                layer_norm_backward(Execution{}, x.data(), pointer(weights), dy.data(), mean.data(), inverse.data(), to,
                                    r, size);
            } else {
                rms_norm_forward(Execution{}, x.data(), pointer(weights), y.data(), inverse.data(), r, size, epsilon);
                rms_norm_backward(Execution{}, x.data(), pointer(weights), dy.data(), inverse.data(), to, r, size);
            }
            const auto loss_x = [&](const Doubles& v) { return dot(reference(v, weights, shifts, n, centred), dy); };
            CHECK(largest_error(dx, times(numeric_gradient(loss_x, x), 2.0)) < 1e-7);
            const auto loss_w = [&](const Doubles& v) { return dot(reference(x, v, shifts, n, centred), dy); };
            CHECK(largest_error(dw, times(numeric_gradient(loss_w, gains ? w : Doubles(n, 1.0)), 0.5)) < 1e-8);
            if (!centred) continue;
            const auto loss_c = [&](const Doubles& v) { return dot(reference(x, weights, v, n, centred), dy); };
            CHECK(largest_error(dc, times(numeric_gradient(loss_c, c), 3.0)) < 1e-8);
        }
}

TEST_CASE("norm gradients in float and half are near those in double and may be left out", "[kernels]") {
    const std::size_t rows = 300, n = 70;
    const auto run = [&]<class T>(T) {
        const auto x = normal_data<T>(rows * n, 4), dy = normal_data<T>(rows * n, 5), w = normal_data<T>(n, 6);
        std::vector<T> y(x.size()), result(x.size() + 2 * n);
        std::vector<Accum<T>> mean(rows), inverse(rows);
        layer_norm_forward<T>(Execution{}, x.data(), w.data(), nullptr, y.data(), mean.data(), inverse.data(), rows, n);
        const auto with = [&](T* dx, T* dw, T* dc) {
            layer_norm_backward<T>(Execution{}, x.data(), w.data(), dy.data(), mean.data(), inverse.data(),
                                   {dx, dw, dc, 1, 1, 1}, rows, n);
        };
        with(result.data(), result.data() + rows * n, result.data() + rows * n + n);
        std::vector<T> apart(result.size());
        with(apart.data(), nullptr, nullptr);
        with(nullptr, apart.data() + rows * n, nullptr);
        with(nullptr, nullptr, apart.data() + rows * n + n);
        CHECK(same_bits(result, apart));
        return result;
    };
    const auto half = run(Half(0));
    const auto close = [&](const auto& a, const auto& b) { return largest_error(a, doubles(b)); };
    CHECK(close(run(0.0f), run(0.0)) < 1e-5);
    CHECK(close(half, run(0.0)) < 2e-2);  // the inputs are rounded too, and dw sums 300 rows
}

TEST_CASE("norms give the same bits for any thread count", "[kernels]") {
    const std::size_t rows = 1000, n = 200;
    const auto x = normal_data<float>(rows * n, 1), dy = normal_data<float>(rows * n, 2), w = normal_data<float>(n, 3);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> all(3 * rows * n + 2 * n), mean(rows), inverse(rows);
        float* const dx = all.data() + rows * n;
        layer_norm_forward(execution, x.data(), w.data(), w.data(), all.data(), mean.data(), inverse.data(), rows, n);
        layer_norm_backward<float>(execution, x.data(), w.data(), dy.data(), mean.data(), inverse.data(),
                                   {dx, dx + rows * n, dx + rows * n + n, 1, 1, 1}, rows, n);
        auto in_place = dy;
        layer_norm_backward<float>(execution, x.data(), w.data(), in_place.data(), mean.data(), inverse.data(),
                                   {in_place.data(), nullptr, nullptr, 1, 1, 1}, rows, n);
        CHECK(std::memcmp(in_place.data(), dx, rows * n * sizeof(float)) == 0);
        return all;
    }));
}
