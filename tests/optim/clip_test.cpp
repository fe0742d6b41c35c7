// SPDX-License-Identifier: MIT
#include <unitscale/optim/clip.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/allocation_count.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::optim;

namespace {

using Parameters = std::vector<Parameter<float>*>;

double norm_of(const Parameters& parameters, int threads = 1) {
    return gradient_norm<float>({threads, nullptr}, parameters);
}
double clip(const Parameters& parameters, double max_norm, int threads = 1) {
    return clip_gradients<float>({threads, nullptr}, parameters, max_norm);
}

}  // namespace

TEST_CASE("the gradient norm is over all parameters that are trained and have a gradient") {
    Parameter<float> a("a", Shape{2}, {}), b("b", Shape{1}, {}), frozen("frozen", Shape{1}, {}),
        unused("unused", Shape{1}, {});
    a.add_gradient(Tensor<float>(Shape{2}, {3.0f, 0.0f}));
    b.add_gradient(Tensor<float>(Shape{1}, {-4.0f}));
    frozen.add_gradient(Tensor<float>(Shape{1}, {100.0f}));
    frozen.set_requires_gradient(false);
    REQUIRE(norm_of({&a, &b, &frozen, &unused}) == 5.0);
    REQUIRE(norm_of({&unused}) == 0.0);
    b.gradient().set_scale(3.0);  // the gradient's value is data * scale
    REQUIRE(norm_of({&a, &b}) == Approx(std::sqrt(9.0 + 144.0)).epsilon(1e-15));
}

TEST_CASE("clipping scales gradients above the largest norm and leaves those below") {
    Parameter<float> a("a", Shape{2}, {}), b("b", Shape{1}, {}), frozen("frozen", Shape{1}, {});
    a.add_gradient(Tensor<float>(Shape{2}, {3.0f, 0.0f}));
    b.add_gradient(Tensor<float>(Shape{1}, {-4.0f}));
    frozen.add_gradient(Tensor<float>(Shape{1}, {100.0f}));
    frozen.set_requires_gradient(false);
    REQUIRE(clip({&a, &b, &frozen}, 5.0) == 5.0);
    REQUIRE(a.gradient().data()[0] == 3.0f);
    REQUIRE(clip({&a, &b, &frozen}, 1.0) == 5.0);
    REQUIRE(a.gradient().data()[0] == Approx(0.6f));
    REQUIRE(b.gradient().data()[0] == Approx(-0.8f));
    REQUIRE(frozen.gradient().data()[0] == 100.0f);
    REQUIRE(norm_of({&a, &b}) == Approx(1.0));
}

TEST_CASE("a norm that is not finite is returned and nothing is scaled") {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        Parameter<float> a("a", Shape{2}, {});
        a.add_gradient(Tensor<float>(Shape{2}, {3.0f, bad}));
        REQUIRE_FALSE(std::isfinite(clip({&a}, 1.0)));
        REQUIRE(a.gradient().data()[0] == 3.0f);
    }
}

TEST_CASE("squares beyond the range of float do not overflow the norm") {
    Parameter<float> a("a", Shape{2}, {});
    a.add_gradient(Tensor<float>(Shape{2}, {3e30f, 4e30f}));
    REQUIRE(clip({&a}, 1.0) == Approx(5e30));
    REQUIRE(a.gradient().data()[1] == Approx(0.8f));
}

TEST_CASE("the largest norm must be positive") {
    Parameter<float> a("a", Shape{1}, {});
    REQUIRE_THROWS_WITH(clip({&a}, 0.0), "clip_gradients: max_norm is 0; expected a positive number");
    REQUIRE_THROWS_WITH(clip({&a}, -2.0), "clip_gradients: max_norm is -2; expected a positive number");
}

TEST_CASE("norm and clipped gradients have the same bits for any thread count and agree with a plain sum") {
    for (const std::size_t size : {1u, 7u, 4096u, 4097u, 100003u}) {
        double reference = 0.0;
        const Tensor<float> gradient = normal<float>(Shape{size}, {5, size});
        for (const float g : gradient.span()) reference += static_cast<double>(g) * static_cast<double>(g);
        std::vector<double> norms;
        std::vector<std::vector<float>> clipped;
        for (const int threads : {1, 2, 3}) {
            Parameter<float> a("a", Shape{size}, {});
            a.add_gradient(Tensor<float>(gradient));
            norms.push_back(clip({&a}, 0.25, threads));
            clipped.emplace_back(a.gradient().span().begin(), a.gradient().span().end());
        }
        REQUIRE(norms[0] == Approx(std::sqrt(reference)).epsilon(1e-13));
        REQUIRE(norms[1] == norms[0]);
        REQUIRE(norms[2] == norms[0]);
        REQUIRE(clipped[1] == clipped[0]);
        REQUIRE(clipped[2] == clipped[0]);
    }
}

TEST_CASE("clipping with a pool allocates nothing after the first time") {
    Parameter<float> a("a", Shape{50000}, {});
    a.add_gradient(normal<float>(Shape{50000}, {1, 2}));
    const Parameters parameters{&a};
    MemoryPool pool;
    static_cast<void>(clip_gradients<float>({1, &pool}, parameters, 1.0));
    test::AllocationCount count;
    const double norm = clip_gradients<float>({1, &pool}, parameters, 0.5);  // one thread: OpenMP itself may allocate
    const std::size_t counted = count.stop();
    REQUIRE(norm == Approx(1.0).epsilon(1e-5));
    if (test::can_count_allocations()) REQUIRE(counted == 0);
}

TEST_CASE("16-bit gradients are clipped by their scale: nothing is rounded and nothing small is lost") {
    Parameter<Half> p("p", Shape{2}, {});
    p.add_gradient(Tensor<Half>(Shape{2}, {Half(300.0f), Half(0x1p-24f)}));
    const std::vector<Parameter<Half>*> parameters{&p};
    CHECK(clip_gradients<Half>({}, parameters, 1.0) == Approx(300.0));
    CHECK(p.gradient().scale() == Approx(1.0 / 300.0));
    CHECK(p.gradient().data()[1] == Half(0x1p-24f));
    CHECK(gradient_norm<Half>({}, parameters) == Approx(1.0));
}

TEST_CASE("a gradient that is kept as codes has the norm of its numbers, and is clipped as they are") {
    constexpr std::size_t size = 10000;
    const auto give = [](Parameter<float>& p) {
        Tensor<float> gradient({size});
        for (std::size_t i = 0; i < size; ++i)
            gradient.data()[i] = decode(e5m2, encode(e5m2, random_normal({1, 3}, i)));
        gradient.set_scale(0.5);
        p.add_gradient(std::move(gradient));
    };
    Parameter<float> plain("p", Shape{size}, {}), coded("p", Shape{size}, {});
    give(plain);
    give(coded);
    coded.code_gradient(e5m2, nullptr, [&](Tensor<std::uint8_t>& codes) {
        for (std::size_t i = 0; i < size; ++i)
            codes.data()[i] = static_cast<std::uint8_t>(encode(e5m2, plain.gradient().data()[i]));
    });
    for (const int threads : {1, 2}) CHECK(norm_of({&coded}, threads) == norm_of({&plain}));
    CHECK(clip({&coded}, 1.0) == clip({&plain}, 1.0));
    REQUIRE(coded.coded_gradient() != nullptr);
    CHECK(norm_of({&coded}) == Approx(1.0).epsilon(1e-6));
    CHECK(coded.gradient_scale() == Approx(0.01).epsilon(0.05));
}
