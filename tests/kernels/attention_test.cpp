// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/kernels/attention.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

struct Sizes {
    std::ptrdiff_t batch, heads, groups, queries, keys, depth;
    bool causal;
    std::ptrdiff_t window = 0;
};

/// All buffers of one attention. With `fused`, q, k and v lie in one [batch, time, 3, heads, depth] buffer.
template <class T>
struct Case {
    using P = Accum<T>;
    Sizes sizes;
    std::vector<T> q, k, v, dout, out, dq, dk, dv;
    std::vector<P> log_sum;
    AttentionGradients<T> gradients;

    explicit Case(const Sizes& s, bool fused = false, std::uint64_t seed = 1) : sizes(s) {
        const auto fill = [&](std::vector<T>& data, std::ptrdiff_t count, std::uint64_t stream) {
            data.resize(static_cast<std::size_t>(count));
            for (std::size_t i = 0; i < data.size(); ++i) data[i] = element_cast<T>(random_normal({seed, stream}, i));
        };
        const std::ptrdiff_t q_size = s.batch * s.queries * s.heads * s.depth,
                             k_size = s.batch * s.keys * s.groups * s.depth;
        const auto view = [&](std::vector<T>& data, std::ptrdiff_t time, std::ptrdiff_t heads) {
            return AttentionView<T>{data.data(), time * heads * s.depth, heads * s.depth, s.depth};
        };
        AttentionArguments<T>& f = gradients.forward;
        f = {.batch = s.batch,
             .heads = s.heads,
             .groups = s.groups,
             .queries = s.queries,
             .keys = s.keys,
             .depth = s.depth};
        f.causal = s.causal;
        f.mask.window = s.window;
        f.logit_scale = P(0.4);
        f.out_scale = P(1.5);
        fill(dout, q_size, 4);
        fill(out, q_size, 5);
        gradients.dout = view(dout, s.queries, s.heads);
        f.out = view(out, s.queries, s.heads);
        if (fused) {
            const auto part = [&](std::vector<T>& data, std::ptrdiff_t index) {
                const std::ptrdiff_t width = s.heads * s.depth;
                return AttentionView<T>{data.data() + index * width, s.queries * 3 * width, 3 * width, s.depth};
            };
            fill(q, 3 * q_size, 1);
            dq.assign(q.size(), T(-7));
            f.q = part(q, 0), f.k = part(q, 1), f.v = part(q, 2);
            gradients.dq = part(dq, 0), gradients.dk = part(dq, 1), gradients.dv = part(dq, 2);
        } else {
            fill(q, q_size, 1), fill(k, k_size, 2), fill(v, k_size, 3);
            dq.assign(q.size(), T(-7)), dk.assign(k.size(), T(-7)), dv.assign(v.size(), T(-7));
            f.q = view(q, s.queries, s.heads), f.k = view(k, s.keys, s.groups), f.v = view(v, s.keys, s.groups);
            gradients.dq = view(dq, s.queries, s.heads), gradients.dk = view(dk, s.keys, s.groups),
            gradients.dv = view(dv, s.keys, s.groups);
        }
        log_sum.assign(static_cast<std::size_t>(s.batch * s.heads * s.queries), P(0));
        f.log_sum = log_sum.data();
        gradients.dq_scale = P(0.5), gradients.dk_scale = P(0.25), gradients.dv_scale = P(2);
    }
    Case(const Case&) = delete;

    void run(const Execution& execution = {}) {
        attention_forward(execution, gradients.forward);
        attention_backward(execution, gradients);
    }
};

double wide(auto x) { return static_cast<double>(x); }

