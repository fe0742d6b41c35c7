// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/strided_loop.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <type_traits>

// Parts of tensors without a copy. xtensor's views of Tensor::array() work as well, but know no scale and check no
// index.
namespace unitscale {

/// Part of an axis, as Python's start:stop:step: the indices start, start + step, ... before stop. Negative start and
/// stop count from the end. An absent start or stop is the end of the axis that step runs from or to.
struct Range {
    std::optional<std::ptrdiff_t> start{};
    std::optional<std::ptrdiff_t> stop{};
    std::ptrdiff_t step = 1;
};

/// A part of a tensor, reordered or repeated. Element (i, j, ...) is data()[i strides()[0] + j strides()[1] + ...]; its
/// value is the element times scale(). The tensor stays the owner, and must outlive the view. T is const for a view
/// that only reads.
/// Test: tests/tensor/view_test.cpp
template <class T>
class TensorView {
public:
    using Element = std::remove_const_t<T>;

    /// The whole tensor. A writable view clears the tensor's flag "any scale".
    TensorView(const Tensor<Element>& tensor) requires std::is_const_v<T>
        : TensorView(tensor.data(), tensor.shape(), row_major(tensor.shape()), tensor.scale(), tensor.any_scale()) {}
    TensorView(Tensor<Element>& tensor) requires(!std::is_const_v<T>)
        : TensorView(tensor.data(), tensor.shape(), row_major(tensor.shape()), tensor.scale(), false) {
        tensor.set_any_scale(false);
    }
    template <class U>
    requires(std::is_same_v<T, const U>) TensorView(const TensorView<U>& view)
        : TensorView(view.data(), view.shape(), view.strides(), view.scale(), view.any_scale()) {}
    TensorView(T* data, const Shape& shape, const Strides& strides, double scale = 1.0, bool any_scale = false)
        : data_(data), shape_(shape), strides_(strides), scale_(scale), any_scale_(any_scale) {}

