// SPDX-License-Identifier: MIT
#include <unitscale/optim/optimiser.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/any_state.hpp"
#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::optim;
using unitscale::test::AnyState;

namespace {

struct SignOptions {
    double weight_decay = 0.0;
    std::optional<WeightDecay> decay{};
    double peak_learning_rate = 0.0;
    bool decay_bias_and_norm = true;
    std::vector<ParameterGroup> groups{};
    std::optional<ParametrisationRule> parametrisation{};
    Storage storage{};
};

struct SignState {
    std::uint64_t updates = 0;
    SignState(const Shape&, const SignOptions&) {}
    template <class Visitor>
    void visit_state(Visitor&& visitor, const std::string& name) {
        visitor.scalar(name + "/updates", updates);
    }
};

/// A user's own optimiser: each element moves by the learning rate, against the sign of g + penalty.
template <class T>
class SignDescent : public Optimiser<T, SignOptions, SignState> {
public:
    explicit SignDescent(std::vector<Parameter<T>*> parameters, SignOptions options = {},
                         WeightDecay otherwise = WeightDecay::coupled)
        : Optimiser<T, SignOptions, SignState>("SignDescent", OptimiserKind::adam, otherwise, std::move(parameters),
                                               std::move(options)) {}

    void step(double learning_rate) {
        this->for_each_update(learning_rate, [](const ParameterUpdate<T, SignState>& one) {
            ++one.state.updates;
            for (std::size_t i = 0; i < one.value.size(); ++i) {
                T& p = one.value.data()[i];
                const double slope =
                    one.parameter.gradient().data()[i] * one.parameter.gradient().scale() + one.penalty() * p;
                const double step = slope > 0.0 ? 1.0 : slope < 0.0 ? -1.0 : 0.0;
                p = one.keep(one.learning_rate) * p - one.learning_rate / one.value.scale() * step;
            }
        });
    }
};

/// Two elements of equal value, with gradients of opposite sign.
struct Pair : Parameter<double> {
    Pair(const std::string& name, double value, double gradient) : Parameter<double>(name, Shape{2}, {}) {
        fill_constant(write(), value);
        add_gradient(Tensor<double>(Shape{2}, {gradient, -gradient}));
    }
};

}  // namespace

TEST_CASE("an optimiser of one's own is its formula: the frame gives each parameter its rate, decay and scale") {
    Pair a("a", 8.0, 3.0), b("b", 8.0, 3.0), c("c", 2.0, 3.0);
    c.write().set_scale(4.0);
    SignDescent<double> optimiser(
        {&a, &b, &c},
        {.weight_decay = 0.5, .groups = {{.pattern = "b", .learning_rate_factor = 0.5, .weight_decay = 0.0}}});
    CHECK(optimiser.parameters() == std::vector<Parameter<double>*>{&a, &b, &c});
    CHECK(optimiser.settings()[1].learning_rate_factor == 0.5);
    CHECK(optimiser.options().weight_decay == 0.5);
    optimiser.step(0.5);
    CHECK(a.value().data()[0] == 0.75 * 8.0 - 0.5);
    CHECK(a.value().data()[1] == 0.75 * 8.0 + 0.5);
    CHECK(b.value().data()[0] == 8.0 - 0.25);
    CHECK(c.value().data()[0] * 4.0 == 0.75 * 8.0 - 0.5);
    CHECK(c.value().scale() == 4.0);
}

TEST_CASE("each kind of weight decay reaches the update as penalty or as the share of the value that is kept") {
    const auto first = [](WeightDecay decay, double gradient) {
        Pair p("p", 2.0, gradient);
        p.write().set_scale(2.0);  // the value is 4
        SignDescent<double> optimiser({&p}, {.weight_decay = 0.25, .decay = decay, .peak_learning_rate = 1.0});
        optimiser.step(0.5);
        return p.value().data()[0] * 2.0;
    };
    CHECK(first(WeightDecay::gradient, -0.75) == 3.5);   // -0.75 + 0.25 * 4 is positive
    CHECK(first(WeightDecay::gradient, -1.25) == 4.5);   // -1.25 + 0.25 * 4 is negative
    CHECK(first(WeightDecay::coupled, 1.0) == 3.0);      // 4 (1 - 0.5 0.25) - 0.5
    CHECK(first(WeightDecay::independent, 1.0) == 3.0);  // 0.5 is half of the peak
    // If the options choose no kind, the optimiser's own kind holds.
    Pair p("p", 4.0, 0.0);
    SignDescent<double> optimiser({&p}, {.weight_decay = 0.25}, WeightDecay::gradient);
    optimiser.step(0.5);
    CHECK(p.value().data()[0] == 3.5);
}

