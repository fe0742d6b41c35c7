// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/attention_products.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

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
          site_(site),
          formats_(tape.state().formats(site, ProductKind::attention, tape.recipe())),
          training_(tape.step_options().training) {
        for (std::size_t slot = 0; slot < keys_.size(); ++slot)
            keys_[slot] =
                tape.random_key(site, 1 + static_cast<std::uint64_t>(first_use(static_cast<AttentionSlot>(slot))));
    }

    /// Whether any operand is in blocks.
    [[nodiscard]] bool has_blocks() const {
        for (std::size_t slot = 0; slot < attention_slot_count; ++slot)
            if (formats_.rule(static_cast<AttentionSlot>(slot)).scale.blocks) return true;
        return false;
    }

    /// The operand's rounding. `amax()` measures its tensor, and is called where the rule needs the result.
    template <class Measure>
    [[nodiscard]] kernels::AttentionOperand operand(AttentionSlot slot, Measure&& amax) const {
        const OperandRule rule = formats_.rule(slot);
        kernels::AttentionOperand result{.quantiser = rule.element, .key = keys_[static_cast<std::size_t>(slot)]};
        if (!rule.element) return result;
        if (const auto& blocks = rule.scale.blocks) {
            result.blocks = *blocks;
            const bool by_tensor = blocks->along == whole_dimension && blocks->across == whole_dimension;
            if (blocks->tensor_scale || by_tensor) result.amax = amax();
        } else if (rule.scale.source != ScaleSource::none) {
            const AttentionSlot place = is_own(slot) || is_own(first_use(slot)) ? slot : first_use(slot);
            const int bias = state_->operand_bias(site_, first_attention_name + static_cast<std::size_t>(place),
                                                  rule.element->format, rule.scale, training_, amax);
            result.quantiser->format = shifted(rule.element->format, bias);
        }
        return result;
    }
    /// The rounding of a tensor in its second product. `known`: its rounding in the first one, which holds here too
    /// unless either has a rule of its own.
    template <class Measure>
    [[nodiscard]] kernels::AttentionOperand operand(AttentionSlot slot, const kernels::AttentionOperand& known,
                                                    Measure&& amax) const {
        return is_own(slot) || is_own(first_use(slot)) ? operand(slot, amax) : known;
    }

private:
    [[nodiscard]] bool is_own(AttentionSlot slot) const { return formats_.attention.contains(slot); }

    ScalingState* state_;
    Site site_;
    ProductFormats formats_;
    bool training_;
    std::array<RandomKey, attention_slot_count> keys_{};
};

}  // namespace unitscale::ops
