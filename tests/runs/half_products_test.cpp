// SPDX-License-Identifier: MIT
// Products, attention and ops that move values in the 16-bit types. Sums have hundreds of terms, so that sums in 16 bits would show.
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/conv1d.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/operands.hpp>
#include <unitscale/ops/pad.hpp>
#include <unitscale/ops/readout.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/ops/rotary.hpp>
#include <unitscale/ops/slice.hpp>
#include <unitscale/ops/transpose.hpp>

#include "support/half_checks.hpp"
#include "support/op_checks.hpp"

using namespace unitscale;
using test::check_sixteen_bits;

TEST_CASE("runs: products sum in Accum and round once in 16 bits") {
    const auto linear = [](auto&, auto& v) { return ops::linear(v[0], v[1], std::optional(v[2])); };
    check_sixteen_bits("linear", {{5, 400}, {7, 400}, {7}}, linear);
    check_sixteen_bits("linear", {{500, 6}, {7, 6}, {7}}, linear);
    check_sixteen_bits("readout", {{5, 400}, {7, 400}}, [](auto&, auto& v) { return ops::readout(v[0], v[1]); });
    check_sixteen_bits("matmul", {{3, 4, 300}, {300, 5}}, [](auto&, auto& v) { return ops::matmul(v[0], v[1]); });
    check_sixteen_bits("conv1d", {{2, 64, 30}, {6, 32, 5}, {6}}, [](auto&, auto& v) {
        return ops::conv1d(v[0], v[1], std::optional(v[2]), {.groups = 2, .causal = true});
    });
}

TEST_CASE("runs: attention and rotary in 16 bits") {
    check_sixteen_bits("attention", {{2, 200, 8}, {2, 200, 4}, {2, 200, 4}},
                       [](auto&, auto& v) { return ops::attention(v[0], v[1], v[2], {.heads = 4, .groups = 2, .mult = 2.0}); });
    check_sixteen_bits("rotary", {{2, 9, 8}}, [](auto&, auto& v) { return ops::rotary(v[0], {.heads = 2}); });
}

TEST_CASE("runs: ops that move values are exact in 16 bits; a residual layer rounds branch and sum") {
    check_sixteen_bits(
        "concatenate", {{2, 3}, {2, 4}},
        [](auto&, auto& v) {
            return ops::concatenate({v[0], v[1]}, 1);
        },
        0, 0);
    check_sixteen_bits(
        "pad", {{2, 3}},
        [](auto&, auto& v) {
            return ops::pad(v[0], {1, 0}, {0, 2}, {.value = 0.25});
        },
        0, 0);
    check_sixteen_bits(
        "reshape", {{2, 3}},
        [](auto&, auto& v) {
            return ops::reshape(v[0], {3, 2});
        },
        0, 0);
    check_sixteen_bits(
        "slice", {{2, 3}},
        [](auto&, auto& v) {
            return ops::slice(v[0], {0, 1}, {2, 3});
        },
        0, 0);
    check_sixteen_bits(
        "transpose", {{2, 3}},
        [](auto&, auto& v) {
            return ops::transpose(v[0], {1, 0});
        },
        0, 0);
    check_sixteen_bits(
        "residual", {{7, 30}},
        [](auto&, auto& v) {
            const auto [branch, stream] = ops::residual_split(v[0], 0.5);
            return ops::residual_add(branch, stream, 0.5);
        },
        1, 3);
}
