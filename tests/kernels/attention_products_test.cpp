// SPDX-License-Identifier: MIT
#include <unitscale/kernels/attention_products.hpp>

#include "support/catch.hpp"

#include <unitscale/base/random.hpp>
#include <unitscale/formats/block_format.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

using Doubles = std::vector<double>;

std::size_t count(std::ptrdiff_t n) { return static_cast<std::size_t>(n); }

template <class T>
std::vector<T> normals(std::ptrdiff_t n, std::uint64_t stream) {
    std::vector<T> x(count(n));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(random_normal({3, stream}, i));
    return x;
}

/// Arguments, gradients and all of their memory.
template <class T>
struct Case {
    std::vector<T> q, k, v, dout, out, dq, dk, dv;
    AttentionProductArguments<T> args;
    AttentionProductGradients<T> gradients;
    AttentionOperand output_p{}, output_v{};

    Case(std::ptrdiff_t items, std::ptrdiff_t heads, std::ptrdiff_t queries, std::ptrdiff_t keys, std::ptrdiff_t depth,
         bool causal) {
        const std::ptrdiff_t wide = items * heads * queries * depth, narrow = items * keys * depth;
        q = normals<T>(wide, 1), k = normals<T>(narrow, 2), v = normals<T>(narrow, 3), dout = normals<T>(wide, 4);
        out = dq = std::vector<T>(count(wide), T(-7));
        dk = dv = std::vector<T>(count(narrow), T(-7));
        args.items = items, args.heads = heads, args.queries = queries, args.keys = keys, args.depth = depth;
        args.causal = causal;
        args.q = q.data(), args.k = k.data(), args.v = v.data(), args.dout = dout.data();
        args.logit_factor = Accum<T>(0.5), args.mult = Accum<T>(0.75), args.probability_factor = Accum<T>(4);
        args.dprobability_factor = Accum<T>(0.25), args.slope = Accum<T>(1.5), args.dlogit_factor = Accum<T>(2);
        gradients.dq_factor = Accum<T>(0.5), gradients.dk_factor = Accum<T>(3), gradients.dv_factor = Accum<T>(0.125);
        gradients.dq = dq.data(), gradients.dk = dk.data(), gradients.dv = dv.data();
    }
    Case(const Case&) = delete;

    /// The rules of all slots, in the order of OperandSlot.
    [[nodiscard]] std::vector<AttentionOperand*> rules() {
        return {&args.logits_q,
                &args.logits_k,
                &gradients.query_gradient_ds,
                &gradients.query_gradient_k,
                &gradients.key_gradient_ds,
                &gradients.key_gradient_q,
                &output_p,
                &output_v,
                &args.probability_gradient_dy,
                &args.probability_gradient_v,
                &gradients.value_gradient_p,
                &gradients.value_gradient_dy};
    }
    typename AttentionProducts<T>::Largest run(const Execution& execution = {}, bool measures = false) {
        AttentionProducts<T> products(execution, args);
        typename AttentionProducts<T>::Largest largest;
        if (measures) largest = products.largest();
        products.forward(output_p, output_v, Accum<T>(1.25), out.data());
        products.backward(gradients);
        return largest;
    }
    [[nodiscard]] std::vector<std::vector<T>> results() const { return {out, dq, dk, dv}; }
};

/// Matrices [rows,columns] of all items, rounded by hand.
Doubles rounded(const AttentionOperand& rule, const Doubles& x, std::ptrdiff_t rows, std::ptrdiff_t columns,
                Contracted contracted) {
    if (!rule.quantiser) return x;
    Doubles y(x.size());
    const QuantiseOptions options = rule.quantiser->options(rule.key);
    if (!rule.blocks) {
        for (std::size_t i = 0; i < x.size(); ++i) y[i] = quantise(rule.quantiser->format, x[i], options, i);
        return y;
    }
    const std::size_t size = count(rows * columns);
    for (std::size_t first = 0; first < x.size(); first += size) {
        Doubles item(size);
        BlockOptions how{.element = options, .tensor_amax = rule.amax};
        how.element.first_index = first;
        const bool transposed =
            round_blocks<double>({}, *rule.blocks, how, {}, x.data() + first, item.data(), rows, columns, contracted)
                .transposed;
        for (std::ptrdiff_t i = 0; i < rows; ++i)
            for (std::ptrdiff_t j = 0; j < columns; ++j)
                y[first + count(i * columns + j)] = item[count(transposed ? j * rows + i : i * columns + j)];
    }
    return y;
}

