// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/operators.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/gate.hpp>
#include <unitscale/ops/lerp.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/split.hpp>
#include <unitscale/ops/tanh.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Recurrent layers over sequences x [B,T,in]: Gru, Lstm, Highway. The products with x run once for all positions; the
// products with the state run position by position.
//
// Under `unit` every sum of a gate is a unit-scaled sum of two unit-scaled products. The state itself has factor 1:
// where its gate is open, it passes a step unchanged, in any recipe. A recurrence that multiplied its state by 1.3 in
// each step, as factors for independent inputs would, could not keep a number for 32 steps.
// The weights of the state are used at each of the T positions, which their gradients' factors count
// (`LinearOptions::uses`).
namespace unitscale::nn {

struct RecurrentConfig {
    std::size_t in = 1;
    std::size_t hidden = 1;
    bool bias = true;  ///< of both products, as in PyTorch; `Highway` has one
};

/// The common part of recurrent layers: the products with x and with the state, and the walk over positions.
/// Parameters: `path/input/weight` [gates hidden,in], `path/state/weight` [gates hidden,hidden], and their biases.
template <class T>
class Recurrent {
public:
    Recurrent(const std::string& path, const RecurrentConfig& config, std::size_t gates, bool state_bias)
        : name_(last_name(path)),
          config_(config),
          gates_(gates),
          input_(path + "/input", {.in = config.in, .out = gates * config.hidden, .bias = config.bias}),
          state_(path + "/state",
                 {.in = config.hidden, .out = gates * config.hidden, .bias = config.bias && state_bias}) {}

    [[nodiscard]] const RecurrentConfig& config() const noexcept { return config_; }

    void collect(std::vector<Parameter<T>*>& parameters) {
        input_.collect(parameters);
        state_.collect(parameters);
    }

protected:
    using Variables = std::vector<Variable<T>>;

    /// y [B,T,hidden] of the steps of a layer. `firsts` are the values of its states before the first step, [B,hidden]
    /// or absent for 0. step(a, b, states) computes the states [B,1,hidden] after a position from the gates' parts a of
    /// x and b of the first state, each [B,1,hidden]. The first state after each position is y there.
    /// Errors, in the name of `layer`: x is not [B,T,in] with T at least 1; a first value of another shape.
    template <class Step>
    [[nodiscard]] Variable<T> walk(const char* layer, Variable<T> x, const std::vector<OptionalVariable<T>>& firsts,
                                   const Step& step) {
        const Shape shape = x.shape();
        check(shape.size() == 3 && shape[1] >= 1, layer, ": x ", shape_text(shape),
              "; expected [B,T,in] with T at least 1");
        Tape<T>& tape = x.tape(layer);
        const auto scope = tape.scope(name_);
        const Variables inputs = ops::split(input_(std::move(x)), shape[1], 1);
        Variables states, y;
        for (const OptionalVariable<T>& first : firsts) states.push_back(first_state(layer, tape, shape[0], first));
        for (const Variable<T>& position : inputs) {
            const Variables a = ops::split(position, gates_, -1),
                            b = ops::split(state_(states.front(), {.uses = shape[1]}), gates_, -1);
            states = step(a, b, states);
            y.push_back(states.front());
        }
        return ops::concatenate(y, 1);
    }

private:
    /// A state before the first step as [B,1,hidden].
    [[nodiscard]] Variable<T> first_state(const char* layer, Tape<T>& tape, std::size_t batch,
                                          const OptionalVariable<T>& given) const {
        const Shape shape{batch, 1, config_.hidden};
        if (!given) {
            Tensor<T> zeros = tape.make(shape);
            fill_zero(zeros);
            return tape.input(std::move(zeros));
        }
        check(given->shape() == Shape{batch, config_.hidden}, layer, ": first state ", shape_text(given->shape()),
              "; expected [", batch, ",", config_.hidden, "]");
        return ops::reshape(*given, shape);
    }

