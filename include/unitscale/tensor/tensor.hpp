// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/tensor/backend.hpp>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace unitscale {

/// The number of elements of a shape: 1 for rank 0.
[[nodiscard]] inline std::size_t element_count(const Shape& shape) noexcept {
    std::size_t count = 1;
    for (const std::size_t extent : shape) count *= extent;
    return count;
}

/// A shape as error messages write it: `[2,3]`.
[[nodiscard, gnu::cold]] inline std::string to_string(const Shape& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (i > 0) text += ',';
        text += std::to_string(shape[i]);
    }
    text += ']';
    return text;
}

/// A shape as a part of a message. Its text is made only when the message is, so a check that holds makes no string.
[[nodiscard]] inline LazyText shape_text(const Shape& shape) noexcept {
    return {&shape, [](std::string& text, const void* value) { text += to_string(*static_cast<const Shape*>(value)); }};
}

/// Steps of a row-major array. Out of line, so that tensors of every element type share it.
[[nodiscard, gnu::noinline]] inline Strides row_major_strides(const Shape& shape) {
    Strides strides(shape.size());
    std::size_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i])
        strides[i] = shape[i] == 1 ? 0 : static_cast<std::ptrdiff_t>(stride);  // 0: xtensor's mark of a broadcast axis
    return strides;
}

/// An n-dimensional array with a scale: the value of element i is data()[i] * scale().
/// Row-major and contiguous. T: double, float, Half, BFloat16, Minifloat<F>, or an integer type (token ids; scale 1).
/// Test: tests/tensor/tensor_test.cpp
template <class T>
class Tensor {
public:
    using value_type = T;

    /// No elements: shape [0].
    Tensor() : array_(make_array(Shape{0}, nullptr)) {}

    /// Uninitialised elements, from `pool` if there is one.
    explicit Tensor(const Shape& shape, const std::shared_ptr<MemoryPool>& pool = nullptr)
        : array_(make_array(shape, pool)) {}

    /// The given elements in row-major order. Error: their number is not the shape's.
    Tensor(const Shape& shape, std::initializer_list<T> values)
        : Tensor(shape, std::span<const T>(values.begin(), values.size())) {}
    Tensor(const Shape& shape, std::span<const T> values) : Tensor(shape) {
        check(values.size() == size(), "Tensor: shape ", shape_text(shape), " has ", size(), " elements, but ",
              values.size(), " values were given");
        std::copy(values.begin(), values.end(), data());
    }

    Tensor(const Tensor&) = default;
    Tensor& operator=(const Tensor& other) {
        if (this != &other) *this = Tensor(other);
        return *this;
    }
    /// Moves are out of line: inlined, they would be a large part of every op.
    [[gnu::noinline]] Tensor(Tensor&& other) noexcept
        : array_(std::move(other.array_)),
          scale_(std::exchange(other.scale_, 1.0)),
          any_scale_(std::exchange(other.any_scale_, false)) {
        other.make_empty();
    }
    [[gnu::noinline]] Tensor& operator=(Tensor&& other) noexcept {
        if (this != &other) {
            array_ = std::move(other.array_);
            scale_ = std::exchange(other.scale_, 1.0);
            any_scale_ = std::exchange(other.any_scale_, false);
            other.make_empty();
        }
        return *this;
    }
    ~Tensor() = default;

    [[nodiscard]] const Shape& shape() const noexcept { return array_.shape(); }
    [[nodiscard]] std::size_t rank() const noexcept { return shape().size(); }
    [[nodiscard]] std::size_t size() const noexcept { return array_.storage().size(); }
    [[nodiscard]] bool empty() const noexcept { return size() == 0; }

    /// Extent of dimension `axis`; negative axes count from the end.
    [[nodiscard]] std::size_t dim(std::ptrdiff_t axis) const {
        const auto r = static_cast<std::ptrdiff_t>(rank());
        check(axis >= -r && axis < r, "Tensor: axis ", axis, " is outside a tensor of shape ", shape_text(shape()));
        return shape()[static_cast<std::size_t>(axis < 0 ? axis + r : axis)];
    }

    [[nodiscard]] T* data() noexcept { return array_.storage().data(); }
    [[nodiscard]] const T* data() const noexcept { return array_.storage().data(); }
    [[nodiscard]] std::span<T> span() noexcept { return {data(), size()}; }
    [[nodiscard]] std::span<const T> span() const noexcept { return {data(), size()}; }

    /// The data (without scale) as an xtensor container, for its views, functions and files.
    [[nodiscard]] Array<T>& array() noexcept { return array_; }
    [[nodiscard]] const Array<T>& array() const noexcept { return array_; }

    /// One element of the data, by an index per dimension, from 0.
    /// Errors: another number of indices; an index out of range. Loops over many elements use data().
    template <class... Index>
    [[nodiscard]] T& operator()(Index... index) {
        return data()[offset({static_cast<std::ptrdiff_t>(index)...})];
    }
    template <class... Index>
    [[nodiscard]] const T& operator()(Index... index) const {
        return data()[offset({static_cast<std::ptrdiff_t>(index)...})];
    }

    /// The scalar that multiplies the data; 1 unless set.
    [[nodiscard]] double scale() const noexcept { return scale_; }
    /// Declares the scale without touching the data: this changes the value.
    void set_scale(double scale) noexcept { scale_ = scale; }

    /// A tensor has "any scale" if all its elements are known by construction to be 0, infinite or NaN. A positive
    /// scale does not change such elements, so every scale gives the tensor's value. The fill that makes the elements
    /// sets the flag; no scan of the data ever does. Writing through data() or span() does not clear it.
    [[nodiscard]] bool any_scale() const noexcept { return any_scale_; }
    void set_any_scale(bool any) noexcept { any_scale_ = any; }

    /// Other extents over these elements. Error: the number of elements differs.
    void reshape(const Shape& shape) {
        check(element_count(shape) == size(), "reshape: ", shape_text(this->shape()), " has ", size(),
              " elements and cannot become ", shape_text(shape));
        array_.reshape(shape);
    }

private:
    using Storage = typename Array<T>::storage_type;

    [[gnu::noinline]] static Array<T> make_array(const Shape& shape, const std::shared_ptr<MemoryPool>& pool) {
        return Array<T>(Storage(element_count(shape), ArrayAllocator<T>(pool)), Shape(shape), row_major_strides(shape));
    }
    [[nodiscard]] std::size_t offset(std::initializer_list<std::ptrdiff_t> indices) const {
        check(indices.size() == rank(), "Tensor: ", indices.size(), " indices for the shape ", shape_text(shape()),
              "; expected ", rank());
        std::size_t place = 0, axis = 0;
        for (const std::ptrdiff_t index : indices) {
            const std::size_t extent = shape()[axis];
            check(index >= 0 && static_cast<std::size_t>(index) < extent, "Tensor: index ", index, " of dimension ",
                  axis, " is outside the shape ", shape_text(shape()));
            place = place * extent + static_cast<std::size_t>(index);
            ++axis;
        }
        return place;
    }
    void make_empty() noexcept { array_ = make_array(Shape{0}, nullptr); }

    Array<T> array_;
    double scale_ = 1.0;
    bool any_scale_ = false;
};

/// `to` with the elements, the scale and the flag of `from`. Both have the same shape.
template <class T>
[[nodiscard]] Tensor<T> copy_into(const Tensor<T>& from, Tensor<T> to) {
    std::copy_n(from.data(), from.size(), to.data());
    to.set_scale(from.scale());
    to.set_any_scale(from.any_scale());
    return to;
}

}  // namespace unitscale
