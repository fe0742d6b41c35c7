// SPDX-License-Identifier: MIT
#include <unitscale/ops/softmax_cross_entropy.hpp>

#include "support/op_checks.hpp"

#include <unitscale/analysis/audit.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/slice.hpp>

#include <cmath>
#include <optional>
#include <string_view>

using namespace unitscale;

namespace {
auto with(const Tensor<std::int32_t>& labels, ops::CrossEntropyOptions options) {
    return [=](auto&, auto& v) { return ops::softmax_cross_entropy(v[0], labels, options); };
}
}  // namespace

TEST_CASE("softmax_cross_entropy: gradient, factors and value") {
    const Tensor<std::int32_t> labels({3}, {1, 4, 0});
    for (const double m : {1.0, 2.0}) {
        const double factor = 5.0 / std::sqrt(4.0) / m;  // relative to the op's own gradient, which includes m
        test::check_gradient_and_factors({{3, 5}}, with(labels, {.mult = m, .reduction = ops::Reduction::sum}), 1.0,
                                         {factor});
        test::check_gradient_and_factors({{3, 5}}, with(labels, {.mult = m}), 1.0, {3.0 * factor});
    }
    const Tensor<std::int32_t> some({3}, {1, -100, 0});
    test::check_gradient_and_factors({{3, 5}}, with(some, {.ignored = -100}), 1.0, {2.0 * 5.0 / std::sqrt(4.0)});
}

TEST_CASE("softmax_cross_entropy: a stated beta makes losses that are added agree, without it the plan takes alpha") {
    const Tensor<std::int32_t> labels({3}, {1, 4, 0}), other({2}, {1, 0});
    test::check_gradient_and_factors({{3, 5}}, with(labels, {.beta = 0.75}), 1.0, {0.75});
    // Geometric mean of 3 5 / 2 and 2 2 / 1.
    const double beta = ops::joint_cross_entropy_beta(3, 5, 2, 2);
    CHECK(beta == Approx(std::sqrt(7.5 * 4.0)));
    for (const auto& own : {std::optional<double>(beta), std::optional<double>()}) {
        test::OpTape<double> t;
        const auto x = t.input({5, 5}), y = ops::scale_forward(x, 1.5);
        const auto first = ops::softmax_cross_entropy(ops::slice(y, {0, 0}, {3, 5}), labels, {.beta = own}),
                   second = ops::softmax_cross_entropy(ops::slice(y, {3, 0}, {5, 2}), other, {.beta = own});
        const auto loss = ops::add(first, second);
        CHECK(analysis::audit(t.tape, loss).valid());
        t.tape.backward(loss);
        for (std::size_t i = 0; i < t.tape.node_count(); ++i)
            if (std::string_view(t.tape.node(i).op) == "softmax_cross_entropy")
                CHECK(t.tape.node(i).betas[0] == Approx(own.value_or(1.0)));
    }
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::softmax_cross_entropy(t.input({3, 5}), labels, {.beta = 0.0}),
                        "softmax_cross_entropy: beta is 0; expected a positive number");
}

TEST_CASE("softmax_cross_entropy: the value is the mean or sum of -ln p over the counted rows") {
    test::OpTape<double> t;
    const auto x = t.tape.input(Tensor<double>({3, 2}, {0.0, std::log(3.0), 5.0, -7.0, 0.0, 0.0}));
    const Tensor<std::int32_t> labels({3}, {1, -1, 0});
    const double sum = -std::log(0.75) - std::log(0.5);
    CHECK(ops::softmax_cross_entropy(x, labels, {.reduction = ops::Reduction::sum}).item() == Approx(sum));
    CHECK(ops::softmax_cross_entropy(x, labels).item() == Approx(sum / 2.0));
    const Tensor<std::int32_t> nothing({3}, {-1, -1, -1});
    CHECK(ops::softmax_cross_entropy(x, nothing).item() == 0.0);
}

TEST_CASE("softmax_cross_entropy: unit scale of the gradient for flat logits") {
    for (const std::size_t classes : {std::size_t{2}, std::size_t{65}, std::size_t{1000}}) {
        Tensor<std::int32_t> labels({500});
        for (std::size_t i = 0; i < labels.size(); ++i)
            labels.data()[i] = static_cast<std::int32_t>(random_word({1, 2}, i) % classes);
        const std::vector<Tensor<float>> logits = {zeros<float>({500, classes})};
        for (const ops::Reduction reduction : {ops::Reduction::mean, ops::Reduction::sum}) {
            const auto run = analysis::run_op<float>(analysis::plain_recipe(Scaling::unit), logits,
                                                     with(labels, {.reduction = reduction}), full<float>({1}, 1.0F));
            CHECK(analysis::moments(run.gradients[0]).rms == Approx(1.0).epsilon(0.01));
        }
    }
}

