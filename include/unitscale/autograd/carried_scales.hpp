// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/recorded_graph.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unitscale {

/// The scales of a step's values and gradients under `propagate`: by the rule of the op, or planned. A dry pass
/// measures the scales that will be planned (`Tape::plan`, `PropagateRule::measured`).
/// A planned scale is the root mean square of a value, or of a gradient where the loss has the gradient 1. Ops that ask
/// for a scale here are measured. Others pass the scale of an input on.
/// Test: tests/autograd/carried_scales_test.cpp
class CarriedScales {
public:
    CarriedScales() = default;
    CarriedScales(const PropagateRule& rule, ScalingState& state)
        : rounding_(rule.rounding), delayed_sizes_(rule.delayed_sizes), state_(&state) {}

    [[nodiscard]] ScaleRounding rounding() const noexcept { return rounding_; }

    /// Begins a step, which trains or not.
    void begin_step(bool trains) noexcept { trains_ = trains; }
    /// The power of two that divides data of this scale, which the op at `site` has measured as `now`. With
    /// `PropagateRule::delayed_sizes` it follows from the value, data times scale, of the training step before this
    /// one: the value's size changes slowly, but the scale that it arrives with jumps with the sizes of other ops.
    /// `which`: 0 to 2, of the sizes that one op measures.
    [[nodiscard]] double data_size(Site site, std::size_t which, double now, double scale) {
        return delayed_sizes_ ? rescaling(state_->delayed_size(site, which, now * scale, trains_) / scale) : now;
    }

    /// Data factor and scale of the value of the op at `site`. The data that its kernel computes stands for `unit`, and
    /// `wanted` is the scale by the op's rule. A planned scale replaces it, rounded. `random`: for `stochastic`.
    [[nodiscard, gnu::noinline]] Scaled value(Site site, double unit, double wanted, std::uint32_t random) {
        if (measuring_) asked_ = site.id;
        if (const auto planned = state_->planned_scale(site)) wanted = as_scale(rounding_, *planned, random);
        return with_scale(unit, wanted);
    }
    /// The same for the gradient that the op gives its input `i`.
    [[nodiscard, gnu::noinline]] Scaled gradient(Site site, std::size_t i, double unit, double wanted,
                                                 std::uint32_t random) {
        if (measuring_ && i < 64) {
            if (asked_ != site.id) asked_inputs_ = 0;
            asked_ = site.id;
            asked_inputs_ |= std::uint64_t{1} << i;
        }
        if (const auto planned = state_->planned_gradient_scale(site, i))
            wanted = as_scale(rounding_, *planned * seed_, random);
        return with_scale(unit, wanted);
    }

    /// The gradient of the first loss, by which planned scales of gradients are multiplied.
    void set_seed(double seed) noexcept {
        const double size = std::abs(seed);
        seed_ = size > 0.0 && std::isfinite(size) ? size : 1.0;
    }

    /// Begins a dry pass.
    void begin_measuring() {
        measuring_ = true;
        asked_ = no_site;
        measured_.clear();
    }
    /// Ends it, also after a throw, without a plan.
    void end_measuring() noexcept { measuring_ = false; }
    [[nodiscard]] bool measuring() const noexcept { return measuring_; }

    /// Measures the value of the op at `site`, if the op has asked for its scale just now.
    template <class T>
    void measure(Site site, const Tensor<T>& value) {
        if (measuring_ && asked_ == site.id) note({.site = site, .is_value = true}, value);
        asked_ = no_site;
    }
    template <class T>
    void measure_gradient(Site site, std::size_t i, const Tensor<T>& gradient) {
        if (measuring_ && asked_ == site.id && i < 64 && (asked_inputs_ >> i & 1) != 0)
            note({.site = site, .input = i}, gradient);
    }

    /// Forgets the gradients that the dry pass has given to parameters, and plans its scales.
    template <class T>
    void plan(RecordedGraph<T>& graph) {
        for (const std::uint32_t index : graph.parameter_slots())
            if (Parameter<T>* const trained = graph.slots()[index].parameter; trained != nullptr)
                trained->clear_gradient();
        for (const Measured& found : measured_) {
            if (found.is_value) state_->set_planned_scale(found.site, found.scale);
            else state_->set_planned_gradient_scale(found.site, found.input, found.scale);
        }
    }
    /// Error: a parameter of the graph has a gradient, which the dry pass would change.
    template <class T>
    static void check_no_gradients(RecordedGraph<T>& graph) {
        for (const std::uint32_t index : graph.parameter_slots()) {
            const Parameter<T>* const trained = graph.slots()[index].parameter;
            check(trained == nullptr || !trained->has_gradient(), "plan: parameter ",
                  trained == nullptr ? std::string() : trained->name(),
                  " has a gradient; expected none before the first step");
        }
    }

private:
    struct Measured {
        Site site{};
        std::size_t input = 0;
        bool is_value = false;
        double scale = 1.0;
    };

    /// A tensor of one element has no size to measure. Data that is more than 2^12 times larger or smaller than its
    /// scale says is not measured either: it is not finite, or 0 but for rounding, and the rule is the better guess.
    template <class T>
    void note(Measured found, const Tensor<T>& tensor) {
        found.scale = root_mean_square(tensor);
        if (tensor.size() > 1 && found.scale >= tensor.scale() * 0x1p-12 && found.scale <= tensor.scale() * 0x1p12)
            measured_.push_back(found);
    }

    static constexpr std::uint32_t no_site = 0xFFFFFFFF;

    ScaleRounding rounding_ = ScaleRounding::down;
    bool delayed_sizes_ = false;
    bool trains_ = false;
    ScalingState* state_ = nullptr;
    double seed_ = 1.0;
    bool measuring_ = false;
    std::uint32_t asked_ = no_site;   ///< site of the op that asked last
    std::uint64_t asked_inputs_ = 0;  ///< inputs for which its backward function asked, as bits; beyond 64: never
    std::vector<Measured> measured_{};
};

}  // namespace unitscale
