// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::analysis {

/// Elements that are infinite or NaN, by kind: `linear value`, `linear gradient`, `parameter gradient`, ...
using OverflowCounts = std::map<std::string, std::uint64_t>;

/// Counts overflows where they begin: elements that are not finite though an op made them from finite numbers. With a
/// margin that is too small, these are the sums of products that left their accumulator or their element type.
///   Overflows<Half> overflows(1);
///   tape.set_observer(&overflows);
/// A value counts if all inputs of its op are finite. A gradient counts if no value of the step has overflowed, and if
/// the gradients of all ops that read the tensor are finite. So what follows from an overflow does not count.
/// It counts in the first, every `every`-th and the last step. Of several micro-batches it counts in the first one, and
/// then no gradients of parameters, which are sums over micro-batches.
/// `next`, if given, sees every event, too: a tape has one observer.
/// Error: `every` is 0. Test: tests/analysis/overflows_test.cpp
template <class T>
class Overflows : public Observer<T> {
public:
    explicit Overflows(std::size_t every, std::uint64_t last_step = 0, Observer<T>* next = nullptr)
        : every_(every), last_step_(last_step), next_(next) {
        check(every >= 1, "overflows: every is 0; expected at least 1");
    }

    void begin_step(const ObservedStep& step) override {
        if (next_ != nullptr) next_->begin_step(step);
        counts_here_ =
            step.training && step.micro_batch == 0 && ((step.step - 1) % every_ == 0 || step.step == last_step_);
        parameters_count_ = step.micro_batches == 1;
        if (!counts_here_) return;
        counted_step_ = step.step;
        counts_.clear();
        values_broken_ = false;
        broken_gradients_.clear();
        readers_.clear();
    }

    void observe(const TensorEvent<T>& event) override {
        if (next_ != nullptr) next_->observe(event);
        if (!counts_here_) return;
        if (event.pass == Pass::value) observe_value(event);
        else if (event.op != "parameter" || parameters_count_) observe_gradient(event);
    }

    void observe_operand(const OperandEvent<T>& event) override {
        if (next_ != nullptr) next_->observe_operand(event);
    }

    /// The latest counted step (0 before the first) and its counts; kinds without overflow are left out.
    [[nodiscard]] std::uint64_t counted_step() const noexcept { return counted_step_; }
    [[nodiscard]] const OverflowCounts& counts() const noexcept { return counts_; }

private:
    [[nodiscard]] static std::string key(std::string_view path, std::size_t index) {
        return concatenate(path, '#', index);
    }
    [[nodiscard]] static std::uint64_t broken(const Tensor<T>& tensor) {
        std::uint64_t count = 0;
        for (const T& element : tensor.span()) count += std::isfinite(static_cast<double>(element)) ? 0U : 1U;
        return count;
    }
    void add(const TensorEvent<T>& event, std::string_view pass, std::uint64_t count) {
        counts_[concatenate(event.op, ' ', pass)] += count;
    }

    void observe_value(const TensorEvent<T>& event) {
        for (const EventInput<T>& input : event.inputs)
            if (event.index == 0) readers_[key(input.path, input.index)].emplace_back(event.path);
        const std::uint64_t count = broken(event.tensor);
        if (count == 0) return;
        values_broken_ = true;
        const auto from_finite = [](const EventInput<T>& input) {
            return input.value == nullptr || broken(*input.value) == 0;
        };
        if (event.op != "parameter" && std::all_of(event.inputs.begin(), event.inputs.end(), from_finite))
            add(event, "value", count);
    }

    void observe_gradient(const TensorEvent<T>& event) {
        const std::uint64_t count = broken(event.tensor);
        if (count == 0) return;
        broken_gradients_.insert(std::string(event.path));
        if (values_broken_) return;
        const auto found = readers_.find(key(event.path, event.index));
        if (found != readers_.end())
            for (const std::string& reader : found->second)
                if (broken_gradients_.contains(reader)) return;
        add(event, "gradient", count);
    }

    std::size_t every_;
    std::uint64_t last_step_;
    Observer<T>* next_;
    bool counts_here_ = false, parameters_count_ = false;
    bool values_broken_ = false;  ///< a value of this step is not finite
    std::uint64_t counted_step_ = 0;
    OverflowCounts counts_{};
    std::set<std::string, std::less<>> broken_gradients_{};                   ///< paths of ops
    std::map<std::string, std::vector<std::string>, std::less<>> readers_{};  ///< paths of ops, by tensor
};

}  // namespace unitscale::analysis
