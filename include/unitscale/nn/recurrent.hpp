// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/operators.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/constant.hpp>
#include <unitscale/ops/gate.hpp>
#include <unitscale/ops/lerp.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/split.hpp>
#include <unitscale/ops/sub.hpp>
#include <unitscale/ops/tanh.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Recurrent layers over sequences x [B,T,in]: Gru, Lstm, Highway, JointHighway. The products with x run once for all
// positions; the products with the state run position by position. In JointHighway one product has both.
//
// Under `unit` every sum of a gate is one unit-scaled product, or a unit-scaled sum of two. The state itself has factor
// 1: where its gate is open, it passes a step unchanged, in any recipe. A recurrence that multiplied its state by 1.3
// in each step, as factors for independent inputs would, could not keep a number for 32 steps.
// The weights of the state are used at each of the T positions, which their gradients' factors count
// (`LinearOptions::uses`).
namespace unitscale::nn {

/// Error, in the name of `layer`: x is not [B,T,in] with T at least 1.
template <class T>
void check_sequence(const char* layer, const Variable<T>& x) {
    const Shape& shape = x.shape();
    check(shape.size() == 3 && shape[1] >= 1, layer, ": x ", shape_text(shape),
          "; expected [B,T,in] with T at least 1");
}

/// y [B,T,hidden] of a recurrence. step(x_t, states) computes the states [B,1,hidden] after a position from the states
/// before it. The first state after each position is y there.
template <class T, class Step>
[[nodiscard]] Variable<T> walk_positions(const std::vector<Variable<T>>& positions, std::vector<Variable<T>> states,
                                         const Step& step) {
    std::vector<Variable<T>> y;
    y.reserve(positions.size());
    for (const Variable<T>& x : positions) {
        states = step(x, states);
        y.push_back(states.front());
    }
    return ops::concatenate(y, 1);
}

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
        check_sequence(layer, x);
        const std::size_t batch = x.shape()[0], length = x.shape()[1];
        Tape<T>& tape = x.tape(layer);
        const auto scope = tape.scope(name_);
        const Variables inputs = ops::split(input_(std::move(x)), length, 1);
        Variables states;
        for (const OptionalVariable<T>& first : firsts) states.push_back(first_state(layer, tape, batch, first));
        return walk_positions(inputs, std::move(states), [&](const Variable<T>& position, const Variables& before) {
            const Variables a = ops::split(position, gates_, -1),
                            b = ops::split(state_(before.front(), {.uses = length}), gates_, -1);
            return step(a, b, before);
        });
    }

private:
    /// A state before the first step as [B,1,hidden].
    [[nodiscard]] Variable<T> first_state(const char* layer, Tape<T>& tape, std::size_t batch,
                                          const OptionalVariable<T>& given) const {
        const Shape shape{batch, 1, config_.hidden};
        if (!given) return ops::constant(tape, 0.0, shape);
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

    [[nodiscard]] Variable<T> operator()(Variable<T> x, OptionalVariable<T> h0 = {});
};

template <class T>  // out of the class, so that users of unitscale::compiled do not compile it
Variable<T> Gru<T>::operator()(Variable<T> x, OptionalVariable<T> h0) {
    return this->walk("Gru", std::move(x), {std::move(h0)}, [](const auto& a, const auto& b, const auto& states) {
        const Variable<T> r = ops::add(a[0], b[0]), z = ops::add(a[1], b[1]);
        const Variable<T> n = ops::tanh(ops::add(a[2], ops::gate(b[2], r)));
        return std::vector{ops::lerp(n, states[0], z)};
    });
}

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

    [[nodiscard]] Variable<T> operator()(Variable<T> x, OptionalVariable<T> h0 = {}, OptionalVariable<T> c0 = {});
};

template <class T>  // out of the class, so that users of unitscale::compiled do not compile it
Variable<T> Lstm<T>::operator()(Variable<T> x, OptionalVariable<T> h0, OptionalVariable<T> c0) {
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

    [[nodiscard]] Variable<T> operator()(Variable<T> x, OptionalVariable<T> h0 = {});

private:
    double shift_;
};

template <class T>  // out of the class, so that users of unitscale::compiled do not compile it
Variable<T> Highway<T>::operator()(Variable<T> x, OptionalVariable<T> h0) {
    return this->walk("Highway", std::move(x), {std::move(h0)}, [&](const auto& a, const auto& b, const auto& h) {
        Variable<T> u = ops::add(a[1], b[1]);
        if (shift_ != 0.0) u = u - shift_;
        return std::vector{ops::lerp(h[0], ops::tanh(ops::add(a[0], b[0])), u)};
    });
}

