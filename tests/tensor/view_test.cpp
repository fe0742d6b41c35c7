// SPDX-License-Identifier: MIT
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/view.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <type_traits>
#include <vector>

using namespace unitscale;

namespace {

/// 0, 1, 2, ... in row-major order.
Tensor<float> counting(const Shape& shape) {
    Tensor<float> tensor(shape);
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>(i);
    return tensor;
}

template <class T>
std::vector<float> contents(const TensorView<T>& view) {
    const auto copy = copy_of(view);
    return {copy.span().begin(), copy.span().end()};
}
std::vector<float> contents(const Tensor<float>& tensor) { return {tensor.span().begin(), tensor.span().end()}; }

using Values = std::vector<float>;

}  // namespace

TEST_CASE("slices take ranges with steps, from either end", "[tensor]") {
    const auto x = counting({10});
    const auto v = view(x);
    STATIC_REQUIRE(std::is_same_v<decltype(v), const TensorView<const float>>);
    CHECK(contents(v.slice({{2, 5}})) == Values{2, 3, 4});
    CHECK(contents(v.slice({{-3, {}}})) == Values{7, 8, 9});
    CHECK(contents(v.slice({{{}, -8}})) == Values{0, 1});
    CHECK(contents(v.slice({{1, 8, 3}})) == Values{1, 4, 7});
    CHECK(contents(v.slice({{1, 7, 3}})) == Values{1, 4});
    CHECK(contents(v.slice({{.step = -3}})) == Values{9, 6, 3, 0});
    CHECK(contents(v.slice({{7, 2, -2}})) == Values{7, 5, 3});
    CHECK(contents(v.slice({{10, {}, -1}})) == contents(v.slice({{.step = -1}})));
    CHECK(contents(v.slice({{5, 5}})).empty());
    CHECK(contents(v.slice({{6, 2}})).empty());
    CHECK(contents(v.slice({{{}, 0}})).empty());
    CHECK(contents(v.slice({})) == contents(x));
    CHECK(contents(v.slice({{.step = -1}}).slice({{.step = -1}})) == contents(x));
    const auto none = counting({0, 3});
    CHECK(view(none).slice({{.step = -1}}).shape() == Shape{0, 3});
}

TEST_CASE("slices of several axes, and of slices, agree with the elements that they name", "[tensor]") {
    const auto x = counting({4, 5, 6});
    const auto v = view(x).slice({{1, {}}, {.step = -2}, {-4, -1, 2}});
    REQUIRE(v.shape() == Shape{3, 3, 2});
    const auto copy = copy_of(v);
    std::size_t same = 0;
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < 3; ++j)
            for (std::size_t k = 0; k < 2; ++k)
                same += copy(i, j, k) == x(i + 1, 4 - 2 * j, 2 + 2 * k) && v(i, j, k) == copy(i, j, k);
    CHECK(same == 18);
    CHECK(contents(v.slice({{0, 1}, {1, 2}})) == Values{x(1, 2, 2), x(1, 2, 4)});
}

TEST_CASE("select, permute and transpose drop and reorder axes", "[tensor]") {
    const auto x = counting({2, 3, 4});
    CHECK(contents(view(x).select(0, 1).select(1, -1)) == Values{15, 19, 23});
    CHECK(contents(view(x).select(-1, 0)) == Values{0, 4, 8, 12, 16, 20});
    CHECK(view(x).select(1, 0).shape() == Shape{2, 4});
    CHECK(copy_of(view(x).select(0, 1).select(0, 2).select(0, 3))() == 23.0f);
    const auto p = view(x).permute({2, 0, 1});
    REQUIRE(p.shape() == Shape{4, 2, 3});
    CHECK(p(3, 1, 2) == x(1, 2, 3));
    CHECK(copy_of(p)(1, 0, 2) == x(0, 2, 1));
    CHECK(view(x).transpose().shape() == Shape{4, 3, 2});
    CHECK(contents(view(x).transpose().transpose()) == contents(x));
    CHECK(copy_of(view(x).transpose())(3, 2, 1) == x(1, 2, 3));
}

TEST_CASE("a view has the scale of its tensor, and so has its copy", "[tensor]") {
    auto x = zeros<float>({3});
    x.set_scale(4.0);
    CHECK(copy_of(view(std::as_const(x)).slice({{0, 2}})).any_scale());
    CHECK(copy_of(view(std::as_const(x)).slice({{0, 2}})).scale() == 4.0);
    CHECK(x.any_scale());
    const auto writable = view(x);  // a writable view: the elements are no longer zeros by construction
    CHECK_FALSE(x.any_scale());
    CHECK(writable.scale() == 4.0);
    CHECK_FALSE(copy_of(writable).any_scale());
}

