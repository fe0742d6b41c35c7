// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

// Root mean squares of the tensors of a model's layers, as a results file keeps them:
//   {"query":{"weight":1.02,"input":0.99,"weight_gradient":3.1e-05,"output_gradient":2.7e-05},...}
// Test: tests/experiments/layer_rms_test.cpp
namespace unitscale::experiments {

/// The root mean squares of a layer with a weight. NaN: the layer has no such tensor, or the number is not finite.
struct LayerRms {
    static constexpr double none = std::numeric_limits<double>::quiet_NaN();

    std::string layer{};  ///< the last part of its path, such as `query`, which all blocks share
    double weight = none, input = none, weight_gradient = none, output_gradient = none;
};

/// A tensor of a layer, with its name in files.
struct LayerTensor {
    std::string_view name;
    double LayerRms::*rms;
};
inline constexpr std::array layer_tensors = {LayerTensor{"weight", &LayerRms::weight},
                                             LayerTensor{"input", &LayerRms::input},
                                             LayerTensor{"weight_gradient", &LayerRms::weight_gradient},
                                             LayerTensor{"output_gradient", &LayerRms::output_gradient}};

/// One entry for all layers of a name, in the order of their first: the medians of the finite numbers.
[[nodiscard]] std::vector<LayerRms> medians_by_layer(const std::vector<LayerRms>& layers);

/// Numbers that are not finite are left out.
[[nodiscard]] nlohmann::ordered_json json_of(const std::vector<LayerRms>& layers);
/// Error: nlohmann::json::exception.
[[nodiscard]] std::vector<LayerRms> read_layers(const nlohmann::ordered_json& json);

}  // namespace unitscale::experiments
