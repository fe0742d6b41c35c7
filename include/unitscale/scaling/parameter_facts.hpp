// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace unitscale {

/// The purpose of a parameter: rules for initial values, learning rates and weight decay depend on it.
enum class ParameterRole { weight, bias, norm, embedding, readout };

inline constexpr std::array<std::string_view, 5> parameter_role_names = {"weight", "bias", "norm", "embedding",
                                                                         "readout"};
[[nodiscard]] constexpr std::string_view name(ParameterRole role) noexcept {
    return parameter_role_names[static_cast<std::size_t>(role)];
}

/// The facts of a parameter that rules depend on. Fans count elements. A linear weight [out,in] has fan_in = in,
/// fan_out = out; an embedding table [count,width] has fan_in = count, fan_out = width.
/// Test: tests/scaling/parameter_facts_test.cpp
struct ParameterFacts {
    ParameterRole role = ParameterRole::weight;
    std::size_t fan_in = 1;
    std::size_t fan_out = 1;
    /// Transformer layers (blocks) of the trunk if the parameter is inside a residual branch, else 0.
    std::size_t depth = 0;
    /// Columns of the residual stream of its model; 0: the fan on the stream's side.
    std::size_t width = 0;

    friend constexpr bool operator==(const ParameterFacts&, const ParameterFacts&) = default;
};

/// Columns of the residual stream: the fact if it is set, else the fan on the stream's side.
[[nodiscard]] constexpr std::size_t stream_width(const ParameterFacts& facts) noexcept {
    if (facts.width != 0) return facts.width;
    return facts.role == ParameterRole::weight || facts.role == ParameterRole::readout ? facts.fan_in : facts.fan_out;
}

}  // namespace unitscale
