// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace unitscale {

/// How a residual layer joins its branch f to the stream x.
///   plain: x + f(x), the textbook layer; not unit-scaled
///   fixed: (tau f(x) + x) / sqrt(tau^2 + 1) with one tau for every layer
///   running_mean: as `fixed`, with tau = 1/sqrt(l) at layer l = 1, 2, ...: every branch contributes equally to the
///     last output
///   depth: the u-µP rule, tau_i = a_i / sqrt(L/2 + n_attn a_attn^2 + n_ffn a_ffn^2), below
enum class ResidualScheme { plain, fixed, running_mean, depth };

inline constexpr std::array<std::string_view, 4> residual_scheme_names = {"plain", "fixed", "running_mean", "depth"};

[[nodiscard]] constexpr std::string_view name(ResidualScheme scheme) noexcept {
    return residual_scheme_names[static_cast<std::size_t>(scheme)];
}

/// A residual rule: its scheme and the scheme's numbers. `fixed` reads `tau`; `depth` reads `multiplier` (alpha_res)
/// and `attention_ratio` (alpha_res_attn_ratio).
struct ResidualRule {
    ResidualScheme scheme = ResidualScheme::plain;
    double tau = 0.5;
    double multiplier = 1.0;
    double attention_ratio = 1.0;
};

/// The branch weight tau of residual layer `index` (0, 1, ... in order of use) of `count` in all. A block has `parts`
/// layers: attention, and feed-forward as the last. Meaningless for `plain`, which has no tau (returns 1).
///
/// The depth rule: let r = attention_ratio, a_ffn = multiplier sqrt(parts / (1 + (parts - 1) r^2)) and
/// a_attn = r a_ffn, so that multiplier^2 is the mean square of a. n_attn and n_ffn are the numbers of attention and
/// feed-forward layers before this one; L = count. tau is this layer's a over the root of
/// L/2 + n_attn a_attn^2 + n_ffn a_ffn^2, which the stream has gathered so far. The stream then has unit scale after
/// each layer. The paper has parts = 2.
/// Error: index >= count; under `depth` a count that is not one of whole blocks.
/// Reference: Blake et al. 2024, arXiv:2407.17465, section 3.4 and appendix G. Test: tests/scaling/residual_test.cpp
[[nodiscard]] inline double residual_tau(const ResidualRule& rule, std::size_t index, std::size_t count,
                                         std::size_t parts = 2) {
    check(index < count, "residual: layer ", index, " of ", count, "; expected a number below the count");
    switch (rule.scheme) {
        case ResidualScheme::plain:
            return 1.0;
        case ResidualScheme::fixed:
            check(rule.tau > 0.0, "residual: tau is ", rule.tau, "; expected a positive number");
            return rule.tau;
        case ResidualScheme::running_mean:
            return 1.0 / std::sqrt(static_cast<double>(index + 1));
        case ResidualScheme::depth:
            break;
    }
    check(parts >= 1 && count % parts == 0, "residual: ", count, " layers in blocks of ", parts,
          "; the depth rule needs whole blocks, with the feed-forward last");
    const double ratio = rule.attention_ratio;
    const double ffn = rule.multiplier * std::sqrt(static_cast<double>(parts) /
                                                   multiply_add(static_cast<double>(parts - 1) * ratio, ratio, 1.0));
    const double attention = ratio * ffn;
    const auto attention_before = static_cast<double>(index - index / parts);
    const auto ffn_before = static_cast<double>(index / parts);
    const double before = multiply_add(attention_before * attention, attention, ffn_before * ffn * ffn);
    const double gathered = multiply_add(static_cast<double>(count), 0.5, before);
    return (index % parts + 1 < parts ? attention : ffn) / std::sqrt(gathered);
}

}  // namespace unitscale
