// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/layer_norm.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/transpose.hpp>

#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// Normalisations of x [B,C,...], with gains and shifts per channel.
namespace unitscale::nn {

/// Gains and shifts per channel: y = gain h + shift, `path/gain` and `path/shift` [C]. Neither if `trained` is false.
/// Factors under `unit`: h has unit variance by construction, gains are near 1 and shifts near 0, hence 1 for y and h;
/// gain and shift gather N numbers of the step each, hence N^-1/2.
template <class T>
class ChannelGains {
public:
    ChannelGains(const std::string& path, std::size_t channels, bool trained) {
        if (!trained) return;
        gain_ = make(path + "/gain", channels, ParameterRole::norm);
        shift_ = make(path + "/shift", channels, ParameterRole::bias);
    }
    [[nodiscard]] static std::unique_ptr<Parameter<T>> make(const std::string& name, std::size_t channels,
                                                            ParameterRole role) {
        return std::make_unique<Parameter<T>>(name, Shape{channels},
                                              ParameterFacts{.role = role, .fan_in = 1, .fan_out = channels});
    }
    [[nodiscard]] Variable<T> operator()(Variable<T> h) {
        if (!gain_) return h;
        Tape<T>& tape = h.tape("ChannelGains");
        Shape shape(h.shape().size(), 1);
        shape[1] = gain_->size();
        const ops::AddOptions plain{.unit = ops::Factors<2>{}, .constraint = Constraint::none};
        return ops::add(
            ops::mul(std::move(h), ops::reshape(tape.parameter(*gain_), shape), {.constraint = Constraint::none}),
            ops::reshape(tape.parameter(*shift_), shape), plain);
    }
    void collect(std::vector<Parameter<T>*>& parameters) {
        if (!gain_) return;
        parameters.push_back(gain_.get());
        parameters.push_back(shift_.get());
    }

private:
    std::unique_ptr<Parameter<T>> gain_{}, shift_{};
};

struct GroupNormConfig {
    std::size_t channels = 1;
    std::size_t groups = 1;
    bool gains = true;  ///< trained gains and shifts per channel
    double epsilon = 1e-5;
};

/// Group normalisation: each group of channels of an example has mean 0 and variance 1, then `ChannelGains`.
/// x, y [B,C,...]. 1 group normalises an example, C groups each of its channels.
/// Errors: groups that do not divide the channels; x with other channels.
/// Reference: Wu, He 2018, arXiv:1803.08494. Test: tests/nn/channel_norm_test.cpp
template <class T>
class GroupNorm {
public:
    GroupNorm(const std::string& path, const GroupNormConfig& config)
        : name_(last_name(path)), config_(config), gains_(path, config.channels, config.gains) {
        check(config.groups >= 1 && config.channels % config.groups == 0, "GroupNorm ", path, ": groups is ",
              config.groups, "; expected a divisor of ", config.channels, " channels");
    }

    [[nodiscard]] Variable<T> operator()(Variable<T> x) {
        const Shape shape = x.shape();
        check(shape.size() >= 2 && shape[1] == config_.channels, "GroupNorm: x ", shape_text(shape), "; expected [B,",
              config_.channels, ",...]");
        const auto scope = x.tape("GroupNorm").scope(name_);
        const std::size_t rows = shape[0] * config_.groups, count = element_count(shape);
        const Variable<T> grouped = ops::reshape(std::move(x), {rows, rows == 0 ? 1 : count / rows});
        return gains_(ops::reshape(ops::layer_norm(grouped, {}, {}, {.epsilon = config_.epsilon}), shape));
    }

    void collect(std::vector<Parameter<T>*>& parameters) { gains_.collect(parameters); }

private:
    std::string name_;
    GroupNormConfig config_;
    ChannelGains<T> gains_;
};

struct BatchNormConfig {
    std::size_t channels = 1;
    bool gains = true;      ///< trained gains and shifts per channel
    double momentum = 0.1;  ///< share of a step in the running statistics
    double epsilon = 1e-5;
};

/// Batch normalisation. x, y [B,C,...].
/// In training each channel of a micro-batch has mean 0 and variance 1, then `ChannelGains`. Each pass moves the
/// running statistics towards the channel's mean and its variance over count - 1.
/// In use (`training` false in the step's options) the running statistics take the place of the batch's.
/// They are parameters that are not trained: `path/running_mean` and `path/running_variance`, first 0 and 1. So they
/// are initialised, saved and loaded with the model.
/// Errors: x with other channels, or fewer than 2 numbers per channel in training; momentum outside [0, 1].
/// Reference: Ioffe, Szegedy 2015, arXiv:1502.03167. Test: tests/nn/channel_norm_test.cpp
template <class T>
class BatchNorm {
public:
    BatchNorm(const std::string& path, const BatchNormConfig& config)
        : name_(last_name(path)),
          config_(config),
          gains_(path, config.channels, config.gains),
          mean_(ChannelGains<T>::make(path + "/running_mean", config.channels, ParameterRole::bias)),
          variance_(ChannelGains<T>::make(path + "/running_variance", config.channels, ParameterRole::norm)) {
        check(config.momentum >= 0.0 && config.momentum <= 1.0, "BatchNorm ", path, ": momentum is ", config.momentum,
              "; expected 0 to 1");
        for (const auto& statistic : {mean_.get(), variance_.get()}) statistic->set_requires_gradient(false);
    }

