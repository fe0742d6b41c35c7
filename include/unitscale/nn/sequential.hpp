// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/module.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace unitscale::nn {

/// Layers one after the other: modules and functions of ops. The layers' scopes are inside a scope of the path's last
/// name, so a layer's own path begins with this path:
///   nn::Sequential<float> network("network", nn::Linear<float>("network/first", {.in = 2, .out = 64}),
///                                 [](auto x) { return ops::gelu(x); },
///                                 nn::Linear<float>("network/last", {.in = 64, .out = 1}));
/// Without layers the result is x. Test: tests/nn/sequential_test.cpp
template <class T>
class Sequential {
public:
    template <Layer<T>... Layers>
    explicit Sequential(const std::string& path, Layers... layers) : name_(last_name(path)) {
        (add(std::move(layers)), ...);
    }

    /// Appends a layer, which is moved in.
    template <Layer<T> L>
    Sequential& add(L layer) {
        layers_.push_back(std::make_unique<Held<L>>(std::move(layer)));
        return *this;
    }

    [[nodiscard]] Variable<T> operator()(Variable<T> x) {
        const auto scope = x.tape("Sequential").scope(name_);
        for (const auto& layer : layers_) x = layer->run(std::move(x));
        return x;
    }

    [[nodiscard]] std::size_t size() const noexcept { return layers_.size(); }

    void collect(std::vector<Parameter<T>*>& parameters) {
        for (const auto& layer : layers_) layer->collect(parameters);
    }

private:
    struct Any {
        virtual ~Any() = default;
        [[nodiscard]] virtual Variable<T> run(Variable<T> x) = 0;
        virtual void collect(std::vector<Parameter<T>*>& parameters) = 0;
    };
    template <class L>
    struct Held final : Any {
        explicit Held(L&& own) : layer(std::move(own)) {}
        [[nodiscard]] Variable<T> run(Variable<T> x) override { return layer(std::move(x)); }
        void collect([[maybe_unused]] std::vector<Parameter<T>*>& parameters) override {
            if constexpr (Module<L, T>) layer.collect(parameters);
        }
        L layer;
    };

    std::string name_;
    std::vector<std::unique_ptr<Any>> layers_{};
};

}  // namespace unitscale::nn
