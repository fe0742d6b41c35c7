// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/caches.hpp>
#include <unitscale/base/cpu.hpp>
#include <unitscale/base/crc32.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/version.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/products/pair_kernels.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/process_group.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Facts that processes which train together compare (`check_same`). Test: tests/train/shared_facts_test.cpp
namespace unitscale::train {

/// The facts that decide the bits of a computation beside its inputs: library, compiler, kernels and caches.
[[nodiscard]] inline SharedFact build_fact() {
    std::string text = concatenate("unitscale ", version, ", ");
#ifdef __VERSION__
    text += concatenate("compiler ", __VERSION__, ", ");
#endif
    const products::PairKernel pairs = products::active_pair_kernel();
    return {"build", concatenate(text, "kernels ", name(active_isa()),
                                 pairs == products::PairKernel::matrix ? " and AMX"
                                 : pairs == products::PairKernel::dot  ? " and pairs"
                                                                       : "",
                                 ", caches ", unitscale::text(active_caches()))};
}
/// The whole recipe, as JSON.
[[nodiscard]] inline SharedFact recipe_fact(const Recipe& recipe) {
    return {"recipe", io::recipe_to_json(recipe).dump()};
}

/// Names, shapes and a checksum of the values of all parameters.
template <class T>
[[nodiscard]] std::vector<SharedFact> parameter_facts(std::span<Parameter<T>* const> parameters) {
    std::string shapes;
    std::uint32_t sum = 0;
    for (const Parameter<T>* parameter : parameters) {
        shapes += concatenate(parameter->name(), ' ', shape_text(parameter->shape()), ' ');
        if (parameter->coded_value() != nullptr) continue;  // trained by nobody
        const double scale = parameter->scale();
        sum = crc32(std::as_bytes(std::span(&scale, 1)), sum);
        sum = crc32(std::as_bytes(std::span(parameter->value().data(), parameter->size())), sum);
    }
    return {{"model", std::move(shapes)}, {"start", concatenate("parameters with checksum ", sum)}};
}

}  // namespace unitscale::train
