// SPDX-License-Identifier: MIT
#include <unitscale/products/coded_rows.hpp>

#include <unitscale/formats/block_codes.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/scaling/tensor_scale.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <cstring>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

CodedWeight in_blocks(const Tensor<float>& values, const BlockFormat& format) {
    BlockCodes codes;
    encode_blocks(format, {values.data(), values.dim(0), values.dim(1), values.dim(1)}, codes);
    return CodedWeight(codes);
}

std::vector<CodedWeight> forms(const Tensor<float>& values) {
    std::vector<CodedWeight> made;
    for (const FloatFormat& format : {fp32, fp16, bf16, shifted(e4m3, 5), e5m2, e4m3fnuz, e3m2, shifted(e2m1, 1)})
        made.push_back(coded_weight(values, format));
    BlockFormat odd = mxfp4;
    odd.along = 5;
    for (const BlockFormat& format : {mxfp8_e4m3, mxfp6_e2m3, mxfp4, odd, nvfp4, fp8_tile, fp8_square})
        made.push_back(in_blocks(values, format));
    return made;
}

}  // namespace

TEST_CASE("a product with a coded weight has the bits of the product with its numbers", "[products]") {
    const auto [isa, pairs] = GENERATE(from_range(test::matmul_paths()));
    const auto [n, k] = GENERATE(table<std::ptrdiff_t, std::ptrdiff_t>({{1, 1}, {70, 33}, {129, 1090}}));
    const bool rounds = GENERATE(false, true), apart = GENERATE(false, true);
    CAPTURE(name(isa), n, k, rounds, apart);
    Tensor<float> weight({static_cast<std::size_t>(n), static_cast<std::size_t>(k)}),
        a({20, static_cast<std::size_t>(k)});
    fill_normal(weight, {.seed = 1, .stream = 1});
    fill_normal(a, {.seed = 1, .stream = 2});
    std::vector<float> bias(static_cast<std::size_t>(n), 0.25f);
    const auto all = forms(weight);
    for (std::size_t form = 0; form < all.size(); ++form) {
        const CodedWeight& coded = all[form];
        const Tensor<float> numbers = decoded<float>(coded, apart);
        const bool exact = coded.exact_in_bf16() && (apart || coded.factor() == 1);
        MatmulArguments<float> product{.n = n, .k = k, .alpha = 0.5f, .bias = bias.data()};
        product.a.view = {a.data(), k, 1};
        if (rounds) product.a.quantiser = Quantiser{.format = shifted(e4m3, 2)};
        MatmulArguments<float> reference = product;
        reference.b.numbers = QuantisedNumbers<float>{{numbers.data(), 1, k}, exact, apart ? coded.factor() : 1.0f};
        product.b.weight = &coded;
        product.b.weight_apart = apart;
        for (const std::ptrdiff_t m : {1, 2, 13, 20}) {
            std::vector<float> own(static_cast<std::size_t>(m * n), 1.0f), expected = own;
            for (const float gamma : {0.0f, 1.0f}) {
                product.m = reference.m = m;
                product.gamma = reference.gamma = gamma;
                product.c = {own.data(), n, 1};
                reference.c = {expected.data(), n, 1};
                matmul_with(isa, {}, product, pairs);
                matmul_with(isa, {}, reference, pairs);
                CAPTURE(form, m, gamma);
                CHECK(std::memcmp(own.data(), expected.data(), own.size() * sizeof(float)) == 0);
            }
        }
    }
}

TEST_CASE("a coded weight serves other element types, columns and threads", "[products]") {
    Tensor<float> weight({70, 40});
    fill_normal(weight, {.seed = 3, .stream = 1});
    const CodedWeight coded = in_blocks(weight, nvfp4);
    const auto check_type = [&]<class T>(T) {
        Tensor<T> a({3, 40}), own({70, 3}), expected({70, 3});
        fill_normal(a, {.seed = 3, .stream = 2});
        MatmulArguments<T> product{.m = 3, .n = 70, .k = 40};
        product.a.view = {a.data(), 40, 1};
        product.b.weight = &coded;
        product.c = {own.data(), 1, 3};  // columns are rows of the result
        matmul<T>({.threads = 2}, product);
        product.c.data = expected.data();
        matmul_naive(product);
        for (std::size_t i = 0; i < own.size(); ++i)
            CHECK(static_cast<double>(own.data()[i]) == Approx(static_cast<double>(expected.data()[i])).margin(0.02));
    };
    check_type(double{});
    check_type(float{});
    check_type(Half{});
    check_type(BFloat16{});
}

TEST_CASE("threads cut a coded weight between groups of columns", "[products]") {
    const auto [isa, pairs] = GENERATE(from_range(test::matmul_paths()));
    const std::ptrdiff_t m = GENERATE(1, 2), n = 1003, k = 800;
    CAPTURE(name(isa), m);
    Tensor<float> weight({static_cast<std::size_t>(n), static_cast<std::size_t>(k)}),
        a({static_cast<std::size_t>(m), static_cast<std::size_t>(k)});
    fill_normal(weight, {.seed = 4, .stream = 1});
    fill_normal(a, {.seed = 4, .stream = 2});
    for (const CodedWeight& coded : {coded_weight(weight, e4m3), in_blocks(weight, nvfp4)}) {
        std::vector<float> one(static_cast<std::size_t>(m * n)), three = one;
        MatmulArguments<float> product{.m = m, .n = n, .k = k, .a = {.view = {a.data(), k, 1}}};
        product.b.weight = &coded;
        product.c = {one.data(), n, 1};
        matmul_with(isa, {.threads = 1}, product, pairs);
        product.c = {three.data(), n, 1};
        matmul_with(isa, {.threads = 3}, product, pairs);
        CHECK(std::memcmp(one.data(), three.data(), one.size() * sizeof(float)) == 0);
    }
}

TEST_CASE("a coded weight of other sizes is an error", "[products]") {
    Tensor<float> weight({4, 6}), a({1, 5}), c({1, 4});
    fill_normal(weight, {.seed = 3, .stream = 1});
    const CodedWeight coded = coded_weight(weight, bf16);
    MatmulArguments<float> product{.m = 1, .n = 4, .k = 5};
    product.a.view = {a.data(), 5, 1};
    product.b.weight = &coded;
    product.c = {c.data(), 4, 1};
    CHECK_THROWS_WITH(matmul<float>({}, product), "matmul: b: coded weight [4,6]; expected [4,5]");
}
