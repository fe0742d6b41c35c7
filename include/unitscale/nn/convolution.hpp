// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/conv1d.hpp>
#include <unitscale/ops/conv2d.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::nn {

/// The common part of convolutions: `path/weight` [out,in/groups,kernel...] and `path/bias` [out], as in PyTorch.
/// A weight's fans count the taps: fan_in = in/groups times the kernel's elements, fan_out = out/groups times them.
template <class T>
class Convolution {
public:
    void collect(std::vector<Parameter<T>*>& parameters) {
        parameters.push_back(weight_.get());
        if (bias_) parameters.push_back(bias_.get());
    }
    [[nodiscard]] Parameter<T>& weight() noexcept { return *weight_; }
    /// Null: the layer has none.
    [[nodiscard]] Parameter<T>* bias() noexcept { return bias_.get(); }

protected:
    /// Error, in the name of `layer`: groups that do not divide the channels.
    Convolution(const char* layer, const std::string& path, std::size_t in, std::size_t out, std::size_t groups,
                bool bias, const Shape& kernel)
        : name_(last_name(path)) {
        check(groups >= 1 && in % groups == 0 && out % groups == 0, layer, ' ', path, ": groups is ", groups,
              "; expected a divisor of ", in, " input and ", out, " output channels");
        Shape shape{out, in / groups};
        for (const std::size_t extent : kernel) shape.push_back(extent);
        const std::size_t taps = element_count(kernel);
        weight_ = std::make_unique<Parameter<T>>(
            path + "/weight", shape,
            ParameterFacts{
                .role = ParameterRole::weight, .fan_in = in / groups * taps, .fan_out = out / groups * taps});
        if (bias)
            bias_ = std::make_unique<Parameter<T>>(
                path + "/bias", Shape{out}, ParameterFacts{.role = ParameterRole::bias, .fan_in = 1, .fan_out = out});
    }
    /// convolve(weight, bias) in the layer's scope on x's tape.
    template <class Convolve>
    [[nodiscard]] Variable<T> apply(const char* layer, const Variable<T>& x, const Convolve& convolve) {
        Tape<T>& tape = x.tape(layer);
        const auto scope = tape.scope(name_);
        OptionalVariable<T> bias;
        if (bias_) bias = tape.parameter(*bias_);
        return convolve(tape.parameter(*weight_), bias);
    }

private:
    std::string name_;
    std::unique_ptr<Parameter<T>> weight_{};
    std::unique_ptr<Parameter<T>> bias_{};
};

struct Conv1dConfig {
    std::size_t in = 1, out = 1;  ///< channels
    std::size_t kernel = 3;
    bool bias = true;
    ops::Conv1dOptions options{};  ///< stride, padding, dilation, groups, causal
};

/// A convolution over sequences: y = ops::conv1d(x, weight, bias). x [B,in,L], y [B,out,L'].
/// Errors: groups that do not divide the channels; as `ops::conv1d`. Test: tests/nn/convolution_test.cpp
template <class T>
class Conv1d : public Convolution<T> {
public:
    Conv1d(const std::string& path, const Conv1dConfig& config)
        : Convolution<T>("Conv1d", path, config.in, config.out, config.options.groups, config.bias, {config.kernel}),
          options_(config.options) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x) {
        return this->apply(
            "Conv1d", x, [&](const auto& weight, const auto& bias) { return ops::conv1d(x, weight, bias, options_); });
    }

private:
    ops::Conv1dOptions options_;
};

struct Conv2dConfig {
    std::size_t in = 1, out = 1;  ///< channels
    ops::WindowPair kernel{3, 3};
    bool bias = true;
    ops::Conv2dOptions options{};  ///< stride, padding, dilation, groups
};

/// A convolution over images: y = ops::conv2d(x, weight, bias). x [B,in,H,W], y [B,out,H',W'].
/// Errors: groups that do not divide the channels; as `ops::conv2d`. Test: tests/nn/convolution_test.cpp
template <class T>
class Conv2d : public Convolution<T> {
public:
    Conv2d(const std::string& path, const Conv2dConfig& config)
        : Convolution<T>("Conv2d", path, config.in, config.out, config.options.groups, config.bias,
                         {config.kernel[0], config.kernel[1]}),
          options_(config.options) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x) {
        return this->apply(
            "Conv2d", x, [&](const auto& weight, const auto& bias) { return ops::conv2d(x, weight, bias, options_); });
    }

private:
    ops::Conv2dOptions options_;
};

}  // namespace unitscale::nn
