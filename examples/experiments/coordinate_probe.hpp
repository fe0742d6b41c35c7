// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/observer.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/tensor/tensor.hpp>

#include "experiments/coordinate_trend.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale::experiments {

/// Measures a decoder's layers on one batch, repeatedly, by passes without gradients under the tape's observer.
///   CoordinateProbe<float> probe(model, tape, ids);
///   probe.measure();                   // the reference: every change is 0
///   ... a step of training ...
///   probe.measure();                   // rms(y) and rms(y - y_reference) of every layer
/// Layers, in the order of the pass: `embedding`, the input of the first block; of each block `block0/attention` and
/// `block0/ffn`, the additions of its branches to the stream before the weights of the sum, and `block0`, the stream
/// after it; `norm`; `logits`. y is the value, data times scale. The passes do not count as steps and do not affect
/// training. They remove any other observer of the tape. Model and tape outlive the probe. Under a rule that plans
/// forward factors, plan first (plan_factors, train/step.hpp). Test: tests/experiments/coordinate_probe_test.cpp
template <class T>
class CoordinateProbe : public Observer<T> {
public:
    CoordinateProbe(nn::Decoder<T>& model, Tape<T>& tape, Tensor<std::int32_t> ids)
        : model_(&model), tape_(&tape), ids_(std::move(ids)) {}

    [[nodiscard]] std::vector<LayerCoordinate> measure() {
        layers_.clear();
        values_.clear();
        tape_->set_observer(this);
        struct Detach {
            Tape<T>* tape;
            ~Detach() { tape->set_observer(nullptr); }
        } const detach{tape_};
        tape_->begin_step({.training = false, .gradients = false});
        static_cast<void>((*model_)(*tape_, ids_));
        if (reference_.empty()) reference_ = values_;
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            double output = 0.0, change = 0.0;
            for (std::size_t j = 0; j < values_[i].size(); ++j) {
                const double value = values_[i][j], difference = value - reference_[i][j];
                output += value * value;
                change += difference * difference;
            }
            const auto count = static_cast<double>(values_[i].size());
            layers_[i].output = std::sqrt(output / count);
            layers_[i].change = std::sqrt(change / count);
        }
        return layers_;
    }

    /// Called by the tape. The paths are set by nn/decoder.hpp and nn/transformer_block.hpp; `.1` is a block's second
    /// residual layer.
    void observe(const TensorEvent<T>& event) override {
        constexpr std::string_view root = "decoder/";
        if (event.pass != Pass::value || event.op == "parameter" || !event.path.starts_with(root)) return;
        const std::string_view path = event.path.substr(root.size());
        const std::string block(path.substr(0, path.find('/')));
        const std::string_view rest = path.substr(std::min(block.size(), path.size()));
        if (path == "block0/residual_split" && event.index == 0) keep("embedding", *event.inputs.front().value);
        if (rest == "/residual_add") keep(block + "/attention", *event.inputs.front().value);
        if (rest == "/residual_add.1") {
            keep(block + "/ffn", *event.inputs.front().value);
            keep(block, event.tensor);
        }
        if (block == "norm") keep("norm", event.tensor);
        if (block == "readout") keep("logits", event.tensor);
    }

private:
    /// A layer's output is the output of its last op.
    void keep(std::string layer, const Tensor<T>& tensor) {
        if (layers_.empty() || layers_.back().layer != layer) {
            layers_.push_back({.layer = std::move(layer)});
            values_.emplace_back();
        }
        const double scale = tensor.scale();
        values_.back().clear();
        for (const T& x : tensor.span()) values_.back().push_back(static_cast<double>(x) * scale);
    }

    nn::Decoder<T>* model_;
    Tape<T>* tape_;
    Tensor<std::int32_t> ids_;
    std::vector<LayerCoordinate> layers_{};
    std::vector<std::vector<double>> values_{}, reference_{};  ///< by layer
};

}  // namespace unitscale::experiments
