// SPDX-License-Identifier: MIT
#include <unitscale/kernels/attention_scores.hpp>

#include "support/catch.hpp"

#include <unitscale/base/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

std::vector<double> normals(std::ptrdiff_t n, std::uint64_t stream) {
    std::vector<double> x(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = random_normal({5, stream}, i);
    return x;
}

struct Case {
    std::vector<double> q, k, v, dout;
    std::vector<std::size_t> lengths{9, 4};
    AttentionProductArguments<double> args;

    Case() : q(normals(2 * 2 * 5 * 3, 1)), k(normals(2 * 9 * 3, 2)), v(normals(2 * 9 * 3, 3)), dout(normals(60, 4)) {
        args.items = 2, args.heads = 2, args.queries = 5, args.keys = 9, args.depth = 3;
        args.q = q.data(), args.k = k.data(), args.v = v.data(), args.dout = dout.data();
        args.logit_factor = 0.5, args.mult = 0.75, args.probability_factor = 4;
        args.dprobability_factor = 0.25, args.slope = 1.5, args.dlogit_factor = 2;
    }
    Case(const Case&) = delete;
    [[nodiscard]] std::ptrdiff_t rows() const { return args.heads * args.queries; }
};

/// p and ds of an item's rows [first, last).
struct Scores {
    std::vector<double> p, ds;

    Scores(const Case& c, std::ptrdiff_t item, std::ptrdiff_t first, std::ptrdiff_t last)
        : p(static_cast<std::size_t>((last - first) * c.args.keys), -7.0), ds(p) {
        using Product = products::BlockedProduct<double>;
        const Isa isa = active_isa();
        std::vector<double> keys(static_cast<std::size_t>(Product::right_size(isa, c.args.depth, c.args.keys))),
            values(keys),
            scratch(static_cast<std::size_t>(Product::scratch_size(isa, last - first, c.args.depth, c.args.keys)));
        const AttentionScores<double> scores({}, c.args, item, keys.data(), values.data());
        scores.compute(first, last, p.data(), ds.data(), scratch.data());
    }
};

}  // namespace

TEST_CASE("scores of attention: p and ds of some rows agree with their formulas, hidden keys have 0") {
    for (const bool causal : {false, true})
        for (const std::ptrdiff_t window : {0, 3})
            for (const bool short_rows : {false, true}) {
                Case c;
                c.args.causal = causal;
                c.args.mask.window = window;
                if (short_rows) c.args.mask.lengths = c.lengths.data();
                const auto& a = c.args;
                for (std::ptrdiff_t item = 0; item < a.items; ++item) {
                    constexpr std::ptrdiff_t first = 3, last = 9;
                    const Scores found(c, item, first, last);
                    for (std::ptrdiff_t r = first; r < last; ++r) {
                        const AttentionRow row = attention_row(a, item, r);
                        const std::ptrdiff_t begin = row.first, end = row.seen;
                        CHECK(row.number == item * c.rows() + r);
                        CHECK((row.b == item && row.h == r / 5 && row.i == r % 5));
                        const std::ptrdiff_t length = short_rows && item == 1 ? 4 : 9;
                        CHECK(end == std::min(causal ? row.i + 5 : std::ptrdiff_t{9}, length));
                        const auto product = [&](const std::vector<double>& x, const std::vector<double>& y,
                                                 std::ptrdiff_t j) {
                            double sum = 0;
                            for (std::ptrdiff_t l = 0; l < 3; ++l)
                                sum += x[static_cast<std::size_t>((item * c.rows() + r) * 3 + l)] *
                                       y[static_cast<std::size_t>((item * 9 + j) * 3 + l)];
                            return sum;
                        };
                        double sum = 0, dot = 0;
                        for (std::ptrdiff_t j = begin; j < end; ++j) sum += std::exp(0.75 * 0.5 * product(c.q, c.k, j));
                        const auto p_of = [&](std::ptrdiff_t j) {
                            return j >= begin && j < end ? std::exp(0.75 * 0.5 * product(c.q, c.k, j)) / sum : 0.0;
                        };
                        for (std::ptrdiff_t j = begin; j < end; ++j) dot += p_of(j) * 0.25 * product(c.dout, c.v, j);
                        for (std::ptrdiff_t j = 0; j < 9; ++j) {
                            const auto at = static_cast<std::size_t>((r - first) * 9 + j);
                            CHECK(found.p[at] == Approx(4 * p_of(j)).margin(1e-14));
                            CHECK(found.ds[at] ==
                                  Approx(2 * 1.5 * p_of(j) * (0.25 * product(c.dout, c.v, j) - dot)).margin(1e-13));
                        }
                    }
                }
            }
}

TEST_CASE("scores of attention: the bits of a row do not depend on the rows beside it") {
    Case c;
    c.args.causal = true;
    const Scores all(c, 1, 0, c.rows());
    for (std::ptrdiff_t first = 0; first < c.rows(); first += 3) {
        const std::ptrdiff_t last = std::min(first + 3, c.rows());
        const Scores some(c, 1, first, last);
        CHECK(std::equal(some.p.begin(), some.p.end(), all.p.begin() + first * 9));
        CHECK(std::equal(some.ds.begin(), some.ds.end(), all.ds.begin() + first * 9));
    }
}

TEST_CASE("scores of attention: some rows see the keys that the last query among them sees") {
    AttentionProductArguments<float> args;
    args.heads = 2, args.queries = 4, args.keys = 7, args.causal = true;
    CHECK(attention_keys_seen(args, 0, 0, 1) == 4);
    CHECK(attention_keys_seen(args, 0, 0, 3) == 6);
    CHECK(attention_keys_seen(args, 0, 4, 6) == 5);
    CHECK(attention_keys_seen(args, 0, 3, 5) == 7);  // the last query of one head and the first of another
    args.causal = false;
    CHECK(attention_keys_seen(args, 0, 0, 1) == 7);
}
