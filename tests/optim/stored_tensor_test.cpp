// SPDX-License-Identifier: MIT
#include <unitscale/optim/stored_tensor.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using optim::StoredTensor;

namespace {

constexpr std::size_t length = 2500;  // two chunks and a part of one; nineteen blocks of 128 and a part of one

/// Numbers with magnitudes over a range of about 2^20.
template <class A>
std::vector<A> spread_values(std::size_t size = length) {
    std::vector<A> values(size);
    for (std::size_t i = 0; i < size; ++i)
        values[i] = static_cast<A>(random_normal({3, 1}, i) *
                                   std::exp2(-20.0 * static_cast<double>(uniform(random_word({3, 2}, i)))));
    return values;
}

template <class A>
void store(StoredTensor<A>& tensor, const std::vector<A>& values, RandomKey key = {}) {
    const auto size = static_cast<std::ptrdiff_t>(values.size());
    if (tensor.scaled_as_whole()) tensor.expect(optim::largest_of(values.data(), size));
    for (std::ptrdiff_t begin = 0; begin < size; begin += tensor.chunk) {
        typename StoredTensor<A>::Chunk chunk{};
        const std::ptrdiff_t count = std::min(tensor.chunk, size - begin);
        std::copy_n(values.begin() + begin, count, chunk.begin());
        tensor.store(begin, count, chunk, key);
    }
    tensor.finish();
}

template <class A>
std::vector<A> load(const StoredTensor<A>& tensor) {
    std::vector<A> values(tensor.size());
    for (std::ptrdiff_t begin = 0; begin < static_cast<std::ptrdiff_t>(values.size()); begin += tensor.chunk) {
        typename StoredTensor<A>::Chunk chunk{};
        const std::ptrdiff_t count = std::min(tensor.chunk, static_cast<std::ptrdiff_t>(values.size()) - begin);
        tensor.load(begin, count, chunk);
        std::copy_n(chunk.begin(), count, values.begin() + begin);
    }
    return values;
}

/// The stored values, computed in double, one number after the other.
template <class A>
std::vector<double> reference(const std::vector<A>& values, const StateFormat& how) {
    std::vector<double> result(values.size());
    const std::size_t step = how.block == 0 ? values.size() : how.block;
    for (std::size_t begin = 0; begin < values.size(); begin += step) {
        const std::size_t end = std::min(begin + step, values.size());
        double largest = 0.0;
        for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(static_cast<double>(values[i])));
        const double scale = !how.scaled || largest == 0.0
                                 ? 1.0
                                 : std::exp2(-std::floor(std::log2(static_cast<double>(how.format->max()) / largest)));
        for (std::size_t i = begin; i < end; ++i)
            result[i] = scale * static_cast<double>(
                                    decode(*how.format, encode(*how.format, static_cast<double>(values[i]) / scale)));
    }
    return result;
}

template <class A>
std::vector<double> widened(const std::vector<A>& values) {
    return {values.begin(), values.end()};
}

double relative_error(const std::vector<float>& stored, const std::vector<float>& values) {
    double error = 0.0, size = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        error += std::pow(static_cast<double>(stored[i]) - static_cast<double>(values[i]), 2) /
                 std::pow(static_cast<double>(values[i]), 2);
        size += 1.0;
    }
    return std::sqrt(error / size);
}

const std::vector<FloatFormat> formats = {fp16, bf16, e5m2, e4m3, e4m3fnuz, e3m4, make_format({6, 5, 31})};

}  // namespace

TEST_CASE("stored tensor: values are rounded once to the format, times the scale of their largest") {
    for (const FloatFormat& format : formats)
        for (const std::size_t block : {0u, 16u, 128u, 1024u})
            for (const bool scaled : {true, false}) {
                if (!scaled && block != 0) continue;
                INFO(name(format) << ", block " << block << ", scaled " << scaled);
                const StateFormat how{.format = format, .scaled = scaled, .block = block};
                StoredTensor<float> narrow(Shape{length}, how);
                store(narrow, spread_values<float>());
                CHECK(widened(load(narrow)) == reference(spread_values<float>(), how));
                StoredTensor<double> in_double(Shape{length}, how);
                store(in_double, spread_values<double>());
                CHECK(widened(load(in_double)) == reference(spread_values<double>(), how));
            }
}