/// The formulas over all queries x keys, in double. Returns the largest error of each result.
struct Errors {
    double out = 0, log_sum = 0, dq = 0, dk = 0, dv = 0;
};
template <class T>
Errors compare_with_naive(const Case<T>& c) {
    const AttentionGradients<T>& g = c.gradients;
    const AttentionArguments<T>& f = g.forward;
    const auto& s = c.sizes;
    Errors errors;
    const auto note = [](double& error, double value, double expected) {
        const double difference = std::abs(value - expected) / (1 + std::abs(expected));
        error = std::max(error, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
    };
    for (std::ptrdiff_t b = 0; b < s.batch; ++b)
        for (std::ptrdiff_t group = 0; group < s.groups; ++group) {
            std::vector<double> dk(std::size_t(s.keys * s.depth), 0.0), dv(dk);
            for (std::ptrdiff_t h = group * s.heads / s.groups; h < (group + 1) * s.heads / s.groups; ++h)
                for (std::ptrdiff_t i = 0; i < s.queries; ++i) {
                    const std::ptrdiff_t seen = s.causal ? i + s.keys - s.queries + 1 : s.keys,
                                         hidden = s.window > 0 ? std::max<std::ptrdiff_t>(seen - s.window, 0) : 0;
                    std::vector<double> p(static_cast<std::size_t>(seen)), dp(p);
                    double sum = 0, inner = 0;
                    const double scale = wide(f.logit_scale);
                    for (std::ptrdiff_t j = 0; j < seen; ++j) {
                        double score = 0;
                        for (std::ptrdiff_t l = 0; l < s.depth; ++l)
                            score += wide(f.q.row(b, i, h)[l]) * wide(f.k.row(b, j, group)[l]);
                        p[std::size_t(j)] = j < hidden ? 0.0 : std::exp(scale * score);
                        sum += p[std::size_t(j)];
                    }
                    note(errors.log_sum, wide(f.log_sum[(b * s.heads + h) * s.queries + i]), std::log(sum));
                    for (std::ptrdiff_t j = 0; j < seen; ++j) {
                        p[std::size_t(j)] /= sum;
                        for (std::ptrdiff_t l = 0; l < s.depth; ++l)
                            dp[std::size_t(j)] += wide(g.dout.row(b, i, h)[l]) * wide(f.v.row(b, j, group)[l]);
                        inner += p[std::size_t(j)] * dp[std::size_t(j)];
                    }
                    for (std::ptrdiff_t l = 0; l < s.depth; ++l) {
                        double out = 0, dq = 0;
                        for (std::ptrdiff_t j = 0; j < seen; ++j) {
                            const double pj = p[std::size_t(j)], ds = pj * (dp[std::size_t(j)] - inner);
                            out += pj * wide(f.v.row(b, j, group)[l]);
                            dq += ds * wide(f.k.row(b, j, group)[l]);
                            dk[std::size_t(j * s.depth + l)] += ds * wide(f.q.row(b, i, h)[l]);
                            dv[std::size_t(j * s.depth + l)] += pj * wide(g.dout.row(b, i, h)[l]);
                        }
                        note(errors.out, wide(f.out.row(b, i, h)[l]), wide(f.out_scale) * out);
                        note(errors.dq, wide(g.dq.row(b, i, h)[l]), wide(g.dq_scale) * scale * dq);
                    }
                }
            for (std::ptrdiff_t j = 0; j < s.keys; ++j)
                for (std::ptrdiff_t l = 0; l < s.depth; ++l) {
                    note(errors.dk, wide(g.dk.row(b, j, group)[l]),
                         wide(g.dk_scale) * wide(f.logit_scale) * dk[std::size_t(j * s.depth + l)]);
                    note(errors.dv, wide(g.dv.row(b, j, group)[l]),
                         wide(g.dv_scale) * dv[std::size_t(j * s.depth + l)]);
                }
        }
    return errors;
}

template <class T>
void check_errors(const Case<T>& c, double bound) {
    const Errors errors = compare_with_naive(c);
    CAPTURE(c.sizes.queries, c.sizes.keys, c.sizes.depth, c.sizes.causal);
    CHECK(errors.out < bound);
    CHECK(errors.log_sum < bound);
    CHECK(errors.dq < bound);
    CHECK(errors.dk < bound);
    CHECK(errors.dv < bound);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// sum(dout f) of a fresh forward pass, f without out_scale.
double objective(Case<double>& c) {
    auto args = c.gradients.forward;
    args.out_scale = 1;
    attention_forward({}, args);
    double sum = 0;
    for (std::size_t i = 0; i < c.out.size(); ++i) sum += c.out[i] * c.dout[i];
    return sum;
}

const std::vector<Sizes> all_sizes{
    {2, 4, 4, 5, 5, 8, false},    {2, 4, 4, 5, 5, 8, true},   {1, 2, 1, 70, 70, 12, true},
    {2, 6, 2, 33, 33, 16, true},  {1, 3, 3, 7, 100, 5, true}, {1, 2, 2, 100, 7, 64, false},
    {1, 4, 1, 40, 130, 32, true}, {1, 1, 1, 1, 1, 1, true},   {1, 2, 2, 90, 600, 8, true}};
const std::vector<Sizes> window_sizes{{2, 4, 2, 5, 5, 8, true, 1},       {1, 2, 1, 70, 70, 12, true, 3},
                                      {1, 2, 2, 40, 130, 16, true, 32},  {1, 2, 2, 90, 600, 8, true, 33},
                                      {1, 1, 1, 600, 600, 8, true, 520}, {1, 2, 2, 40, 40, 8, true, 100}};

}  // namespace

TEST_CASE(
    "attention and its gradients are the formulas, causal and full, with grouped queries and keys of another length",
    "[kernels][attention]") {
    for (const Sizes& sizes : all_sizes) {
        Case<double> exact(sizes);
        exact.run();
        check_errors(exact, 1e-12);
        Case<float> single(sizes);
        single.run();
        check_errors(single, 2e-5);
    }
}

TEST_CASE("attention and its gradients are the formulas with a window", "[kernels][attention]") {
    for (const Sizes& sizes : window_sizes) {
        Case<double> exact(sizes);
        exact.run();
        check_errors(exact, 1e-12);
        Case<float> single(sizes);
        single.run();
        check_errors(single, 2e-5);
    }
}

TEST_CASE("attention: a window that holds all keys changes no bit; keys before it have no effect",
          "[kernels][attention]") {
    Case<float> all({1, 2, 2, 70, 70, 16, true}), wide({1, 2, 2, 70, 70, 16, true, 70}),
        narrow({1, 2, 2, 70, 70, 16, true, 40});
    all.run();
    wide.run();
    REQUIRE(same_bits(all.out, wide.out));
    REQUIRE(same_bits(all.dk, wide.dk));
    narrow.run();
    const std::vector<float> before = narrow.out;
    std::fill_n(narrow.k.begin(), 10 * 2 * 16, 100.0f);  // positions 0 to 9, which position 49 and later do not see
    std::fill_n(narrow.v.begin(), 10 * 2 * 16, 100.0f);
    narrow.run();
    const std::size_t from = 49 * 2 * 16;
    REQUIRE(std::equal(before.begin() + from, before.end(), narrow.out.begin() + from));
    REQUIRE(before[from - 1] != narrow.out[from - 1]);
}

TEST_CASE("attention on every instruction set agrees with double", "[kernels][attention]") {
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        Case<float> c({1, 4, 2, 70, 75, 20, true});
        attention_forward_with(isa, {}, c.gradients.forward);
        attention_backward_with(isa, {}, c.gradients);
        check_errors(c, 2e-5);
    }
}

