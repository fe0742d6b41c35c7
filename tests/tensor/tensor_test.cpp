// SPDX-License-Identifier: MIT
#include <unitscale/tensor/tensor.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

template <class T>
std::vector<T> contents(const Tensor<T>& tensor) {
    return {tensor.span().begin(), tensor.span().end()};
}

}  // namespace

TEST_CASE("a tensor holds its shape and its elements in row-major order", "[tensor]") {
    const Tensor<float> x({2, 3}, {1, 2, 3, 4, 5, 6});
    CHECK(x.shape() == Shape{2, 3});
    CHECK(x.rank() == 2);
    CHECK(x.size() == 6);
    CHECK_FALSE(x.empty());
    CHECK(x(1, 0) == 4.0f);
    CHECK(x.data()[5] == 6.0f);
    CHECK(x.scale() == 1.0);
    CHECK_FALSE(x.any_scale());
    CHECK(x.array()(0, 2) == 3.0f);
    Tensor<float> y(Shape{2, 3});
    y(1, 2) = 7.0f;
    CHECK(y.span()[5] == 7.0f);
}

TEST_CASE("tensors may be empty, of rank 0, or have extents of 1 and 0", "[tensor]") {
    const Tensor<float> none;
    CHECK(none.shape() == Shape{0});
    CHECK(none.empty());
    Tensor<double> scalar(Shape{});
    CHECK(scalar.size() == 1);
    CHECK(scalar.rank() == 0);
    scalar() = 4.0;
    CHECK(scalar.data()[0] == 4.0);
    const Tensor<float> column({3, 1}, {1, 2, 3});
    CHECK(column(2, 0) == 3.0f);
    const Tensor<std::int32_t> flat(Shape{2, 0, 3});
    CHECK(flat.size() == 0);
    CHECK(flat.dim(-1) == 3);
}

TEST_CASE("an element needs one index per dimension, each within the shape", "[tensor]") {
    Tensor<float> x({2, 3}, {1, 2, 3, 4, 5, 6});
    CHECK_THROWS_WITH(x(1), "Tensor: 1 indices for the shape [2,3]; expected 2");
    CHECK_THROWS_WITH(x(0, 0, 0), "Tensor: 3 indices for the shape [2,3]; expected 2");
    CHECK_THROWS_WITH(x(2, 0), "Tensor: index 2 of dimension 0 is outside the shape [2,3]");
    CHECK_THROWS_WITH(std::as_const(x)(0, -1), "Tensor: index -1 of dimension 1 is outside the shape [2,3]");
    CHECK_THROWS_WITH(x(std::size_t{1}, 3u), "Tensor: index 3 of dimension 1 is outside the shape [2,3]");
    CHECK_THROWS_WITH(Tensor<float>()(0), "Tensor: index 0 of dimension 0 is outside the shape [0]");
}

TEST_CASE("xtensor's functions work on a tensor's array", "[tensor]") {
    const Tensor<float> x({2, 1, 3}, {1, 2, 3, 4, 5, 6});
    Array<float> twice = x.array() + x.array();
    CHECK(twice(1, 0, 2) == 12.0f);
    const Tensor<float> row({3}, {10, 20, 30});
    Array<float> sum = x.array() + row.array();
    CHECK(sum(1, 0, 1) == 25.0f);
}

TEST_CASE("values that do not fill the shape are an error", "[tensor]") {
    REQUIRE_THROWS_WITH((Tensor<float>({2, 3}, {1, 2, 3})),
                        "Tensor: shape [2,3] has 6 elements, but 3 values were given");
}

TEST_CASE("dim counts from either end and names the shape when out of range", "[tensor]") {
    const Tensor<float> x(Shape{2, 3, 4});
    CHECK(x.dim(0) == 2);
    CHECK(x.dim(2) == 4);
    CHECK(x.dim(-1) == 4);
    CHECK(x.dim(-3) == 2);
    REQUIRE_THROWS_WITH(x.dim(3), "Tensor: axis 3 is outside a tensor of shape [2,3,4]");
    REQUIRE_THROWS_WITH(x.dim(-4), "Tensor: axis -4 is outside a tensor of shape [2,3,4]");
    REQUIRE_THROWS_AS(x.dim(3), Error);
}

