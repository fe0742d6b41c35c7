// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/language_run_options.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The space of a sweep: axes of named hyperparameters and sizes. A point has a value on each.
namespace unitscale::experiments {

/// A varied quantity: a field of the recipe, a size, number or named choice of the run, or its learning rate.
struct SweepParameter {
    std::string_view name;
    std::string_view field{};                         ///< of the recipe, named as in `--set`
    std::size_t LanguageRunOptions::*size = nullptr;  ///< of the run
    double LanguageRunOptions::*number = nullptr;     ///< of the run
    std::string LanguageRunOptions::*text = nullptr;  ///< of the run: the values are names, such as those of recipes
    bool LanguageRunOptions::*part = nullptr;         ///< of the model: the values are `on` and `off`
    /// Of the run, or empty for the recipe's: the values are whole numbers of any sign, exponents of 2.
    std::optional<int> LanguageRunOptions::*exponent = nullptr;
    std::string_view beside{};  ///< an assignment, as in `--set`, that comes with the field's

    [[nodiscard]] constexpr bool is_rate() const noexcept { return name == "lr" || name == "lr_factor"; }
    /// A factor on the learning rate of parameters. The axis' pattern selects their names.
    [[nodiscard]] constexpr bool has_pattern() const noexcept { return name == "rate:PATTERN"; }
    /// Names and sizes are conditions: a separate search is made for each combination of them.
    [[nodiscard]] constexpr bool is_condition() const noexcept {
        return text != nullptr || part != nullptr || size != nullptr;
    }
    [[nodiscard]] constexpr bool has_names() const noexcept { return text != nullptr || part != nullptr; }
    /// The values are exponents of 2 already. Tables and plots show them, where they show log2 of other values.
    [[nodiscard]] constexpr bool is_exponent() const noexcept { return exponent != nullptr; }
    /// The place of a value on the axis, in octaves: log2 of the value, or an exponent itself.
    [[nodiscard]] double octaves(const std::string& value) const;
    /// Gives `options` a value with a name.
    void set_name(LanguageRunOptions& options, const std::string& value) const {
        if (text != nullptr) options.*text = value;
        else options.*part = value == "on";
    }
};

/// `lr_factor` is a factor on the rate of `--lr`, or on each recipe's own rate. `loss_scale` is constant.
/// `constant_bias` is of all operands that the recipe rounds with a constant scale (with_constant_bias).
/// `rate:PATTERN` is a factor as in `--rate PATTERN=FACTOR`. A sweep may have several axes of it.
inline constexpr std::array sweep_parameters = {
    SweepParameter{"lr"},
    SweepParameter{"lr_factor"},
    SweepParameter{"alpha_attn", "hyperparameters.alpha_attn"},
    SweepParameter{"alpha_ffn_act", "hyperparameters.alpha_ffn_act"},
    SweepParameter{"alpha_res", "residual.multiplier"},
    SweepParameter{"alpha_res_attn_ratio", "residual.attention_ratio"},
    SweepParameter{"alpha_loss_softmax", "hyperparameters.alpha_loss_softmax"},
    SweepParameter{"init_sigma", "hyperparameters.init_sigma"},
    SweepParameter{"alpha_emb", "hyperparameters.alpha_emb"},
    SweepParameter{"alpha_out", "hyperparameters.alpha_out"},
    SweepParameter{"embedding_rate", "hyperparameters.embedding_rate"},
    SweepParameter{"rate:PATTERN"},
    SweepParameter{.name = "loss_scale", .field = "loss_scaling.initial", .beside = "loss_scaling.kind=constant"},
    SweepParameter{.name = "constant_bias", .exponent = &LanguageRunOptions::constant_bias},
    SweepParameter{"weight_decay", {}, nullptr, &LanguageRunOptions::weight_decay},
    SweepParameter{"beta1", {}, nullptr, &LanguageRunOptions::beta1},
    SweepParameter{"beta2", {}, nullptr, &LanguageRunOptions::beta2},
    SweepParameter{"epsilon"},
    SweepParameter{"momentum", {}, nullptr, &LanguageRunOptions::momentum},
    SweepParameter{"dropout", {}, nullptr, &LanguageRunOptions::dropout},
    SweepParameter{"final_share", {}, nullptr, &LanguageRunOptions::final_share},
    SweepParameter{"width", {}, &LanguageRunOptions::width},
    SweepParameter{"depth", {}, &LanguageRunOptions::depth},
    SweepParameter{"heads", {}, &LanguageRunOptions::heads},
    SweepParameter{"batch", {}, &LanguageRunOptions::batch},
    SweepParameter{"steps", {}, &LanguageRunOptions::steps},
    SweepParameter{"seq", {}, &LanguageRunOptions::seq},
    SweepParameter{"half_life", {}, &LanguageRunOptions::half_life},
    SweepParameter{"masked", {}, &LanguageRunOptions::masked},
    SweepParameter{.name = "model", .text = &LanguageRunOptions::model},
    SweepParameter{.name = "placement", .text = &LanguageRunOptions::placement},
    SweepParameter{.name = "context", .text = &LanguageRunOptions::context},
    SweepParameter{.name = "positions", .text = &LanguageRunOptions::positions},
    SweepParameter{.name = "feed_forward", .text = &LanguageRunOptions::feed_forward},
    SweepParameter{.name = "norm", .text = &LanguageRunOptions::norm},
    SweepParameter{.name = "residual", .text = &LanguageRunOptions::residual},
    SweepParameter{.name = "initial", .text = &LanguageRunOptions::initial},
    SweepParameter{.name = "optimiser", .text = &LanguageRunOptions::optimiser},
    SweepParameter{.name = "schedule", .text = &LanguageRunOptions::schedule},
    SweepParameter{.name = "final_norm", .part = &LanguageRunOptions::final_norm},
    SweepParameter{.name = "readout_bias", .part = &LanguageRunOptions::readout_bias},
    SweepParameter{.name = "embedding_norm", .part = &LanguageRunOptions::embedding_norm},
    SweepParameter{.name = "bias", .part = &LanguageRunOptions::bias},
    SweepParameter{.name = "gains", .part = &LanguageRunOptions::gains},
    SweepParameter{.name = "recipe", .text = &LanguageRunOptions::recipe},
};

/// The names of all parameters that are conditions, or of the others, separated by commas.
[[nodiscard]] std::string sweep_parameter_names(bool conditions);

/// The shortest text that is read as this number: 0.25, 32, 1e-05.
[[nodiscard]] std::string number_text(double number);

/// A positive number: `0.25`, `1e-3` or `2^-2`. Error, naming `axis`: any other text.
[[nodiscard]] double sweep_number(std::string_view axis, std::string_view text);

/// A parameter with its values or, for random search, with the interval to draw from.
struct SweepAxis {
    SweepParameter parameter{};
    std::vector<std::string> values{};  ///< numbers in the form of `number_text`, or names
    double low = 0.0, high = 0.0;       ///< of the interval, if there are no values
    std::string pattern{};              ///< of the names of parameters, for `rate:PATTERN`

