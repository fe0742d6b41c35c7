// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/conv1d.hpp>
#include <unitscale/ops/conv2d.hpp>
#include <unitscale/ops/relu.hpp>
#include <unitscale/ops/transpose.hpp>

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
    /// `depth` and `stream`: the facts of a layer inside a residual branch, as in LinearConfig.
    /// Error, in the name of `layer`: groups that do not divide the channels.
    Convolution(const char* layer, const std::string& path, std::size_t in, std::size_t out, std::size_t groups,
                bool bias, const Shape& kernel, std::size_t depth = 0, std::size_t stream = 0)
        : name_(last_name(path)) {
        check(groups >= 1 && in % groups == 0 && out % groups == 0, layer, ' ', path, ": groups is ", groups,
              "; expected a divisor of ", in, " input and ", out, " output channels");
        Shape shape{out, in / groups};
        for (const std::size_t extent : kernel) shape.push_back(extent);
        const std::size_t taps = element_count(kernel);
        weight_ = std::make_unique<Parameter<T>>(path + "/weight", shape,
                                                 ParameterFacts{.role = ParameterRole::weight,
                                                                .fan_in = in / groups * taps,
                                                                .fan_out = out / groups * taps,
                                                                .depth = depth,
                                                                .width = stream});
        if (bias)
            bias_ = std::make_unique<Parameter<T>>(
                path + "/bias", Shape{out},
                ParameterFacts{
                    .role = ParameterRole::bias, .fan_in = 1, .fan_out = out, .depth = depth, .width = stream});
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

struct CausalConvolutionConfig {
    std::size_t in = 1, out = 1;  ///< columns of x and y
    std::size_t kernel = 7;
    std::size_t groups = 16;  ///< number of groups of columns
    bool bias = true;
    std::size_t depth = 0;                   ///< blocks of the trunk, if the layer is inside a residual branch
    std::size_t stream = 0;                  ///< columns of the residual stream; 0: `in`
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x} of both ops; empty: the recipe's rule
};

/// The convolutional context layer of the Unit Scaling experiments. x [B,T,in], y [B,T,out].
///   y[b,t] = relu(sum over k of weight[..., k] x[b, t - kernel + 1 + k] + bias), 0 in place of x before position 0
/// A column of y sees the columns of its group at t - kernel + 1 to t. The default is the published layer: kernel 7,
/// 16 groups (the paper's table calls that number a group size). Weights as `Conv1d`.
/// Factors under `unit`: those of `ops::conv1d` and `ops::relu`.
/// `ops::conv1d` has the channels before the positions, so x and its result are transposed.
/// Errors: groups that do not divide `in` and `out`; x is not [B,T,in]; T is 0.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 6.1, table A.3. Test: tests/nn/convolution_test.cpp
template <class T>
class CausalConvolution : public Convolution<T> {
public:
    CausalConvolution(const std::string& path, const CausalConvolutionConfig& config)
        : Convolution<T>("CausalConvolution", path, config.in, config.out, config.groups, config.bias, {config.kernel},
                         config.depth, config.stream != 0 ? config.stream : config.in),
          config_(config) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x) {
        const Shape shape = x.shape();
        check(shape.size() == 3 && shape[2] == config_.in, "CausalConvolution: x ", shape_text(shape),
              "; expected [B,T,", config_.in, "]");
        return this->apply("CausalConvolution", x, [&](const auto& weight, const auto& bias) {
            const Shape swapped{0, 2, 1};
            const Variable<T> y =
                ops::conv1d(ops::transpose(x, swapped), weight, bias,
                            {.groups = config_.groups, .causal = true, .constraint = config_.constraint});
            return ops::relu(ops::transpose(y, swapped), {.constraint = config_.constraint});
        });
    }

private:
    CausalConvolutionConfig config_;
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
