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
    [[nodiscard]] Site next(std::string_view op) {
        for (std::uint32_t ordinal = 0;; ++ordinal) {
            const Site site = state_->site(scope_, op, ordinal);
            if (site.id >= turns_.size()) turns_.resize(site.id + 1, 0);
            if (std::exchange(turns_[site.id], turn_) != turn_) return site;
        }
    }

private:
    ScalingState* state_;
    ScalingState::Scope scope_ = 0;
    std::uint64_t turn_ = 1;
    std::vector<std::uint64_t> turns_{};  ///< by site: the turn in which it was last used
};

}  // namespace unitscale
