// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/compiled.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/train/batches.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

// A decoder with its recipe, state and tape, for the tests of nn, train and whole runs.
namespace unitscale::test {

template <class T>
struct LanguageModel {
    LanguageModel(const Recipe& how, const nn::DecoderConfig& config, std::uint64_t seed = 1, int threads = 1)
        : recipe(recipe_in<T>(how)), decoder(config), state(seed), tape(recipe, state, threads) {
        nn::initialise(decoder.parameters(), recipe, seed);
    }

    /// Forward: the mean loss of a batch, on the tape.
    [[nodiscard]] Variable<T> loss(const train::Batch& batch) {
        return ops::softmax_cross_entropy(decoder(tape, batch.ids), batch.labels);
    }

    /// Fixes forward factors that depend on the graph, as the first training step does. Without it a recipe that joins
    /// factors by a mean has no values.
    void plan(const train::Batch& batch) {
        if (recipe.scaling != Scaling::unit || recipe.automatic_rule == Constraint::to_output_scale) return;
        tape.plan([&] { return loss(batch); });
    }

    Recipe recipe;
    nn::Decoder<T> decoder;
    ScalingState state;
    Tape<T> tape;
};

/// Independent token ids, uniformly distributed.
[[nodiscard]] inline Tensor<std::int32_t> random_tokens(const Shape& shape, std::size_t vocabulary,
                                                        std::uint64_t stream = 1) {
    Tensor<std::int32_t> ids(shape);
    for (std::size_t i = 0; i < ids.size(); ++i)
        ids.data()[i] = static_cast<std::int32_t>(random_word({7, stream}, i) % vocabulary);
    return ids;
}
[[nodiscard]] inline train::Batch random_batch(std::size_t rows, std::size_t length, std::size_t vocabulary,
                                               std::uint64_t stream = 1) {
    return {random_tokens({rows, length}, vocabulary, 2 * stream),
            random_tokens({rows, length}, vocabulary, 2 * stream + 1)};
}

/// Sets parameters to values away from every special point: normal, also for biases; gains around 1.
template <class T>
void randomise(const std::vector<Parameter<T>*>& parameters, double stddev) {
    for (Parameter<T>* parameter : parameters) {
        Tensor<T>& value = parameter->write();
        fill_normal(value, {5, hash_name(parameter->name())}, stddev);
        if (parameter->facts().role == ParameterRole::norm)
            for (T& gain : value.span()) gain = gain + T(1);
    }
}

/// All parameters of a model, one after the other.
template <class T>
[[nodiscard]] std::vector<T> all_values(nn::Decoder<T>& decoder) {
    std::vector<T> values;
    for (const Parameter<T>* parameter : decoder.parameters())
        values.insert(values.end(), parameter->value().span().begin(), parameter->value().span().end());
    return values;
}

}  // namespace unitscale::test
