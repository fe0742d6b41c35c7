// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/scaling/state.hpp>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale {

/// Counts the modules and ops of a step by name, in the order of recording. It gives the tape's place in the model.
/// Borrows the state. Test: tests/autograd/site_counter_test.cpp
class SiteCounter {
public:
    explicit SiteCounter(ScalingState& state) : state_(&state) {}

    /// Begins another step: at the root, with every site unused.
    void begin() noexcept {
        ++turn_;
        scope_ = 0;
    }

    /// Names the module that the following ops belong to, until the guard is destroyed.
    class ScopeGuard {
    public:
        ScopeGuard(SiteCounter& counter, ScalingState::Scope inner) : counter_(counter), outer_(counter.scope_) {
            counter.scope_ = inner;
        }
        ScopeGuard(const ScopeGuard&) = delete;
        ScopeGuard& operator=(const ScopeGuard&) = delete;
        ~ScopeGuard() { counter_.scope_ = outer_; }

    private:
        SiteCounter& counter_;
        ScalingState::Scope outer_;
    };
    [[nodiscard]] ScopeGuard scope(std::string_view name, std::string_view alias = {}) {
        return {*this, state_->scope(scope_, name, alias)};
    }

    /// The first site of this op name in the current module that the step has not used. The call marks it as used.
    /// Its time does not depend on the number of such ops.
    [[nodiscard]] Site next(std::string_view op) {
        const ScalingState::Series series = state_->series(scope_, op);
        if (series >= used_.size()) used_.resize(series + 1);
        Used& used = used_[series];
        if (std::exchange(used.turn, turn_) != turn_) used.count = 0;
        return state_->site(series, used.count++);
    }

private:
    struct Used {
        std::uint64_t turn = 0;   ///< the turn that `count` belongs to
        std::uint32_t count = 0;  ///< sites of the series used in that turn
    };

    ScalingState* state_;
    ScalingState::Scope scope_ = 0;
    std::uint64_t turn_ = 1;
    std::vector<Used> used_{};  ///< by series
};

}  // namespace unitscale
