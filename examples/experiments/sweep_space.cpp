// SPDX-License-Identifier: MIT
#include "experiments/sweep_space.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/base/parse_number.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/scaling/recipe.hpp>

#include "experiments/constant_bias.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

namespace unitscale::experiments {

std::string sweep_parameter_names(bool conditions) {
    std::string names;
    for (const SweepParameter& parameter : sweep_parameters)
        if (parameter.is_condition() == conditions) (names += names.empty() ? "" : ", ") += parameter.name;
    return names;
}

std::string number_text(double number) {
    char text[32];
    for (int digits = 6; digits <= 17; ++digits) {
        std::snprintf(text, sizeof text, "%.*g", digits, number);
        if (std::strtod(text, nullptr) == number) break;
    }
    return text;
}

double sweep_number(std::string_view axis, std::string_view text) {
    std::optional<double> number = parse_number(text);
    if (!number && text.starts_with("2^"))
        if (const auto exponent = parse_number(text.substr(2))) number = std::exp2(*exponent);
    check(number && std::isfinite(*number) && *number > 0.0, "--axis ", axis, ": is '", text,
          "'; expected a positive number, such as 0.25 or 2^-2");
    return *number;
}

double SweepParameter::octaves(const std::string& value) const {
    const double read = std::strtod(value.c_str(), nullptr);
    return is_exponent() ? read : std::log2(read);
}

namespace {

/// The exponents of a text: a whole number, or a range. Error, naming `axis`: any other text.
std::vector<int> sweep_exponents(std::string_view axis, std::string_view text) {
    const std::string option = concatenate("--axis ", axis);
    if (text.find("..") != text.npos) return bias_range(option.c_str(), std::string(text));
    int exponent = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), exponent);
    check(end.ec == std::errc() && end.ptr == text.data() + text.size() && exponent >= -64 && exponent <= 64, option,
          ": is '", text, "'; expected a whole number from -64 to 64, or a range, such as -8..8");
    return {exponent};
}

constexpr std::string_view rate_prefix = "rate:";

/// An axis of that name, without values.
SweepAxis axis_called(std::string_view name) {
    const bool has_pattern = name.starts_with(rate_prefix);
    const auto found =
        std::find_if(sweep_parameters.begin(), sweep_parameters.end(), [&](const SweepParameter& parameter) {
            return has_pattern ? parameter.has_pattern() : parameter.name == name;
        });
    if (found == sweep_parameters.end())
        fail("--axis: unknown hyperparameter '", name, "'; expected one of ", sweep_parameter_names(false), ", ",
             sweep_parameter_names(true));
    SweepAxis axis{.parameter = *found};
    if (has_pattern) axis.pattern = name.substr(rate_prefix.size());
    check(!has_pattern || !axis.pattern.empty(), "--axis ", name,
          ": has no pattern of parameters' names; expected one, such as rate:*query*=0.25:4:x2");
    return axis;
}

}  // namespace

SweepAxis make_axis(std::string_view name, std::vector<std::string> values) {
    SweepAxis axis = axis_called(name);
    const SweepParameter& parameter = axis.parameter;
    check(!values.empty(), "--axis ", name, ": has no points");
    for (auto value = values.begin(); value != values.end(); ++value) {
        check(std::find(values.begin(), value, *value) == value, "--axis ", name, ": ", *value, " is given twice");
        check(parameter.part == nullptr || *value == "on" || *value == "off", "--axis ", name, ": is ", *value,
              "; expected on or off");
        if (parameter.is_exponent())
            check(sweep_exponents(name, *value).size() == 1, "--axis ", name, ": is ", *value,
                  "; expected a whole number");
        if (parameter.size == nullptr) continue;
        const double size = std::strtod(value->c_str(), nullptr);
        check(size == std::floor(size) && size <= 1e9, "--axis ", name, ": is ", *value, "; expected a whole number");
    }
    axis.values = std::move(values);
    return axis;
}

