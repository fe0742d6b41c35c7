// SPDX-License-Identifier: MIT
#include <unitscale/analysis/statistics.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;
using analysis::tensor_statistics;
using analysis::TensorStatistics;

namespace {

/// Every statistic from its definition, one value at a time.
template <class T>
TensorStatistics reference(const Tensor<T>& tensor, const std::optional<FloatFormat>& format) {
    TensorStatistics s;
    s.count = s.sampled = tensor.size();
    double sum = 0.0, squares = 0.0, noise = 0.0;
    std::size_t finite = 0;
    s.smallest = std::numeric_limits<double>::infinity();
    for (const T& element : tensor.span()) {
        const double x = static_cast<double>(element) * tensor.scale();
        if (std::isnan(x)) ++s.nans;
        else if (std::isinf(x)) ++s.infinities;
        else {
            ++finite;
            sum += x;
            squares += x * x;
            s.largest = std::max(s.largest, std::abs(x));
            if (x == 0.0) {
                ++s.zeros;
                continue;
            }
            s.smallest = std::min(s.smallest, std::abs(x));
            ++s.exponents.at(std::ilogb(x));
            if (!format) continue;
            const double rounded = quantise(*format, x);
            // The rounded value in a format with one more exponent and no upper bound.
            FloatFormat wide{format->exponent_bits + 1, format->mantissa_bits, format->bias, Specials::none};
            s.underflow += rounded == 0.0 ? 1U : 0U;
            s.overflow += std::abs(quantise(wide, x)) > static_cast<double>(format->max()) ? 1U : 0U;
            noise += (rounded - x) * (rounded - x);
        }
    }
    if (s.largest == 0.0) s.smallest = 0.0;
    s.mean = sum / static_cast<double>(finite);
    s.rms = std::sqrt(squares / static_cast<double>(finite));
    double spread = 0.0;
    for (const T& element : tensor.span()) {
        const double x = static_cast<double>(element) * tensor.scale();
        if (std::isfinite(x)) spread += (x - s.mean) * (x - s.mean);
    }
    s.std = std::sqrt(spread / static_cast<double>(finite));
    s.noise = format && squares > 0.0 ? std::sqrt(noise / squares) : 0.0;
    return s;
}

void check_equal(const TensorStatistics& got, const TensorStatistics& want) {
    CHECK(got.count == want.count);
    CHECK(got.sampled == want.sampled);
    CHECK(got.zeros == want.zeros);
    CHECK(got.nans == want.nans);
    CHECK(got.infinities == want.infinities);
    CHECK(got.smallest == want.smallest);
    CHECK(got.largest == want.largest);
    CHECK(got.underflow == want.underflow);
    CHECK(got.overflow == want.overflow);
    CHECK(got.exponents.counts == want.exponents.counts);
    CHECK(got.mean == Approx(want.mean).epsilon(1e-12).margin(1e-14 * want.rms));
    CHECK(got.std == Approx(want.std).epsilon(1e-12));
    CHECK(got.rms == Approx(want.rms).epsilon(1e-12));
    CHECK(got.noise == Approx(want.noise).epsilon(1e-12));
}

std::vector<Isa> instruction_sets() {
    std::vector<Isa> sets;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (isa <= active_isa()) sets.push_back(isa);
    return sets;
}

/// Sizes that end inside a vector, a block and a part.
constexpr std::size_t sizes[] = {1, 15, 2048, 2049, 70'001};

}  // namespace

TEST_CASE("statistics: normal values, every instruction set and format, against the definitions") {
    for (const Isa isa : instruction_sets())
        for (const std::size_t size : sizes)
            for (const FloatFormat& format : {e4m3, e5m2, fp16, bf16, e2m1, e5m2fnuz}) {
                Tensor<float> x({size});
                fill_normal(x, {1, size}, 0.01);
                if (size > 100)
                    for (std::size_t i = 0; i < size; i += 37) x.data()[i] *= i % 2 == 0 ? 1e-4F : 1e5F;
                INFO(name(isa) << ", " << size << " elements, " << name(format));
                check_equal(tensor_statistics(isa, x, {.format = format}), reference(x, format));
            }
}

TEST_CASE("statistics: without a finite element, moments and extremes are NaN") {
    for (const float filler : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        Tensor<float> x = full<float>({3000}, filler);
        const TensorStatistics none = tensor_statistics(x, {.format = e4m3, .sample = 8});
        CHECK(none.count == 3000);
        CHECK(none.non_finite() == 3000);
        for (const double number : {none.mean, none.std, none.rms, none.smallest, none.largest})
            CHECK(std::isnan(number));
        CHECK(none.overflow == 0);
        x.data()[7] = -2.0f;
        const TensorStatistics one = tensor_statistics(x);
        CHECK(one.rms == 2.0);
        CHECK(one.largest == 2.0);
    }
    CHECK(tensor_statistics(Tensor<float>({0})).rms == 0.0);
}

TEST_CASE("statistics: zeros of both signs, subnormal numbers, infinities and NaN") {
    const float inf = std::numeric_limits<float>::infinity();
    for (const Isa isa : instruction_sets())
        for (const std::size_t size : {std::size_t{5000}, std::size_t{4096}}) {
            Tensor<float> x({size});
            fill_normal(x, {2, size});
            for (std::size_t i = 0; i < size; i += 3) x.data()[i] = i % 2 == 0 ? 0.0F : -0.0F;
            check_equal(tensor_statistics(isa, x, {.format = e4m3}), reference(x, e4m3));
            for (std::size_t i = 1; i < size; i += 97) x.data()[i] = 0x1p-149F * static_cast<float>(i);
            check_equal(tensor_statistics(isa, x, {.format = fp32}), reference(x, fp32));
            x.data()[7] = inf, x.data()[3000] = -inf, x.data()[11] = std::nanf(""), x.data()[13] = 3e38F;
            const TensorStatistics s = tensor_statistics(isa, x, {.format = e4m3});
            check_equal(s, reference(x, e4m3));
            CHECK(s.infinities == 2);
            CHECK(s.nans == 1);
            check_equal(tensor_statistics(isa, x, {.format = e2m1}), reference(x, e2m1));  // a format without NaN
        }
}

TEST_CASE("statistics: at the ends of every format's range, ties included") {
    for (const auto& [known, format] : named_formats) {
        if (!format.is_signed()) continue;
        INFO(known);
        const double smallest = static_cast<double>(format.min_subnormal()),
                     largest = static_cast<double>(format.max());
        const double step = std::ldexp(1.0, format.max_exponent() - format.mantissa_bits);
        Tensor<double> ends({8});
        std::size_t i = 0;
        for (const double x :
             {smallest / 2, std::nextafter(smallest / 2, 1.0), smallest, largest, largest + step / 2,
              std::nextafter(largest + step / 2, 0.0), std::nextafter(largest + step / 2, 1e300), largest + step})
            ends.data()[i++] = x;
        const TensorStatistics s = tensor_statistics(ends, {.format = format});
        CHECK(s.underflow == 1);
        CHECK(s.overflow == (format.max_code() % 2 == 0 ? 2U : 3U));
        if (format == fp32) continue;
        Tensor<float> floats({6});
        i = 0;
        const auto middle = static_cast<float>(largest + step / 2);
        for (const float x :
             {format.min_subnormal() / 2, std::nextafter(format.min_subnormal() / 2, 1.0F), format.max(),
              std::nextafter(middle, 0.0F), middle, std::nextafter(middle, std::numeric_limits<float>::infinity())})
            floats.data()[i++] = x;
        for (const Isa isa : instruction_sets()) {
            const TensorStatistics f = tensor_statistics(isa, floats, {.format = format});
            CHECK(f.underflow == 1);
            CHECK(f.overflow == (format.max_code() % 2 == 0 ? 1U : 2U));
        }
    }
}

TEST_CASE("statistics: the scale counts, in every element type") {
    const auto check_type = []<class T>(T, double scale) {
        Tensor<T> x({3000});
        fill_normal(x, {3, 1}, 0.5);
        x.data()[5] = T(0);
        x.set_scale(scale);
        INFO("scale " << scale);
        check_equal(tensor_statistics(x, {.format = fp16}), reference(x, fp16));
    };
    for (const double scale : {1.0, 0x1p-20, 3.0, -2.0, 0x1p90, 0x1p-140}) {
        check_type(float(), scale);
        check_type(double(), scale);
        check_type(Half(), scale);
        check_type(BFloat16(), scale);
    }
    Tensor<float> tiny({3}, {0x1.8p-70F, 0x1.000002p-70F, 1.0F});
    tiny.set_scale(0x1p-75);  // becomes subnormal in float: must not be rounded
    check_equal(tensor_statistics(tiny, {.format = fp32}), reference(tiny, fp32));
    Tensor<double> far({3}, {1e-300, 1e300, 1.0});
    const TensorStatistics s = tensor_statistics(far);
    CHECK(s.exponents.at(-149) == 1);
    CHECK(s.exponents.at(127) == 1);
    CHECK(s.smallest == 1e-300);
}

TEST_CASE("statistics: bits do not depend on the number of threads; a sample changes noise and histogram only") {
    Tensor<float> x({1'000'003});
    fill_normal(x, {4, 1});
    x.data()[999'999] = 1e9F;  // in a block that the sample leaves out
    const TensorStatistics one = tensor_statistics(x, {.format = e4m3});
    for (const int threads : {2, 3, 8}) {
        const TensorStatistics many = tensor_statistics(x, {.format = e4m3, .threads = threads});
        CHECK(many.mean == one.mean);
        CHECK(many.std == one.std);
        CHECK(many.noise == one.noise);
        CHECK(many.exponents.counts == one.exponents.counts);
    }
    const TensorStatistics some = tensor_statistics(x, {.format = e4m3, .sample = 5});
    CHECK(some.rms == Approx(one.rms).epsilon(1e-7));
    CHECK(some.std == Approx(one.std).epsilon(1e-7));
    CHECK(some.largest == 1e9);
    CHECK(some.underflow == one.underflow);
    CHECK(some.overflow == one.overflow);
    CHECK(some.zeros == one.zeros);
    CHECK(some.sampled == 98 * 2048);
    CHECK(some.exponents.total() == some.sampled);
    CHECK(one.noise == Approx(1.0));  // saturation loses the whole norm
    CHECK(some.noise == Approx(1.0 / std::sqrt(1419.0)).epsilon(0.02));
}

TEST_CASE("statistics: quick sums hold where squares leave float's range and where the spread is far below the mean") {
    for (const double scale : {1e-30, 1e-13, 1.0, 1e15, 1e25}) {
        Tensor<float> x({50'000});
        fill_normal(x, {5, 1}, scale);
        x.data()[20'000] = 0.0F;
        for (const Isa isa : instruction_sets()) {
            const TensorStatistics exact = tensor_statistics(isa, x), quick = tensor_statistics(isa, x, {.sample = 7});
            CHECK(quick.rms == Approx(exact.rms).epsilon(1e-7));
            CHECK(quick.std == Approx(exact.std).epsilon(1e-7));
            CHECK(quick.smallest == exact.smallest);
            CHECK(quick.largest == exact.largest);
            CHECK(quick.zeros == 1);
        }
        for (float& element : x.span()) element = 1.0F + 1e-6F * element / static_cast<float>(scale);
        CHECK(tensor_statistics(x, {.sample = 7}).std == Approx(1e-6).epsilon(0.05));
    }
}

TEST_CASE("statistics: empty tensors, and invalid options") {
    const TensorStatistics s = tensor_statistics(Tensor<float>(), {.format = e4m3});
    CHECK(s.count == 0);
    CHECK(s.rms == 0.0);
    CHECK(s.share(0) == 0.0);
    CHECK(tensor_statistics(zeros<float>({4000})).zeros == 4000);
    CHECK(tensor_statistics(zeros<float>({4000})).share(1000) == 0.25);
    REQUIRE_THROWS_WITH(tensor_statistics(Tensor<float>({2}), {.format = e8m0}),
                        "tensor_statistics: e8m0 is not a format for signed numbers");
    REQUIRE_THROWS_WITH(tensor_statistics(Tensor<float>({2}), {.sample = 0}),
                        "tensor_statistics: sample is 0; expected at least 1");
}

TEST_CASE("largest magnitude: scale included; infinity and NaN show") {
    Tensor<float> x({5000});
    fill_normal(x, {6, 1});
    for (const std::size_t place : {std::size_t{0}, std::size_t{2047}, std::size_t{4999}}) {
        Tensor<float> y = x;
        y.data()[place] = -77.0F;
        CHECK(analysis::largest_magnitude(y) == 77.0);
        y.set_scale(-2.0);
        CHECK(analysis::largest_magnitude(y) == 154.0);
        y.data()[place] = -std::numeric_limits<float>::infinity();
        CHECK(std::isinf(analysis::largest_magnitude(y)));
        y.data()[place] = std::nanf("");
        CHECK(std::isnan(analysis::largest_magnitude(y)));
    }
    CHECK(analysis::largest_magnitude(Tensor<double>({2}, {1e300, -1e301})) == 1e301);
    CHECK(analysis::largest_magnitude(Tensor<Half>({2}, {Half(1.5F), Half(-2.5F)})) == 2.5);
    CHECK(analysis::largest_magnitude(Tensor<float>()) == 0.0);
}