/// The six products as loops, with the gradient of a rounded operand taken as the gradient of the operand itself.
std::vector<Doubles> by_hand(Case<double>& c, double* largest_p = nullptr, double* largest_ds = nullptr) {
    const auto& a = c.args;
    const std::ptrdiff_t rows = a.heads * a.queries, keys = a.keys, d = a.depth;
    constexpr auto columns_first = Contracted::columns, rows_first = Contracted::rows;
    Doubles p(count(a.items * rows * keys)), ds(p);
    const auto at = [](std::ptrdiff_t item, std::ptrdiff_t i, std::ptrdiff_t height, std::ptrdiff_t j,
                       std::ptrdiff_t width) { return count((item * height + i) * width + j); };
    /// x [.., rows,k] y [.., keys,k]^T
    const auto outer = [&](const Doubles& x, const Doubles& y, double factor) {
        Doubles z(count(a.items * rows * keys));
        for (std::ptrdiff_t b = 0; b < a.items; ++b)
            for (std::ptrdiff_t i = 0; i < rows; ++i)
                for (std::ptrdiff_t j = 0; j < keys; ++j) {
                    double sum = 0;
                    for (std::ptrdiff_t l = 0; l < d; ++l) sum += x[at(b, i, rows, l, d)] * y[at(b, j, keys, l, d)];
                    z[at(b, i, rows, j, keys)] = factor * sum;
                }
        return z;
    };
    const auto inner = [&](const Doubles& x, const Doubles& y, double factor, bool transposed) {
        Doubles z(count(a.items * (transposed ? keys : rows) * d));
        for (std::ptrdiff_t b = 0; b < a.items; ++b)
            for (std::ptrdiff_t i = 0; i < (transposed ? keys : rows); ++i)
                for (std::ptrdiff_t l = 0; l < d; ++l) {
                    double sum = 0;
                    for (std::ptrdiff_t j = 0; j < (transposed ? rows : keys); ++j)
                        sum += transposed ? x[at(b, j, rows, i, keys)] * y[at(b, j, rows, l, d)]
                                          : x[at(b, i, rows, j, keys)] * y[at(b, j, keys, l, d)];
                    z[at(b, i, transposed ? keys : rows, l, d)] = factor * sum;
                }
        return z;
    };
    const Doubles s = outer(rounded(a.logits_q, c.q, rows, d, columns_first),
                            rounded(a.logits_k, c.k, keys, d, columns_first), a.logit_factor);
    const Doubles dp = outer(rounded(a.probability_gradient_dy, c.dout, rows, d, columns_first),
                             rounded(a.probability_gradient_v, c.v, keys, d, columns_first), a.dprobability_factor);
    for (std::ptrdiff_t row = 0; row < a.items * rows; ++row) {
        const std::ptrdiff_t seen = a.causal ? row % a.queries + keys - a.queries + 1 : keys;
        double sum = 0, dot = 0;
        for (std::ptrdiff_t j = 0; j < seen; ++j) sum += std::exp(a.mult * s[count(row * keys + j)]);
        for (std::ptrdiff_t j = 0; j < seen; ++j) {
            const std::size_t i = count(row * keys + j);
            p[i] = a.probability_factor * std::exp(a.mult * s[i]) / sum;
            dot += p[i] / a.probability_factor * dp[i];
        }
        for (std::ptrdiff_t j = 0; j < seen; ++j) {
            const std::size_t i = count(row * keys + j);
            ds[i] = a.dlogit_factor * a.slope * p[i] / a.probability_factor * (dp[i] - dot);
        }
    }
    const auto magnitude = [](const Doubles& x) {
        double most = 0;
        for (const double y : x) most = std::max(most, std::abs(y));
        return most;
    };
    if (largest_p != nullptr) *largest_p = magnitude(p), *largest_ds = magnitude(ds);
    const auto& g = c.gradients;
    return {inner(rounded(c.output_p, p, rows, keys, columns_first), rounded(c.output_v, c.v, keys, d, rows_first),
                  1.25, false),
            inner(rounded(g.query_gradient_ds, ds, rows, keys, columns_first),
                  rounded(g.query_gradient_k, c.k, keys, d, rows_first), g.dq_factor, false),
            inner(rounded(g.key_gradient_ds, ds, rows, keys, rows_first),
                  rounded(g.key_gradient_q, c.q, rows, d, rows_first), g.dk_factor, true),
            inner(rounded(g.value_gradient_p, p, rows, keys, rows_first),
                  rounded(g.value_gradient_dy, c.dout, rows, d, rows_first), g.dv_factor, true)};
}

double error(const std::vector<Doubles>& a, const std::vector<Doubles>& b) {
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        for (std::size_t j = 0; j < a[i].size(); ++j) {
            const double difference = std::abs(a[i][j] - b[i][j]);
            worst = difference <= worst ? worst : std::isnan(difference) ? 1e300 : difference;
        }
    return worst;
}

