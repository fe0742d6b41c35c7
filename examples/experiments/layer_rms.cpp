// SPDX-License-Identifier: MIT
#include "experiments/layer_rms.hpp"

#include "experiments/sweep_results.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace unitscale::experiments {

std::vector<LayerRms> medians_by_layer(const std::vector<LayerRms>& layers) {
    std::vector<LayerRms> result;
    for (const LayerRms& first : layers) {
        const auto same_layer = [&](const LayerRms& other) { return other.layer == first.layer; };
        if (std::any_of(result.begin(), result.end(), same_layer)) continue;
        LayerRms& medians = result.emplace_back();
        medians.layer = first.layer;
        for (const LayerTensor& tensor : layer_tensors) {
            std::vector<double> numbers;
            for (const LayerRms& layer : layers)
                if (same_layer(layer) && std::isfinite(layer.*tensor.rms)) numbers.push_back(layer.*tensor.rms);
            medians.*tensor.rms = median(std::move(numbers));
        }
    }
    return result;
}

nlohmann::ordered_json json_of(const std::vector<LayerRms>& layers) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (const LayerRms& layer : layers) {
        auto& numbers = json[layer.layer] = nlohmann::ordered_json::object();
        for (const LayerTensor& tensor : layer_tensors)
            if (std::isfinite(layer.*tensor.rms)) numbers[std::string(tensor.name)] = layer.*tensor.rms;
    }
    return json;
}

std::vector<LayerRms> read_layers(const nlohmann::ordered_json& json) {
    std::vector<LayerRms> layers;
    for (const auto& [name, numbers] : json.items()) {
        LayerRms& layer = layers.emplace_back();
        layer.layer = name;
        for (const LayerTensor& tensor : layer_tensors)
            layer.*tensor.rms = numbers.value(std::string(tensor.name), LayerRms::none);
    }
    return layers;
}

}  // namespace unitscale::experiments
