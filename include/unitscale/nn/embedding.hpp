// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/embedding.hpp>
#include <unitscale/ops/multiplier.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unitscale::nn {

/// A table of vectors looked up by token id: y = ops::embedding(table, ids), times alpha_emb under `mup`.
/// table [count,width], ids [...] of any integer type, y [...,width].
/// The parameter is `path/weight`. Test: tests/nn/embedding_test.cpp
template <class T>
class Embedding {
public:
    Embedding(const std::string& path, std::size_t count, std::size_t width);

    [[nodiscard]] Variable<T> operator()(Tape<T>& tape, const Tensor<std::int32_t>& ids,
                                         const ops::EmbeddingOptions& options = {});

    template <ops::OtherId I>
    [[nodiscard]] Variable<T> operator()(Tape<T>& tape, const Tensor<I>& ids,
                                         const ops::EmbeddingOptions& options = {}) {
        return (*this)(tape, ops::narrow_ids("embedding", "ids", ids, tape.pool()), options);
    }

    [[nodiscard]] Parameter<T>& weight() noexcept { return *weight_; }
    void collect(std::vector<Parameter<T>*>& parameters) { parameters.push_back(weight_.get()); }

private:
    std::string name_;
    std::unique_ptr<Parameter<T>> weight_;
};

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
Embedding<T>::Embedding(const std::string& path, std::size_t count, std::size_t width)
    : name_(last_name(path)),
      weight_(std::make_unique<Parameter<T>>(
          path + "/weight", Shape{count, width},
          ParameterFacts{.role = ParameterRole::embedding, .fan_in = count, .fan_out = width})) {}

template <class T>
Variable<T> Embedding<T>::operator()(Tape<T>& tape, const Tensor<std::int32_t>& ids,
                                     const ops::EmbeddingOptions& options) {
    const auto scope = tape.scope(name_);
    return ops::multiplier(ops::embedding(tape.parameter(*weight_), ids, options),
                           model_multiplier(tape.recipe().parametrisation_rule(), weight_->facts()));
}

}  // namespace unitscale::nn