/// A rule for each slot. All differ in format or stream.
AttentionOperand rule_of(std::size_t slot, Rounding rounding) {
    const FloatFormat formats[] = {e4m3, e5m2, e2m3};
    return {.quantiser = Quantiser{.format = formats[slot % 3], .rounding = rounding}, .key = {11, slot}};
}

}  // namespace

TEST_CASE("attention products: six products as loops, with and without rounding, causal or not, heads sharing keys") {
    for (const bool causal : {true, false})
        for (const auto rounding :
             {std::optional<Rounding>(), std::optional(Rounding::nearest_even), std::optional(Rounding::stochastic)}) {
            Case<double> c(3, 2, 5, 7, 6, causal);
            for (std::size_t slot = 0; rounding && slot < 12; ++slot) *c.rules()[slot] = rule_of(slot, *rounding);
            c.run();
            const std::vector<Doubles> want = by_hand(c);
            CHECK(error(c.results(), want) < 1e-13);
            if (!rounding) continue;
            for (AttentionOperand* const rule : c.rules()) {  // each slot shows
                const AttentionOperand kept = *rule;
                rule->quantiser.reset();
                c.run();
                CHECK(error(c.results(), want) > 1e-3);
                *rule = kept;
            }
        }
}

TEST_CASE("attention products: blocks along the contracted dimension, under a scale of the tensor too") {
    for (const BlockFormat& blocks : {mxfp4, nvfp4, nvfp4_square})
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
            Case<double> c(2, 2, 10, 36, 20, true);
            std::size_t slot = 0;
            for (AttentionOperand* const rule : c.rules())
                *rule = {.quantiser = Quantiser{.format = blocks.element, .rounding = rounding},
                         .blocks = blocks,
                         .amax = 5.0f,
                         .key = {11, slot++}};
            c.run();
            const std::vector<Doubles> want = by_hand(c);
            CHECK(error(c.results(), want) < 1e-12);
            for (AttentionOperand* const rule : c.rules()) {
                const AttentionOperand kept = *rule;
                rule->blocks.reset();
                c.run();
                CHECK(error(c.results(), want) > 1e-4);
                *rule = kept;
            }
        }
}

TEST_CASE("attention products: largest magnitudes of all items, before and without which the products are equal") {
    Case<double> c(3, 1, 4, 6, 5, true);
    for (std::size_t slot = 0; slot < 12; ++slot) *c.rules()[slot] = rule_of(slot, Rounding::nearest_even);
    double p = 0, ds = 0;
    static_cast<void>(by_hand(c, &p, &ds));
    const auto largest = c.run({}, true);
    CHECK(largest.p == Approx(p));
    CHECK(largest.ds == Approx(ds));
    const auto measured = c.results();
    c.run();
    CHECK(c.results() == measured);
    for (AttentionOperand* const rule : c.rules()) rule->quantiser.reset();
    c.dout[3] = std::numeric_limits<double>::quiet_NaN();
    CHECK(std::isnan(c.run({}, true).ds));
}

TEST_CASE("attention products: bits depend neither on what is kept nor on the threads, which share items or rows") {
    // 700 x 700 elements: p of three items does not fit, p of two does.
    static_assert(AttentionProducts<float>::stored_elements / (700 * 700) == 2);
    for (const std::ptrdiff_t items : {2, 3})
        for (const bool stochastic : {false, true}) {
            Case<float> c(items, 2, 350, 700, 4, true);
            for (std::size_t slot = 0; slot < 12; ++slot)
                *c.rules()[slot] =
                    rule_of(slot, stochastic && slot % 2 != 0 ? Rounding::stochastic : Rounding::nearest_even);
            const auto largest = c.run({}, true);
            const auto want = c.results();
            c.run();
            CHECK(c.results() == want);
            for (const int threads : {2, 3, 5}) {
                const auto other = c.run({.threads = threads}, threads == 2);
                CHECK(c.results() == want);
                if (threads == 2) CHECK((other.p == largest.p && other.ds == largest.ds));
            }
        }
}

