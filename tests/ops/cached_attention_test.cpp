// SPDX-License-Identifier: MIT
#include <unitscale/ops/cached_attention.hpp>
#include <unitscale/ops/slice.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr StepOptions inference{.training = false, .gradients = false};

template <class T>
struct Buffers {
    Tensor<T> keys, values;
    std::size_t length = 0;

    Buffers(std::size_t batch, std::size_t groups, std::size_t capacity, std::size_t depth)
        : keys(full<T>({batch, groups, capacity, depth}, std::numeric_limits<T>::quiet_NaN())), values(keys) {}
    [[nodiscard]] ops::KeyValueRows<T> rows() {
        return {keys.data(), values.data(), keys.dim(0), keys.dim(2), keys.dim(1) * keys.dim(3), length};
    }
};

}  // namespace

TEMPLATE_TEST_CASE("cached_attention: a sequence in parts of any sizes gives the rows of attention", "[ops]", float,
                   double) {
    using T = TestType;
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        test::OpTape<T> t(scaling, inference);
        const auto q = t.input({2, 9, 32}, 1), k = t.input({2, 9, 16}, 2), v = t.input({2, 9, 16}, 3);
        const ops::AttentionOptions options{.heads = 4, .groups = 2, .mult = 2.0, .factor_length = 9};
        const std::vector<T> whole = test::elements(ops::attention(q, k, v, options).value());
        for (const std::vector<std::size_t>& starts :
             {std::vector<std::size_t>{0, 9}, {0, 1, 2, 7, 9}, {0, 5, 6, 7, 8, 9}}) {
            Buffers<T> buffers(2, 2, 12, 8);
            for (std::size_t part = 0; part + 1 < starts.size(); ++part) {
                const std::size_t begin = starts[part], end = starts[part + 1];
                const auto rows = [&](const Variable<T>& x) {
                    return ops::slice(x, {0, begin, 0}, {2, end, x.shape()[2]});
                };
                const Variable<T> y = ops::cached_attention(rows(q), rows(k), rows(v), buffers.rows(), options);
                REQUIRE(y.shape() == Shape{2, end - begin, 32});
                for (std::size_t b = 0; b < 2; ++b)
                    CHECK(std::equal(y.value().data() + b * (end - begin) * 32,
                                     y.value().data() + (b + 1) * (end - begin) * 32,
                                     whole.data() + (b * 9 + begin) * 32));
                buffers.length = end;
            }
            for (std::size_t b = 0; b < 2; ++b)
                for (std::size_t group = 0; group < 2; ++group)
                    for (std::size_t i = 0; i < 12; ++i) {
                        const T kept = buffers.keys(b, group, i, 3), value = buffers.values(b, group, i, 7);
                        if (i < 9)
                            CHECK((kept == k.value()(b, i, group * 8 + 3) && value == v.value()(b, i, group * 8 + 7)));
                        else CHECK(std::isnan(static_cast<double>(kept)));  // nothing is written behind the 9 positions
                    }
        }
    }
}

TEST_CASE("cached_attention: runs at attention's site, with its factor") {
    const auto run = [](auto&& op) {
        test::OpTape<float> t(Scaling::unit, inference);
        const auto scope = t.tape.scope("block");
        const auto q = t.input({1, 1, 8}, 1), k = t.input({1, 1, 8}, 2), v = t.input({1, 1, 8}, 3);
        static_cast<void>(op(q, k, v));
        const auto& node = t.tape.node(t.tape.node_count() - 1);
        CHECK(node.alpha == ops::attention_unit_factor(1.0, 4, 64, true));
        return t.state.path(node.site);
    };
    const ops::AttentionOptions options{.heads = 2, .factor_length = 64};
    Buffers<float> buffers(1, 2, 3, 4);
    CHECK(run([&](auto q, auto k, auto v) { return ops::attention(q, k, v, options); }) == "block/attention");
    CHECK(run([&](auto q, auto k, auto v) { return ops::cached_attention(q, k, v, buffers.rows(), options); }) ==
          "block/attention");
}

