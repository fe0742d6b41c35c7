// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/carried_scales.hpp>
#include <unitscale/autograd/graph.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/half_lanes.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

namespace unitscale {

/// The scale of a tensor, and whether its data stand for any scale (`Tensor::any_scale`).
struct CarriedScale {
    double scale = 1.0;
    bool any = false;
};

/// The scale of a sum of two tensors of data and scale. If the scales differ, `sum_scale` gives it. A tensor with the
/// flag any scale takes the other tensor's scale.
[[nodiscard]] inline CarriedScale scale_of_sum(CarriedScale a, CarriedScale b, ScaleRounding rounding,
                                               std::uint32_t random) {
    const double scale = a.scale == b.scale ? a.scale
                         : a.any            ? b.scale
                         : b.any            ? a.scale
                                            : sum_scale(rounding, a.scale, b.scale, random);
    return {scale, a.any && b.any};
}

/// to[i] = old_factor to[i] + factor more[i], rounded to T once, for i < count.
template <class T>
void add_scaled_elements(const Execution& execution, T* to, const T* more, std::size_t count, double old_factor,
                         double factor) {
    using A = Accum<T>;
    const auto add = [&]<class C>(C old, C other) {
        parallel_for(execution.threads, static_cast<std::ptrdiff_t>(count), 1 << 15,
                     [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                         const auto sum = [=](A x, A y) {
                             return static_cast<A>(multiply_add(old, static_cast<C>(x), other * static_cast<C>(y)));
                         };
                         constexpr std::size_t lanes = 64;  // a constant, so that the loop is vectorised
                         std::array<A, lanes> x, y;
                         std::ptrdiff_t i = begin;
                         for (; i + std::ptrdiff_t{lanes} <= end; i += std::ptrdiff_t{lanes}) {
                             load_lanes<lanes>(to + i, x.data());
                             load_lanes<lanes>(more + i, y.data());
                             for (std::size_t l = 0; l < lanes; ++l) x[l] = sum(x[l], y[l]);
                             store_lanes<lanes>(x.data(), to + i);
                         }
                         for (; i < end; ++i) to[i] = narrow<T>(sum(widen(to[i]), widen(more[i])));
                     });
    };
    if (holds_factor<A>(old_factor) && holds_factor<A>(factor)) add(static_cast<A>(old_factor), static_cast<A>(factor));
    else add(old_factor, factor);  // scales that differ by 2^126 or more
}

/// sum += part, for tensors of data and scale. The sum gets the scale of `scale_of_sum`.
template <class T>
void add_scaled_tensor(const Execution& execution, Tensor<T>& sum, const Tensor<T>& part, ScaleRounding rounding,
                       std::uint32_t random = 0) {
    const CarriedScale whole =
        scale_of_sum({sum.scale(), sum.any_scale()}, {part.scale(), part.any_scale()}, rounding, random);
    add_scaled_elements(execution, sum.data(), part.data(), part.size(), sum.scale() / whole.scale,
                        part.scale() / whole.scale);
    sum.set_scale(whole.scale);
    sum.set_any_scale(whole.any);
}

/// Adds a part to the gradient of a slot. The first part is moved in. In the slot of a parameter, the part goes to the
/// parameter itself.
template <class T>
void add_gradient(const Execution& execution, Slot<T>& slot, Tensor<T>&& part,
                  ScaleRounding rounding = ScaleRounding::down, std::uint32_t random = 0) {
    if (slot.parameter != nullptr) {
        Parameter<T>& parameter = *slot.parameter;
        if (parameter.has_gradient() && part.shape() == parameter.shape())
            add_scaled_tensor(execution, parameter.gradient(), part, rounding, random);
        else parameter.add_gradient(std::move(part));
        return;
    }
    check(part.shape() == slot.shape, "backward: gradient of shape ", shape_text(part.shape()), " for the output of ",
          slot.origin, ", which has shape ", shape_text(slot.shape));
    if (!slot.has_gradient) {
        slot.gradient = std::move(part);
        slot.has_gradient = true;
        return;
    }
    add_scaled_tensor(execution, slot.gradient, part, rounding, random);
}

/// Writes the seed, which is the gradient of a loss, exactly. Under `propagate` the scale is the seed's power of two.
/// If T does not hold the seed, the seed's magnitude becomes the scale of data 1 or -1.
template <class T>
void set_seed(Tensor<T>& gradient, Accum<T> seed, bool propagates) {
    const double size = std::abs(static_cast<double>(seed));
    const bool scales = size > 0.0 && size <= std::numeric_limits<double>::max();
    gradient.set_scale(propagates && scales ? pow2_down(size) : 1.0);
    const Accum<T> data = seed / static_cast<Accum<T>>(gradient.scale());
    gradient.data()[0] = static_cast<T>(data);
    if (!scales || static_cast<Accum<T>>(gradient.data()[0]) == data) return;
    gradient.set_scale(size);
    gradient.data()[0] = static_cast<T>(seed < 0 ? -1.0f : 1.0f);
}

/// Seeds a loss: writes `seed` into `gradient`, and adds that to the loss. The loss stays readable in the pass.
template <class T>
void seed_loss(const Execution& execution, Slot<T>& loss, Tensor<T>&& gradient, Accum<T> seed, bool propagates) {
    loss.leaf = true;
    set_seed(gradient, seed, propagates);
    if (loss.requires_gradient) add_gradient(execution, loss, std::move(gradient));
}

/// Takes a trained parameter with its whole gradient of a backward pass. Memory can be saved here, and gradients can be
/// sent away while the pass goes on.
template <class T>
using GradientSink = std::function<void(Parameter<T>&)>;

/// Ends the gradient of a trained parameter, to which no more is added in this pass. Other slots, and those without a
/// gradient, are left alone.
template <class T>
void end_gradient(const Slot<T>& slot, const std::shared_ptr<const Recipe>& recipe, Observer<T>* observer,
                  const GradientSink<T>& complete) {
    Parameter<T>* const trained = slot.parameter;
    if (trained == nullptr || !trained->has_gradient()) return;
    trained->set_gradient_recipe(recipe);
    if (observer != nullptr)
        observer->observe({trained->name(), "parameter", 0, Pass::gradient, std::as_const(*trained).gradient(), {}});
    if (complete) complete(*trained);
}

/// The interface of an op's backward function. It gives gradients of the outputs, values of the inputs and the op's
/// factors, and adds to the gradients of the inputs. Inputs and outputs are numbered in the order of recording.
/// Test: tests/autograd/backward_test.cpp
template <class T>
class BackwardContext {
public:
    BackwardContext(ReusedList<Slot<T>>& slots, Node<T>& node, const Execution& execution,
                    const std::shared_ptr<MemoryPool>& pool)
        : slots_(slots), node_(node), execution_(execution), pool_(pool) {}

