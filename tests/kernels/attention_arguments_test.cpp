// SPDX-License-Identifier: MIT
#include <unitscale/kernels/attention_arguments.hpp>

#include "support/catch.hpp"

#include <array>
#include <cstddef>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

TEST_CASE("attention arguments: rows of a view") {
    std::array<float, 2 * 3 * 4 * 5> data{};
    const AttentionView<float> view{data.data(), 3 * 4 * 5, 4 * 5, 5};
    CHECK(view.row(1, 2, 3) == data.data() + 60 + 40 + 15);
    const auto rows = view.rows(1, 1, 2);
    CHECK(rows.at(1, 4) == view.row(1, 2, 2) + 4);
    CHECK(AttentionView<float>{}.row(1, 1, 1) == nullptr);  // an empty tensor
}

TEST_CASE("attention arguments: the keys that a query sees") {
    AttentionArguments<float> args;
    args.queries = 3;
    args.keys = 5;
    CHECK(args.visible(0, 0) == 5);
    CHECK(args.forward_block(Isa::avx2) == 64);
    CHECK(args.backward_block() == 64);

    args.causal = true;  // the last query sees every key
    CHECK(args.visible(0, 0) == 3);
    CHECK(args.visible(0, 2) == 5);
    CHECK(args.first(2) == 0);
    CHECK(args.forward_block(Isa::baseline) == 16);
    CHECK(args.forward_block(Isa::avx2) == 16);
    CHECK(args.forward_block(Isa::avx512) == 32);
    CHECK(args.backward_block() == 32);

    args.mask.window = 2;
    CHECK(args.first(0) == 1);
    CHECK(args.first(2) == 3);

    const std::array<std::size_t, 1> lengths = {4};
    args.mask.lengths = lengths.data();
    CHECK(args.limit(2) == 5);
    CHECK(args.visible(0, 2) == 4);

    args.queries = 9;  // more queries than keys: the first see none
    CHECK(args.visible(0, 3) == 0);
    CHECK(args.visible(0, 4) == 1);
}

TEST_CASE("attention arguments: any head may be asked for") {
    const std::ptrdiff_t batch = 2, heads = 4, groups = 2, queries = 3, keys = 2, depth = 40;
    std::vector<float> q(static_cast<std::size_t>(batch * queries * heads * depth)),
        k(static_cast<std::size_t>(batch * keys * groups * depth));
    AttentionArguments<float> args{batch, heads, groups, queries, keys, depth};
    args.q = {q.data(), queries * heads * depth, heads * depth, depth};
    args.k = args.v = {k.data(), keys * groups * depth, groups * depth, depth};
    for (std::ptrdiff_t b = 0; b < batch; ++b)
        for (std::ptrdiff_t h = 0; h < heads; ++h) {
            const NextHead<float> next(args, b, h), with_gradient(args, b, h, args.q);
            for (std::ptrdiff_t i = 0; i < queries; ++i) {
                next.ask(i);
                with_gradient.ask(i);
            }
        }
    const NextHead<float> after_last(args, batch - 1, heads - 1), second(args, 0, 0), of_next_group(args, 0, 1);
    CHECK(after_last.rows() == 0);
    CHECK(second.rows() == 1);         // of q: the group of k and v is the same
    CHECK(of_next_group.rows() == 3);  // of q, k and v
}