TEST_CASE(
    "stored tensor: the error is within the format's unit roundoff, or half its smallest number times the scale") {
    const std::vector<float> values = spread_values<float>();
    for (const FloatFormat& format : formats)
        for (const std::size_t block : {0u, 128u}) {
            INFO(name(format) << ", block " << block);
            StoredTensor<float> tensor(Shape{length}, {.format = format, .block = block});
            store(tensor, values);
            const std::vector<float> kept = load(tensor);
            const std::size_t step = block == 0 ? length : block;
            const double roundoff = std::exp2(-format.precision());
            for (std::size_t i = 0; i < length; ++i) {
                const std::size_t begin = i / step * step;
                const auto largest = static_cast<double>(optim::largest_of(
                    values.data() + begin, static_cast<std::ptrdiff_t>(std::min(step, length - begin))));
                const double top = static_cast<double>(format.max());
                const double smallest = static_cast<double>(format.min_subnormal()) * (2.0 * largest / top);
                const double x = static_cast<double>(values[i]);
                REQUIRE(std::abs(static_cast<double>(kept[i]) - x) <= std::max(roundoff * std::abs(x), 0.5 * smallest));
            }
        }
}

TEST_CASE("stored tensor: the largest magnitude takes the top of the format, at any size") {
    for (const FloatFormat& format : formats)
        for (const float size : {1e-30f, 0.01f, 1.0f, 448.0f, 449.0f, 65504.0f, 65505.0f, 1e30f}) {
            INFO(name(format) << ", " << size);
            StoredTensor<float> tensor(Shape{3}, {.format = format});
            store(tensor, {size, -0.5f * size, 0.0f});
            const std::vector<float> kept = load(tensor);
            const double roundoff = std::exp2(-format.precision());
            CHECK(std::abs(static_cast<double>(kept[0] / size) - 1.0) <= roundoff);
            CHECK(std::abs(static_cast<double>(kept[1] / size) + 0.5) <= roundoff);
            CHECK(kept[2] == 0.0f);
        }
    StoredTensor<float> unscaled(Shape{2}, {.format = e4m3, .scaled = false});
    store(unscaled, {1000.0f, -1000.0f});
    CHECK(load(unscaled) == std::vector<float>{448.0f, -448.0f});
}

TEST_CASE("stored tensor: if blocks differ in size, scales per block keep values that a single scale loses") {
    std::vector<float> values(length);
    for (std::size_t i = 0; i < length; ++i)
        values[i] =
            static_cast<float>((1.0 + random_normal({1, 1}, i) * 0.1) * std::exp2(-2.0 * static_cast<double>(i / 128)));
    StoredTensor<float> whole(Shape{length}, {.format = e4m3}), blocks(Shape{length}, {.format = e4m3, .block = 128});
    store(whole, values);
    store(blocks, values);
    CHECK(relative_error(load(blocks), values) < 0.04);
    CHECK(relative_error(load(whole), values) > 0.5);
}

TEST_CASE("stored tensor: an option keeps positive numbers positive") {
    const std::vector<float> values = {1.0f, 1e-30f, 0.0f, -1e-30f, -0.0f};
    for (const FloatFormat& format : formats)
        for (const bool scaled : {true, false}) {
            INFO(name(format) << ", scaled " << scaled);
            StoredTensor<float> kept(Shape{5}, {.format = format, .scaled = scaled}, true);
            store(kept, values);
            const std::vector<float> result = load(kept);
            CHECK(result[0] == 1.0f);
            CHECK(result[1] > 0.0f);
            CHECK(result[2] == 0.0f);
            CHECK(result[3] <= 0.0f);
            CHECK(result[4] == 0.0f);
            if (format.exponent_bits == 8) continue;  // bf16 can represent 1e-30
            const float scale = scaled ? std::exp2(-std::floor(std::log2(format.max()))) : 1.0f;
            CHECK(result[1] == format.min_subnormal() * scale);
            StoredTensor<float> lost(Shape{5}, {.format = format, .scaled = scaled});
            store(lost, values);
            CHECK(load(lost)[1] == 0.0f);
        }
}

TEST_CASE("stored tensor: doubles are rounded once, not by way of float") {
    const double above_the_tie = 1.0625 + 0x1p-40;  // the tie of e4m3 between 1 and 1.125
    StoredTensor<double> tensor(Shape{1}, {.format = e4m3, .scaled = false});
    store(tensor, {above_the_tie});
    CHECK(load(tensor)[0] == 1.125);
}

