// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/embedding.hpp>
#include <unitscale/ops/gated_silu.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/layer_norm.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/readout.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/ops/rms_norm.hpp>
#include <unitscale/ops/sigmoid.hpp>
#include <unitscale/ops/softmax.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/ops/tanh.hpp>
#include <unitscale/ops/weighted_add.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// Random graphs of scaled ops, in double.
// They have fan-out, joins, shared inputs, parallel edges, tied parameters, one or two losses, and residual layers.
// A seed fixes the graph and its numbers each time the graph is recorded.
namespace unitscale::test {

/// An error to build into a graph. `op`: op number `op` of the ops that take a constraint gets `none`.
/// `residual`: every residual layer's add gets another weight than its split.
struct Fault {
    std::optional<std::size_t> op{};
    bool residual = false;
};

class RandomGraph {
public:
    explicit RandomGraph(std::uint64_t seed) : seed_(seed) {}

    /// Records the graph and returns its losses.
    [[nodiscard]] std::vector<Variable<double>> record(Tape<double>& tape, const Fault& fault = {}) {
        tape_ = &tape;
        fault_ = fault;
        draw_ = 0;
        constrained_ = used_parameters_ = 0;
        leaves_.clear();
        tensors_.clear();
        shared_.clear();
        for (std::size_t i = 0, count = 1 + pick(2); i < count; ++i)
            tensors_.push_back(leaf(tape.input(fresh({rows, width()}), true)));
        if (pick(3) == 0) add_tied_embedding();
        for (std::size_t i = 0, count = 2 + pick(9); i < count; ++i) tensors_.push_back(op());
        std::vector<Variable<double>> losses;
        for (std::size_t i = 0, count = 1 + pick(2); i < count; ++i) losses.push_back(loss());
        return losses;
    }

    /// The number of recorded ops that take a constraint.
    [[nodiscard]] std::size_t constrained_count() const noexcept { return constrained_; }
    /// The inputs and parameters with a gradient, in order of recording; valid until the tape's next step.
    [[nodiscard]] const std::vector<Variable<double>>& leaves() const noexcept { return leaves_; }
    [[nodiscard]] std::vector<std::unique_ptr<Parameter<double>>>& parameters() noexcept { return parameters_; }
    void clear_gradients() {
        for (const auto& parameter : parameters_) parameter->clear_gradient();
    }

private:
    static constexpr std::size_t rows = 5;
    using V = Variable<double>;

    std::size_t pick(std::size_t below) { return random_word({seed_, 1}, draw_++) % below; }
    std::size_t width() { return 2 + pick(5); }
    Tensor<double> fresh(const Shape& shape) { return normal<double>(shape, {seed_, 1000 + draw_++}); }
    V leaf(V x) {
        leaves_.push_back(x);
        return x;
    }
    V any() { return tensors_[tensors_.size() - 1 - std::min(pick(tensors_.size()), pick(tensors_.size()))]; }
    /// Another tensor with the shape of x if there is one, else a linear image of some tensor.
    V companion(V x) {
        for (std::size_t i = 0, start = pick(tensors_.size()); i < tensors_.size(); ++i) {
            const V candidate = tensors_[(start + i) % tensors_.size()];
            if (candidate.shape() == x.shape() && &candidate.value() != &x.value()) return candidate;
        }
        const V source = any();
        return dense(source, x.shape()[1]);
    }
    /// x times a constant tensor.
    /// The gradients that reach x through two such products are not parallel, for any following ops.
    V apart(V x) { return ops::mul(x, tape_->input(fresh(x.shape()))); }

    /// A parameter with this shape: a new parameter, or sometimes one that has been used.
    V parameter(const Shape& shape) {
        for (const V& old : shared_)
            if (old.shape() == shape && pick(3) == 0) return old;
        if (used_parameters_ == parameters_.size()) {
            parameters_.push_back(
                std::make_unique<Parameter<double>>("p" + std::to_string(used_parameters_), shape, ParameterFacts{}));
            fill_normal(parameters_.back()->write(), {seed_, 5000 + used_parameters_});
        }
        const V handle = leaf(tape_->parameter(*parameters_[used_parameters_++]));
        shared_.push_back(handle);
        return handle;
    }
    std::optional<Constraint> constraint() {
        const std::size_t number = constrained_++;
        return fault_.op == number ? std::optional<Constraint>(Constraint::none) : std::nullopt;
    }