    [[nodiscard]] Variable<T> operator()(Variable<T> x) {
        const Shape shape = x.shape();
        check(shape.size() >= 2 && shape[1] == config_.channels, "BatchNorm: x ", shape_text(shape), "; expected [B,",
              config_.channels, ",...]");
        Tape<T>& tape = x.tape("BatchNorm");
        const auto scope = tape.scope(name_);
        return gains_(tape.step_options().training ? by_batch(tape, std::move(x)) : by_running(tape, std::move(x)));
    }

    void collect(std::vector<Parameter<T>*>& parameters) {
        gains_.collect(parameters);
        parameters.push_back(mean_.get());
        parameters.push_back(variance_.get());
    }

private:
    [[nodiscard]] Variable<T> by_batch(Tape<T>& tape, Variable<T> x) {
        const Shape shape = x.shape();
        const std::size_t channels = config_.channels, count = element_count(shape) / channels;
        check(count >= 2, "BatchNorm: x ", shape_text(shape), " has fewer than 2 numbers of each channel");
        if (tape.step_options().gradients && !tape.recomputes()) move_running(x.value());
        // [B,C,R] as [C,B R], the rows of a layer norm, and back.
        const Shape images{shape[0], channels, count / shape[0]};
        const Variable<T> rows =
            ops::reshape(ops::transpose(ops::reshape(std::move(x), images), {1, 0, 2}), {channels, count});
        const Variable<T> h =
            ops::reshape(ops::layer_norm(rows, {}, {}, {.epsilon = config_.epsilon}), {channels, images[0], images[2]});
        return ops::reshape(ops::transpose(h, {1, 0, 2}), shape);
    }

    /// (x - mean) / sqrt(variance + epsilon) with constants. All factors are 1.
    [[nodiscard]] Variable<T> by_running(Tape<T>& tape, Variable<T> x) {
        for (const auto& statistic : {mean_.get(), variance_.get()})
            check(statistic->version() > 0, "parameter ", statistic->name(),
                  ": was never written; expected nn::initialise or loaded weights");
        Shape shape(x.shape().size(), 1);
        shape[1] = config_.channels;
        Tensor<T> centre = tape.make(shape), inverse = tape.make(shape);
        for (std::size_t c = 0; c < config_.channels; ++c) {
            centre.data()[c] = element_cast<T>(-value_of(*mean_, c));
            inverse.data()[c] = element_cast<T>(1.0 / std::sqrt(value_of(*variance_, c) + config_.epsilon));
        }
        const Variable<T> centred = ops::add(std::move(x), tape.input(std::move(centre)),
                                             {.unit = ops::Factors<2>{}, .constraint = Constraint::none});
        return ops::mul(centred, tape.input(std::move(inverse)), {.constraint = Constraint::none});
    }

    [[nodiscard]] static double value_of(const Parameter<T>& parameter, std::size_t i) {
        return static_cast<double>(static_cast<Accum<T>>(parameter.value().data()[i])) * parameter.value().scale();
    }
    void move_running(const Tensor<T>& x) {
        const std::size_t channels = config_.channels, batch = x.shape()[0], inner = x.size() / batch / channels;
        const auto count = static_cast<double>(batch * inner);
        Tensor<T>&means = mean_->write(), &variances = variance_->write();
        for (std::size_t c = 0; c < channels; ++c) {
            const auto fold = [&](auto add) {  // over the channel's elements
                double sum = 0.0;
                for (std::size_t b = 0; b < batch; ++b)
                    for (std::size_t i = 0; i < inner; ++i)
                        sum = add(sum,
                                  static_cast<double>(static_cast<Accum<T>>(x.data()[(b * channels + c) * inner + i])));
                return sum;
            };
            const double mean = fold([](double sum, double v) { return sum + v; }) / count;
            const double variance =
                fold([=](double sum, double v) { return multiply_add(v - mean, v - mean, sum); }) / (count - 1.0);
            const auto move = [&](Tensor<T>& to, const Parameter<T>& from, double now) {
                const double before = value_of(from, c);
                to.data()[c] = element_cast<T>(multiply_add(config_.momentum, now - before, before) / to.scale());
            };
            move(means, *mean_, mean * x.scale());
            move(variances, *variance_, variance * x.scale() * x.scale());
        }
    }

    std::string name_;
    BatchNormConfig config_;
    ChannelGains<T> gains_;
    std::unique_ptr<Parameter<T>> mean_, variance_;
};

}  // namespace unitscale::nn