TEST_CASE("stored tensor: stochastic rounding has the right mean, and the same bits for the same key") {
    const StateFormat how{.format = e4m3, .block = 1024, .rounding = Rounding::stochastic};
    std::vector<float> values(length, 1.03f);
    values[0] = values[1024] = values[2048] = 1.75f;
    StoredTensor<float> tensor(Shape{length}, how), again(Shape{length}, how), other(Shape{length}, how);
    store(tensor, values, {1, 2});
    store(again, values, {1, 2});
    store(other, values, {1, 3});
    double sum = 0.0;
    for (const float x : load(tensor)) {
        CHECK((x == 1.0f || x == 1.125f || x == 1.75f));
        sum += static_cast<double>(x);
    }
    const double mean = (sum - 3 * 1.75) / static_cast<double>(length - 3);
    CHECK(std::abs(mean - 1.03) < 5.0 * 0.0535 / std::sqrt(static_cast<double>(length)));
    CHECK(load(tensor) == load(again));
    CHECK(load(tensor) != load(other));
}

TEST_CASE("stored tensor: zeros at first, and numbers that are not finite do not spoil the scale") {
    StoredTensor<float> tensor(Shape{3}, {.format = fp16}, true);
    CHECK(load(tensor) == std::vector<float>{0.0f, 0.0f, 0.0f});
    const float nan = std::numeric_limits<float>::quiet_NaN();
    store(tensor, {nan, 1.5f, -2.0f});
    CHECK(std::isnan(load(tensor)[0]));
    CHECK(load(tensor)[1] == 1.5f);
    CHECK(load(tensor)[2] == -2.0f);
    store(tensor, {0.0f, 0.0f, 0.0f});
    CHECK(load(tensor) == std::vector<float>{0.0f, 0.0f, 0.0f});
    CHECK(StoredTensor<float>().empty());
}

TEST_CASE("stored tensor: values kept as computed are the tensor itself") {
    StoredTensor<float> tensor(Shape{length}, {});
    CHECK(tensor.is_computed());
    CHECK_FALSE(tensor.scaled_as_whole());
    store(tensor, spread_values<float>());
    CHECK(load(tensor) == spread_values<float>());
    CHECK(tensor.computed().data()[7] == spread_values<float>()[7]);
}

TEST_CASE("stored tensor: all values at once, as chunk by chunk; its own values go back in unchanged") {
    const std::vector<float> values = spread_values<float>();
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::toward_zero, Rounding::stochastic})
        for (StateFormat how :
             {StateFormat{}, StateFormat{.format = fp16}, StateFormat{.format = bf16, .scaled = false},
              StateFormat{.format = e4m3}, StateFormat{.format = e5m2, .block = 128},
              StateFormat{.format = e4m3fnuz, .block = 16}}) {
            how.rounding = rounding;
            INFO((how.format ? name(*how.format) : "computed") << " in blocks of " << how.block);
            StoredTensor<float> parts(Shape{50, 50}, how, true), whole(Shape{50, 50}, how, true);
            store(parts, values, {1, 2});
            whole.assign(values, {1, 2});
            const Tensor<float> all = whole.values();
            CHECK(all.shape() == Shape{50, 50});
            CHECK(load(parts) == std::vector<float>(all.span().begin(), all.span().end()));
            StoredTensor<float> again(Shape{50, 50}, how, true);
            again.assign(all.span(), {3, 4});  // other random words round exact numbers to themselves
            CHECK(load(again) == load(whole));
        }
    StoredTensor<float> small(Shape{3}, {.format = e4m3});
    CHECK_THROWS_WITH(small.assign(values), "StoredTensor: 2500 values for 3");
}

namespace {
struct Types {
    std::vector<std::string>& seen;
    void tensor(const std::string& name, Tensor<float>& t) { seen.push_back(name + " float " + to_string(t.shape())); }
    template <CodeWord Code>
    void codes(const std::string& name, const FloatFormat& format, Tensor<Code>& t) {
        seen.push_back(name + " " + unitscale::name(format) + " in " + std::to_string(8 * sizeof(Code)) + " bits " +
                       to_string(t.shape()));
    }
};
struct FloatsOnly {
    void tensor(const std::string&, Tensor<float>&) {}
};
struct Whole {
    StoredTensor<float>* seen = nullptr;
    void stored(const std::string& name, StoredTensor<float>& tensor) {
        if (name == "m") seen = &tensor;
    }
    void tensor(const std::string&, Tensor<float>&) { seen = nullptr; }
};
}  // namespace