TEST_CASE("attention in half precision rounds its results once", "[kernels][attention]") {
    Case<Half> c({2, 4, 2, 40, 40, 16, true});
    c.run();
    check_errors(c, 1e-3);
}

TEST_CASE("attention works inside a [batch, time, 3, heads, depth] buffer", "[kernels][attention]") {
    for (const bool causal : {false, true}) {
        Case<float> c({2, 3, 3, 37, 37, 8, causal}, true);
        c.run();
        check_errors(c, 2e-5);
    }
}

TEST_CASE("attention's gradients are the finite differences of its forward pass", "[kernels][attention]") {
    Case<double> c({2, 4, 2, 6, 9, 3, true});
    c.run();
    const double step = 1e-5;
    const auto check_all = [&](std::vector<double>& input, const std::vector<double>& gradient, double scale) {
        for (std::size_t i = 0; i < input.size(); ++i) {
            const double x = input[i];
            input[i] = x + step;
            const double above = objective(c);
            input[i] = x - step;
            const double below = objective(c);
            input[i] = x;
            REQUIRE(gradient[i] == Approx(scale * (above - below) / (2 * step)).margin(1e-8).epsilon(1e-7));
        }
    };
    check_all(c.q, c.dq, c.gradients.dq_scale);
    check_all(c.k, c.dk, c.gradients.dk_scale);
    check_all(c.v, c.dv, c.gradients.dv_scale);
}

TEST_CASE("attention: bits do not depend on the number of threads; scratch comes from the pool",
          "[kernels][attention]") {
    MemoryPool pool;
    for (const bool causal : {false, true}) {
        const Sizes sizes{3, 4, 2, 100, 100, 32, causal};
        Case<float> one(sizes);
        one.run();
        for (const int threads : {2, 3, 5}) {
            Case<float> many(sizes);
            many.run({threads, &pool});
            REQUIRE(same_bits(one.out, many.out));
            REQUIRE(same_bits(one.log_sum, many.log_sum));
            REQUIRE(same_bits(one.dq, many.dq));
            REQUIRE(same_bits(one.dk, many.dk));
            REQUIRE(same_bits(one.dv, many.dv));
        }
    }
    const auto allocations = pool.system_allocations();
    Case<float> again({3, 4, 2, 100, 100, 32, true});
    again.run({2, &pool});
    REQUIRE(pool.system_allocations() == allocations);
    REQUIRE(pool.live_bytes() == 0);
}

