// SPDX-License-Identifier: MIT
#include <unitscale/record/op.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/op_checks.hpp"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

using namespace unitscale;

namespace {

/// y = alpha x + z, with z optional; no kernel, so that only the recording is tested.
template <class T>
Variable<T> sum_of(Variable<T> x, std::optional<Variable<T>> z, const ops::Factors<2>& ideal,
                   std::optional<Constraint> constraint = {}, std::size_t joined = 2) {
    auto op = ops::begin_op("sum_of", x, z);
    op.set_factors(ideal, constraint, joined);
    Tensor<T> y = op.make(x.shape());
    for (std::size_t i = 0; i < y.size(); ++i)
        y.data()[i] = static_cast<T>(op.factors().alpha) * op.input(0).data()[i] + (z ? op.input(1).data()[i] : T(0));
    return op.record(std::move(y), 1.0, {.reads = reads_nothing, .multiply_adds = 7}, [](BackwardContext<T>& g) {
        for (std::size_t i = 0; i < 2; ++i) {
            if (i == 1 && !g.needs(1)) continue;
            Tensor<T> dx = g.make(g.input_shape(0));
            for (std::size_t j = 0; j < dx.size(); ++j)
                dx.data()[j] = static_cast<T>(g.beta(i)) * g.output_gradient().data()[j];
            g.add(i, std::move(dx));
        }
    });
}

const ops::Factors<2> ideal{.alpha = 4.0, .betas = {0.25, 2.0}};

}  // namespace