    std::string name_;
    RecurrentConfig config_;
    std::size_t gates_;
    Linear<T> input_, state_;
};

/// A gated recurrent unit. x [B,T,in], y [B,T,hidden]; h_0 [B,hidden], 0 unless given.
///   r = sigmoid(a_r + b_r)     z = sigmoid(a_z + b_z)          a = input weight x_t + bias, b = state weight h + bias
///   n = tanh(a_n + r b_n)      h_t = (1 - z) n + z h_{t-1}     y_t = h_t
/// Weights in the order r, z, n: PyTorch's layout. Under `unit` each sum is `ops::add`, r b_n `ops::gate`, h_t
/// `ops::lerp`: the gates' inputs have unit scale, and the state stays between its candidates.
/// Errors: x is not [B,T,in] with T at least 1; h_0 of another shape.
/// Reference: Cho et al. 2014, arXiv:1406.1078. Test: tests/nn/recurrent_test.cpp
template <class T>
class Gru : public Recurrent<T> {
public:
    Gru(const std::string& path, const RecurrentConfig& config) : Recurrent<T>(path, config, 3, true) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x, OptionalVariable<T> h0 = {}) {
        return this->walk("Gru", std::move(x), {std::move(h0)}, [](const auto& a, const auto& b, const auto& states) {
            const Variable<T> r = ops::add(a[0], b[0]), z = ops::add(a[1], b[1]);
            const Variable<T> n = ops::tanh(ops::add(a[2], ops::gate(b[2], r)));
            return std::vector{ops::lerp(n, states[0], z)};
        });
    }
};

/// A long short-term memory. x [B,T,in], y [B,T,hidden]; h_0 and c_0 [B,hidden], 0 unless given.
///   i, f, o = sigmoid of their parts of a + b     g = tanh(a_g + b_g)          a, b as in `Gru`
///   c_t = f c_{t-1} + i g                         h_t = o tanh(c_t)            y_t = h_t
/// Weights in the order i, f, g, o: PyTorch's layout. Under `unit` the gates of the memory c have factor 1, so that an
/// open forget gate keeps it; the output gate is unit-scaled.
/// Errors: as `Gru`.
/// Reference: Hochreiter, Schmidhuber 1997; Gers et al. 2000. Test: tests/nn/recurrent_test.cpp
template <class T>
class Lstm : public Recurrent<T> {
public:
    Lstm(const std::string& path, const RecurrentConfig& config) : Recurrent<T>(path, config, 4, true) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x, OptionalVariable<T> h0 = {}, OptionalVariable<T> c0 = {}) {
        const auto step = [](const auto& a, const auto& b, const auto& states) {
            const ops::GateOptions plain{.unit = ops::Factors<2>{}, .constraint = Constraint::none};
            const auto sum = [&](std::size_t gate) { return ops::add(a[gate], b[gate]); };
            const Variable<T> kept = ops::gate(states[1], sum(1), plain),
                              taken = ops::gate(ops::tanh(sum(2)), sum(0), plain),
                              c = ops::add(kept, taken, {.unit = ops::Factors<2>{}, .constraint = Constraint::none});
            return std::vector{ops::gate(ops::tanh(c), sum(3)), c};
        };
        return this->walk("Lstm", std::move(x), {std::move(h0), std::move(c0)}, step);
    }
};

/// A highway recurrence with one gate. x [B,T,in], y [B,T,hidden]; h_0 [B,hidden], 0 unless given.
///   u = sigmoid(a_u + b_u - shift)     t = tanh(a_t + b_t)     h_t = (1 - u) h_{t-1} + u t     y_t = h_t
/// Weights in the order t, u. `shift` keeps the gate shut at first: 1 is usual. Under `unit` as in `Gru`.
/// Errors: as `Gru`.
/// Reference: Zilly et al. 2016, arXiv:1607.03474. Test: tests/nn/recurrent_test.cpp
template <class T>
class Highway : public Recurrent<T> {
public:
    Highway(const std::string& path, const RecurrentConfig& config, double shift = 0.0)
        : Recurrent<T>(path, config, 2, false), shift_(shift) {}

    [[nodiscard]] Variable<T> operator()(Variable<T> x, OptionalVariable<T> h0 = {}) {
        return this->walk("Highway", std::move(x), {std::move(h0)}, [&](const auto& a, const auto& b, const auto& h) {
            Variable<T> u = ops::add(a[1], b[1]);
            if (shift_ != 0.0) u = u - shift_;
            return std::vector{ops::lerp(h[0], ops::tanh(ops::add(a[0], b[0])), u)};
        });
    }

private:
    double shift_;
};

}  // namespace unitscale::nn