TEST_CASE("softmax_cross_entropy: losses and gradients of micro-batches add up") {
    const auto logits = normal<double>({4, 5}, {1, 1});
    const Tensor<std::int32_t> labels({4}, {1, -1, 3, 0});
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        test::OpTape<double> whole(scaling);
        const auto all = whole.tape.input(logits, true);
        const auto loss = ops::softmax_cross_entropy(all, labels);
        whole.tape.backward(loss);
        double sum = 0.0;
        for (std::size_t part = 0; part < 2; ++part) {
            test::OpTape<double> t(scaling, {.micro_batches = 2, .micro_batch = part, .retain = true});
            const auto rows = t.tape.input(Tensor<double>({2, 5}, logits.span().subspan(part * 10, 10)), true);
            const Tensor<std::int32_t> own({2}, labels.span().subspan(part * 2, 2));
            const auto piece =
                ops::softmax_cross_entropy(rows, own, {.step_rows = 3});  // uneven parts: the step's count is given
            t.tape.backward(piece);
            sum += piece.item();
            for (std::size_t i = 0; i < 10; ++i)
                CHECK(rows.gradient().data()[i] == Approx(all.gradient().data()[part * 10 + i]).epsilon(1e-14));
        }
        CHECK(sum == Approx(loss.item()).epsilon(1e-14));
    }
}

TEST_CASE("softmax_cross_entropy: no rows, no row that counts and one class have the loss 0; one row") {
    const auto labelled = [](const Shape& shape, std::int32_t label) {
        return with(full<std::int32_t>(shape, label), {});
    };
    test::check_nothing({{0, 5}}, labelled({0}, 0), {1});
    test::check_nothing({{3, 5}}, labelled({3}, -1), {1});
    test::check_nothing({{3, 1}}, labelled({3}, 0), {1});
    test::check_gradient_and_factors({{5}}, labelled({}, 2), 1.0, {2.5});
}

TEST_CASE("softmax_cross_entropy: errors name labels and logits") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::softmax_cross_entropy(t.input({3, 5}), Tensor<std::int32_t>({2}, {0, 1})),
                        "softmax_cross_entropy: labels [2] do not fit logits [3,5]; expected 3 labels");
    REQUIRE_THROWS_WITH(ops::softmax_cross_entropy(t.input({2, 5}), Tensor<std::int32_t>({2}, {0, 5})),
                        "softmax_cross_entropy: labels[1] is 5; expected a number in [0,5) or -1 to ignore the row");
    REQUIRE_THROWS_WITH(ops::softmax_cross_entropy(t.input({}), Tensor<std::int32_t>({1}, {0})),
                        "softmax_cross_entropy: logits has rank 0; expected at least one dimension");
    REQUIRE_THROWS_WITH(ops::softmax_cross_entropy(t.input({2, 0}), Tensor<std::int32_t>({2}, {0, 0})),
                        "softmax_cross_entropy: logits [2,0] have no classes");
    REQUIRE_THROWS_WITH(ops::softmax_cross_entropy(t.input({1, 5}), Tensor<std::int32_t>({1}, {0}), {.mult = 0.0}),
                        "softmax_cross_entropy: mult is 0; expected a positive number");
}

TEST_CASE("softmax_cross_entropy: propagates scales") {
    const Tensor<std::int32_t> labels({4}, {0, 6, -1, 2});
    for (const ops::Reduction reduction : {ops::Reduction::mean, ops::Reduction::sum})
        test::check_propagate({{4, 7}}, [&](auto&, auto& v) {
            return ops::softmax_cross_entropy(v[0], labels, {.mult = 0.75, .reduction = reduction});
        });
}

TEST_CASE("softmax_cross_entropy: under propagate the gradient's data is near unit scale, whatever size and seed") {
    for (const float seed : {1.0f, 3e5f, -1e-6f}) {
        INFO("seed " << seed);
        test::OpTape<float> t(Scaling::propagate);
        const auto x = t.tape.input(normal<float>({50, 100}, {1, 1}, 0.01), true);
        t.tape.backward(ops::softmax_cross_entropy(x, integers<std::int32_t>({50}, {1, 2}, 0, 100)), seed);
        double sum = 0.0;
        for (const float g : x.gradient().span()) sum += static_cast<double>(g) * static_cast<double>(g);
        const double rms = std::sqrt(sum / 5000.0);
        CHECK(rms > 0.99);
        CHECK(rms < 4.01);  // seed and factor are both rounded down
        // (100 - 1)^1/2 / 100 is the root mean square of softmax - onehot for flat logits, over 50 rows.
        CHECK(rms * x.gradient().scale() == Approx(std::abs(seed) * std::sqrt(99.0) / 100 / 50).epsilon(0.01));
    }
}

TEST_CASE("softmax_cross_entropy: propagates scales by every rounding") {
    const Tensor<std::int32_t> labels({4}, {0, 6, -1, 2});
    for (const ScaleRounding rounding : {ScaleRounding::up, ScaleRounding::nearest, ScaleRounding::stochastic})
        test::check_propagate({{4, 7}}, [&](auto&, auto& v) { return ops::softmax_cross_entropy(v[0], labels); }, 1e-12,
                              {.rounding = rounding});
}

TEST_CASE("softmax_cross_entropy: labels of other integer types") {
    test::OpTape<double> t;
    const auto x = t.input({3, 4});
    const double want = ops::softmax_cross_entropy(x, Tensor<std::int32_t>({3}, {3, -1, 0})).item();
    CHECK(ops::softmax_cross_entropy(x, Tensor<std::int64_t>({3}, {3, -1, 0})).item() == want);
    CHECK(ops::softmax_cross_entropy(x, Tensor<std::uint8_t>({3}, {3, 255, 0}), {.ignored = 255}).item() == want);
    REQUIRE_THROWS_WITH(ops::softmax_cross_entropy(x, Tensor<std::int64_t>({3}, {3, 4, 0})),
                        "softmax_cross_entropy: labels[1] is 4; expected a number in [0,4) or -1 to ignore the row");
}