SweepAxis parse_axis(const std::string& text) {
    const std::size_t sign = text.find('=');
    check(sign != std::string::npos && sign > 0, "--axis: is '", text, "'; expected NAME=VALUES, such as lr=0.25:4:x2");
    const std::string name = text.substr(0, sign);
    SweepAxis axis = axis_called(name);
    const SweepParameter& parameter = axis.parameter;
    std::vector<std::string_view> parts;
    const std::string_view rest = std::string_view(text).substr(sign + 1);
    const bool has_factor = !parameter.has_names() && !parameter.is_exponent();
    const char separator = has_factor && rest.find(':') != std::string_view::npos ? ':' : ',';
    for (std::size_t begin = 0; begin <= rest.size();) {
        const std::size_t end = std::min(rest.find(separator, begin), rest.size());
        parts.push_back(rest.substr(begin, end - begin));
        begin = end + 1;
    }
    if (parameter.is_exponent()) {
        for (const std::string_view part : parts)
            if (!part.empty() || parts.size() > 1)
                for (const int exponent : sweep_exponents(name, part)) axis.values.push_back(std::to_string(exponent));
    } else if (separator == ',') {
        for (const std::string_view part : parts)
            if (!part.empty() || parts.size() > 1)
                axis.values.push_back(parameter.has_names() ? std::string(part)
                                      : parameter.size != nullptr && part == "0"
                                          ? "0"
                                          : number_text(sweep_number(name, part)));
    } else {
        check(parts.size() <= 3 && (parts.size() < 3 || parts[2].starts_with('x')), "--axis ", name, ": is '", rest,
              "'; expected FROM:TO:xFACTOR, such as 0.25:4:x2");
        axis.low = sweep_number(name, parts[0]);
        axis.high = sweep_number(name, parts[1]);
        if (parts.size() == 2) {
            check(axis.low < axis.high, "--axis ", name, ": ", rest, " has no points");
            check(parameter.size == nullptr, "--axis ", name, ": is the interval ", rest,
                  "; a size takes values, such as 32:512:x2");
            return axis;
        }
        const double factor = sweep_number(name, parts[2].substr(1));
        check(factor > 1.0, "--axis ", name, ": is '", rest, "'; expected a factor above 1");
        // Rounding may put the last value a little above the end. It belongs to the axis.
        for (int i = 0; axis.low * std::pow(factor, i) <= axis.high * (1.0 + 1e-9); ++i) {
            char digits[32];
            std::snprintf(digits, sizeof digits, "%.15g", axis.low * std::pow(factor, i));
            axis.values.push_back(number_text(std::strtod(digits, nullptr)));
            check(axis.values.size() <= 1000, "--axis ", name, ": ", rest, " has more than 1000 points");
        }
    }
    check(!axis.values.empty(), "--axis ", name, ": ", rest.empty() ? "" : std::string(rest) + " ", "has no points");
    return make_axis(name, std::move(axis.values));
}

std::optional<std::size_t> SweepSpace::find(std::string_view name) const {
    for (std::size_t i = 0; i < axes.size(); ++i)
        if (axes[i].name() == name) return i;
    return std::nullopt;
}

std::optional<std::size_t> SweepSpace::rate() const {
    const auto lr = find("lr");
    return lr ? lr : find("lr_factor");
}

void SweepSpace::validate() const {
    check(!axes.empty(), "--axis: none given; without one a sweep has no points");
    for (std::size_t i = 0; i < axes.size(); ++i)
        check(find(axes[i].name()) == i, "--axis ", axes[i].name(), ": is given twice");
    check(!find("lr") || !find("lr_factor"), "--axis lr_factor: excludes --axis lr");
    check(!find("steps") || !tokens, "--axis steps: --tokens sets the steps");
    check(!find("heads") || run.head_size == 0, "--axis heads: --head-size sets the heads");
}

std::optional<std::size_t> SweepSpace::shared_warmup() const {
    const auto place = find("steps");
    const bool constant = run.schedule == "constant" && !find("schedule");  // has no warm-up
    if (!place || run.warmup || constant) return std::nullopt;
    std::set<std::size_t> lengths;
    if (sizes_alone) lengths.insert(run.steps);
    for (const std::string& steps : axes[*place].values)
        lengths.insert(static_cast<std::size_t>(std::strtod(steps.c_str(), nullptr)));
    if (lengths.size() < 2) return std::nullopt;
    return tenth_of(*lengths.begin());
}

