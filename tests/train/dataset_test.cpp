// SPDX-License-Identifier: MIT
#include <unitscale/train/dataset.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

using namespace unitscale;

namespace {

/// 10 examples: x row i is [i, -i], the label i.
train::Dataset<float, std::int32_t> numbers() {
    Tensor<float> x({10, 2});
    Tensor<std::int32_t> labels({10});
    for (std::size_t i = 0; i < 10; ++i) {
        x(i, 0) = static_cast<float>(i);
        x(i, 1) = -static_cast<float>(i);
        labels(i) = static_cast<std::int32_t>(i);
    }
    return train::Dataset(x, labels);
}

}  // namespace

TEST_CASE("Dataset: takes examples by number, with all their columns") {
    const auto data = numbers();
    CHECK(data.size() == 10);
    const auto [x, labels] = data.take(std::vector<std::size_t>{7, 2, 7});
    CHECK(x.shape() == Shape{3, 2});
    CHECK(x(1, 1) == -2.0f);
    CHECK(std::vector<std::int32_t>(labels.span().begin(), labels.span().end()) == std::vector<std::int32_t>{7, 2, 7});
    CHECK(std::get<1>(data.slice(3, 5))(1) == 4);
    CHECK(std::get<0>(data.slice(4, 4)).shape() == Shape{0, 2});
    const auto [first, rest] = data.split(8);
    CHECK(first.size() == 8);
    CHECK(rest.size() == 2);
    CHECK(std::get<1>(rest.slice(0, 2))(0) == 8);
}

TEST_CASE("Dataset: a pass has every whole batch once, in an order of its own") {
    const auto data = numbers();
    CHECK(data.batches(3) == 3);
    std::vector<std::int32_t> passes[2];
    for (std::uint64_t number = 0; number < 6; ++number) {
        const auto [x, labels] = data.batch(number, 3, 5);
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(x(i, 0) == static_cast<float>(labels(i)));
            passes[number / 3].push_back(labels(i));
        }
    }
    for (const auto& pass : passes) CHECK(std::set<std::int32_t>(pass.begin(), pass.end()).size() == 9);
    CHECK(passes[0] != passes[1]);
    // A batch is a function of number, size and seed.
    CHECK(std::get<1>(data.batch(4, 3, 5))(0) == passes[1][3]);
    bool differs = false;
    for (std::uint64_t number = 0; number < 3; ++number)
        differs = differs || std::get<1>(data.batch(number, 3, 6))(0) != passes[0][3 * number];
    CHECK(differs);
}

TEST_CASE("Dataset: errors") {
    const auto data = numbers();
    CHECK_THROWS_WITH(train::Dataset(Tensor<float>({3, 2}), Tensor<float>({4})),
                      "Dataset: tensors of 3 and 4 examples");
    CHECK_THROWS_WITH(train::Dataset(Tensor<float>(Shape{})),
                      "Dataset: a tensor of rank 0; expected one example per row");
    CHECK_THROWS_WITH(data.take(std::vector<std::size_t>{10}), "Dataset: example 10 of 10");
    CHECK_THROWS_WITH(data.slice(5, 11), "Dataset: examples 5 to 11 of 10");
    CHECK_THROWS_WITH(data.batch(0, 11, 1), "Dataset: a batch of 11; expected 1 to 10");
    CHECK_THROWS_WITH(data.batch(0, 0, 1), "Dataset: a batch of 0; expected 1 to 10");
}