    [[nodiscard]] const Execution& execution() const noexcept { return execution_; }
    [[nodiscard]] const std::shared_ptr<MemoryPool>& pool() const noexcept { return pool_; }
    /// The tape's observer; null if there is none.
    [[nodiscard]] Observer<T>* observer() const noexcept { return observer_; }

    /// Whether a gradient for input i is wanted. If not, computing it is wasted, and adding it does nothing.
    [[nodiscard]] bool needs(std::size_t i) const noexcept { return input_slot(i).requires_gradient; }

    /// Values: with their scale if the op propagates scales (`OpInfo::propagates`), else as plain numbers. Error: a
    /// freed value that `OpInfo::reads` does not list.
    [[nodiscard]] const Tensor<T>& input(std::size_t i) const { return value("input ", i, input_slot(i)); }
    [[nodiscard]] const Tensor<T>& output(std::size_t i = 0) const {
        return value("output ", i, slots_[node_.outputs[i]]);
    }

    /// Scales, also of freed values; 1 except under `propagate`.
    [[nodiscard]] double input_scale(std::size_t i) const noexcept {
        return node_.propagates ? input_slot(i).scale : 1.0;
    }
    [[nodiscard]] double output_scale(std::size_t i = 0) const noexcept {
        return node_.propagates ? slots_[node_.outputs[i]].scale : 1.0;
    }

    /// Shapes, also of freed values.
    [[nodiscard]] const Shape& input_shape(std::size_t i) const noexcept { return input_slot(i).shape; }
    [[nodiscard]] const Shape& output_shape(std::size_t i = 0) const noexcept { return slots_[node_.outputs[i]].shape; }

