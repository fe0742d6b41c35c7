// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/variable.hpp>

#include <concepts>
#include <type_traits>
#include <vector>

// What a module is. A class needs no base to be one.
//   Its constructor takes its path in the model, such as "network/first", and a config.
//   Its parameters are called `path/weight` and so on. They keep their addresses when the module is moved.
//   `collect` lists them.
//   Its call opens a scope of the path's last name on the tape (`Tape::scope`), and computes by ops and other modules.
//   It names no recipe: ops ask the tape's recipe for factors and formats.
// A module is not moved between a forward pass and its backward pass.
namespace unitscale::nn {

/// A module lists its parameters, in the same order each time: module.collect(parameters) appends them.
/// Test: tests/nn/module_test.cpp
template <class M, class T>
concept Module = requires(M& module, std::vector<Parameter<T>*>& parameters) { module.collect(parameters); };

/// A layer turns one Variable into one: a module, or a function of ops such as
///   [](auto x) { return ops::gelu(x); }
template <class L, class T>
concept Layer = std::is_invocable_r_v<Variable<T>, L&, Variable<T>>;

/// The parameters of a model: of `model.parameters()`, or of `model.collect(parameters)`.
template <class T, class Model>
    requires Module<Model, T> || requires(Model& model) { model.parameters(); }
[[nodiscard]] std::vector<Parameter<T>*> parameters_of(Model& model) {
    if constexpr (requires { model.parameters(); }) {
        return model.parameters();
    } else {
        std::vector<Parameter<T>*> all;
        model.collect(all);
        return all;
    }
}

}  // namespace unitscale::nn
