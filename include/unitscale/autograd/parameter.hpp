// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/machine_memory.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/scaling/parameter_facts.hpp>
#include <unitscale/tensor/coded_tensor.hpp>
#include <unitscale/tensor/coded_weight.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale {

struct Recipe;

/// What a recipe may ask for between the backward pass and the update, in this order.
enum class GradientStep : std::uint8_t { communicate, round, unscale, clip };

/// A trained tensor: value, gradient, name and facts. It can be neither moved nor copied, so that tapes and optimisers
/// can keep its address. The gradient accumulates over the backward passes since `clear_gradient`.
/// T: the type that the model computes with. Test: tests/autograd/parameter_test.cpp
template <class T>
class Parameter {
public:
    /// Error: more elements than the machine's memory holds.
    [[gnu::noinline]] Parameter(std::string name, const Shape& shape, ParameterFacts facts)
        : name_(std::move(name)), facts_(facts), shape_(checked(shape)) {}
    Parameter(const Parameter&) = delete;
    Parameter& operator=(const Parameter&) = delete;

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] const ParameterFacts& facts() const noexcept { return facts_; }
    [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
    [[nodiscard]] std::size_t size() const noexcept { return element_count(shape_); }

    /// The elements are zero until they are first written. They take memory when they are first needed. A weight that
    /// is read as codes never takes that memory. Error: the value is kept as codes.
    [[nodiscard]] const Tensor<T>& value() const {
        if (coded_value_) fail_coded();
        if (!has_elements_) make_elements();
        return value_;
    }
    /// The scale of the value, in either form.
    [[nodiscard]] double scale() const noexcept { return value_.scale(); }

    /// The value as codes, if it is kept so (`keep_coded`); else null. Linear layers, readouts and embeddings read it.
    [[nodiscard]] const CodedWeight* coded_value() const noexcept { return coded_value_.get(); }
    /// Keeps a matrix [out,in] as codes and frees its elements, so that the parameter can be used but not trained.
    /// `write` makes elements of it again. Error: another shape.
    void keep_coded(CodedWeight&& coded) {
        check(shape_ == Shape{coded.out(), coded.in()}, "parameter ", name_, ": codes of shape [", coded.out(), ",",
              coded.in(), "]; expected ", shape_text(shape_));
        ++version_;
        cache_.clear();
        coded_value_ = std::make_unique<const CodedWeight>(std::move(coded));
        value_ = Tensor<T>();
        has_elements_ = false;
    }

    /// Error unless a step can use the value: it was never written; codes in a step with gradients; a scale that the
    /// step does not carry.
    void check_usable(bool gradients, bool propagates) const {
        check(version_ > 0, "parameter ", name_,
              ": was never written; expected nn::initialise, loaded weights or write()");
        check(!coded_value_ || !gradients, "parameter ", name_,
              ": its value is kept as codes; expected a step with gradients = false");
        check(propagates || scale() == 1.0, "parameter ", name_, ": has the scale ", scale(),
              "; only scaling 'propagate' carries scales");
    }

    /// The value, to be written. The call raises the version, under which caches of the value (codes, packed panels)
    /// are kept. A value that is kept as codes becomes elements first.
    [[nodiscard]] Tensor<T>& write() {
        ++version_;
        cache_.clear();
        if (coded_value_) decode_value();
        if (!has_elements_) make_elements();
        value_.set_any_scale(false);
        return value_;
    }
    [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

    /// The object that `make(value)` returns, such as packed panels. It is made once for each key and kept until the
    /// value is written again. Several threads that only read the parameter may call this function at once.
    template <class Object, class Key, class Make>
    [[nodiscard]] std::shared_ptr<const Object> cached(const Key& key, Make&& make) const {
        struct Entry {
            Key key;
            Object object;
        };
        static constexpr char type = 0;  // its address tells one kind of entry from another
        const std::lock_guard lock(cache_mutex_);
        for (const auto& [kind, held] : cache_)
            if (kind == &type)
                if (const auto entry = std::static_pointer_cast<const Entry>(held); entry->key == key)
                    return {entry, &entry->object};
        const auto entry = std::make_shared<const Entry>(Entry{key, std::forward<Make>(make)(value())});
        cache_.emplace_back(&type, entry);
        return {entry, &entry->object};
    }

    /// Whether the backward pass computes a gradient for this parameter; false freezes it.
    [[nodiscard]] bool requires_gradient() const noexcept { return requires_gradient_; }
    void set_requires_gradient(bool requires_gradient) noexcept { requires_gradient_ = requires_gradient; }

    [[nodiscard]] bool has_gradient() const noexcept { return has_gradient_; }
    /// The gradient in T. A gradient that is kept as codes is decoded first, and no longer kept as codes.
    [[nodiscard]] const Tensor<T>& gradient() const {
        check(has_gradient_, "parameter ", name_,
              ": no gradient; backward() has not reached it since the last clear_gradient()");
        if (is_coded_) decode_gradient();
        return gradient_;
    }
    [[nodiscard]] Tensor<T>& gradient() {
        static_cast<void>(std::as_const(*this).gradient());
        return gradient_;
    }
    void clear_gradient() noexcept {
        has_gradient_ = is_coded_ = false;
        recipe_.reset();
    }

    /// The gradient's codes, if it is kept as codes (`code_gradient`); else null.
    [[nodiscard]] const CodedTensor* coded_gradient() const noexcept { return is_coded_ ? &coded_ : nullptr; }
    /// The gradient's data; null if it is kept as codes.
    [[nodiscard]] const T* gradient_data() const { return is_coded_ ? nullptr : gradient().data(); }
    /// Keeps codes in place of the gradient, and frees the gradient's own memory. `write(codes)` fills the given tensor
    /// of the gradient's shape with codes of `format`. The scale stays the gradient's.
    template <class Write>
    void code_gradient(const FloatFormat& format, const std::shared_ptr<MemoryPool>& pool, Write&& write) {
        const Tensor<T>& plain = gradient();
        if (coded_.codes.shape() != shape()) coded_.codes = Tensor<std::uint8_t>(shape(), pool);
        std::forward<Write>(write)(coded_.codes);
        coded_.format = format;
        coded_.codes.set_scale(plain.scale());
        coded_.codes.set_any_scale(plain.any_scale());
        gradient_ = Tensor<T>();
        is_coded_ = true;
    }

    /// The scale of the gradient, in either form.
    [[nodiscard]] double gradient_scale() const {
        return is_coded_ ? coded_.codes.scale() : std::as_const(*this).gradient().scale();
    }
    void set_gradient_scale(double scale) {
        if (is_coded_) coded_.codes.set_scale(scale);
        else gradient().set_scale(scale);
    }

    /// The recipe under which the gradient was computed. Null: no tape computed it.
    [[nodiscard]] const std::shared_ptr<const Recipe>& gradient_recipe() const noexcept { return recipe_; }
    /// Called by the backward pass: none of the recipe's steps has been made for this gradient.
    void set_gradient_recipe(const std::shared_ptr<const Recipe>& recipe) noexcept {
        recipe_ = recipe;
        steps_ = 0;
    }
    /// Called by a function that makes such a step. The optimiser checks that all steps of the recipe were made.
    void mark(GradientStep step) noexcept { steps_ |= 1u << static_cast<unsigned>(step); }
    [[nodiscard]] bool has_made(GradientStep step) const noexcept {
        return (steps_ >> static_cast<unsigned>(step) & 1u) != 0;
    }

    /// Adds a contribution. The first contribution since `clear_gradient` is moved in.
    void add_gradient(Tensor<T>&& contribution) {
        check(contribution.shape() == shape(), "parameter ", name_, ": gradient of shape ",
              shape_text(contribution.shape()), " for a value of shape ", shape_text(shape()));
        if (!has_gradient_) {
            std::swap(gradient_, contribution);
            has_gradient_ = true;
            return;
        }
        T* sum = gradient().data();
        const T* more = contribution.data();
        for (std::size_t i = 0; i < gradient_.size(); ++i)
            sum[i] = static_cast<T>(static_cast<Accum<T>>(sum[i]) + static_cast<Accum<T>>(more[i]));
    }

private:
    [[noreturn, gnu::cold, gnu::noinline]] void fail_coded() const {
        fail("parameter ", name_, ": its value is kept as codes; expected elements, which write() makes of them");
    }
    [[gnu::cold, gnu::noinline]] void make_elements() const {
        value_ = Tensor<T>(shape_);
        fill_zero(value_);
        has_elements_ = true;
    }
    [[gnu::cold, gnu::noinline]] void decode_value() {
        value_ = decoded<T>(*coded_value_);
        coded_value_.reset();
        has_elements_ = true;
    }
    [[gnu::cold, gnu::noinline]] void decode_gradient() const {
        gradient_ = decoded<T>(coded_);
        is_coded_ = false;
    }

    [[nodiscard]] const Shape& checked(const Shape& shape) const {
        double bytes = sizeof(T);
        for (const std::size_t extent : shape) bytes *= static_cast<double>(extent);
        check_memory("parameter ", name_, bytes);
        return shape;
    }

    std::string name_;
    ParameterFacts facts_;
    Shape shape_;
    mutable Tensor<T> value_{};
    std::unique_ptr<const CodedWeight> coded_value_{};  ///< in place of the elements of value_
    mutable bool has_elements_ = false;
    mutable Tensor<T> gradient_{};
    CodedTensor coded_{};
    mutable bool is_coded_ = false;
    mutable std::mutex cache_mutex_{};
    mutable std::vector<std::pair<const void*, std::shared_ptr<const void>>> cache_{};
    std::uint64_t version_ = 0;
    std::shared_ptr<const Recipe> recipe_{};
    unsigned steps_ = 0;  ///< a bit per GradientStep
    bool has_gradient_ = false;
    bool requires_gradient_ = true;
};

}  // namespace unitscale