TEST_CASE("stored tensor: names codes and scales to a visitor in their own types") {
    std::vector<std::string> seen;
    const auto visit = [&](const StateFormat& how) {
        StoredTensor<float>(Shape{20, 10}, how).visit_state(Types{seen}, "m");
    };
    visit({});
    visit({.format = fp16});
    visit({.format = bf16});
    visit({.format = e4m3, .block = 128});
    visit({.format = e5m2});
    visit({.format = e4m3fnuz});
    visit({.format = make_format({6, 5, 31})});
    CHECK(seen == std::vector<std::string>{"m float [20,10]", "m fp16 in 16 bits [20,10]", "m bf16 in 16 bits [20,10]",
                                           "m.scale float [2]", "m e4m3 in 8 bits [20,10]", "m e5m2 in 8 bits [20,10]",
                                           "m e4m3fnuz in 8 bits [20,10]",
                                           "m " + name(make_format({6, 5, 31})) + " in 16 bits [20,10]"});
    StoredTensor<float> codes(Shape{4}, {.format = fp16});
    CHECK_THROWS_WITH(codes.visit_state(FloatsOnly{}, "m"), "optimiser state m: this visitor takes no codes");
    Whole whole;  // a visitor of whole stored tensors gets nothing else
    codes.visit_state(whole, "m");
    CHECK(whole.seen == &codes);
}

TEST_CASE("stored tensor: lives in the pool it is given, in the bytes of its codes") {
    const auto pool = std::make_shared<MemoryPool>();
    const auto bytes = [&](const StateFormat& how) {
        const StoredTensor<float> tensor(Shape{1 << 16}, how, false, pool);
        return static_cast<double>(pool->live_bytes()) / (1 << 16);
    };
    CHECK(bytes({}) == Approx(4.0).epsilon(0.26));  // blocks of the pool are up to a quarter larger
    CHECK(bytes({.format = fp16}) == Approx(bytes({}) / 2).epsilon(0.01));
    CHECK(bytes({.format = e4m3}) == Approx(bytes({}) / 4).epsilon(0.01));
    CHECK(bytes({.format = e4m3, .block = 128}) < 1.05 * bytes({.format = e4m3}));
    CHECK(pool->live_bytes() == 0);
}

TEST_CASE("stored tensor: refuses formats that cannot hold state") {
    CHECK_THROWS_WITH(StoredTensor<float>(Shape{4}, {.format = tf32}),
                      "StoredTensor: tf32 has 19 bits; expected at most 16, or none for what is kept as computed");
}

TEST_CASE("a propagated scale follows the terms of an update, whatever the values") {
    StoredTensor<float> tensor({length}, {.format = fp16, .propagated = true});
    CHECK(tensor.is_propagated());
    CHECK_FALSE(tensor.scaled_as_whole());
    const std::vector<float> values = spread_values<float>();
    const auto next = [&](double keep, double added, bool first) {
        tensor.expect_sum(keep, added, first);
        store(tensor, values);
        return tensor.scale();
    };
    CHECK(next(0.9, 0x1p-5, true) == 0x1p-5);   // of zeros: the gradient's term alone
    CHECK(next(0.9, 0x1p-5, false) == 0x1p-5);  // (2^-12 + 2^-10)^1/2
    CHECK(next(0.9, 0x1p-9, false) == 0x1p-6);
    CHECK(next(0.9, 0x1p-9, false) == 0x1p-7);
    CHECK(next(0.0, 0x1p-9, false) == 0x1p-9);
    CHECK(next(0.9, 0x1p-300, true) == 0x1p-126);
    static_cast<void>(next(0.9, 0x1p-9, true));
    const std::vector<float> got = load(tensor);
    for (std::size_t i = 0; i < length; ++i)
        REQUIRE(got[i] == decode(fp16, encode(fp16, values[i] * 0x1p9f)) * 0x1p-9f);
    // Values that do not fit saturate.
    static_cast<void>(next(0.9, 0x1p-40, true));
    CHECK(*std::max_element(values.begin(), values.end()) > 65504.0f * 0x1p-40f);
    const std::vector<float> full = load(tensor);
    CHECK(*std::max_element(full.begin(), full.end()) == 65504.0f * 0x1p-40f);
}

TEST_CASE("a stored tensor is divided by a power of two in its scales, or in its numbers where it has none") {
    for (const StateFormat& how : {StateFormat{}, StateFormat{.format = fp16}, StateFormat{.format = e4m3, .block = 64},
                                   StateFormat{.format = bf16, .scaled = false}}) {
        StoredTensor<float> tensor({length}, how);
        tensor.assign(spread_values<float>());
        const std::vector<float> before = load(tensor);
        tensor.divide(8.0);
        const std::vector<float> after = load(tensor);
        for (std::size_t i = 0; i < length; ++i) REQUIRE(after[i] * 8.0f == before[i]);
    }
}
