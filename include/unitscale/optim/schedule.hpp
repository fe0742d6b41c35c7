// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>

namespace unitscale::optim {

/// The course of the learning rate after the warm-up.
enum class ScheduleKind { constant, cosine, half_life, linear };

inline constexpr std::array<std::string_view, 4> schedule_kind_names = {"constant", "cosine", "half-life", "linear"};

[[nodiscard]] constexpr std::string_view name(ScheduleKind kind) noexcept {
    return schedule_kind_names[static_cast<std::size_t>(kind)];
}

/// The kind with the name `text`. Error: an unknown name; the message lists the known names.
[[nodiscard]] inline ScheduleKind parse_schedule_kind(std::string_view text) {
    std::string known;
    for (std::size_t i = 0; i < schedule_kind_names.size(); ++i) {
        if (schedule_kind_names[i] == text) return static_cast<ScheduleKind>(i);
        if (i > 0) known += ", ";
        known += schedule_kind_names[i];
    }
    fail("schedule: unknown kind '", text, "'; expected one of ", known);
}

/// The learning rate of every update of a run, as a value. Updates t count from 1 to `steps`.
/// p = max(warmup, 1) is the update that has the peak:
///   t <= p:      peak t / p, linear
///   constant:    peak
///   cosine:      peak (f + (1 - f) (1 + cos(pi (t - p) / (steps - p))) / 2),   f = final_share, reached at t = steps
///   half_life:   peak 2^(-(t - p) / half_life)
///   linear:      peak (f + (1 - f) (steps - t) / (steps - p))
/// Units: `half_life` in updates. Test: tests/optim/schedule_test.cpp
struct Schedule {
    ScheduleKind kind = ScheduleKind::constant;
    double peak = 1e-3;
    std::uint64_t steps = 1;
    std::uint64_t warmup = 0;
    double final_share = 0.1;  ///< read by `cosine` and `linear`
    double half_life = 1.0;    ///< read by `half_life`

    /// Error: a field that is out of range; the message names the field.
    void validate() const {
        check(std::isfinite(peak) && peak >= 0.0, "schedule: peak is ", peak,
              "; expected a finite number, not negative");
        check(steps >= 1, "schedule: steps is 0; expected at least 1");
        check(warmup <= steps, "schedule: warm-up of ", warmup, " steps is longer than the run of ", steps);
        const bool falls = kind == ScheduleKind::cosine || kind == ScheduleKind::linear;
        check(!falls || (final_share >= 0.0 && final_share <= 1.0), "schedule: final share is ", final_share,
              "; expected a number from 0 to 1");
        check(kind != ScheduleKind::half_life || (std::isfinite(half_life) && half_life > 0.0),
              "schedule: half-life is ", half_life, " steps; expected a positive number");
    }

    /// The learning rate of update `step`. Errors: the errors of validate; a step outside 1 .. steps.
    [[nodiscard]] double at(std::uint64_t step) const {
        validate();
        check(step >= 1 && step <= steps, "schedule: step ", step, " of ", steps, "; updates count from 1");
        const std::uint64_t top = std::max<std::uint64_t>(warmup, 1);
        if (step <= top) return peak * (static_cast<double>(step) / static_cast<double>(top));
        const auto since = static_cast<double>(step - top);
        switch (kind) {
            case ScheduleKind::constant:
                return peak;
            case ScheduleKind::half_life:
                return peak * std::exp2(-since / half_life);
            case ScheduleKind::linear:
                return peak * multiply_add(1.0 - final_share,
                                           static_cast<double>(steps - step) / static_cast<double>(steps - top),
                                           final_share);
            case ScheduleKind::cosine:
                break;
        }
        const double progress = since / static_cast<double>(steps - top);
        return peak * multiply_add((1.0 - final_share) * 0.5, 1.0 + std::cos(std::numbers::pi * progress), final_share);
    }
};

}  // namespace unitscale::optim
