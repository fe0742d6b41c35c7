// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>

namespace unitscale {

/// How a residual layer joins its branch f to the stream x.
///   plain: x + f(x), the textbook layer; not unit-scaled
///   fixed: (tau f(x) + x) / sqrt(tau^2 + 1) with one tau for every layer, or one share a
///   running_mean: as `fixed`, with the share 1/(1 + i) at layer i = 0, 1, ...: the first branch replaces the stream,
///     and every branch has an equal part of the last output
///   depth: the u-µP rule, tau_i = a_i / sqrt(L/2 + n_attn a_attn^2 + n_ffn a_ffn^2), below
enum class ResidualScheme { plain, fixed, running_mean, depth };

inline constexpr std::array<std::string_view, 4> residual_scheme_names = {"plain", "fixed", "running_mean", "depth"};

[[nodiscard]] constexpr std::string_view name(ResidualScheme scheme) noexcept {
    return residual_scheme_names[static_cast<std::size_t>(scheme)];
}

/// A residual rule: its scheme and the scheme's numbers. `fixed` reads `share`, else `tau`; `depth` reads `multiplier`
/// (alpha_res) and `attention_ratio` (alpha_res_attn_ratio).
/// The Unit Scaling paper states the share a of the branch in the variance, (1 - a)^1/2 x + a^1/2 f(x). u-µP states the
/// branch's weight tau against the stream. So a = tau^2 / (1 + tau^2): tau 0.5 is a share of 0.2, share 0.5 is tau 1.
struct ResidualRule {
    ResidualScheme scheme = ResidualScheme::plain;
    double tau = 0.5;
    double multiplier = 1.0;
    double attention_ratio = 1.0;
    std::optional<double> share{};  ///< a, in (0, 1]; takes the place of tau, which then stays at its default
};

/// tau of a branch with the share a of the variance: (a / (1 - a))^1/2, infinite for a = 1, where the branch replaces
/// the stream.
[[nodiscard]] inline double tau_of_share(double share) noexcept {
    return share >= 1.0 ? std::numeric_limits<double>::infinity() : std::sqrt(share / (1.0 - share));
}

/// Error, naming the field: a tau beside a share; a share out of (0, 1], or under a scheme that reads none.
inline void check_residual(const ResidualRule& rule) {
    if (!rule.share) return;
    check(rule.scheme == ResidualScheme::fixed, "residual: share is for the scheme fixed; the scheme is ",
          name(rule.scheme));
    check(rule.tau == ResidualRule{}.tau, "residual: tau is ", rule.tau, " and share is ", *rule.share,
          "; expected one of the two");
    check(*rule.share > 0.0 && *rule.share <= 1.0, "residual: share is ", *rule.share, "; expected a number in (0, 1]");
}

/// The branch weight tau of residual layer `index` (0, 1, ... in order of use) of `count` in all. A block has `parts`
/// layers: attention, and feed-forward as the last. Infinite where the branch replaces the stream (a share of 1).
/// Meaningless for `plain`, which has no tau (returns 1).
///
/// The depth rule: let r = attention_ratio, a_ffn = multiplier sqrt(parts / (1 + (parts - 1) r^2)) and
/// a_attn = r a_ffn, so that multiplier^2 is the mean square of a. n_attn and n_ffn are the numbers of attention and
/// feed-forward layers before this one; L = count. tau is this layer's a over the root of
/// L/2 + n_attn a_attn^2 + n_ffn a_ffn^2, which the stream has gathered so far. The stream then has unit scale after
/// each layer. The paper has parts = 2.
/// The running mean: share 1/(1 + i), so tau = i^-1/2. Layer i's stream has i equal parts, and its branch adds one.
/// Errors: index >= count; under `depth` a count that is not one of whole blocks; the errors of `check_residual`.
/// References: Blake et al. 2024, arXiv:2407.17465, section 3.4, appendices F and G.2.2; Blake, Orr, Luschi 2023,
/// arXiv:2303.11257, section 5.3. Test: tests/scaling/residual_test.cpp
[[nodiscard]] inline double residual_tau(const ResidualRule& rule, std::size_t index, std::size_t count,
                                         std::size_t parts = 2) {
    check(index < count, "residual: layer ", index, " of ", count, "; expected a number below the count");
    check_residual(rule);
    switch (rule.scheme) {
        case ResidualScheme::plain:
            return 1.0;
        case ResidualScheme::fixed:
            if (rule.share) return tau_of_share(*rule.share);
            check(rule.tau > 0.0, "residual: tau is ", rule.tau, "; expected a positive number");
            return rule.tau;
        case ResidualScheme::running_mean:
            return 1.0 / std::sqrt(static_cast<double>(index));  // infinite at 0
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