TEST_CASE("state lives from a parameter's first training on; frozen parameters keep value, version and state") {
    Pair a("a", 1.0, 1.0), b("b", 1.0, 1.0);
    Parameter<double> none("none", Shape{2}, {});
    SignDescent<double> optimiser({&a, &b, &none}, {.groups = {{.pattern = "b", .trained = false}}});
    CHECK_FALSE(b.requires_gradient());
    CHECK(none.requires_gradient());
    const auto counts = [&] {
        AnyState state;
        optimiser.visit_state(state);
        return state.scalars;
    };
    using Counts = std::map<std::string, std::uint64_t>;
    CHECK(counts() == Counts{{"a/updates", 0}, {"none/updates", 0}});
    const std::uint64_t version = b.version();
    optimiser.step(0.25);
    CHECK(b.version() == version);
    CHECK(none.version() == 0);
    CHECK(counts() == Counts{{"a/updates", 1}, {"none/updates", 0}});
    b.set_requires_gradient(true);
    optimiser.step(0.25);
    CHECK(b.value().data()[0] == 0.75);
    CHECK(counts() == Counts{{"a/updates", 2}, {"b/updates", 1}, {"none/updates", 0}});
    b.set_requires_gradient(false);
    optimiser.step(0.25);
    CHECK(counts() == Counts{{"a/updates", 3}, {"b/updates", 1}, {"none/updates", 0}});
    CHECK(a.has_gradient());
    optimiser.clear_gradients();
    CHECK_FALSE(a.has_gradient());
    CHECK_FALSE(b.has_gradient());
}

TEST_CASE("an update without any gradient is an error, and changes nothing") {
    Parameter<double> a("a", Shape{2}, {});
    fill_constant(a.write(), 1.0);
    SignDescent<double> optimiser({&a});
    CHECK_THROWS_WITH(optimiser.step(0.5),
                      "SignDescent: none of the 1 parameters is trained and has a gradient; expected a backward pass "
                      "before the update");
    a.add_gradient(Tensor<double>(Shape{2}, {1.0, 1.0}));
    a.set_requires_gradient(false);
    CHECK_THROWS_WITH(optimiser.step(0.5), Catch::StartsWith("SignDescent: none of the 1 parameters"));
    CHECK(a.value().data()[0] == 1.0);
    CHECK(a.version() == 1);
}

TEST_CASE("an optimiser that is refused touches no parameter; errors name it") {
    Pair a("a", 1.0, 1.0), b("b", 1.0, 1.0);
    const std::vector<Parameter<double>*> both{&a, &b};
    const std::vector<ParameterGroup> freeze{{.pattern = "*", .trained = false}};
    REQUIRE_THROWS_WITH(SignDescent<double>({}), "SignDescent: no parameters to train");
    REQUIRE_THROWS_WITH(SignDescent<double>(both, {.groups = {{.pattern = "q*"}}}),
                        "SignDescent: group pattern 'q*' matches none of the 2 parameters");
    REQUIRE_THROWS_WITH(
        SignDescent<double>(both, {.decay = WeightDecay::independent, .groups = freeze}),
        "SignDescent: independent weight decay needs peak_learning_rate, the largest of the run; it is 0");
    REQUIRE_THROWS_WITH(SignDescent<double>(both, {.groups = freeze, .storage = {.first_moment = {.format = e8m0}}}),
                        "storage.first_moment: e8m0 has no zero; expected a format with zero, NaN and sign");
    CHECK(a.requires_gradient());
    CHECK(b.requires_gradient());

    SignDescent<double> optimiser(both,
                                  {.weight_decay = 0.1, .decay = WeightDecay::independent, .peak_learning_rate = 0.5});
    for (const double rate : {-0.5, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
        REQUIRE_THROWS(optimiser.step(rate));
    REQUIRE_THROWS_WITH(optimiser.step(-0.5),
                        "SignDescent: learning rate is -0.5; expected a finite number, not negative");
    REQUIRE_THROWS_WITH(
        optimiser.step(0.75),
        "SignDescent: learning rate 0.75 is above peak_learning_rate 0.5, which independent weight decay divides by");
    CHECK(a.value().data()[0] == 1.0);
}
