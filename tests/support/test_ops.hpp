// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

// Small ops for the tests of layers below `ops`: as simple as possible, with factors that the test chooses.
namespace unitscale::test {

struct Factors {
    double alpha = 1.0, beta_a = 1.0, beta_b = 1.0;
    JoinedBy joined_by = JoinedBy::plan;
    bool asks = false;  ///< square asks for its planned forward factor
};

/// y = alpha x^2, dx = beta 2 x dy, element-wise.
template <class T>
[[nodiscard]] Variable<T> square(Variable<T> x, const Factors& f = {}) {
    Tape<T>& tape = x.tape("square");
    const Tensor<T>& value = x.value();
    const Site site = tape.next_site("square");
    const double alpha = f.asks ? tape.forward_factor("square", site, f.alpha) : f.alpha;
    Tensor<T> output = tape.make(value.shape());
    for (std::size_t i = 0; i < value.size(); ++i)
        output.data()[i] = static_cast<T>(alpha) * value.data()[i] * value.data()[i];
    return tape.record({"square", site, alpha, {f.beta_a}, f.joined_by}, {x}, std::move(output),
                       [](BackwardContext<T>& g) {
                           if (!g.needs(0)) return;
                           const Tensor<T>& dy = g.output_gradient();
                           Tensor<T> dx = g.make(dy.shape());
                           for (std::size_t i = 0; i < dy.size(); ++i)
                               dx.data()[i] = static_cast<T>(2.0 * g.beta(0)) * g.input(0).data()[i] * dy.data()[i];
                           g.add(0, std::move(dx));
                       });
}

/// y = alpha a b, da = beta_a b dy, db = beta_b a dy, element-wise.
template <class T>
[[nodiscard]] Variable<T> mul(Variable<T> a, Variable<T> b, const Factors& f = {}) {
    Tape<T>& tape = a.tape("mul");
    const Tensor<T>& left = a.value();
    const Tensor<T>& right = b.value();
    check(left.shape() == right.shape(), "mul: a ", to_string(left.shape()), " and b ", to_string(right.shape()),
          " differ in shape");
    const Site site = tape.next_site("mul");
    Tensor<T> output = tape.make(left.shape());
    for (std::size_t i = 0; i < left.size(); ++i)
        output.data()[i] = static_cast<T>(f.alpha) * left.data()[i] * right.data()[i];
    return tape.record({"mul", site, f.alpha, {f.beta_a, f.beta_b}, f.joined_by}, {a, b}, std::move(output),
                       [](BackwardContext<T>& g) {
                           for (std::size_t input = 0; input < 2; ++input) {
                               if (!g.needs(input)) continue;
                               const Tensor<T>& dy = g.output_gradient();
                               Tensor<T> gradient = g.make(dy.shape());
                               for (std::size_t i = 0; i < dy.size(); ++i)
                                   gradient.data()[i] =
                                       static_cast<T>(g.beta(input)) * g.input(1 - input).data()[i] * dy.data()[i];
                               g.add(input, std::move(gradient));
                           }
                       });
}

/// The sum of all elements, shape [1].
template <class T>
[[nodiscard]] Variable<T> sum(Variable<T> x) {
    Tape<T>& tape = x.tape("sum");
    const Tensor<T>& value = x.value();
    const Site site = tape.next_site("sum");
    Tensor<T> output = tape.make(Shape{1});
    Accum<T> total = 0;
    for (std::size_t i = 0; i < value.size(); ++i) total += static_cast<Accum<T>>(value.data()[i]);
    output.data()[0] = static_cast<T>(total);
    return tape.record({"sum", site, 1.0, {1.0}}, {x}, std::move(output), [](BackwardContext<T>& g) {
        if (!g.needs(0)) return;
        Tensor<T> dx = g.make(g.input(0).shape());
        std::fill_n(dx.data(), dx.size(), g.output_gradient().data()[0]);
        g.add(0, std::move(dx));
    });
}

/// Two outputs that repeat x; dx is the sum of their gradients.
template <class T>
[[nodiscard]] std::array<Variable<T>, 2> split(Variable<T> x) {
    Tape<T>& tape = x.tape("split");
    const Site site = tape.next_site("split");
    return tape.template record_repeats<2>({"split", site, 1.0, {1.0}}, {&x, 1}, [](BackwardContext<T>& g) {
        Tensor<T> dx = g.take_output_gradient(0);
        for (std::size_t i = 0; i < dx.size(); ++i) dx.data()[i] += g.output_gradient(1).data()[i];
        g.add(0, std::move(dx));
    });
}

/// Two outputs: the first and the last `size / 2` elements of a vector of even length.
template <class T>
[[nodiscard]] std::array<Variable<T>, 2> halves(Variable<T> x) {
    Tape<T>& tape = x.tape("halves");
    const Tensor<T>& value = x.value();
    const Site site = tape.next_site("halves");
    const std::size_t half = value.size() / 2;
    std::array<Tensor<T>, 2> outputs = {tape.make(Shape{half}), tape.make(Shape{half})};
    for (std::size_t i = 0; i < half; ++i) {
        outputs[0].data()[i] = value.data()[i];
        outputs[1].data()[i] = value.data()[half + i];
    }
    const auto results =
        tape.record_outputs({"halves", site, 1.0, {1.0}}, {&x, 1}, outputs, [half](BackwardContext<T>& g) {
            Tensor<T> dx = g.make(g.input(0).shape());
            for (std::size_t i = 0; i < half; ++i) {
                dx.data()[i] = g.output_gradient(0).data()[i];
                dx.data()[half + i] = g.output_gradient(1).data()[i];
            }
            g.add(0, std::move(dx));
        });
    return {results[0], results[1]};
}

/// An op that throws in its forward or in its backward function.
template <class T>
[[nodiscard]] Variable<T> broken(Variable<T> x, bool forward) {
    Tape<T>& tape = x.tape("broken");
    const Site site = tape.next_site("broken");
    Tensor<T> output = tape.make(x.shape());
    std::copy_n(x.value().data(), output.size(), output.data());
    check(!forward, "broken: throws on its way forward");
    return tape.record({"broken", site, 1.0, {1.0}}, {x}, std::move(output),
                       [](BackwardContext<T>&) { fail("broken: throws on its way back"); });
}

/// A vector of values on the tape.
template <class T>
[[nodiscard]] Variable<T> vector_input(Tape<T>& tape, std::initializer_list<T> values, bool requires_gradient = true) {
    return tape.input(Tensor<T>(Shape{values.size()}, values), requires_gradient);
}

/// The elements of a tensor, to compare.
template <class T>
[[nodiscard]] std::vector<T> elements(const Tensor<T>& tensor) {
    return {tensor.span().begin(), tensor.span().end()};
}

}  // namespace unitscale::test
