// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/tensor/tensor.hpp>

#include "experiments/layer_rms.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::experiments {

/// Measures the root mean squares of all weights, outputs of ops and their gradients in the last training step of a
/// run. They are of values, data times scale. Gradients contain the loss scale, and the factors of unit scaling.
///   LastStepRms<float> rms(1000);
///   tape.set_observer(&rms);
/// In a step of several micro-batches, values and gradients of outputs are taken over all of them. The gradient of a
/// weight is the sum over all of them. `next` observes the tape, too, and outlives this observer.
/// Test: tests/experiments/last_step_rms_test.cpp
template <class T>
class LastStepRms : public Observer<T> {
public:
    explicit LastStepRms(std::uint64_t last_step, Observer<T>* next = nullptr) : last_step_(last_step), next_(next) {}

    void begin_step(const ObservedStep& step) override {
        if (next_ != nullptr) next_->begin_step(step);
        measured_ = step.training && step.step == last_step_;
        if (!measured_ || step.micro_batch != 0) return;
        values_.clear();
        gradients_.clear();
        layers_.clear();
    }
    void observe(const TensorEvent<T>& event) override {
        if (next_ != nullptr) next_->observe(event);
        if (!measured_) return;
        Squares squares{.count = static_cast<double>(event.tensor.size())};
        for (const T& element : event.tensor.span()) {
            const auto number = static_cast<double>(element);
            squares.sum += number * number;
        }
        squares.sum *= event.tensor.scale() * event.tensor.scale();
        Known& known = event.pass == Pass::value ? values_ : gradients_;
        const std::string place = place_of(event.path, event.index);
        if (event.op == "parameter") {
            known[place] = squares;
            return;
        }
        known[place] += squares;
        if (event.pass == Pass::value) note_layers(event, place);
    }
    void observe_operand(const OperandEvent<T>& event) override {
        if (next_ != nullptr) next_->observe_operand(event);
    }

    /// Every layer with a weight, in the order of the forward pass, under the last part of its path. Empty before the
    /// last step.
    [[nodiscard]] std::vector<LayerRms> layers() const {
        std::vector<LayerRms> result;
        for (const Layer& layer : layers_) {
            const std::string path = layer.weight.substr(0, layer.weight.rfind('/'));
            result.push_back({.layer = path.substr(path.rfind('/') + 1),
                              .weight = rms(values_, layer.weight),
                              .input = rms(values_, layer.input),
                              .weight_gradient = rms(gradients_, layer.weight),
                              .output_gradient = rms(gradients_, layer.output)});
        }
        return result;
    }

private:
    struct Squares {
        double sum = 0.0, count = 0.0;
        Squares& operator+=(const Squares& other) noexcept {
            sum += other.sum;
            count += other.count;
            return *this;
        }
    };
    using Known = std::map<std::string, Squares>;
    /// The places of a layer's tensors: the name of its weight, an input without one is empty, its output.
    struct Layer {
        std::string weight, input, output;
    };

    /// The first output of an op, or a parameter, has its path as place.
    static std::string place_of(std::string_view path, std::size_t index) {
        return index == 0 ? std::string(path) : concatenate(path, '#', index);
    }
    static double rms(const Known& known, const std::string& place) {
        const auto found = known.find(place);
        return found == known.end() ? LayerRms::none : std::sqrt(found->second.sum / found->second.count);
    }

    /// An op with a weight among its inputs is a layer.
    void note_layers(const TensorEvent<T>& event, const std::string& place) {
        const auto is_parameter = [](const EventInput<T>& input) { return input.op == "parameter"; };
        const auto input = std::find_if_not(event.inputs.begin(), event.inputs.end(), is_parameter);
        for (const EventInput<T>& weight : event.inputs) {
            const auto is_known = [&](const Layer& layer) {
                return layer.weight == weight.path && layer.output == place;
            };
            if (!is_parameter(weight) || !weight.path.ends_with("/weight")) continue;
            if (std::any_of(layers_.begin(), layers_.end(), is_known)) continue;
            layers_.push_back({.weight = std::string(weight.path),
                               .input = input == event.inputs.end() ? "" : place_of(input->path, input->index),
                               .output = place});
        }
    }

    std::uint64_t last_step_;
    Observer<T>* next_;
    bool measured_ = false;
    Known values_{}, gradients_{};  ///< by place
    std::vector<Layer> layers_{};
};

}  // namespace unitscale::experiments