TEST_CASE("causal attention over a prefix gives the outputs of the whole", "[kernels][attention]") {
    const std::ptrdiff_t time = 80, depth = 16, heads = 2;
    Case<float> whole({1, heads, heads, time, time, depth, true}, true);
    attention_forward({}, whole.gradients.forward);
    for (const std::ptrdiff_t length :
         {std::ptrdiff_t{1}, std::ptrdiff_t{31}, std::ptrdiff_t{33}, std::ptrdiff_t{79}}) {
        Case<float> prefix({1, heads, heads, length, length, depth, true}, true);
        attention_forward({}, prefix.gradients.forward);
        for (std::size_t i = 0; i < prefix.out.size(); ++i)
            REQUIRE(prefix.out[i] == Approx(whole.out[i]).margin(1e-6).epsilon(1e-5));
        // One new query on all keys, as in generation with cached keys.
        Case<float> last({1, heads, heads, 1, length, depth, true});
        auto args = last.gradients.forward;
        args.k = whole.gradients.forward.k, args.v = whole.gradients.forward.v, args.q = whole.gradients.forward.q;
        args.q.data += (length - 1) * args.q.time_stride;
        attention_forward({}, args);
        for (std::size_t i = 0; i < last.out.size(); ++i)
            REQUIRE(last.out[i] == Approx(whole.out[static_cast<std::size_t>((length - 1) * heads * depth) + i])
                                       .margin(1e-6)
                                       .epsilon(1e-5));
    }
}

TEST_CASE("large logits do not overflow, and a NaN reaches the rows that see it and no others",
          "[kernels][attention]") {
    Case<float> c({1, 1, 1, 6, 6, 4, true});
    for (float& x : c.q) x *= 1e4f;
    c.run();
    for (const auto* results : {&c.out, &c.dq, &c.dk, &c.dv})
        for (const float x : *results) REQUIRE(std::isfinite(x));
    c.k[2 * 4] = std::numeric_limits<float>::quiet_NaN();
    c.run();
    for (std::size_t i = 0; i < 6; ++i)
        for (std::size_t l = 0; l < 4; ++l) REQUIRE(std::isnan(c.out[4 * i + l]) == (i >= 2));
    c.k[2 * 4] = std::numeric_limits<float>::infinity();
    c.run();
    for (std::size_t l = 0; l < 4; ++l) REQUIRE(std::isfinite(c.out[4 + l]));
}

TEST_CASE("a query that sees no key gives zero", "[kernels][attention]") {
    Case<float> c({1, 1, 1, 5, 2, 4, true});
    c.run();
    for (std::size_t i = 0; i < 3 * 4; ++i) {
        REQUIRE(c.out[i] == 0.0f);
        REQUIRE(c.dq[i] == 0.0f);
    }
    for (std::size_t i = 3 * 4; i < 5 * 4; ++i) REQUIRE(c.out[i] != 0.0f);
}

TEMPLATE_TEST_CASE("few queries, with keys in a longer buffer, have the bits of the last queries of many",
                   "[kernels][attention]", float, double, BFloat16) {
    using T = TestType;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::ptrdiff_t depth : {32, 20})
            for (const std::ptrdiff_t keys : {5, 33, 600}) {
                Case<T> whole({2, 4, 2, keys, keys, depth, true});
                attention_forward_with(isa, {}, whole.gradients.forward);
                const std::ptrdiff_t row = 4 * depth, narrow = 2 * depth, capacity = keys + 3;
                std::vector<T> k(static_cast<std::size_t>(2 * capacity * narrow), T(std::nanf(""))), v(k);
                for (std::ptrdiff_t b = 0; b < 2; ++b) {
                    std::copy_n(whole.k.begin() + b * keys * narrow, keys * narrow, k.begin() + b * capacity * narrow);
                    std::copy_n(whole.v.begin() + b * keys * narrow, keys * narrow, v.begin() + b * capacity * narrow);
                }
                for (const std::ptrdiff_t queries : {1, 3, 4, 5}) {
                    std::vector<T> out(static_cast<std::size_t>(2 * queries * row), T(-7));
                    std::vector<Accum<T>> log_sum(static_cast<std::size_t>(2 * 4 * queries));
                    AttentionArguments<T> few = whole.gradients.forward;
                    few.queries = queries;
                    few.q.data += (keys - queries) * row;
                    few.k = {k.data(), capacity * narrow, narrow, depth};
                    few.v = {v.data(), capacity * narrow, narrow, depth};
                    few.out = {out.data(), queries * row, row, depth};
                    few.log_sum = log_sum.data();
                    attention_forward_with(isa, {}, few);
                    CAPTURE(name(isa), depth, keys, queries);
                    for (std::ptrdiff_t b = 0; b < 2; ++b)
                        CHECK(std::equal(out.begin() + b * queries * row, out.begin() + (b + 1) * queries * row,
                                         whole.out.begin() + (b * keys + keys - queries) * row));
                }
            }
    }
}