    [[nodiscard]] std::string name() const {
        return parameter.has_pattern() ? "rate:" + pattern : std::string(parameter.name);
    }
    [[nodiscard]] bool is_interval() const noexcept { return values.empty(); }
};

/// An axis from its text, in one of three notations:
///   lr=0.5,1,3         these values
///   lr=0.25:4:x2       0.25, 0.5, 1, 2, 4: from the first number up to the second by a factor
///   lr=0.25:4          the interval, for random search: the logarithm is uniform
/// Exponents are a list of whole numbers, 0 and negative ones too, and of ranges: constant_bias=-8..-4,-2,0,2
/// The values of names are a list: placement=pre,post. Parts of the model are `on` or `off`: bias=on,off
/// The pattern of parameters' names is part of the axis' name: rate:*query*=0.5,1,2
/// Errors: an unknown name, with the known names; no pattern; no points; text that is not a positive number; a size
/// or an exponent that is not whole.
[[nodiscard]] SweepAxis parse_axis(const std::string& text);

/// An axis of these values. Errors: an unknown name, with the known names; a value that is given twice; a size or an
/// exponent that is not whole.
[[nodiscard]] SweepAxis make_axis(std::string_view name, std::vector<std::string> values);

/// A value on each axis, in the order of the axes.
using SweepPoint = std::vector<std::string>;

/// A run and the axes that vary it.
struct SweepSpace {
    LanguageRunOptions run{};
    std::vector<SweepAxis> axes{};
    /// The characters that every run trains on: the steps at a point are this over its batch. Empty: `run.steps`.
    std::optional<std::size_t> tokens{};
    /// Each size is varied alone, and the others have the run's values. Otherwise sizes are combined.
    bool sizes_alone = false;

    /// The index of the axis of that name, or nothing.
    [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;
    /// The index of the learning rate, or of the factor on it, or nothing.
    [[nodiscard]] std::optional<std::size_t> rate() const;

    /// Checks the axes. Error, naming the axis: no axis, an axis given twice, two axes of one meaning.
    void validate() const;

    /// The warm-up that all runs share: a tenth of the shortest run, if an axis has several numbers of steps and
    /// `run.warmup` is empty. Runs of equal warm-up compare lengths alone. Under `sizes_alone`, runs of `run.steps`
    /// count, too. Otherwise nothing.
    [[nodiscard]] std::optional<std::size_t> shared_warmup() const;

    /// The options of the run at a point. Error, naming `--tokens`: they are less than a batch, or too many batches.
    [[nodiscard]] LanguageRunOptions options_at(const SweepPoint& point) const;

    /// The value of a hyperparameter in `options` when no axis varies it.
    /// Error, naming the axis: the recipe has no operand with a constant scale, or has them with several biases.
    [[nodiscard]] static std::string default_value(const SweepParameter& parameter, const LanguageRunOptions& options);

    /// The text of a point, such as `umup-fp32, width 64, lr 0.5`. `only` restricts it to these axes.
    [[nodiscard]] std::string text(const SweepPoint& point, const std::vector<std::size_t>* only = nullptr) const;

    /// The indices of the axes of conditions, or of the axes of hyperparameters.
    [[nodiscard]] std::vector<std::size_t> places(bool conditions) const;
};

}  // namespace unitscale::experiments
