// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace unitscale {

/// The factor of the loss before the backward pass, which keeps small gradients within a 16-bit or 8-bit format. The
/// update divides by it again.
///   none: 1
///   constant: `initial`, in every step
///   automatic: if a step has gradients that are not finite, it is skipped and the factor is multiplied by `backoff`;
///     after `interval` good steps in a row the factor is multiplied by `growth`
enum class LossScaleKind : std::uint8_t { none, constant, automatic };

inline constexpr std::array<std::string_view, 3> loss_scale_names = {"none", "constant", "automatic"};
[[nodiscard]] constexpr std::string_view name(LossScaleKind kind) noexcept {
    return loss_scale_names[static_cast<std::size_t>(kind)];
}

/// How a recipe scales the loss: the kind and its numbers.
/// Reference: Micikevicius et al. 2018, arXiv:1710.03740. Test: tests/scaling/loss_scaling_test.cpp
struct LossScaling {
    LossScaleKind kind = LossScaleKind::none;
    double initial = 65536.0;
    double growth = 2.0;
    double backoff = 0.5;
    std::size_t interval = 2000;

    friend constexpr bool operator==(const LossScaling&, const LossScaling&) = default;

    /// Error, naming the field: numbers that make no sense.
    void validate() const {
        const auto positive = [](const char* field, double value) {
            check(std::isfinite(value) && value > 0.0, "loss_scaling: ", field, " is ", value,
                  "; expected a positive number");
        };
        positive("initial", initial);
        positive("growth", growth);
        positive("backoff", backoff);
        check(growth >= 1.0, "loss_scaling: growth is ", growth, "; expected at least 1");
        check(backoff < 1.0, "loss_scaling: backoff is ", backoff, "; expected less than 1");
        check(interval >= 1, "loss_scaling: interval is 0; expected at least 1");
    }
};

}  // namespace unitscale
