// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantiser.hpp>

#include <bit>
#include <cstddef>

namespace unitscale {

/// How gradients travel between the micro-batches of a step, each of which is a worker of its own. Both ways are
/// rounded, and the sum between them is in float:
///   q_i = round(2^b g_i)          b from the largest |g_i| of all workers
///   s = sum_i 2^-b q_i            in float, in the tree of train::TreeReducer
///   gradient = 2^-c round(2^c s)  c from the largest |s|
/// With `error_feedback` a worker adds what rounding took from its last gradient: g_i + e_i in place of g_i, and then
/// e_i := g_i + e_i - 2^-b q_i.
/// References: Peng et al. 2023, arXiv:2310.18313 (FP8-LM: gradients in FP8 with one scale for all workers); Seide et
/// al. 2014, Interspeech (error feedback). Test: tests/scaling/communication_test.cpp
struct Communication {
    Quantiser element{.format = e4m3};  ///< of the numbers that are sent
    std::size_t block = 0;  ///< consecutive elements with a power of two of their own; 0: the whole gradient
    int margin = 0;         ///< powers of two left free above the largest magnitude
    bool error_feedback = false;

    static constexpr std::size_t least_block = 16, most_block = 65536;

    /// Whether the numbers are multiplied by a power of two: formats with the exponents of float need none.
    [[nodiscard]] constexpr bool scales() const noexcept { return element.format.exponent_bits < 8; }

    friend constexpr bool operator==(const Communication&, const Communication&) = default;

    /// Error, naming the field: a format without sign or zero; a block that is no power of two in [16,65536]; a margin
    /// outside [-300,300].
    void validate() const {
        if (const auto message = problem(element.format); !message.empty()) fail("communication.format: ", message);
        check(element.format.is_signed() && element.format.has_zero(),
              "communication.format: ", unitscale::name(element.format), " has no ",
              element.format.is_signed() ? "zero" : "sign", "; expected a format with both");
        check(block == 0 || (std::has_single_bit(block) && block >= least_block && block <= most_block),
              "communication.block: is ", block, "; expected 0, or a power of two from ", least_block, " to ",
              most_block);
        check(margin >= -300 && margin <= 300, "communication.margin: is ", margin,
              "; expected a number in [-300,300]");
    }
};

}  // namespace unitscale
