// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::nn {

struct LinearConfig {
    std::size_t in = 1;
    std::size_t out = 1;
    bool bias = false;
    std::size_t depth = 0;   ///< blocks of the trunk, if the layer is inside a residual branch
    std::size_t stream = 0;  ///< columns of the residual stream; 0: `in`
    /// Joins {alpha, beta_x} where a call names no rule of its own; empty: the recipe's rule.
    std::optional<Constraint> constraint{};
    double gradient_share = 1.0;  ///< share of the rows that carry a gradient: sets the calls' LinearOptions::step_rows
};

/// A linear layer: y = ops::linear(x, weight, bias), weight [out,in].
/// `path` is the layer's place in the model; its parameters are `path/weight` and `path/bias`.
/// Test: tests/nn/linear_test.cpp
template <class T>
class Linear {
public:
    Linear(const std::string& path, const LinearConfig& config);

    [[nodiscard]] Variable<T> operator()(Variable<T> x, ops::LinearOptions options = {});

    [[nodiscard]] Parameter<T>& weight() noexcept { return *weight_; }
    /// Null: the layer has none.
    [[nodiscard]] Parameter<T>* bias() noexcept { return bias_.get(); }

    void collect(std::vector<Parameter<T>*>& parameters);

private:
    std::string name_;
    std::optional<Constraint> constraint_;
    double gradient_share_;
    std::unique_ptr<Parameter<T>> weight_;  // a parameter keeps its address when its module moves
    std::unique_ptr<Parameter<T>> bias_{};
};

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
Linear<T>::Linear(const std::string& path, const LinearConfig& config)
    : name_(last_name(path)),
      constraint_(config.constraint),
      gradient_share_(config.gradient_share),
      weight_(std::make_unique<Parameter<T>>(path + "/weight", Shape{config.out, config.in},
                                             ParameterFacts{.role = ParameterRole::weight,
                                                            .fan_in = config.in,
                                                            .fan_out = config.out,
                                                            .depth = config.depth,
                                                            .width = config.stream})) {
    if (config.bias)
        bias_ = std::make_unique<Parameter<T>>(path + "/bias", Shape{config.out},
                                               ParameterFacts{.role = ParameterRole::bias,
                                                              .fan_in = 1,
                                                              .fan_out = config.out,
                                                              .depth = config.depth,
                                                              .width = config.stream});
}

template <class T>
Variable<T> Linear<T>::operator()(Variable<T> x, ops::LinearOptions options) {
    if (!options.constraint) options.constraint = constraint_;
    Tape<T>& tape = x.tape("Linear");
    if (!options.step_rows && gradient_share_ != 1.0)
        options.step_rows = share_of_rows(tape.step_rows(ops::row_count(x.shape())), gradient_share_);
    const auto scope = tape.scope(name_);
    std::optional<Variable<T>> bias;
    if (bias_) bias = tape.parameter(*bias_);
    return ops::linear(x, tape.parameter(*weight_), bias, options);
}

template <class T>
void Linear<T>::collect(std::vector<Parameter<T>*>& parameters) {
    parameters.push_back(weight_.get());
    if (bias_) parameters.push_back(bias_.get());
}

}  // namespace unitscale::nn