TEST_CASE("a copy has its own memory, scale and flag", "[tensor]") {
    Tensor<float> x({2}, {1, 2});
    x.set_scale(0.5);
    x.set_any_scale(true);
    Tensor<float> y = x;
    y(0) = 9.0f;
    CHECK(x(0) == 1.0f);
    CHECK(y.scale() == 0.5);
    CHECK(y.any_scale());
    Tensor<float> z({3}, {7, 8, 9});
    z = x;
    CHECK(contents(z) == std::vector<float>{1, 2});
    CHECK(z.shape() == Shape{2});
    const Tensor<float>& same = z;
    z = same;
    CHECK(contents(z) == std::vector<float>{1, 2});
    const Tensor<float> into = copy_into(x, Tensor<float>({2}));
    CHECK(contents(into) == std::vector<float>{1, 2});
    CHECK(into.scale() == 0.5);
    CHECK(into.any_scale());
}

TEST_CASE("a move takes the memory and leaves an empty tensor of scale 1", "[tensor]") {
    Tensor<float> x({2}, {1, 2});
    x.set_scale(4.0);
    x.set_any_scale(true);
    const float* const memory = x.data();
    Tensor<float> y = std::move(x);
    CHECK(y.data() == memory);
    CHECK(y.scale() == 4.0);
    CHECK(y.any_scale());
    CHECK(x.empty());
    CHECK(x.shape() == Shape{0});
    CHECK(x.scale() == 1.0);
    CHECK_FALSE(x.any_scale());
    Tensor<float> z({1}, {3});
    z = std::move(y);
    CHECK(z.data() == memory);
    CHECK(y.empty());
    STATIC_REQUIRE(std::is_nothrow_move_constructible_v<Tensor<float>>);
}

TEST_CASE("elements are aligned to 64 bytes, with and without a pool", "[tensor]") {
    const auto pool = std::make_shared<MemoryPool>();
    for (const std::size_t size : {1u, 3u, 64u, 1000u}) {
        const Tensor<float> plain(Shape{size});
        const Tensor<Half> pooled(Shape{size}, pool);
        CHECK(reinterpret_cast<std::uintptr_t>(plain.data()) % 64 == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(pooled.data()) % 64 == 0);
    }
}

TEST_CASE("a pool serves the next tensor of the size without the system", "[tensor]") {
    const auto pool = std::make_shared<MemoryPool>();
    { const Tensor<float> first(Shape{10, 100}, pool); }
    const std::size_t before = pool->system_allocations();
    CHECK(before == 1);
    for (int turn = 0; turn < 5; ++turn) {
        Tensor<float> again(Shape{100, 10}, pool);
        const Tensor<float> moved = std::move(again);
        CHECK(pool->live_bytes() >= 4000);
    }
    CHECK(pool->system_allocations() == before);
    CHECK(pool->live_bytes() == 0);
    const Tensor<float> first(Shape{1000}, pool), second(Shape{1000}, pool);
    CHECK(pool->system_allocations() == 2);
    const Tensor<float> copy = first;  // the copy belongs to the user
    CHECK(pool->system_allocations() == 2);
}

TEST_CASE("a tensor may outlive the owner of its pool", "[tensor]") {
    Tensor<float> survivor;
    std::weak_ptr<MemoryPool> watch;
    {
        auto pool = std::make_shared<MemoryPool>();
        watch = pool;
        survivor = Tensor<float>({1000}, pool);
    }
    CHECK_FALSE(watch.expired());
    std::fill(survivor.span().begin(), survivor.span().end(), 2.0f);
    CHECK(survivor(999) == 2.0f);
    survivor = Tensor<float>({1}, {5});
    CHECK(watch.expired());
    CHECK(survivor(0) == 5.0f);
}

TEST_CASE("reshape keeps the elements and refuses another number of them", "[tensor]") {
    Tensor<float> x({2, 3}, {1, 2, 3, 4, 5, 6});
    x.set_scale(2.0);
    x.reshape({3, 1, 2});
    CHECK(x.shape() == Shape{3, 1, 2});
    CHECK(x(2, 0, 1) == 6.0f);
    CHECK(x.scale() == 2.0);
    REQUIRE_THROWS_WITH(x.reshape({4, 2}), "reshape: [3,1,2] has 6 elements and cannot become [4,2]");
    CHECK(x.shape() == Shape{3, 1, 2});
}

TEST_CASE("shapes are written as in error messages", "[tensor]") {
    CHECK(to_string(Shape{}) == "[]");
    CHECK(to_string(Shape{7}) == "[7]");
    CHECK(to_string(Shape{2, 0, 3}) == "[2,0,3]");
    CHECK(concatenate("x ", shape_text(Shape{2, 0, 3}), '.') == "x [2,0,3].");
    CHECK(element_count(Shape{}) == 1);
    CHECK(element_count(Shape{2, 0, 3}) == 0);
}
