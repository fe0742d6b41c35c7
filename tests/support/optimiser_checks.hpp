// SPDX-License-Identifier: MIT
#pragma once

#include "support/allocation_count.hpp"
#include "support/any_state.hpp"
#include "support/catch.hpp"

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/scaling/storage.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/rescale.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace unitscale::test {

/// The gradient of step t, small in every third step. Its numbers are equal for all element types, up to rounding.
template <class T>
Tensor<T> gradient_of(int t, std::size_t size) {
    return normal<T>(Shape{size}, {9, static_cast<std::uint64_t>(t)}, t % 3 == 0 ? 1e-3 : 2.0);
}

/// Makes steps `from` to `to` of the optimiser's only parameter, each with its gradient_of.
template <class Optimiser, class T>
void take_steps(Optimiser& optimiser, Parameter<T>& parameter, int from, int to, int threads = 1) {
    for (int t = from; t <= to; ++t) {
        parameter.clear_gradient();
        parameter.add_gradient(gradient_of<T>(t, parameter.size()));
        optimiser.step({threads, nullptr}, 0.02);
    }
}

/// Requires that two parameters have equal scales and data, bit for bit.
template <class T>
void require_equal(const Parameter<T>& a, const Parameter<T>& b) {
    REQUIRE(a.value().scale() == b.value().scale());
    REQUIRE(a.size() == b.size());
    REQUIRE(std::memcmp(a.value().data(), b.value().data(), a.value().span().size_bytes()) == 0);
}

/// Storage of master, first and second moment as codes, each of another kind.
inline Storage coded_storage() {
    return {.master = StateFormat{.format = bf16, .rounding = Rounding::stochastic},
            .first_moment = {.format = e4m3, .block = 128, .rounding = Rounding::stochastic},
            .second_moment = {.format = fp16}};
}

/// Checks that updates have equal bits for 1, 2 and 3 threads.
template <template <class> class Optimiser, class Options>
void check_thread_counts(const Options& options) {
    Parameter<float> one("p", Shape{200003}, {});
    fill_normal(one.write(), {1, 1});
    const Tensor<float> start = one.value();
    Optimiser<float> first({&one}, options);
    take_steps(first, one, 1, 3);
    for (const int threads : {2, 3}) {
        INFO(threads << " threads");
        Parameter<float> other("p", Shape{200003}, {});
        other.write() = start;
        Optimiser<float> next({&other}, options);
        take_steps(next, other, 1, 3, threads);
        require_equal(one, other);
    }
}

/// Gives state and value to another optimiser after three steps, with another number of threads.
/// Checks that the run continues bit for bit. Returns the state after the three steps.
template <template <class> class Optimiser, class T, class Options>
AnyState check_resumes(const Options& options, std::size_t size) {
    Parameter<T> p("p", Shape{size}, {}), q("p", Shape{size}, {});
    fill_normal(p.write(), {1, 1});
    Optimiser<T> whole({&p}, options), resumed({&q}, options);
    take_steps(whole, p, 1, 3);
    AnyState state;
    whole.visit_state(state);
    q.write() = p.value();
    state.write = true;
    resumed.visit_state(state);
    take_steps(whole, p, 4, 6);
    take_steps(resumed, q, 4, 6, 2);
    require_equal(p, q);
    return state;
}

/// Checks that a step after the first allocates nothing outside the execution's pool.
template <template <class> class Optimiser, class T, class Options>
void check_no_allocation(const Options& options) {
    MemoryPool pool;
    Parameter<T> p("p", Shape{40000}, {}), q("a parameter with a long name", Shape{3}, {});
    p.add_gradient(gradient_of<T>(1, 40000));
    q.add_gradient(gradient_of<T>(1, 3));
    Optimiser<T> optimiser({&p, &q}, options);
    optimiser.step({1, &pool}, 0.1);
    AllocationCount count;
    optimiser.step({1, &pool}, 0.1);  // one thread: OpenMP itself may allocate in every parallel region
    const std::size_t counted = count.stop();
    CHECK(p.version() == 2);
    if (can_count_allocations()) CHECK(counted == 0);
}

/// Checks ten updates of a value and gradients with scales: they equal the updates of the plain numbers.
/// The value's scale stays.
template <template <class> class Optimiser, class Options>
void check_scaled_updates(const Options& options, std::size_t length) {
    for (const auto& [value_scale, gradient_scale] : {std::pair{0x1p-6, 0x1p-20}, {0x1p9, 0x1p3}, {0.75, 1.5}}) {
        INFO("scales " << value_scale << " and " << gradient_scale);
        Parameter<double> plain("p", Shape{length}, {}), scaled("p", Shape{length}, {});
        fill_normal(plain.write(), {1, 1});
        scaled.write() = set_scaling(plain.value(), value_scale);
        Optimiser<double> one({&plain}, options), other({&scaled}, options);
        for (int t = 1; t <= 10; ++t) {
            plain.add_gradient(gradient_of<double>(t, length));
            scaled.add_gradient(set_scaling(gradient_of<double>(t, length), gradient_scale));
            one.step({}, 0.05);
            other.step({}, 0.05);
            one.clear_gradients();
            other.clear_gradients();
        }
        REQUIRE(scaled.value().scale() == value_scale);
        const Tensor<double> result = value(scaled.value());
        double worst = 0.0;
        for (std::size_t i = 0; i < length; ++i)
            worst = std::max(worst, std::abs(result.data()[i] - plain.value().data()[i]));
        CHECK(worst < 1e-13);
    }
}

/// Checks that gradients that are kept as codes give the bits of their numbers, and stay codes.
template <template <class> class Optimiser, class T, class Options>
void check_coded_gradients(const Options& options) {
    constexpr std::size_t size = 3001;
    Parameter<T> plain("p", Shape{size}, {}), coded("p", Shape{size}, {});
    fill_normal(plain.write(), {1, 1});
    coded.write() = plain.value();
    Optimiser<T> one({&plain}, options), other({&coded}, options);
    for (int t = 1; t <= 5; ++t) {
        Tensor<T> gradient = gradient_of<T>(t, size);
        for (T& x : gradient.span()) x = static_cast<T>(decode(e5m2, encode(e5m2, static_cast<Accum<T>>(x))));
        gradient.set_scale(0.5);
        for (Parameter<T>* parameter : {&plain, &coded}) {
            parameter->clear_gradient();
            parameter->add_gradient(Tensor<T>(gradient));
        }
        coded.code_gradient(e5m2, nullptr, [&](Tensor<std::uint8_t>& codes) {
            for (std::size_t i = 0; i < size; ++i)
                codes.data()[i] = static_cast<std::uint8_t>(encode(e5m2, static_cast<Accum<T>>(gradient.data()[i])));
        });
        one.step({}, 0.02);
        other.step({2, nullptr}, 0.02);
        REQUIRE(coded.coded_gradient() != nullptr);
        require_equal(plain, coded);
    }
}

}  // namespace unitscale::test
