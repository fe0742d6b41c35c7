// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/scaling/state.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

// The biases that amax rules measured (FP8-AMAX): of one step, and how often each occurred over several steps.
namespace unitscale::experiments {

/// The biases that amax rules measured for this step's scaled operands, by `path|role`. Operands of products that have
/// not been formed are left out: gradients, in a model that is only evaluated.
/// Test: tests/experiments/measured_biases_test.cpp
[[nodiscard]] nlohmann::ordered_json measured_biases(const ScalingState& state);

/// How often an operand had each bias.
struct OperandBiases {
    std::string operand{};                ///< `path|role`
    std::map<int, std::size_t> counts{};  ///< by bias; never empty

    /// The most frequent bias; of equal ones, the lowest.
    [[nodiscard]] int mode() const;
    /// The share of steps with the most frequent bias.
    [[nodiscard]] double share() const;
};

/// How often each bias was measured over several steps, by operand. Reference: Perez et al. 2023, arXiv:2309.17224,
/// figure 6.
class BiasCounts {
public:
    /// Counts the biases of this step.
    void add(const ScalingState& state);

    /// In the order of the operands' products.
    [[nodiscard]] const std::vector<OperandBiases>& operands() const noexcept { return operands_; }

    /// A row for each operand, below a header: layer, role, mode, share at the mode, least and largest bias.
    [[nodiscard]] std::vector<std::vector<std::string>> rows() const;

    /// Counts by `path|role` and bias: {"decoder/block0/ffn/up/linear|weight":{"4":60},...}
    [[nodiscard]] nlohmann::ordered_json json() const;

private:
    std::vector<OperandBiases> operands_{};
};

}  // namespace unitscale::experiments
