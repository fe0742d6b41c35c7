// SPDX-License-Identifier: MIT
#include <unitscale/optim/stored_update.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/allocation_count.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;
using namespace unitscale::optim;

namespace {

constexpr std::size_t length = 2500;  // two full chunks and a part of one

/// Momentum and a decaying sum of squares, as in an optimiser.
const auto body = [](auto* value, const auto* gradient, auto* first, auto* second) {
    using A = std::remove_pointer_t<decltype(value)>;
    for (std::size_t l = 0; l < static_cast<std::size_t>(kernels::block_size); ++l) {
        first[l] = A(0.5) * first[l] + gradient[l];
        second[l] = A(0.75) * second[l] + gradient[l] * gradient[l];
        value[l] -= A(0.125) * first[l];
    }
};

template <class T>
Tensor<T> gradient_of(int t, std::size_t size = length) {
    return normal<T>(Shape{size}, {9, static_cast<std::uint64_t>(t)}, t % 2 == 0 ? 100.0 : 0.5);
}

/// A parameter's tensors, updated `steps` times.
template <class T>
struct Run {
    Tensor<T> weights;
    StoredTensor<Accum<T>> master{}, first{}, second{};
    bool has_master;

    Run(const std::optional<StateFormat>& master_how, const StateFormat& first_how, const StateFormat& second_how,
        std::size_t size = length)
        : weights(normal<T>(Shape{size}, {1, 1})),
          first(Shape{size}, first_how),
          second(Shape{size}, second_how, true),
          has_master(master_how.has_value()) {
        if (has_master) master = StoredTensor<Accum<T>>(Shape{size}, *master_how);
    }
    void update(const Tensor<T>& gradient, const Execution& execution = {}, std::uint64_t stream = 0) {
        update_stored<T>(execution,
                         {.weights = weights.data(),
                          .gradient = gradient.data(),
                          .size = weights.size(),
                          .master = has_master ? &master : nullptr,
                          .first = &first,
                          .second = &second,
                          .key = {5, stream}},
                         body);
    }
};

template <class A>
std::vector<double> values(const StoredTensor<A>& tensor) {
    std::vector<double> all;
    for (std::ptrdiff_t begin = 0; begin < static_cast<std::ptrdiff_t>(tensor.size()); begin += tensor.chunk) {
        typename StoredTensor<A>::Chunk chunk{};
        const std::ptrdiff_t count = std::min(tensor.chunk, static_cast<std::ptrdiff_t>(tensor.size()) - begin);
        tensor.load(begin, count, chunk);
        all.insert(all.end(), chunk.begin(), chunk.begin() + count);
    }
    return all;
}

/// The stored value of x, in double: the format's nearest number times the scale for the largest value.
std::vector<double> rounded(const std::vector<double>& x, const FloatFormat& format) {
    double largest = 0.0;
    for (const double value : x) largest = std::max(largest, std::abs(value));
    const double scale = std::exp2(-std::floor(std::log2(static_cast<double>(format.max()) / largest)));
    std::vector<double> result;
    for (const double value : x)
        result.push_back(scale * static_cast<double>(decode(format, encode(format, value / scale))));
    return result;
}

}  // namespace

TEST_CASE("stored update: state in double precision follows the formulas, rounded to the scale of the new values") {
    for (const FloatFormat& format : {fp16, bf16, e4m3, e5m2}) {
        INFO(name(format));
        Run<double> run({}, {.format = format}, {.format = format});
        std::vector<double> p(run.weights.span().begin(), run.weights.span().end()), m(length, 0.0), v(length, 0.0);
        // Gradients of 0.5 and 100 in turn: the scale of the step before would overflow, or lose most values.
        for (int t = 1; t <= 6; ++t) {
            const Tensor<double> gradient = gradient_of<double>(t);
            run.update(gradient);
            for (std::size_t i = 0; i < length; ++i) {
                const double g = gradient.data()[i];
                m[i] = 0.5 * m[i] + g;
                v[i] = 0.75 * v[i] + g * g;
                p[i] -= 0.125 * m[i];
            }
            m = rounded(m, format);
            v = rounded(v, format);
            double worst = 0.0;
            for (std::size_t i = 0; i < length; ++i) worst = std::max(worst, std::abs(run.weights.data()[i] - p[i]));
            CHECK(worst < 1e-11);
            CHECK(values(run.first) == m);
            const std::vector<double> second = values(run.second);
            for (std::size_t i = 0; i < length; ++i) REQUIRE((second[i] == v[i] || (v[i] == 0.0 && second[i] > 0.0)));
            v = second;
        }
    }
}