struct JointHighwayConfig {
    std::size_t in = 1;
    std::size_t hidden = 1;
    double shift = 1.0;                      ///< taken from the gate's input: keeps the gate shut at first
    std::size_t depth = 0;                   ///< blocks of the trunk, if the layer is inside a residual branch
    std::size_t stream = 0;                  ///< columns of the residual stream; 0: `in`
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x} of the product; empty: the recipe's rule
};

/// The recurrent context layer of the Unit Scaling experiments: a highway recurrence with one product for x and state,
/// and a trained first state. x [B,T,in], y [B,T,hidden].
///   [t, u] = W [x_t, h_{t-1}] + b     s = sigmoid(u - shift)     h_t = (1 - s) h_{t-1} + s tanh(t)     y_t = h_t
/// Parameters: `path/gates/weight` W [2 hidden, in + hidden] and `path/gates/bias` b [2 hidden], rows of t before rows
/// of u. `path/first_state` h_0 [hidden] begins every row of the batch.
/// h_0 has the role bias. So it starts at 0, does not decay, and learns at the rate of a vector (`parameter_scaling`).
/// The experiments treat every parameter with one dimension like that.
/// Factors under `unit`: the product has those of `ops::linear` with the B T rows of the step, joined at once. The
/// geometric mean gives alpha = beta_x = (2 (in + hidden) hidden)^-1/4. The gradient of h_0 is a sum over the B rows
/// of the step, hence beta = B^-1/2. tanh, sigmoid and the choice have factor 1: h_t lies between h_{t-1} and a number
/// in (-1, 1), so the state stays within unit size.
/// At initialisation, with x and dy of unit size, y has an rms of 0.25 for the shift 1. The gates' gradient has 0.29,
/// because it passes the slopes s and s (1 - s). The test derives both numbers.
/// Errors: x is not [B,T,in] with T at least 1.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 6.1 and its code; Zilly et al. 2016,
/// arXiv:1607.03474. Test: tests/nn/recurrent_test.cpp
template <class T>
class JointHighway {
public:
    JointHighway(const std::string& path, const JointHighwayConfig& config)
        : name_(last_name(path)),
          config_(config),
          gates_(path + "/gates", {.in = config.in + config.hidden,
                                   .out = 2 * config.hidden,
                                   .bias = true,
                                   .depth = config.depth,
                                   .stream = stream(),
                                   .constraint = config.constraint}),
          first_state_(std::make_unique<Parameter<T>>(path + "/first_state", Shape{config.hidden},
                                                      ParameterFacts{.role = ParameterRole::bias,
                                                                     .fan_in = 1,
                                                                     .fan_out = config.hidden,
                                                                     .depth = config.depth,
                                                                     .width = stream()})) {}

    [[nodiscard]] const JointHighwayConfig& config() const noexcept { return config_; }

    [[nodiscard]] Variable<T> operator()(Variable<T> x);

    void collect(std::vector<Parameter<T>*>& parameters) {
        gates_.collect(parameters);
        parameters.push_back(first_state_.get());
    }

private:
    [[nodiscard]] std::size_t stream() const noexcept { return config_.stream != 0 ? config_.stream : config_.in; }

    std::string name_;
    JointHighwayConfig config_;
    Linear<T> gates_;
    std::unique_ptr<Parameter<T>> first_state_;
};

template <class T>  // out of the class, so that users of unitscale::compiled do not compile it
Variable<T> JointHighway<T>::operator()(Variable<T> x) {
    check_sequence("JointHighway", x);
    Tape<T>& tape = x.tape("JointHighway");
    const auto scope = tape.scope(name_);
    const std::size_t batch = x.shape()[0], length = x.shape()[1];
    // The sum with zeros repeats h_0 for every row.
    const Variable<T> first =
                          ops::add(ops::constant(tape, 0.0, {batch, 1, config_.hidden}), tape.parameter(*first_state_),
                                   {.unit = ops::Factors<2>{}, .constraint = Constraint::none}),
                      shift = ops::constant(tape, config_.shift);
    return walk_positions(
        ops::split(std::move(x), length, 1), std::vector{first},
        [&](const Variable<T>& x_t, const std::vector<Variable<T>>& h) {
            const auto parts = ops::split(gates_(ops::concatenate({x_t, h[0]}, -1), {.uses = length}), 2, -1);
            const Variable<T> candidate =
                ops::tanh(parts[0], {.unit = ops::Factors<1>{}, .constraint = Constraint::none});
            const Variable<T> u = ops::sub(parts[1], shift, {.constraint = Constraint::none});
            return std::vector{ops::lerp(h[0], candidate, u)};
        });
}

}  // namespace unitscale::nn