    [[nodiscard]] T* data() const noexcept { return data_; }
    [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
    [[nodiscard]] const Strides& strides() const noexcept { return strides_; }
    [[nodiscard]] std::size_t rank() const noexcept { return shape_.size(); }
    [[nodiscard]] std::size_t size() const noexcept { return element_count(shape_); }
    [[nodiscard]] double scale() const noexcept { return scale_; }
    [[nodiscard]] bool any_scale() const noexcept { return any_scale_; }

    /// One element of the data, by as many indices as there are axes.
    template <class... Index>
    [[nodiscard]] T& operator()(Index... index) const noexcept {
        std::size_t axis = 0;
        std::ptrdiff_t offset = 0;
        ((offset += static_cast<std::ptrdiff_t>(index) * strides_[axis++]), ...);
        return data_[offset];
    }

    /// A range of each axis, outermost first; axes without one stay whole: slice({{1, 3}, {}, {.step = -1}}).
    /// Errors: more ranges than axes; step 0; start or stop outside the axis.
    [[nodiscard]] TensorView slice(std::initializer_list<Range> ranges) const {
        check(ranges.size() <= rank(), "slice: ", ranges.size(), " ranges for shape ", to_string(shape_));
        TensorView result = *this;
        std::size_t axis = 0;
        for (const Range& range : ranges) {
            const auto n = static_cast<std::ptrdiff_t>(shape_[axis]);
            check(range.step != 0, "slice: the step of axis ", axis, " is 0");
            const auto place = [&](const std::optional<std::ptrdiff_t>& index, std::ptrdiff_t otherwise) {
                if (!index) return otherwise;
                check(*index >= -n && *index <= n, "slice: ", *index, " is outside axis ", axis, " of shape ",
                      to_string(shape_));
                return *index < 0 ? *index + n : *index;
            };
            const bool forward = range.step > 0;
            // For negative steps `first` is the starting element, at most the last of the axis.
            const std::ptrdiff_t first = std::min(place(range.start, forward ? 0 : n - 1), forward ? n : n - 1);
            const std::ptrdiff_t last = place(range.stop, forward ? n : -1);
            const std::ptrdiff_t distance = forward ? last - first : first - last,
                                 stride = forward ? range.step : -range.step;
            const std::ptrdiff_t count = distance > 0 ? (distance - 1) / stride + 1 : 0;
            if (count > 0) result.data_ += first * strides_[axis];
            result.shape_[axis] = static_cast<std::size_t>(count);
            result.strides_[axis] = strides_[axis] * range.step;
            ++axis;
        }
        return result;
    }

    /// The view at one index of an axis, without this axis. Negative axes and indices count from the end. Error:
    /// outside.
    [[nodiscard]] TensorView select(std::ptrdiff_t axis, std::ptrdiff_t index) const {
        const auto r = static_cast<std::ptrdiff_t>(rank());
        check(axis >= -r && axis < r, "select: axis ", axis, " is outside shape ", to_string(shape_));
        const auto at = static_cast<std::size_t>(axis < 0 ? axis + r : axis);
        const auto n = static_cast<std::ptrdiff_t>(shape_[at]);
        check(index >= -n && index < n, "select: index ", index, " is outside axis ", axis, " of shape ",
              to_string(shape_));
        Shape shape(rank() - 1);
        Strides strides(rank() - 1);
        for (std::size_t k = 0, next = 0; k < rank(); ++k) {
            if (k == at) continue;
            shape[next] = shape_[k];
            strides[next++] = strides_[k];
        }
        return {data_ + (index < 0 ? index + n : index) * strides_[at], shape, strides, scale_, any_scale_};
    }

    /// Axis k of the result is axis axes[k]. Error: `axes` is no permutation.
    [[nodiscard]] TensorView permute(const Shape& axes) const {
        Shape shape(axes.size());
        Strides strides(axes.size());
        bool good = axes.size() == rank();
        for (std::size_t k = 0; k < axes.size() && good; ++k) {
            good = axes[k] < rank() && std::count(axes.begin(), axes.end(), axes[k]) == 1;
            if (!good) break;
            shape[k] = shape_[axes[k]];
            strides[k] = strides_[axes[k]];
        }
        check(good, "permute: axes ", to_string(axes), " are no permutation of those of shape ", to_string(shape_));
        return {data_, shape, strides, scale_, any_scale_};
    }

    /// The axes in reverse order.
    [[nodiscard]] TensorView transpose() const {
        Shape axes(rank());
        for (std::size_t k = 0; k < rank(); ++k) axes[k] = rank() - 1 - k;
        return permute(axes);
    }

    /// Repeated to a shape by the rules of NumPy: aligned at the last axis, extents of 1 and missing axes repeat. The
    /// result is read-only, because its elements share memory. Error: an extent is neither 1 nor the shape's.
    [[nodiscard]] TensorView<const T> broadcast_to(const Shape& shape) const {
        check(rank() <= shape.size(), "broadcast_to: shape ", to_string(shape_), " has more axes than ",
              shape_text(shape));
        Strides strides(shape.size(), 0);
        for (std::size_t k = 0, axis = shape.size() - rank(); k < rank(); ++k, ++axis) {
            check(shape_[k] == shape[axis] || shape_[k] == 1, "broadcast_to: shape ", to_string(shape_),
                  " does not broadcast to ", shape_text(shape), ": ", shape_[k], " != ", shape[axis]);
            strides[axis] = shape_[k] == 1 ? 0 : strides_[k];
        }
        return {data_, shape, strides, scale_, any_scale_};
    }

private:
    static Strides row_major(const Shape& shape) {
        Strides strides(shape.size());
        std::ptrdiff_t stride = 1;
        for (std::size_t k = shape.size(); k-- > 0; stride *= static_cast<std::ptrdiff_t>(shape[k]))
            strides[k] = stride;
        return strides;
    }

    T* data_;
    Shape shape_;
    Strides strides_;
    double scale_;
    bool any_scale_;
};

/// A view of the whole tensor, to be sliced: view(x).slice({{0, 2}}).select(-1, 0).
template <class T>
[[nodiscard]] TensorView<T> view(Tensor<T>& tensor) {
    return tensor;
}
template <class T>
[[nodiscard]] TensorView<const T> view(const Tensor<T>& tensor) {
    return tensor;
}
template <class T>
void view(const Tensor<T>&&) = delete;  // the view would outlive the tensor

/// to[i, j, ...] = f(from[i, j, ...]). The shapes must be equal.
template <class T, class F>
void map_view(const TensorView<T>& to, const TensorView<const T>& from, F f) {
    StridedLoop<2> loop;
    for (std::size_t k = 0; k < to.rank(); ++k)
        loop.add_axis(static_cast<std::ptrdiff_t>(to.shape()[k]), {to.strides()[k], from.strides()[k]});
    const std::ptrdiff_t n = loop.inner_extent(), to_step = loop.inner_steps()[0], from_step = loop.inner_steps()[1];
    if (to.size() == 0) return;
    for (std::ptrdiff_t row = 0; row < loop.rows(); ++row) {
        T* const out = to.data() + loop.row_offsets(row)[0];
        const T* const in = from.data() + loop.row_offsets(row)[1];
        if (to_step == 1 && from_step == 1) std::transform(in, in + n, out, f);
        else
            for (std::ptrdiff_t j = 0; j < n; ++j) out[j * to_step] = f(in[j * from_step]);
    }
}

/// A tensor of the view's elements, row-major, with its scale.
template <class T>
[[nodiscard]] Tensor<std::remove_const_t<T>> copy_of(const TensorView<T>& from) {
    using Element = std::remove_const_t<T>;
    Tensor<Element> result(from.shape());
    map_view<Element>(view(result), from, [](Element x) { return x; });
    result.set_scale(from.scale());
    result.set_any_scale(from.any_scale());
    return result;
}

/// Whether the memory from the lowest to the highest element of two views overlaps.
template <class T>
[[nodiscard]] bool memory_overlaps(const TensorView<const T>& a, const TensorView<const T>& b) noexcept {
    const auto bound = [](const TensorView<const T>& view, bool upper) {
        const T* at = view.data();
        for (std::size_t k = 0; k < view.rank(); ++k)
            if ((view.strides()[k] > 0) == upper)
                at += static_cast<std::ptrdiff_t>(view.shape()[k] - 1) * view.strides()[k];
        return at;
    };
    const std::less_equal<> not_after;
    return a.size() > 0 && b.size() > 0 && not_after(bound(a, false), bound(b, true)) &&
           not_after(bound(b, false), bound(a, true));
}

/// Writes the values of a tensor or view into a view. `from` is broadcast to the view's shape. The view keeps its
/// scale: the data is multiplied by the ratio of the scales and rounded once. Both may be parts of one tensor.
/// Errors: the shape of `from` does not broadcast; different scales that are not positive and finite, or of integers.
template <class T>
void assign(const TensorView<T>& to, const std::type_identity_t<TensorView<const T>>& from) {
    static_assert(!std::is_const_v<T>, "assign: the view is of a const tensor");
    const TensorView<const T> source = from.broadcast_to(to.shape());
    if (memory_overlaps<T>(to, source)) return assign(to, copy_of(source));  // `from` is read before it is overwritten
    if (source.scale() == to.scale()) return map_view<T>(to, source, [](T x) { return x; });
    if constexpr (RealElement<T>) {
        check_positive("assign", "scale", source.scale());
        check_positive("assign", "the view's scale", to.scale());
        const Ratio ratio(source.scale(), to.scale());
        map_view<T>(to, source, [&](T x) { return element_cast<T>(ratio(widest(x))); });
    } else {
        fail("assign: integers of scale ", source.scale(), " to a view of scale ", to.scale());
    }
}

}  // namespace unitscale
