// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/round.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace unitscale::ops {

/// How the products of an op round their operands in this step. The formats belong to the op's site. Each format gets
/// the bias that its scale rule finds for the operand. Backward functions keep a copy, in order to round gradients. The
/// scaling state must outlive the tape.
/// Test: tests/record/operand_rounding_test.cpp
class OperandRounding {
public:
    template <class T>
    OperandRounding(Tape<T>& tape, Site site, ProductKind kind)
        : state_(&tape.state()),
          product_(tape.state().product(site, kind, tape.recipe())),
          training_(tape.step_options().training) {}

    [[nodiscard]] const ProductFormats& formats() const noexcept { return product_->formats; }
    [[nodiscard]] OperandRule rule(OperandSlot slot) const { return product_->rule(slot); }
    /// The rotation of an operand's product. Drawn signs are one word of the site's lasting stream.
    [[nodiscard]] std::optional<HadamardRotation> rotation(OperandSlot slot) const {
        std::optional<HadamardRotation> own = formats().rotation(slot);
        if (own && own->drawn) {
            const auto product = static_cast<std::uint64_t>(slot) / 2;
            own = HadamardRotation{own->size, random_word(state_->lasting_key(product_->site, product), 0)};
        }
        return own;
    }
    /// Whether two slots of one tensor have one rule and one bias, so that the tensor is rounded alike in both.
    [[nodiscard]] bool share(OperandSlot a, OperandSlot b) const { return !is_own(a) && !is_own(b); }

    /// The operand's quantiser; empty if the operand is not rounded, or not with one bias. With a bias, its format is
    /// the shifted one (`shifted`).
    template <class T>
    [[nodiscard]] std::optional<Quantiser> quantiser(const Execution& execution, OperandSlot slot,
                                                     const Tensor<T>& operand) const {
        OperandRule own = rule(slot);
        if (!own.element || own.scale.source == ScaleSource::none || !own.scale.by_tensor()) return own.element;
        const std::size_t place = is_own(slot) ? operand_place(slot) : operand_place(role_of(slot));
        const int bias = state_->operand_bias(product_->site, place, own.element->format, own.scale, training_, [&] {
            return kernels::amax(execution, operand.data(), static_cast<std::ptrdiff_t>(operand.size()));
        });
        own.element->format = shifted(own.element->format, bias);
        return own.element;
    }
    /// The quantiser of a tensor that another slot has, too. `known`: the quantiser there. It is measured again only if
    /// the rules differ.
    template <class T>
    [[nodiscard]] std::optional<Quantiser> quantiser(const Execution& execution, OperandSlot slot,
                                                     const Tensor<T>& operand, OperandSlot other,
                                                     const std::optional<Quantiser>& known) const {
        return slot == other || share(slot, other) ? known : quantiser(execution, slot, operand);
    }

    /// Shows an operand that the product is about to round to the tape's observer, if there is one. `source`: the tape,
    /// or the context of the backward function. `tensor`: null if the tape has kept codes only. `quantiser`: the result
    /// of the function `quantiser` for it.
    template <class T, class Source>
    void show(const Source& source, OperandSlot slot, const Tensor<T>* tensor, std::size_t columns, RandomKey key,
              const std::optional<Quantiser>& quantiser, bool contracts_rows) const {
        if (Observer<T>* const observer = source.observer())
            show_to(*observer, slot, tensor, columns, key, quantiser, contracts_rows);
    }

    /// Error, in the name of `op`: an operand that is scaled by rows, columns or blocks, which only linear layers are.
    void check_by_tensor(const char* op) const {
        const auto check_scale = [op](std::string_view operand, const ScaleRule& scale) {
            check(scale.by_tensor(), op, ": scale of the ", operand, " by ",
                  scale.blocks ? "block" : name(scale.granularity),
                  "; rows, columns and blocks are those of linear layers");
        };
        for (const OperandRole role : {OperandRole::activation, OperandRole::weight, OperandRole::gradient})
            if (formats().of(role)) check_scale(name(role), formats().scale(role));
        for (std::size_t slot = 0; slot < linear_slot_count; ++slot)
            if (const auto& own = formats().slots[slot]) check_scale(slot_names[slot], own->scale);
    }

private:
    template <class T>
    [[gnu::cold, gnu::noinline]] void show_to(Observer<T>& observer, OperandSlot slot, const Tensor<T>* tensor,
                                              std::size_t columns, RandomKey key,
                                              const std::optional<Quantiser>& quantiser, bool contracts_rows) const {
        const OperandRule own = rule(slot);
        if (!own.element) return;
        observer.observe_operand({.path = state_->path(product_->site),
                                  .op = state_->op(product_->site),
                                  .slot = slot,
                                  .rule = own,
                                  .rotation = rotation(slot),
                                  .quantiser = own.scale.by_tensor() ? quantiser : std::nullopt,
                                  .key = key,
                                  .tensor = tensor,
                                  .columns = columns,
                                  .contracts_rows = contracts_rows});
    }

    [[nodiscard]] bool is_own(OperandSlot slot) const noexcept { return formats().own(slot).has_value(); }

    ScalingState* state_;
    std::shared_ptr<const ScalingState::Product> product_;
    bool training_;
};

/// Parts of a site's random stream: one per operand role of its products, and one for their results.
inline constexpr std::uint64_t activation_part = 1, weight_part = 2, gradient_part = 3, result_part = 4;

/// Rounds the result of a product in place, if the recipe says so.
template <class T>
[[gnu::noinline]] void round_result(const Execution& execution, const ProductFormats& formats, RandomKey key,
                                    Tensor<T>& result) {
    if (formats.result)
        kernels::round_elements<T>(execution, "product", *formats.result, key, result.data(), result.data(),
                                   static_cast<std::ptrdiff_t>(result.size()));
}

}  // namespace unitscale::ops
