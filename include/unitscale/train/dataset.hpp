// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace unitscale::train {

/// Examples to train on: tensors with one example per row of their first axis, such as images and their labels.
///   train::Dataset data(images, labels);                       // of shapes [1000,28,28] and [1000]
///   const auto [training, validation] = data.split(900);
///   const auto [x, y] = training.batch(step, 32, /*seed=*/1);  // x [32,28,28], y [32]
/// Clang with OpenMP captures no structured binding by itself. So a lambda that uses x and y begins with
/// [&, &x = x, &y = y].
/// Errors: tensors of other numbers of rows, or of rank 0. Test: tests/train/dataset_test.cpp
template <class... T>
class Dataset {
    static_assert(sizeof...(T) >= 1);

public:
    explicit Dataset(Tensor<T>... columns) : columns_(std::move(columns)...) {
        const auto rows = [](const auto& column) {
            check(column.rank() >= 1, "Dataset: a tensor of rank 0; expected one example per row");
            return column.shape()[0];
        };
        size_ = rows(std::get<0>(columns_));
        std::apply(
            [&](const auto&... column) {
                (check(rows(column) == size_, "Dataset: tensors of ", size_, " and ", rows(column), " examples"), ...);
            },
            columns_);
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// Whole batches of `count` examples in one pass.
    [[nodiscard]] std::size_t batches(std::size_t count) const noexcept { return count == 0 ? 0 : size_ / count; }

    /// The examples with the given numbers, in their order. Error: a number of no example.
    [[nodiscard]] std::tuple<Tensor<T>...> take(std::span<const std::size_t> numbers) const {
        for (const std::size_t number : numbers) check(number < size_, "Dataset: example ", number, " of ", size_);
        return std::apply([&](const auto&... column) { return std::tuple<Tensor<T>...>(rows_of(column, numbers)...); },
                          columns_);
    }
    /// The examples from `first` to before `last`. Errors: `first` after `last`; `last` after the end.
    [[nodiscard]] std::tuple<Tensor<T>...> slice(std::size_t first, std::size_t last) const {
        check(first <= last && last <= size_, "Dataset: examples ", first, " to ", last, " of ", size_);
        std::vector<std::size_t> numbers(last - first);
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = first + i;
        return take(numbers);
    }

    /// Batch `number` of `count` examples, from 0, of an endless row of passes. A pass goes through the whole batches
    /// of the examples in an order of its own, drawn by seed and pass: so a batch depends on nothing that came before.
    /// Error: a batch of 0, or of more than all examples.
    [[nodiscard]] std::tuple<Tensor<T>...> batch(std::uint64_t number, std::size_t count, std::uint64_t seed) const {
        check(count >= 1 && count <= size_, "Dataset: a batch of ", count, "; expected 1 to ", size_);
        const std::uint64_t pass = number / batches(count), place = number % batches(count);
        const auto order = permutation<std::int64_t>(size_, {.seed = seed, .stream = mix(hash_name("Dataset"), pass)});
        std::vector<std::size_t> numbers(count);
        for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<std::size_t>(order.data()[place * count + i]);
        return take(numbers);
    }

    /// The examples before number `count`, and the others. Error: `count` after the end.
    [[nodiscard]] std::pair<Dataset, Dataset> split(std::size_t count) const {
        const auto part = [](std::tuple<Tensor<T>...>&& columns) {
            return std::apply([](auto&&... column) { return Dataset(std::move(column)...); }, std::move(columns));
        };
        return {part(slice(0, count)), part(slice(count, size_))};
    }

private:
    template <class E>
    [[nodiscard]] static Tensor<E> rows_of(const Tensor<E>& column, std::span<const std::size_t> numbers) {
        Shape shape = column.shape();
        const std::size_t width = shape[0] == 0 ? 0 : column.size() / shape[0];
        shape[0] = numbers.size();
        Tensor<E> rows(shape);
        for (std::size_t i = 0; i < numbers.size(); ++i)
            std::copy_n(column.data() + numbers[i] * width, width, rows.data() + i * width);
        rows.set_scale(column.scale());
        return rows;
    }

    std::tuple<Tensor<T>...> columns_;
    std::size_t size_ = 0;
};

}  // namespace unitscale::train
