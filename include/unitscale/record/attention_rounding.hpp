// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/attention_products.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace unitscale::ops {

/// Whether the recipe rounds any operand of the attention at a site.
template <class T>
[[nodiscard]] bool rounds_attention(Tape<T>& tape, Site site) {
    return tape.state().formats(site, ProductKind::attention, tape.recipe()).any();
}

/// How the six products of attention at a site round their operands in this step. A tensor has one random stream, so
/// both of its products round it alike if one rule holds in both. Backward functions keep a copy. The scaling state
/// must outlive the tape. Test: tests/record/attention_rounding_test.cpp
class AttentionRounding {
public:
    template <class T>
    AttentionRounding(Tape<T>& tape, Site site)
        : state_(&tape.state()),
          product_(tape.state().product(site, ProductKind::attention, tape.recipe())),
          training_(tape.step_options().training) {
        for (std::size_t i = 0; i < keys_.size(); ++i) {
            const OperandSlot tensor = first_use(static_cast<OperandSlot>(linear_slot_count + i));
            keys_[i] = tape.random_key(site, 1 + place(tensor));
        }
    }

    /// The operand's rounding. `amax()` measures its tensor, and is called where the rule needs the result.
    template <class Measure>
    [[nodiscard]] kernels::AttentionOperand operand(OperandSlot slot, Measure&& amax) const {
        const OperandRule rule = product_->rule(slot);
        kernels::AttentionOperand result{.quantiser = rule.element, .key = keys_[place(slot)]};
        if (!rule.element) return result;
        if (const auto& blocks = rule.scale.blocks) {
            result.blocks = *blocks;
            const bool by_tensor = blocks->along == whole_dimension && blocks->across == whole_dimension;
            if (blocks->tensor_scale || by_tensor) result.amax = amax();
        } else if (rule.scale.source != ScaleSource::none) {
            const OperandSlot measured = is_own(slot) || is_own(first_use(slot)) ? slot : first_use(slot);
            const int bias = state_->operand_bias(product_->site, operand_place(measured), rule.element->format,
                                                  rule.scale, training_, amax);
            result.quantiser->format = shifted(rule.element->format, bias);
        }
        return result;
    }
    /// The rounding of a tensor in its second product. `known`: its rounding in the first one, which holds here too
    /// unless either has a rule of its own.
    template <class Measure>
    [[nodiscard]] kernels::AttentionOperand operand(OperandSlot slot, const kernels::AttentionOperand& known,
                                                    Measure&& amax) const {
        return is_own(slot) || is_own(first_use(slot)) ? operand(slot, amax) : known;
    }

    /// Shows an operand in memory to the tape's observer, if there is one. `source`: the tape, or the context of the
    /// backward function. `rows`: the operand's matrices. `how`: the result of the function `operand` for it.
    template <class T, class Source>
    void show(const Source& source, OperandSlot slot, const Tensor<T>& rows, std::size_t matrices,
              const kernels::AttentionOperand& how) const {
        if (Observer<T>* const observer = source.observer(); observer != nullptr && how.quantiser)
            show_to(*observer, slot, rows, matrices, how);
    }

private:
    template <class T>
    [[gnu::cold, gnu::noinline]] void show_to(Observer<T>& observer, OperandSlot slot, const Tensor<T>& rows,
                                              std::size_t matrices, const kernels::AttentionOperand& how) const {
        using enum OperandSlot;  // these products contract queries or keys, the others the depth of a head
        const bool contracts_rows =
            slot == query_gradient_k || slot == key_gradient_q || slot == output_v || slot == value_gradient_dy;
        observer.observe_operand({.path = state_->path(product_->site),
                                  .op = state_->op(product_->site),
                                  .slot = slot,
                                  .rule = product_->rule(slot),
                                  .quantiser = how.blocks ? std::nullopt : how.quantiser,
                                  .key = how.key,
                                  .tensor = &rows,
                                  .columns = rows.dim(-1),
                                  .matrices = matrices,
                                  .contracts_rows = contracts_rows});
    }

    /// Among the operands of attention.
    [[nodiscard]] static constexpr std::size_t place(OperandSlot slot) noexcept {
        return static_cast<std::size_t>(slot) - linear_slot_count;
    }
    [[nodiscard]] bool is_own(OperandSlot slot) const { return product_->formats.own(slot).has_value(); }

    ScalingState* state_;
    std::shared_ptr<const ScalingState::Product> product_;
    bool training_;
    std::array<RandomKey, slot_count - linear_slot_count> keys_{};
};

}  // namespace unitscale::ops