TEST_CASE("attention products: the bits are those of products and softmax one after the other") {
    const auto compare = [](auto zero, std::ptrdiff_t heads, std::ptrdiff_t queries, std::ptrdiff_t keys,
                            std::ptrdiff_t depth, bool causal) {
        using T = decltype(zero);
        Case<T> c(2, heads, queries, keys, depth, causal);
        for (std::size_t slot = 0; slot < 12; ++slot) *c.rules()[slot] = rule_of(slot, Rounding::nearest_even);
        c.run();
        const auto& a = c.args;
        const std::ptrdiff_t rows = heads * queries;
        const auto multiply = [&](const AttentionOperand& x_rule, products::MatrixView<const T> x,
                                  const AttentionOperand& y_rule, products::MatrixView<const T> y, T* to,
                                  std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k, Accum<T> factor) {
            products::MatmulArguments<T> args;
            args.m = m, args.n = n, args.k = k, args.batch = a.items;
            args.a = {x, x_rule.quantiser};
            args.b = {y, y_rule.quantiser};
            args.c = {to, n, 1, m * n};
            args.alpha = factor;
            products::matmul<T>({}, args);
        };
        const auto wide = [&](const std::vector<T>& x) {
            return products::MatrixView<const T>{x.data(), depth, 1, rows * depth};
        };
        const auto narrow = [&](const std::vector<T>& x) {
            return products::MatrixView<const T>{x.data(), depth, 1, keys * depth};
        };
        const auto scores = [&](const std::vector<T>& x) {
            return products::MatrixView<const T>{x.data(), keys, 1, rows * keys};
        };
        std::vector<T> p(count(a.items * rows * keys)), ds(p), out(c.out), dq(c.dq), dk(c.dk), dv(c.dv);
        const auto hide = [&](std::vector<T>& x, T value) {
            for (std::ptrdiff_t r = 0; r < a.items * rows && causal; ++r)
                std::fill(x.data() + r * keys + r % queries + keys - queries + 1, x.data() + (r + 1) * keys, value);
        };
        multiply(a.logits_q, wide(c.q), a.logits_k, narrow(c.k).transposed(), p.data(), rows, keys, depth,
                 a.logit_factor);
        hide(p, static_cast<T>(-std::numeric_limits<float>::infinity()));
        softmax_forward<T>({}, p.data(), p.data(), a.items * rows, keys, a.mult, a.probability_factor);
        multiply(a.probability_gradient_dy, wide(c.dout), a.probability_gradient_v, narrow(c.v).transposed(), ds.data(),
                 rows, keys, depth, a.dprobability_factor);
        softmax_backward<T>({}, p.data(), ds.data(), ds.data(), a.items * rows, keys, a.slope, a.probability_factor,
                            a.dlogit_factor);
        hide(ds, T(0));
        const auto& g = c.gradients;
        multiply(c.output_p, scores(p), c.output_v, narrow(c.v), out.data(), rows, depth, keys, Accum<T>(1.25));
        multiply(g.query_gradient_ds, scores(ds), g.query_gradient_k, narrow(c.k), dq.data(), rows, depth, keys,
                 g.dq_factor);
        multiply(g.key_gradient_ds, scores(ds).transposed(), g.key_gradient_q, wide(c.q), dk.data(), keys, depth, rows,
                 g.dk_factor);
        multiply(g.value_gradient_p, scores(p).transposed(), g.value_gradient_dy, wide(c.dout), dv.data(), keys, depth,
                 rows, g.dv_factor);
        CHECK(c.results() == std::vector<std::vector<T>>{out, dq, dk, dv});
    };
    compare(0.0f, 1, 150, 150, 64, true);
    compare(0.0f, 3, 70, 200, 48, true);
    compare(0.0f, 1, 40, 33, 20, false);
    compare(0.0f, 1, 1100, 1100, 16, true);  // sums over queries and keys pass the depth of the kernels' blocks
    // Scores of all queries leave level 2, so some rows of them are in memory at a time.
    compare(0.0f, 3, 600, 800, 20, true);
    compare(Half(0), 1, 900, 900, 32, false);
    compare(Half(0), 1, 1100, 800, 16, false);
    compare(Half(0), 2, 40, 70, 32, true);
    compare(0.0, 2, 9, 20, 5, true);
}

TEST_CASE("attention products: no items, rows, keys or depth") {
    Case<float> none(0, 1, 3, 3, 4, true), rows(2, 1, 0, 3, 4, true), keys(2, 1, 3, 0, 4, false),
        depth(2, 1, 3, 3, 0, true);
    for (Case<float>* const c : {&none, &rows, &keys, &depth}) {
        for (std::size_t slot = 0; slot < 12; ++slot) *c->rules()[slot] = rule_of(slot, Rounding::stochastic);
        c->run({}, true);
    }
    CHECK(keys.out == std::vector<float>(keys.out.size(), 0.0f));
    CHECK(keys.dq == std::vector<float>(keys.dq.size(), 0.0f));
    CHECK(rows.dv == std::vector<float>(rows.dv.size(), 0.0f));
}

TEST_CASE("attention products: NaN to a format without NaN is an error") {
    Case<float> c(1, 1, 2, 3, 4, false);
    c.q[5] = std::numeric_limits<float>::quiet_NaN();
    c.args.logits_q = {.quantiser = Quantiser{.format = e2m1, .rounding = Rounding::stochastic}};
    CHECK_THROWS_WITH(c.run(), "attention: e2m1 has no NaN: element [1,1] is NaN");
    c.args.logits_q.quantiser->rounding = Rounding::nearest_even;
    CHECK_THROWS_WITH(c.run(), "matmul: a: e2m1 has no NaN: element [1,1] is NaN");
}