    /// The codes of an input that is kept rounded (`Tape::read_rounded`); null if the value itself is still kept.
    [[nodiscard]] const Tensor<std::uint8_t>* codes(std::size_t i) const noexcept {
        const Slot<T>& root = slots_[input_slot(i).root];
        return root.value == nullptr && root.rounding ? &root.codes : nullptr;
    }

    /// The factor of the op's value.
    [[nodiscard]] double alpha() const noexcept { return node_.alpha; }

    /// The factor of input i's gradient, as set by the plan or a constraint.
    [[nodiscard]] double beta(std::size_t i) const noexcept { return true_gradients_ ? node_.alpha : node_.betas[i]; }

    /// Data factor and scale of input i's gradient. This gradient is a product of the gradient at output `from` and of
    /// values. `scales` is the product of these values' scales. Under `propagate`, `product_scale` gives the result,
    /// with the recorded beta as ideal factor. Otherwise the result is the factor beta and scale 1.
    [[nodiscard]] Scaled scaled_beta(std::size_t i, double scales = 1.0, std::size_t from = 0) {
        if (!carries_scales()) return {beta(i), 1.0};
        const double unit = output_gradient(from).scale() * scales;
        const auto random = static_cast<std::uint32_t>(random_word(key_, i));
        return carried(i, unit, product_scale(carried_->rounding(), unit, node_.betas[i], random).scale);
    }

    /// Data factor and scale of input i's gradient under `propagate`, for an op with a rule of its own: the data that
    /// its kernel computes stands for `unit`, and `wanted` is the scale by its rule. A planned scale replaces it.
    [[nodiscard]] Scaled carried(std::size_t i, double unit, double wanted) {
        return carried_->gradient(node_.site, i, unit, wanted, static_cast<std::uint32_t>(random_word(key_, i)));
    }

    /// A measured size of the op's data or gradient under `propagate`: see `CarriedScales::data_size`.
    [[nodiscard]] double data_size(double now, double scale) { return carried_->data_size(node_.site, 0, now, scale); }

    /// The factor of the gradient that arrived at output i: 1, except for ops that state output weights.
    [[nodiscard]] double output_weight(std::size_t i) const noexcept {
        return true_gradients_ || node_.output_weights.empty() ? 1.0 : node_.output_weights[i];
    }

    /// The gradient that arrived at output i; zeros if no consumer sent one.
    [[nodiscard]] const Tensor<T>& output_gradient(std::size_t i = 0) {
        Slot<T>& slot = slots_[node_.outputs[i]];
        if (!slot.has_gradient) {
            slot.gradient = make(slot.shape);
            fill_zero(slot.gradient);
            slot.gradient.set_any_scale(true);
            slot.has_gradient = true;
        }
        if (!carries_scales() && slot.gradient.scale() != 1.0) {
            multiply_out(slot.gradient, slot.gradient);
            slot.gradient.set_scale(1.0);
        }
        return slot.gradient;
    }

    /// The gradient that arrived at output i, moved out unless the tape keeps it; then a copy. For ops that pass a
    /// gradient on or work in place.
    [[nodiscard]] Tensor<T> take_output_gradient(std::size_t i = 0) {
        static_cast<void>(output_gradient(i));
        Slot<T>& slot = slots_[node_.outputs[i]];
        if (!keep_) {
            slot.has_gradient = false;
            return std::move(slot.gradient);
        }
        return copy_into(slot.gradient, make(slot.gradient.shape()));
    }

    /// The gradient that arrived at a one-element output, not rounded to T: the seed of a loss. The result goes with
    /// the factor of `scaled_beta`. It leaves out the scale if the op sees gradients as data and scale.
    [[nodiscard]] double item_gradient(std::size_t i = 0) const noexcept {
        const Slot<T>& slot = slots_[node_.outputs[i]];
        if (!slot.has_gradient) return 0.0;
        return static_cast<double>(static_cast<Accum<T>>(slot.gradient.data()[0])) *
               (carries_scales() ? 1.0 : slot.gradient.scale());
    }