TEST_CASE("cached_attention: errors name the shape or option that does not fit") {
    Buffers<float> buffers(2, 2, 5, 4);
    const auto message = [&](const Shape& q, const Shape& k, const Shape& v, const ops::AttentionOptions& options,
                             const StepOptions& step = inference, Scaling scaling = Scaling::none) {
        test::OpTape<float> t(scaling, step);
        try {
            static_cast<void>(
                ops::cached_attention(t.input(q, 1), t.input(k, 2), t.input(v, 3), buffers.rows(), options));
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    const Shape x{2, 3, 8};
    CHECK(message(x, x, x, {.heads = 2}) == "none");
    CHECK(message(x, x, x, {.heads = 2}, {}) ==
          "cached_attention: this step records gradients; begin it with gradients = false");
    CHECK(message(x, x, x, {.heads = 2, .causal = false}) ==
          "cached_attention: causal is false; tokens to come would change the outputs of those before");
    CHECK(message({3, 8}, x, x, {}) ==
          "cached_attention: q [3,8], k [2,3,8] and v [2,3,8]; expected [B,T,H d], [B,S,G d] and [B,S,G d]");
    CHECK(message(x, x, x, {.heads = 4, .groups = 3}) ==
          "cached_attention: 4 heads and 3 groups; expected groups to divide heads");
    CHECK(message(x, x, x, {.heads = 3}) == "cached_attention: q [2,3,8] is not divisible by 3 heads");
    CHECK(message(x, {2, 2, 8}, x, {.heads = 2}) ==
          "cached_attention: q [2,3,8], k [2,2,8] and v [2,3,8] do not fit; expected k and v [2,S,8]");
    CHECK(message(x, {2, 4, 8}, {2, 4, 8}, {.heads = 2}) ==
          "cached_attention: 3 queries and 4 keys; expected one key for each query");
    CHECK(message(x, x, x, {.mask = {.lengths = {3, 3}}}) == "cached_attention: has no masks; expected an empty mask");
    CHECK(message({1, 3, 8}, {1, 3, 8}, {1, 3, 8}, {}) ==
          "cached_attention: buffers for 2 x 8 columns do not fit k [1,3,8]");
    CHECK(message({2, 3, 4}, {2, 3, 4}, {2, 3, 4}, {}) ==
          "cached_attention: buffers for 2 x 8 columns do not fit k [2,3,4]");
    CHECK(message(x, x, x, {.mult = 0.0}) == "cached_attention: mult is 0; expected a positive number");
    CHECK(message(x, x, x, {}, inference, Scaling::unit) ==
          "cached_attention: no factor_length; under unit scaling the factor would change from token to token");
    buffers.length = 3;
    CHECK(message(x, x, x, {}) == "cached_attention: 3 positions and 3 more; the buffers end at 5");
}

TEST_CASE("cached_attention: propagates scales as attention does, to the bit") {
    test::OpTape<float> t(Scaling::propagate, inference);
    const auto at = [&](std::size_t width, std::uint64_t stream, double scale) {
        return t.tape.input(set_scaling(normal<float>({2, 9, width}, {1, stream}), scale));
    };
    const auto q = at(32, 1, 0x1p-4), k = at(16, 2, 8.0), v = at(16, 3, 0x1p-6);
    const ops::AttentionOptions options{.heads = 4, .groups = 2, .mult = 2.0, .factor_length = 9};
    const auto whole = ops::attention(q, k, v, options);
    Buffers<float> buffers(2, 2, 9, 8);
    const auto y = ops::cached_attention(q, k, v, buffers.rows(), options);
    CHECK(t.state.wide_ops().empty());
    CHECK(y.scaled().scale() == whole.scaled().scale());
    CHECK(y.scaled().scale() < 0x1p-6);
    CHECK(test::elements(y.scaled()) == test::elements(whole.scaled()));
    CHECK(buffers.keys(0, 0, 0, 3) == k.value()(0, 0, 3));  // plain numbers
}
