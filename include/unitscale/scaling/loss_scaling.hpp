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
///   histogram: as automatic, but a step with many large gradients is not good either, although it is taken.
///     Large is an element above `edge` times the largest number of its type; many is a share above `most`
///   log_normal: 2^floor(log2(largest number of the type) - (mean + `deviations` sigma)). A step gives the number
///     log2(largest magnitude of the gradients without the factor). Its mean over past steps is `mean`, its standard
///     deviation `sigma`
/// All kinds look at the gradients of parameters only.
enum class LossScaleKind : std::uint8_t { none, constant, automatic, histogram, log_normal };

inline constexpr std::array<std::string_view, 5> loss_scale_names = {"none", "constant", "automatic", "histogram",
                                                                     "log_normal"};
[[nodiscard]] constexpr std::string_view name(LossScaleKind kind) noexcept {
    return loss_scale_names[static_cast<std::size_t>(kind)];
}

/// How a recipe scales the loss: the kind and its numbers.
/// References. constant, automatic: Micikevicius et al. 2018, arXiv:1710.03740. histogram: Graphcore's PopART, where
/// `most` is 1e-7 and `interval` 1. log_normal: Kuchaiev et al. 2018, arXiv:1805.10387, with the numbers of their
/// LogMaxScaler. Test: tests/scaling/loss_scaling_test.cpp
struct LossScaling {
    LossScaleKind kind = LossScaleKind::none;
    double initial = 65536.0;
    double growth = 2.0;
    double backoff = 0.5;
    std::size_t interval = 2000;
    double edge = 0x1p-3;           ///< histogram: a share of the largest number
    double most = 1e-7;             ///< histogram: below 10^7 elements, one above the edge is too many
    double deviations = 3.09;       ///< log_normal: of a normal distribution, 0.001 is above
    double mean_decay = 0.99;       ///< log_normal: of a past step's weight in the mean, in each step
    double variance_decay = 0.999;  ///< log_normal: of a past step's weight in the variance

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
        positive("edge", edge);
        check(edge <= 1.0, "loss_scaling: edge is ", edge, "; expected at most 1");
        check(most >= 0.0 && most < 1.0, "loss_scaling: most is ", most, "; expected a number in [0,1)");
        check(std::isfinite(deviations) && deviations >= 0.0, "loss_scaling: deviations is ", deviations,
              "; expected a number that is not negative");
        const auto decay = [](const char* field, double value) {
            check(value > 0.0 && value < 1.0, "loss_scaling: ", field, " is ", value, "; expected a number in (0,1)");
        };
        decay("mean_decay", mean_decay);
        decay("variance_decay", variance_decay);
    }
};

}  // namespace unitscale