TEST_CASE("begin_op: takes the tape and the next site of its name, and numbers the arguments that are present") {
    test::OpTape<double> t;
    const auto x = t.input({2}), z = t.input({3});
    using Optional = std::optional<Variable<double>>;
    const auto all = ops::begin_op("f", x, z, Optional(z)), some = ops::begin_op("f", x, Optional(), z);
    CHECK(std::string(all.name()) == "f");
    CHECK(&all.tape() == &t.tape);
    CHECK(t.tape.state().path(all.site()) == "f");
    CHECK(t.tape.state().path(some.site()) == "f.1");
    CHECK(all.input_count() == 3);
    CHECK(some.input_count() == 2);
    CHECK(some.has(0));
    CHECK_FALSE(some.has(1));
    CHECK(some.index(1) == 2);
    CHECK(some.index(2) == 1);
    CHECK(some.input(1).shape() == Shape{3});
    STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<ops::Op<double, 1>>);
    REQUIRE_THROWS_WITH(ops::begin_op("f", Variable<double>()),
                        "f: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}

TEST_CASE("Op: the tape has the node that it records") {
    test::OpTape<double> t(Scaling::none);
    const auto y = sum_of<double>(t.tape.input(Tensor<double>({1}, {3.0}), true), {}, ideal);
    CHECK(y.item() == 3.0);
    const Node<double>& node = t.tape.node(0);
    CHECK(std::string(node.op) == "sum_of");
    CHECK(node.alpha == 1.0);
    CHECK(node.betas == std::vector{1.0});
    CHECK(node.inputs.size() == 1);
    CHECK(node.multiply_adds == 7);
    CHECK(node.propagates);
}

TEST_CASE("Op::set_factors: 1 under none, joined under unit, ideal under propagate") {
    const auto run = [](Scaling scaling, std::optional<Constraint> constraint, std::size_t joined = 2) {
        test::OpTape<double> t(scaling);
        static_cast<void>(sum_of<double>(t.input({2}), t.input({2}), ideal, constraint, joined));
        const Node<double>& node = t.tape.node(0);
        return std::vector{node.alpha, node.betas[0], node.betas[1], node.joined_by == JoinedBy::hand ? 1.0 : 0.0};
    };
    CHECK(run(Scaling::none, Constraint::gmean) == std::vector{1.0, 1.0, 1.0, 0.0});
    CHECK(run(Scaling::propagate, Constraint::gmean) == std::vector{4.0, 0.25, 2.0, 0.0});
    CHECK(run(Scaling::unit, Constraint::none) == std::vector{4.0, 0.25, 2.0, 1.0});
    CHECK(run(Scaling::unit, Constraint::to_output_scale) == std::vector{4.0, 4.0, 4.0, 1.0});
    CHECK(run(Scaling::unit, Constraint::to_right_grad_scale) == std::vector{2.0, 2.0, 2.0, 1.0});
    const std::vector<double> one = run(Scaling::unit, Constraint::gmean, 1);  // the second beta is free
    CHECK(one[0] == Approx(1.0));
    CHECK(one[1] == one[0]);
    CHECK(one[2] == 2.0);
    CHECK(run(Scaling::unit, Constraint::automatic) == std::vector{4.0, 0.25, 2.0, 0.0});  // the plan joins them
    Recipe recipe = analysis::plain_recipe(Scaling::unit);  // an op's own constraint wins over the recipe's
    recipe.constraint = Constraint::to_right_grad_scale;
    for (const std::optional<Constraint> own : {std::optional<Constraint>{}, std::optional(Constraint::none)}) {
        ScalingState state;
        Tape<double> tape(recipe, state);
        tape.begin_step();
        const auto x = tape.input(Tensor<double>({1}, {1.0}));
        static_cast<void>(sum_of<double>(x, x, ideal, own));
        CHECK(tape.node(0).alpha == (own ? 4.0 : 2.0));
    }
    test::OpTape<double> t;
    auto op = ops::begin_op("f", t.input({2}));
    op.set_factors({.alpha = 3.0, .betas = {0.5}});  // the op itself relates its factors
    CHECK(op.factors() == ops::Factors<1>{.alpha = 3.0, .betas = {0.5}});
}

TEST_CASE("Op::stated: the caller's factors, and an error under unit without them") {
    test::OpTape<double> none(Scaling::none), unit;
    const auto at_none = ops::begin_op("f", none.input({2}));
    const auto at_unit = ops::begin_op("f", unit.input({2})), other = ops::begin_op("g", unit.input({2}));
    const ops::Factors<1> given{.alpha = 2.0, .betas = {3.0}};
    CHECK(at_none.stated({}) == ops::Factors<1>{});
    CHECK(at_none.stated({}, given) == given);
    CHECK(at_unit.stated(given) == given);
    REQUIRE_THROWS_WITH(
        other.stated({}),
        "g: no rule for scaling 'unit'; state its factors with {.unit = Factors<1>{.alpha = a, .betas = {b}}}");
}

TEST_CASE("Op::set_factors: errors name the op and the factor") {
    test::OpTape<double> t;
    auto op = ops::begin_op("f", t.input({2}), t.input({2}));
    const std::optional<Constraint> rule;
    REQUIRE_THROWS_WITH(op.set_factors({.alpha = 0.0}, rule), "f: alpha is 0; expected a positive number");
    REQUIRE_THROWS_WITH(op.set_factors({.alpha = std::numeric_limits<double>::infinity()}, rule),
                        "f: alpha is inf; expected a positive number");
    REQUIRE_THROWS_WITH(op.set_factors({.betas = {1.0, std::nan("")}}, rule),
                        "f: beta is nan; expected a positive number");
    REQUIRE_THROWS_WITH(op.set_factors({.betas = {3.0}}, rule), "f: beta is 0; expected a positive number");
    REQUIRE_THROWS_WITH(op.set_factors(ideal, Constraint::to_grad_input_scale),
                        "f: constraint to_grad_input_scale needs an op with one constrained input, this one has 2");
}

TEST_CASE("Op: several outputs that repeat the input have the weights that are given") {
    test::OpTape<double> t;
    auto op = ops::begin_op("two", t.tape.input(Tensor<double>({1}, {3.0}), true));
    const auto y = op.record_repeats<2>({.output_weights = {0.5, 1.0}}, [](BackwardContext<double>& g) {
        Tensor<double> dx = g.take_output_gradient(0);
        dx.data()[0] = g.output_weight(0) * dx.data()[0] + g.output_gradient(1).data()[0];
        g.add(0, std::move(dx));
    });
    CHECK(y[1].item() == 3.0);
    CHECK(t.tape.node(0).output_weights == std::vector{0.5, 1.0});
    CHECK(t.tape.node(0).outputs.size() == 2);
}

TEST_CASE("joined_at_once: the plan's rule where the recipe leaves joining to the plan") {
    Recipe recipe = find_recipe("unit-fp32");
    ScalingState state(1);
    recipe.automatic_rule = Constraint::gmean;
    CHECK(ops::joined_at_once(Tape<float>(recipe, state), {}) == Constraint::gmean);
    CHECK(ops::joined_at_once(Tape<float>(recipe, state), Constraint::none) == Constraint::none);
    recipe.constraint = Constraint::hmean;
    CHECK(ops::joined_at_once(Tape<float>(recipe, state), {}) == Constraint::hmean);
}