LanguageRunOptions SweepSpace::options_at(const SweepPoint& point) const {
    LanguageRunOptions options = run;
    double factor = 1.0;
    for (std::size_t i = 0; i < axes.size(); ++i) {
        const SweepParameter& parameter = axes[i].parameter;
        if (parameter.has_names()) {
            parameter.set_name(options, point[i]);
            continue;
        }
        const double number = std::strtod(point[i].c_str(), nullptr);
        if (parameter.size != nullptr) options.*parameter.size = static_cast<std::size_t>(number);
        else if (parameter.number != nullptr) options.*parameter.number = number;
        else if (parameter.is_exponent()) options.*parameter.exponent = static_cast<int>(number);
        else if (parameter.name == "lr") options.lr = number;
        else if (parameter.name == "lr_factor") factor = number;
        else if (parameter.name == "epsilon") options.epsilon = number;
        else if (parameter.has_pattern()) options.rates.push_back(concatenate(axes[i].pattern, '=', point[i]));
        else options.set.push_back(concatenate(parameter.field, '=', point[i]));
        if (!parameter.beside.empty()) options.set.emplace_back(parameter.beside);
    }
    if (factor != 1.0) options.lr = factor * options.lr.value_or(recipe_of(options).learning_rate);
    // A batch of no characters is an error of the options.
    if (tokens && options.batch > 0 && options.seq > 0) {
        options.steps = *tokens / options.batch / options.seq;
        check(options.steps >= 1 && options.steps <= LanguageRunOptions::most, "--tokens: is ", *tokens,
              "; expected one batch of ", options.batch, " x ", options.seq, " characters at least, and ",
              LanguageRunOptions::most, " at most");
    }
    if (const auto warmup = shared_warmup(); warmup && options.schedule != "constant") options.warmup = warmup;
    return options;
}

std::string SweepSpace::default_value(const SweepParameter& parameter, const LanguageRunOptions& options) {
    if (parameter.name == "lr_factor" || parameter.has_pattern()) return "1";
    if (parameter.number != nullptr) return number_text(options.*parameter.number);
    if (parameter.name == "epsilon") return number_text(options.used_epsilon());
    const Recipe recipe = recipe_of(options);
    if (parameter.is_exponent()) {
        const std::vector<int> biases = constant_biases(recipe);
        check(!biases.empty(), "--axis ", parameter.name, ": no operand of the recipe ", recipe.name,
              " has a constant scale; expected one, as fp8-cscale has");
        check(biases.size() == 1, "--axis ", parameter.name, ": the constant scales of the recipe ", recipe.name,
              " have the biases ", bias_range_text(biases), "; expected one bias for all");
        return std::to_string(biases.front());
    }
    if (parameter.name == "lr") return number_text(options.lr.value_or(recipe.learning_rate));
    if (parameter.name == "loss_scale" && recipe.loss_scaling.kind == LossScaleKind::none) return "1";
    const nlohmann::ordered_json json = io::recipe_to_json(recipe);
    const std::size_t dot = parameter.field.find('.');
    // A factor that is 1 is left out of the JSON, if the recipes of older files have none.
    return number_text(
        json.at(std::string(parameter.field.substr(0, dot))).value(std::string(parameter.field.substr(dot + 1)), 1.0));
}

std::string SweepSpace::text(const SweepPoint& point, const std::vector<std::size_t>* only) const {
    std::string text;
    for (std::size_t i = 0; i < axes.size(); ++i) {
        if (only != nullptr && std::find(only->begin(), only->end(), i) == only->end()) continue;
        text += text.empty() ? "" : ", ";
        if (axes[i].name() != "recipe") (text += axes[i].name()) += ' ';
        text += point[i];
    }
    return text;
}

std::vector<std::size_t> SweepSpace::places(bool conditions) const {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < axes.size(); ++i)
        if (axes[i].parameter.is_condition() == conditions) result.push_back(i);
    return result;
}

}  // namespace unitscale::experiments