    V activation(V x) {
        switch (pick(5)) {
            case 0:
                return ops::gelu(x, {.constraint = constraint()});
            case 1:
                return ops::tanh(x, {.constraint = constraint()});
            case 2:
                return ops::sigmoid(x, {.constraint = constraint()});
            case 3:
                return ops::softmax(x, {.constraint = constraint()});
            default:
                return ops::dropout(x, {.p = 0.25});
        }
    }
    V dense(V x, std::size_t out) {
        const std::size_t in = x.shape()[1];
        if (pick(2) == 0) return ops::matmul(x, parameter({in, out}), {.constraint = constraint()});
        const V weight = parameter({out, in});
        const std::optional<V> bias = pick(2) == 0 ? std::optional<V>() : parameter({out});
        return ops::linear(x, weight, bias, {.constraint = constraint()});
    }
    V residual_layer(V x) {
        const double tau = 0.25 * static_cast<double>(1 + pick(6));
        const auto [branch, stream] = ops::residual_split(x, tau);
        V inner = pick(2) == 0 ? ops::rms_norm(branch) : branch;
        const std::size_t hidden = width();
        inner = dense(activation(dense(inner, hidden)), x.shape()[1]);
        return ops::residual_add(inner, stream, fault_.residual ? 2.0 * tau : tau);
    }
    V gated_layer(V x) {
        const std::size_t hidden = width();
        const V up = dense(x, hidden), gate = dense(x, hidden);
        return dense(ops::gated_silu(up, gate), x.shape()[1]);
    }
    // Operands are drawn one after the other, because compilers may order a call's arguments in any way.
    V join(V x) {
        const V left = apart(x), right = apart(companion(x));
        return ops::add(left, right, {.constraint = constraint()});
    }
    V with_bias(V x) {
        const V bias = parameter({x.shape()[1]});
        return ops::add(x, bias, {.constraint = constraint()});
    }
    V product(V x) {
        const V other = pick(4) == 0 ? x : companion(x);
        return ops::mul(x, other, {.constraint = constraint()});
    }
    V weighted_join(V x) {
        const V first = apart(x), second = apart(companion(x)), third = apart(companion(x));
        return ops::weighted_add({first, second, third}, {0.5, -2.0, 1.5}, {.constraint = constraint()});
    }
    V norm(V x) {
        const std::optional<V> gain = parameter({x.shape()[1]});
        if (pick(2) == 0) return ops::rms_norm(x, gain);
        const std::optional<V> shift = parameter({x.shape()[1]});
        return ops::layer_norm(x, gain, shift);
    }
    V op() {
        const V x = any();
        switch (pick(9)) {
            case 0:
                return activation(x);
            case 1:
                return dense(x, width());
            case 2:
                return join(x);
            case 3:
                return with_bias(x);
            case 4:
                return product(x);
            case 5:
                return weighted_join(x);
            case 6:
                return residual_layer(x);
            case 7:
                return gated_layer(x);
            default:
                return norm(x);
        }
    }
    /// A table that is looked up here and that the next readout of its width uses again.
    void add_tied_embedding() {
        constexpr std::size_t vocabulary = 7;
        const V table = parameter({vocabulary, width()});
        tensors_.push_back(ops::embedding(table, tokens(vocabulary)));
    }
    Tensor<std::int32_t> tokens(std::size_t below) {
        Tensor<std::int32_t> ids({rows});
        for (std::int32_t& id : ids.span()) id = static_cast<std::int32_t>(pick(below));
        return ids;
    }
    V loss() {
        const V x = any();
        for (const V& table : shared_)
            if (table.shape().size() == 2 && table.shape()[1] == x.shape()[1] && pick(2) == 0)
                return cross_entropy(x, table);
        return cross_entropy(x, parameter({2 + pick(4), x.shape()[1]}));
    }
    V cross_entropy(V x, V weight) {
        return ops::softmax_cross_entropy(ops::readout(x, weight), tokens(weight.shape()[0]));
    }

    std::uint64_t seed_;
    std::uint64_t draw_ = 0;
    Tape<double>* tape_ = nullptr;
    Fault fault_{};
    std::size_t constrained_ = 0, used_parameters_ = 0;
    std::vector<V> leaves_{}, tensors_{}, shared_{};
    std::vector<std::unique_ptr<Parameter<double>>> parameters_{};
};

}  // namespace unitscale::test
