// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace unitscale {

/// The type of a model's activations, gradients and weights: T of Tape<T>. Sums are Accum<T>, float for all three.
enum class ElementType : std::uint8_t { float32, float16, bfloat16 };

inline constexpr std::array<std::string_view, 3> element_type_names = {"fp32", "fp16", "bf16"};
[[nodiscard]] constexpr std::string_view name(ElementType element) noexcept {
    return element_type_names[static_cast<std::size_t>(element)];
}

/// The format of an element type.
[[nodiscard]] constexpr FloatFormat element_format(ElementType element) noexcept {
    return element == ElementType::float16 ? fp16 : element == ElementType::bfloat16 ? bf16 : fp32;
}

/// How a tensor that lives from update to update is kept: as codes of a format of at most 16 bits, or as computed, in
/// Accum<T>.
struct StateFormat {
    std::optional<FloatFormat> format{};  ///< empty: as computed
    bool scaled = true;  ///< codes times a power of two, the least for which the largest magnitude fits
    /// The power of two follows from the scales of the terms of an update, by Scalify's rule for sums. The gradient's
    /// size counts (`optim::gradient_unit`); the moment's values are not looked at. For moments under scaling
    /// `propagate`.
    bool propagated = false;
    std::size_t block = 0;  ///< consecutive values with one power of two; 0: the whole tensor
    Rounding rounding = Rounding::nearest_even;

    static constexpr std::size_t least_block = 16, most_block = 1024;

    friend constexpr bool operator==(const StateFormat&, const StateFormat&) = default;

    /// Error, in the name of `what`: a format that cannot hold such a tensor, or a block that is no power of two from
    /// 16 to 1024. An unfit format is too wide, or has no zero, no NaN (for a failed step) or no sign.
    [[gnu::cold]] void validate(std::string_view what) const {
        check(!propagated || format, what, ": propagated is for codes; the values are kept as computed");
        if (!format) return;
        if (const auto message = problem(*format); !message.empty()) fail(what, ": ", message);
        check(format->code_bits() <= 16, what, ": ", unitscale::name(*format), " has ", format->code_bits(),
              " bits; expected at most 16, or none for what is kept as computed");
        check(format->has_zero() && format->has_nan() && format->is_signed(), what, ": ", unitscale::name(*format),
              " has no ",
              !format->has_zero()  ? "zero"
              : !format->has_nan() ? "NaN"
                                   : "sign",
              "; expected a format with zero, NaN and sign");
        check(block == 0 || (std::has_single_bit(block) && block >= least_block && block <= most_block), what,
              ": block is ", block, "; expected 0, or a power of two from ", least_block, " to ", most_block);
        check(block == 0 || scaled, what, ": block is ", block, ", but nothing is scaled; expected 0");
        check(!propagated || (scaled && block == 0), what,
              ": propagated is for one scale of the whole tensor; expected scaled true and block 0");
    }
};

/// A recipe's rules for storage, the third of its axes. Test: tests/scaling/storage_test.cpp
struct Storage {
    ElementType element = ElementType::float32;
    /// A copy of the weights that is updated and that the weights are rounded from. Empty: none.
    std::optional<StateFormat> master{};
    StateFormat first_moment{};  ///< of Adam; the velocity of SGD
    StateFormat second_moment{};
    /// The format of gradients of linear layers' weights from their last contribution to the update. They are kept as
    /// codes where the format has at most 8 bits. Empty: not rounded.
    std::optional<Quantiser> weight_gradient{};
    ScaleRule weight_gradient_scale{};
    /// Under scaling `propagate`: after every update of this number, the data of weights and of propagated moments is
    /// brought to unit size by a power of two (`optim/rescale_state.hpp`). 0: never.
    std::size_t rescale_every = 0;

    /// Whether a part needs scaling `propagate`.
    [[nodiscard]] bool carries_scales() const noexcept {
        return rescale_every > 0 || first_moment.propagated || second_moment.propagated;
    }

    friend bool operator==(const Storage&, const Storage&) = default;

    /// Error, naming the field: formats and rules that make no sense.
    void validate() const {
        if (master) master->validate("storage.master");
        check(!master || !master->propagated, "storage.master: propagated is for moments; expected false");
        first_moment.validate("storage.first_moment");
        second_moment.validate("storage.second_moment");
        if (weight_gradient)
            if (const auto message = problem(weight_gradient->format); !message.empty())
                fail("storage.weight_gradient: ", message);
        check_rule("storage.weight_gradient_scale", weight_gradient_scale);
        check(weight_gradient_scale.source != ScaleSource::delayed && weight_gradient_scale.by_tensor(),
              "storage.weight_gradient_scale: ", name(weight_gradient_scale.source), " by ",
              weight_gradient_scale.blocks ? "block" : name(weight_gradient_scale.granularity),
              "; expected none, constant or amax by tensor");
    }
};

}  // namespace unitscale
