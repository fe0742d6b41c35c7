// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/packed_right.hpp>
#include <unitscale/products/product.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

/// A product of two batch items that share B, its operands and room for C.
template <class T>
struct Case {
    std::vector<T> a, b, c, bias;
    MatmulArguments<T> args;

    Case(std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k, bool b_transposed)
        : a(test::numbers<T>(2 * m * k, 1, 9)),
          b(test::numbers<T>(k * n, 2, 9)),
          c(test::numbers<T>(2 * m * n, 3, 9)),
          bias(test::numbers<T>(n, 4, 9)) {
        args.m = m, args.n = n, args.k = k, args.batch = 2;
        args.a.view = {a.data(), k, 1, m * k};
        args.b.view = b_transposed ? MatrixView<const T>{b.data(), 1, k} : MatrixView<const T>{b.data(), n, 1};
        args.c = {c.data(), n, 1, m * n};
        args.alpha = Accum<T>(0.25), args.gamma = Accum<T>(-0.5);
        args.bias = bias.data();
    }
    Case(const Case&) = delete;

    /// C after `multiply(args)`.
    std::vector<T> result(auto multiply) {
        std::vector<T> copy = c;
        MatmulArguments<T> own = args;
        own.c.data = copy.data();
        multiply(own);
        return copy;
    }
};

}  // namespace

TEMPLATE_TEST_CASE("a product with packed weights has the bits of the one that packs them", "[kernels][matmul]", float,
                   double, Half) {
    const Quantiser e4{.format = e4m3}, e5{.format = e5m2},
        stochastic{.format = e4m3, .rounding = Rounding::stochastic};
    for (const std::ptrdiff_t m : {1, 8, 13, 70})
        for (const auto& [n, k] : {std::pair<std::ptrdiff_t, std::ptrdiff_t>{70, 50}, {33, 2 * pair_block_depth + 5}})
            for (const bool transposed : {false, true}) {
                Case<TestType> test(m, n, k, transposed);
                for (const auto& round_a : {std::optional<Quantiser>(), {e4}, {stochastic}})
                    for (const auto& round_b : {std::optional<Quantiser>(), {e5}})
                        for (const test::MatmulPath& path : test::matmul_paths()) {
                            if (m * k > 20000 && path.isa == Isa::baseline) continue;
                            test.args.a.quantiser = round_a, test.args.b.quantiser = round_b;
                            const auto packed = pack_weights_with(path.isa, test.args, path.pairs);
                            const auto plain =
                                test.result([&](const auto& args) { matmul_with(path.isa, {}, args, path.pairs); });
                            for (const int threads : {1, 2}) {
                                const auto with = test.result([&](MatmulArguments<TestType> args) {
                                    args.b = {.packed = &packed};
                                    matmul_with(Isa::baseline, {threads, nullptr}, args);
                                });
                                CAPTURE(m, n, k, transposed, int(path.isa), int(path.pairs), threads);
                                REQUIRE(test::same_bits(plain, with));
                            }
                        }
            }
}

TEST_CASE("the default path packs for itself", "[kernels][matmul]") {
    const Quantiser e4{.format = e4m3};
    Case<float> test(5, 64, 96, true);
    test.args.a.quantiser = test.args.b.quantiser = e4;
    const auto packed = pack_weights(test.args);
    const auto plain = test.result([&](const auto& args) { matmul({}, args); });
    REQUIRE(test::same_bits(plain, test.result([&](MatmulArguments<float> args) {
        args.b.packed = &packed;
        matmul({}, args);
    })));
}

TEST_CASE("packed weights that do not fit are errors that say so", "[kernels][matmul]") {
    const Quantiser e4{.format = e4m3}, stochastic{.format = e4m3, .rounding = Rounding::stochastic};
    Case<float> test(3, 20, 10, false);
    test.args.a.quantiser = test.args.b.quantiser = e4;
    const auto packed = pack_weights(test.args);
    MatmulArguments<float> args = test.args;
    args.b.packed = &packed, args.n = 19;
    REQUIRE_THROWS_WITH(matmul({}, args), "matmul: packed b is [10,20]; expected [10,19]");
    if (packed.pairs != PairKernel::none) {
        args.n = 20, args.a.quantiser.reset();
        REQUIRE_THROWS_WITH(matmul({}, args),
                            "matmul: b was packed for an operand a that is rounded to a format of up to 8 bits");
    }
    test.args.b.quantiser = stochastic;
    REQUIRE_THROWS_WITH(pack_weights(test.args),
                        "pack_weights: b: stochastic rounding cannot be done once for many products");
}
