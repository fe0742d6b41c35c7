// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/layer_norm.hpp>
#include <unitscale/ops/rms_norm.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::nn {

/// layer: subtract the mean, divide by the standard deviation. rms: divide by the root mean square.
enum class NormKind { layer, rms };

struct NormConfig {
    NormKind kind = NormKind::rms;
    std::size_t width = 1;
    bool gains = false;  ///< trained factors per column, and for `layer` trained shifts
    double epsilon = 1e-5;
    std::size_t depth = 0;        ///< blocks of the trunk, if the norm is inside a residual branch
    double gradient_share = 1.0;  ///< share of the rows that carry a gradient: sets NormOptions::step_rows
};

/// A normalisation over the last dimension, with or without trained gains (`path/gain`, for `layer` also `path/shift`).
/// `step_rows` as in NormOptions; empty: by the config. Test: tests/nn/norm_test.cpp
template <class T>
class Norm {
public:
    Norm(const std::string& path, const NormConfig& config);

    [[nodiscard]] Variable<T> operator()(Variable<T> x, std::optional<std::size_t> step_rows = {});

    void collect(std::vector<Parameter<T>*>& parameters);

private:
    std::string name_;
    NormConfig config_;
    std::unique_ptr<Parameter<T>> gain_{};
    std::unique_ptr<Parameter<T>> shift_{};
};

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
Norm<T>::Norm(const std::string& path, const NormConfig& config) : name_(last_name(path)), config_(config) {
    if (!config.gains) return;
    const auto make = [&](const char* name, ParameterRole role) {
        return std::make_unique<Parameter<T>>(
            path + name, Shape{config.width},
            ParameterFacts{.role = role, .fan_in = 1, .fan_out = config.width, .depth = config.depth});
    };
    gain_ = make("/gain", ParameterRole::norm);
    if (config.kind == NormKind::layer) shift_ = make("/shift", ParameterRole::bias);
}

template <class T>
Variable<T> Norm<T>::operator()(Variable<T> x, std::optional<std::size_t> step_rows) {
    Tape<T>& tape = x.tape("Norm");
    const auto scope = tape.scope(name_);
    std::optional<Variable<T>> gain, shift;
    if (gain_) gain = tape.parameter(*gain_);
    if (shift_) shift = tape.parameter(*shift_);
    ops::NormOptions options{.epsilon = config_.epsilon, .step_rows = step_rows};
    if (!step_rows && config_.gradient_share != 1.0)
        options.step_rows = share_of_rows(tape.step_rows(ops::row_count(x.shape())), config_.gradient_share);
    if (config_.kind == NormKind::rms) return ops::rms_norm(x, gain, options);
    return ops::layer_norm(x, gain, shift, options);
}

template <class T>
void Norm<T>::collect(std::vector<Parameter<T>*>& parameters) {
    if (gain_) parameters.push_back(gain_.get());
    if (shift_) parameters.push_back(shift_.get());
}

}  // namespace unitscale::nn