TEST_CASE("views are written through, values broadcast", "[tensor]") {
    auto x = counting({3, 4});
    view(x)(2, 3) = 50.0f;
    CHECK(x(2, 3) == 50.0f);
    assign(view(x).slice({{0, 2}, {1, 3}}), Tensor<float>({2}, {-1, -2}));
    CHECK(contents(x) == Values{0, -1, -2, 3, 4, -1, -2, 7, 8, 9, 10, 50});
    assign(view(x).transpose().select(0, 0), Tensor<float>(Shape{}, {9.0f}));
    CHECK(contents(x) == Values{9, -1, -2, 3, 9, -1, -2, 7, 9, 9, 10, 50});
    auto empty = counting({0, 4});
    assign(view(empty), Tensor<float>({4}, {1, 2, 3, 4}));
    auto ids = Tensor<std::int32_t>({3}, {1, 2, 3});
    assign(view(ids).slice({{1, {}}}), Tensor<std::int32_t>(Shape{}, {7}));
    CHECK((ids(0) == 1 && ids(1) == 7 && ids(2) == 7));
}

TEST_CASE("parts of one tensor may be assigned to each other", "[tensor]") {
    auto x = counting({6});
    assign(view(x).slice({{1, {}}}), view(x).slice({{0, 5}}));
    CHECK(contents(x) == Values{0, 0, 1, 2, 3, 4});
    auto y = counting({5});
    assign(view(y), view(y).slice({{.step = -1}}));
    CHECK(contents(y) == Values{4, 3, 2, 1, 0});
    auto z = counting({3, 3});
    assign(view(z), view(z).transpose());
    CHECK(contents(z) == Values{0, 3, 6, 1, 4, 7, 2, 5, 8});
}

TEST_CASE("assigning keeps values where scales differ", "[tensor]") {
    auto x = counting({4});
    x.set_scale(0.5);
    Tensor<float> y({2}, {3, 5});
    y.set_scale(8.0);
    assign(view(x).slice({{2, {}}}), y);
    CHECK(contents(x) == Values{0, 1, 48, 80});
    CHECK(x.scale() == 0.5);
    y.set_scale(0.0);
    REQUIRE_THROWS_WITH(assign(view(x).slice({{2, {}}}), y), "assign: scale is 0; expected a positive finite number");
    Tensor<std::int32_t> ids({1}, {1}), scaled({1}, {1});
    scaled.set_scale(2.0);
    REQUIRE_THROWS_WITH(assign(view(ids), scaled), "assign: integers of scale 2 to a view of scale 1");
}

TEST_CASE("ranges, indices and axes that are not there are errors", "[tensor]") {
    auto x = counting({2, 3});
    const auto v = view(x);
    REQUIRE_THROWS_WITH(v.slice({{}, {}, {}}), "slice: 3 ranges for shape [2,3]");
    REQUIRE_THROWS_WITH(v.slice({{}, {.step = 0}}), "slice: the step of axis 1 is 0");
    REQUIRE_THROWS_WITH(v.slice({{}, {0, 4}}), "slice: 4 is outside axis 1 of shape [2,3]");
    REQUIRE_THROWS_WITH(v.slice({{-3, {}}}), "slice: -3 is outside axis 0 of shape [2,3]");
    REQUIRE_THROWS_WITH(v.select(2, 0), "select: axis 2 is outside shape [2,3]");
    REQUIRE_THROWS_WITH(v.select(-1, 3), "select: index 3 is outside axis -1 of shape [2,3]");
    REQUIRE_THROWS_WITH(v.permute({0, 0}), "permute: axes [0,0] are no permutation of those of shape [2,3]");
    REQUIRE_THROWS_WITH(v.permute({0}), "permute: axes [0] are no permutation of those of shape [2,3]");
    REQUIRE_THROWS_WITH(v.permute({}), "permute: axes [] are no permutation of those of shape [2,3]");
    REQUIRE_THROWS_WITH(assign(v, Tensor<float>({2}, {1, 2})),
                        "broadcast_to: shape [2] does not broadcast to [2,3]: 2 != 3");
    STATIC_REQUIRE_FALSE(
        std::is_invocable_v<decltype([](auto&& t) -> decltype(view(static_cast<decltype(t)>(t))) { throw 0; }),
                            Tensor<float>&&>);
}
