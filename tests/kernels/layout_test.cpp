// SPDX-License-Identifier: MIT
#include <unitscale/kernels/layout.hpp>
#include <unitscale/tensor/tensor.hpp>

#include "kernels/kernel_checks.hpp"

#include <numeric>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

template <class T>
std::vector<T> counted(const Shape& shape) {
    std::vector<T> data(element_count(shape));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<T>(static_cast<float>(i % 1000));
    return data;
}

/// Calls f(index, flat) for every index of a shape.
template <class F>
void for_each_index(const Shape& shape, F f) {
    Shape index(shape.size(), 0);
    for (std::size_t flat = 0; flat < element_count(shape); ++flat) {
        std::size_t rest = flat;
        for (std::size_t axis = shape.size(); axis-- > 0; rest /= shape[axis]) index[axis] = rest % shape[axis];
        f(index, flat);
    }
}

std::size_t flat_index(const Shape& index, const Shape& shape) {
    std::size_t flat = 0;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) flat = flat * shape[axis] + index[axis];
    return flat;
}

}  // namespace

TEST_CASE("every permutation of axes is right, and the inverse permutation undoes it", "[kernels]") {
    for (const Shape& shape : {Shape{2, 3, 4, 5}, Shape{1, 40, 1, 70}, Shape{33, 2, 65, 1}, Shape{3, 0, 2, 2}}) {
        Shape axes{0, 1, 2, 3};
        const auto x = counted<float>(shape);
        do {
            Shape out_shape(4);
            for (std::size_t k = 0; k < 4; ++k) out_shape[k] = shape[axes[k]];
            std::vector<float> y(x.size(), -1.0f), expected(x.size()), back(x.size(), -1.0f);
            for_each_index(shape, [&](const Shape& index, std::size_t flat) {
                Shape to(4);
                for (std::size_t k = 0; k < 4; ++k) to[k] = index[axes[k]];
                expected[flat_index(to, out_shape)] = x[flat];
            });
            kernels::transpose(Execution{}, x.data(), shape, axes, y.data());
            INFO(to_string(shape) << " by " << to_string(axes));
            CHECK(same_bits(y, expected));
            kernels::transpose(Execution{}, y.data(), out_shape, inverse_permutation(axes), back.data());
            CHECK(same_bits(back, x));
        } while (std::next_permutation(axes.begin(), axes.end()));
    }
    float y = 0.0f;
    const float x = 3.0f;
    kernels::transpose(Execution{}, &x, Shape{}, Shape{}, &y);
    CHECK(y == 3.0f);
}

TEST_CASE("slices and their backward follow the index ranges", "[kernels]") {
    const Shape shape{4, 3, 5};
    const auto x = counted<Half>(shape);
    const std::vector<std::pair<Shape, Shape>> ranges = {{{0, 0, 0}, {4, 3, 5}},
                                                         {{1, 0, 0}, {3, 3, 5}},
                                                         {{0, 1, 2}, {4, 2, 4}},
                                                         {{3, 2, 4}, {4, 3, 5}},
                                                         {{2, 1, 1}, {2, 3, 4}}};
    for (const auto& range : ranges) {
        const Shape &starts = range.first,
                    &stops = range.second;  // Clang 16 with OpenMP captures no structured bindings
        Shape box(3);
        for (std::size_t axis = 0; axis < 3; ++axis) box[axis] = stops[axis] - starts[axis];
        std::vector<Half> y(element_count(box)), dx(x.size(), Half(-1.0f)), expected_dx(x.size(), Half(0.0f));
        std::size_t wrong = 0;
        kernels::slice(Execution{}, x.data(), shape, starts, stops, y.data());
        for_each_index(box, [&](const Shape& index, std::size_t flat) {
            Shape from(index);
            for (std::size_t axis = 0; axis < 3; ++axis) from[axis] += starts[axis];
            wrong += y[flat] != x[flat_index(from, shape)];
            expected_dx[flat_index(from, shape)] = y[flat];
        });
        slice_backward(Execution{}, y.data(), dx.data(), shape, starts, stops);
        INFO(to_string(starts) << " to " << to_string(stops));
        CHECK(wrong == 0);
        CHECK(same_bits(dx, expected_dx));
    }
}

TEST_CASE("concatenation along each axis holds its parts, and split gives them back", "[kernels]") {
    for (std::size_t axis = 0; axis < 3; ++axis) {
        Shape first{2, 3, 4}, second{2, 3, 4}, joined{2, 3, 4};
        second[axis] = 5;
        joined[axis] += 5;
        const auto a = normal_data<float>(element_count(first), 1), b = normal_data<float>(element_count(second), 2);
        std::vector<float> y(element_count(joined)), a_back(a.size()), b_back(b.size());
        concatenate_part(Execution{}, a.data(), first[axis], y.data(), joined, axis, 0);
        concatenate_part(Execution{}, b.data(), 5, y.data(), joined, axis, first[axis]);
        std::size_t wrong = 0;
        for_each_index(joined, [&](const Shape& index, std::size_t flat) {
            Shape from(index);
            const bool in_first = index[axis] < first[axis];
            if (!in_first) from[axis] -= first[axis];
            wrong += y[flat] != (in_first ? a[flat_index(from, first)] : b[flat_index(from, second)]);
        });
        CHECK(wrong == 0);
        split_part(Execution{}, y.data(), joined, axis, 0, a_back.data(), first[axis]);
        split_part(Execution{}, y.data(), joined, axis, first[axis], b_back.data(), 5);
        CHECK(same_bits(a_back, a));
        CHECK(same_bits(b_back, b));
    }
}

TEST_CASE("copies give the same bits for any thread count", "[kernels]") {
    const Shape shape{8, 130, 4, 32};
    const auto x = normal_data<float>(element_count(shape), 3);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(4 * x.size());
        kernels::transpose(execution, x.data(), shape, Shape{0, 2, 1, 3}, out.data());
        kernels::transpose(execution, x.data(), shape, Shape{3, 1, 0, 2}, out.data() + x.size());
        slice(execution, x.data(), shape, Shape{1, 0, 1, 3}, Shape{8, 130, 4, 30}, out.data() + 2 * x.size());
        slice_backward(execution, x.data(), out.data() + 3 * x.size(), shape, Shape{1, 0, 1, 3}, Shape{8, 130, 4, 30});
        return out;
    }));
}