TEST_CASE("stored update: 16-bit weights are the rounding of a float master") {
    const auto check_type = [](auto element) {
        using T = decltype(element);
        Run<T> coded(StateFormat{}, {}, {});
        Run<float> in_float({}, {}, {});
        for (std::size_t i = 0; i < length; ++i)
            in_float.weights.data()[i] = static_cast<float>(coded.weights.data()[i]);
        for (int t = 1; t <= 20; ++t) {
            const Tensor<T> gradient = gradient_of<T>(t);
            coded.update(gradient);
            in_float.update(cast<float>(gradient));
        }
        const std::vector<double> master = values(coded.master);
        bool fine = false;
        for (std::size_t i = 0; i < length; ++i) {
            REQUIRE(master[i] == static_cast<double>(in_float.weights.data()[i]));
            REQUIRE(coded.weights.data()[i] == T(in_float.weights.data()[i]));
            fine = fine || master[i] != static_cast<double>(static_cast<float>(coded.weights.data()[i]));
        }
        CHECK(fine);  // the master keeps digits that the weights lose
    };
    check_type(Half{});
    check_type(BFloat16{});
}

TEST_CASE("stored update: a master keeps changes that 16-bit weights alone would lose") {
    const auto moved = [](const std::optional<StateFormat>& master) {
        Run<Half> run(master, {}, {}, 1);
        run.weights.data()[0] = Half(1.0f);
        Tensor<Half> gradient(Shape{1}, {Half(0.0005f)});  // a step of 1.25e-4, a quarter of a unit of Half below 1
        for (std::uint64_t t = 0; t < 40; ++t) run.update(gradient, {}, t);
        return 1.0 - static_cast<double>(static_cast<float>(run.weights.data()[0]));
    };
    CHECK(moved({}) == 0.0);
    CHECK(moved(StateFormat{}) == Approx(40 * 1.25e-4).epsilon(0.1));
    CHECK(moved(StateFormat{.format = fp16}) == 0.0);
    CHECK(moved(StateFormat{.format = fp16, .rounding = Rounding::stochastic}) > 0.0);
}

TEST_CASE("stored update: a weight that somebody else wrote is the master from then on") {
    Run<Half> run(StateFormat{}, {}, {}, 3);
    const Tensor<Half> nothing(Shape{3}, {Half(0.0f), Half(0.0f), Half(0.0f)});
    Tensor<Half> some(Shape{3}, {Half(0.001f), Half(0.001f), Half(0.001f)});
    run.update(some);
    const double before = values(run.master)[0];
    run.first = StoredTensor<float>(Shape{3}, {});
    run.weights.data()[1] = Half(7.0f);
    run.update(nothing);
    CHECK(values(run.master)[0] == before);
    CHECK(values(run.master)[1] == 7.0);
    CHECK(run.weights.data()[1] == Half(7.0f));
}

TEST_CASE("stored update: weights are rounded from the stored master") {
    Run<float> run(StateFormat{.format = e4m3, .block = 128}, {}, {});
    for (int t = 1; t <= 5; ++t) run.update(gradient_of<float>(t));
    const std::vector<double> master = values(run.master);
    for (std::size_t i = 0; i < length; ++i) REQUIRE(static_cast<double>(run.weights.data()[i]) == master[i]);
}

TEST_CASE("stored update: the same bits for any thread count") {
    constexpr std::size_t size = 100003;
    const auto run_with = [](int threads) {
        Run<Half> run(StateFormat{.format = fp16}, {.format = e4m3, .block = 128, .rounding = Rounding::stochastic},
                      {.format = fp16}, size);
        for (int t = 1; t <= 3; ++t)
            run.update(gradient_of<Half>(t, size), {threads, nullptr}, static_cast<std::uint64_t>(t));
        std::vector<double> all = values(run.master);
        for (const StoredTensor<float>* state : {&run.first, &run.second}) {
            const std::vector<double> more = values(*state);
            all.insert(all.end(), more.begin(), more.end());
        }
        for (const Half x : run.weights.span()) all.push_back(static_cast<double>(static_cast<float>(x)));
        return all;
    };
    const std::vector<double> one = run_with(1);
    CHECK(run_with(2) == one);
    CHECK(run_with(3) == one);
}

TEST_CASE("stored update: an update after the first allocates nothing") {
    MemoryPool pool;
    Run<Half> run(StateFormat{.format = bf16}, {.format = e4m3, .block = 128}, {.format = fp16});
    const Tensor<Half> gradient = gradient_of<Half>(1);
    run.update(gradient, {1, &pool});
    test::AllocationCount count;
    run.update(gradient, {1, &pool});
    const std::size_t counted = count.stop();
    if (test::can_count_allocations()) CHECK(counted == 0);
}

TEST_CASE("stored update: an update begins with the master's values, and with weights that were written since") {
    const Tensor<float> exact = normal<float>(Shape{20}, {3, 1});
    Tensor<BFloat16> weights = cast<BFloat16>(exact);
    StoredTensor<float> master(Shape{20}, {});
    master.assign(exact.span());
    weights.data()[7] = BFloat16(5.0f);
    StoredTensor<float>::Chunk values{}, scratch{};
    load_exact_weights<BFloat16>(weights.data(), &master, 4, 16, values, scratch);
    for (std::size_t i = 0; i < 16; ++i) CHECK(values[i] == (i == 3 ? 5.0f : exact.data()[4 + i]));
    load_exact_weights<BFloat16>(weights.data(), nullptr, 4, 16, values, scratch);
    for (std::size_t i = 0; i < 16; ++i) CHECK(values[i] == static_cast<float>(weights.data()[4 + i]));
}