    /// Passes a one-element gradient on to the one-element input i, multiplied by `factor`, where T does not hold the
    /// gradient or the result: a large seed of joined losses. The input's gradient then has a scale, as after
    /// `set_seed`. Returns false, and does nothing, in every other case. An op that only multiplies its gradient calls
    /// this before it reads `output_gradient`.
    [[nodiscard]] bool pass_item(std::size_t i, double factor, std::size_t from = 0) {
        const Slot<T>&to = input_slot(i), &arrived = slots_[node_.outputs[from]];
        if (carries_scales() || !arrived.has_gradient || arrived.gradient.size() != 1 || to.parameter != nullptr ||
            element_count(to.shape) != 1)
            return false;
        const auto gradient = static_cast<Accum<T>>(factor * item_gradient(from));
        const auto rounded = static_cast<Accum<T>>(static_cast<T>(gradient));
        const bool holds = std::isfinite(rounded) == std::isfinite(gradient) && (rounded != 0) == (gradient != 0);
        if (holds && arrived.gradient.scale() == 1.0) return false;
        Tensor<T> dx = make(to.shape);
        if (holds) dx.data()[0] = static_cast<T>(gradient);
        else set_seed(dx, gradient, false);
        add(i, std::move(dx));
        return true;
    }

    /// An uninitialised tensor from the tape's pool.
    [[nodiscard]] Tensor<T> make(const Shape& shape) const { return Tensor<T>(shape, pool_); }

    /// Adds to the gradient of input i.
    void add(std::size_t i, Tensor<T>&& gradient) {
        if (!needs(i)) return;
        if (any_scale_) gradient.set_any_scale(true);
        if (carried_ != nullptr) carried_->measure_gradient(node_.site, i, gradient);
        const ScaleRounding rounding = carried_ != nullptr ? carried_->rounding() : ScaleRounding::down;
        const auto random =
            rounding == ScaleRounding::stochastic ? static_cast<std::uint32_t>(random_word(key_, sum_words + i)) : 0;
        add_gradient(execution_, slots_[node_.inputs[i]], std::move(gradient), rounding, random);
    }
    /// Adds data with this scale to the gradient of input i.
    void add(std::size_t i, Tensor<T>&& gradient, double scale) {
        gradient.set_scale(scale);
        add(i, std::move(gradient));
    }

    /// The step's options `retain` and `true_gradients`, and the tape's observer.
    void set_step(bool retain, bool true_gradients, Observer<T>* observer) noexcept {
        keep_ = retain;
        true_gradients_ = true_gradients;
        observer_ = observer;
    }
    /// Under `propagate`: the step's scales, and the random stream of `stochastic`.
    void set_propagate(CarriedScales& carried, RandomKey key) noexcept {
        carried_ = &carried;
        key_ = key;
        any_scale_ = node_.propagates;
        for (const std::uint32_t output : node_.outputs)
            any_scale_ = any_scale_ && (!slots_[output].has_gradient || slots_[output].gradient.any_scale());
    }

private:
    /// Whether the op sees gradients as data and scale.
    [[nodiscard]] bool carries_scales() const noexcept { return carried_ != nullptr && node_.propagates; }
    [[nodiscard]] const Slot<T>& input_slot(std::size_t i) const noexcept { return slots_[node_.inputs[i]]; }
    [[nodiscard]] const Tensor<T>& value(const char* what, std::size_t i, const Slot<T>& slot) const {
        check(slot.value != nullptr, "backward: ", node_.op, " reads ", what, i,
              ", which its OpInfo::reads leaves out; it was freed");
        return node_.propagates ? *slot.value : plain_value(slot, pool_);
    }

    /// First random word of sums; products use the words before it.
    static constexpr std::uint64_t sum_words = std::uint64_t{1} << 32;

    ReusedList<Slot<T>>& slots_;
    Node<T>& node_;
    Execution execution_;
    const std::shared_ptr<MemoryPool>& pool_;
    Observer<T>* observer_ = nullptr;
    RandomKey key_{};
    CarriedScales* carried_ = nullptr;  ///< null except under `propagate`
    bool keep_ = false;
    bool true_gradients_ = false;
    bool any_scale_ = false;  ///< all arriving gradients have the flag any scale; so do products with them
};

}  // namespace unitscale
