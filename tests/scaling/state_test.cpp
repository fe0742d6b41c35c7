// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/state.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;

TEST_CASE("scopes and sites keep their numbers when they are asked for again") {
    ScalingState state;
    const auto decoder = state.scope(0, "decoder");
    const auto block = state.scope(decoder, "block0");
    const Site add = state.site(block, "add", 0);
    const Site second = state.site(block, "add", 1);
    REQUIRE(state.scope(0, "decoder") == decoder);
    REQUIRE(state.scope(decoder, "block0") == block);
    REQUIRE(state.site(block, "add", 0) == add);
    REQUIRE(state.site(block, "add", 1) == second);
    REQUIRE_FALSE(add == second);
    REQUIRE(state.site_count() == 2);
    REQUIRE(state.scope(0, "block0") != block);  // an equal name elsewhere is another place
    REQUIRE_FALSE(state.site(decoder, "add", 0) == add);
    REQUIRE(state.site_count() == 3);
}

TEST_CASE("paths join module, op and an ordinal from the second use on") {
    ScalingState state;
    const auto decoder = state.scope(0, "decoder");
    const auto up = state.scope(state.scope(decoder, "ffn"), "up");
    REQUIRE(state.path(up) == "decoder/ffn/up");
    REQUIRE(state.path(ScalingState::Scope{0}).empty());
    REQUIRE(state.path(state.site(up, "linear", 0)) == "decoder/ffn/up/linear");
    REQUIRE(state.path(state.site(decoder, "add", 1)) == "decoder/add.1");
    REQUIRE(state.op(state.site(decoder, "add", 1)) == "add");
    REQUIRE(state.path(state.site(0, "loss", 0)) == "loss");
}

TEST_CASE("a scope's second name matches patterns, in modules inside it, too, and changes no path") {
    ScalingState state;
    const auto decoder = state.scope(0, "decoder");
    const auto last = state.scope(decoder, "block3", "block-1");
    const Site inside = state.site(state.scope(last, "up"), "linear", 0),
               other = state.site(state.scope(state.scope(decoder, "block2", "block-2"), "up"), "linear", 0);
    Recipe recipe;
    recipe.products.push_back({.pattern = "decoder/block-1/up", .formats = {.weight = Quantiser{.format = e4m3}}});
    CHECK(state.path(inside) == "decoder/block3/up/linear");
    CHECK(state.formats(inside, ProductKind::linear, recipe).weight.has_value());
    CHECK_FALSE(state.formats(other, ProductKind::linear, recipe).weight.has_value());
    CHECK(state.scope(decoder, "block3") == last);
}

TEST_CASE("a rule with formats that matches no product is an error, and an exemption is not") {
    ScalingState state;
    const Site up = state.site(state.scope(0, "up"), "linear", 0);
    const ProductFormats rounds{.weight = Quantiser{.format = e4m3}};
    Recipe recipe;
    recipe.products = {{.formats = rounds}, {.pattern = "*down"}, {.pattern = "u*", .formats = rounds}};
    static_cast<void>(state.formats(up, ProductKind::linear, recipe));
    CHECK_NOTHROW(state.check_patterns(recipe));
    recipe.products.push_back({.pattern = "*/upp", .formats = rounds});
    CHECK_THROWS_WITH(state.check_patterns(recipe),
                      "recipe: products.3.pattern is '*/upp', which matches no product of kind linear in this model");
    recipe.products.back() = {.kind = ProductKind::readout, .pattern = "up", .formats = rounds};
    CHECK_THROWS_WITH(state.check_patterns(recipe),
                      "recipe: products.3.pattern is 'up', which matches no product of kind readout in this model");
    recipe.products.back() = {.kind = ProductKind::readout, .formats = rounds};  // any readout, if there is one
    CHECK_NOTHROW(state.check_patterns(recipe));
}

TEST_CASE("a site's lasting stream is equal in every step, and differs between sites, parts and seeds") {
    ScalingState state(5), other(6);
    const Site a = state.site(0, "a", 0), b = state.site(0, "b", 0), same = other.site(0, "a", 0);
    const RandomKey key = state.lasting_key(a, 1);
    state.set_step(7);
    CHECK(state.lasting_key(a, 1) == key);
    CHECK_FALSE(state.lasting_key(b, 1) == key);
    CHECK_FALSE(state.lasting_key(a, 2) == key);
    CHECK_FALSE(other.lasting_key(same, 1) == key);
    CHECK_FALSE(state.random_key(a, 1) == key);
}

TEST_CASE("a product's formats are looked up once and then agree with the table") {
    ScalingState state;
    const Recipe fp8 = find_recipe("unit-fp8"), unit_fp32 = find_recipe("unit-fp32");
    const Site linear = state.site(state.scope(0, "up"), "linear", 0);
    const Site plain = state.site(0, "add", 0);
    const Site readout = state.site(state.scope(0, "head"), "readout", 0);
    REQUIRE(state.products().empty());
    REQUIRE(state.formats(linear, ProductKind::linear, fp8).weight.value().format == e4m3);
    REQUIRE_FALSE(state.formats(readout, ProductKind::readout, fp8).weight.has_value());
    REQUIRE(state.formats(linear, ProductKind::linear, unit_fp32).weight.value().format ==
            e4m3);  // still the first answer
    static_cast<void>(plain);
    const auto products = state.products();
    REQUIRE(products.size() == 2);
    REQUIRE(products[0].site == linear);
    REQUIRE(products[0].kind == ProductKind::linear);
    REQUIRE(products[0].formats.gradient.value().format == e5m2);
    REQUIRE(products[1].site == readout);
    REQUIRE(products[1].kind == ProductKind::readout);
}

TEST_CASE("a product's formats depend on the module's path") {
    ScalingState state;
    Recipe recipe;
    recipe.products = {
        {.kind = ProductKind::linear, .pattern = "*/up", .formats = {.weight = Quantiser{.format = e4m3}}}};
    const auto ffn = state.scope(0, "ffn");
    const Site up = state.site(state.scope(ffn, "up"), "linear", 0),
               down = state.site(state.scope(ffn, "down"), "linear", 0);
    REQUIRE(state.formats(up, ProductKind::linear, recipe).weight.has_value());
    REQUIRE_FALSE(state.formats(down, ProductKind::linear, recipe).weight.has_value());
}

TEST_CASE("random keys differ by site, step, part and seed and depend on nothing else") {
    ScalingState state(7);
    const Site a = state.site(0, "dropout", 0), b = state.site(0, "dropout", 1);
    std::set<std::uint64_t> streams;
    std::vector<RandomKey> keys;
    for (const std::uint64_t step : {1u, 2u}) {
        state.set_step(step);
        for (const Site site : {a, b})
            for (const std::uint64_t part : {0u, 1u, 2u}) {
                keys.push_back(state.random_key(site, part));
                REQUIRE(keys.back().seed == 7);
                streams.insert(keys.back().stream);
            }
    }
    REQUIRE(streams.size() == 12);
    state.set_step(1);
    REQUIRE(state.random_key(a, 0) == keys[0]);

    ScalingState other(7);  // an equal path with another number gives an equal stream
    const Site elsewhere = other.site(other.scope(0, "new"), "gelu", 0);
    const Site later = other.site(0, "dropout", 0);
    REQUIRE(elsewhere.id == a.id);
    REQUIRE(later.id != a.id);
    other.set_step(1);
    REQUIRE(other.random_key(later, 0) == keys[0]);
}

namespace {
struct ScalarNames {
    std::vector<std::pair<std::string, std::uint64_t>>& seen;
    void scalar(const char* name, std::uint64_t& value) { seen.emplace_back(name, value++); }
    void table(const char* name, std::map<std::string, double>& rows) { seen.emplace_back(name, rows.size()); }
};

/// Keeps the values it sees, or puts them back.
struct Copier {
    std::map<std::string, std::uint64_t> scalars{};
    std::map<std::string, std::map<std::string, double>> tables{};
    bool write = false;
    void scalar(const char* name, std::uint64_t& value) {
        write ? void(value = scalars.at(name)) : void(scalars[name] = value);
    }
    void table(const char* name, std::map<std::string, double>& rows) {
        write ? void(rows = tables.at(name)) : void(tables[name] = rows);
    }
};
}  // namespace

TEST_CASE("a visitor of the scaling state reads and writes step and seed") {
    ScalingState state(5);
    state.set_step(3);
    std::vector<std::pair<std::string, std::uint64_t>> seen;
    state.visit_state(ScalarNames{seen});
    REQUIRE(seen ==
            std::vector<std::pair<std::string, std::uint64_t>>{{"step", 3}, {"seed", 5}, {"plan", 0}, {"amax", 0}});
    REQUIRE(state.step() == 4);
    REQUIRE(state.seed() == 6);
}

TEST_CASE("planned forward factors belong to paths and survive saving, whether their sites are known or not") {
    ScalingState state(1);
    const Site gelu = state.site(state.scope(0, "block"), "gelu", 0), add = state.site(0, "add", 1);
    REQUIRE_FALSE(state.has_plan());
    REQUIRE_FALSE(state.planned_alpha(gelu));
    state.set_planned_alpha(gelu, 1.0 / 3.0);
    state.set_planned_alpha(add, 0.5);
    REQUIRE(state.has_plan());
    REQUIRE(state.planned_alpha(gelu) == 1.0 / 3.0);
    REQUIRE(state.plan() == std::map<std::string, double>{{"block/gelu", 1.0 / 3.0}, {"add.1", 0.5}});

    Copier copier;
    state.visit_state(copier);
    copier.write = true;
    ScalingState restored(9);
    const Site known = restored.site(0, "add", 1), unplanned = restored.site(0, "add", 0);
    restored.visit_state(copier);
    CHECK(restored.planned_alpha(known) == 0.5);
    CHECK_FALSE(restored.planned_alpha(unplanned));
    CHECK(restored.planned_alpha(restored.site(restored.scope(0, "block"), "gelu", 0)) == 1.0 / 3.0);
    restored.set_plan({});
    CHECK_FALSE(restored.has_plan());
    CHECK_FALSE(restored.planned_alpha(known));
}

TEST_CASE("planned scales of values and gradients survive saving, and a plan that is not one is an error") {
    ScalingState state(1);
    const Site add = state.site(0, "add", 1);
    CHECK_FALSE(state.planned_gradient_scale(add, 0));
    state.set_planned_scale(add, 0.5);
    state.set_planned_gradient_scale(add, 11, 0.25);
    CHECK(state.planned_scale(add) == 0.5);
    CHECK(state.planned_gradient_scale(add, 11) == 0.25);
    CHECK_FALSE(state.planned_gradient_scale(add, 0));
    CHECK_FALSE(state.planned_gradient_scale(add, 12));
    CHECK(state.plan() == std::map<std::string, double>{{"add.1", 0.5}, {"add.1|d11", 0.25}});

    ScalingState restored(9);
    const Site known = restored.site(0, "add", 1), other = restored.site(0, "add", 0);
    restored.set_plan(state.plan());
    CHECK(restored.planned_gradient_scale(known, 11) == 0.25);
    CHECK_FALSE(restored.planned_gradient_scale(other, 11));
    CHECK_FALSE(restored.planned_gradient_scale(restored.site(0, "add", 11), 1));  // add.11|d1 is not add.1|d11
    ScalingState later(9);
    later.set_plan(state.plan());
    CHECK(later.planned_gradient_scale(later.site(0, "add", 1), 11) == 0.25);

    CHECK_THROWS_WITH(restored.set_plan({{"add", 0.0}}),
                      "ScalingState: plan: add is 0; expected a positive finite number");
    CHECK(restored.plan() == state.plan());
    CHECK_THROWS_WITH(restored.set_plan({{"add.1|dx", 1.0}}),
                      "ScalingState: plan entry 'add.1|dx'; expected the number of an input behind |d");
    CHECK(restored.plan() == state.plan());
}

TEST_CASE("operand_bias: constant, of now, and of past steps, largest or latest") {
    ScalingState state(1);
    const Site site = state.site(0, "linear", 0), other = state.site(0, "linear", 1);
    const auto bias = [&](const ScaleRule& rule, float amax, bool training = true) {
        return state.operand_bias(site, OperandRole::gradient, e5m2, rule, training, [amax] { return amax; });
    };
    const auto unmeasured = []() -> float { throw std::runtime_error("measured"); };
    CHECK(state.operand_bias(site, OperandRole::weight, e4m3, {}, true, unmeasured) == 0);
    CHECK(state.operand_bias(site, OperandRole::weight, e4m3, {.source = ScaleSource::constant, .bias = -3}, true,
                             unmeasured) == -3);
    CHECK(state.last_bias(site, OperandRole::weight) == -3);
    CHECK(state.last_bias(other, OperandRole::weight) == 0);
    CHECK(state.has_bias(site, operand_place(OperandRole::weight)));
    CHECK_FALSE(state.has_bias(site, operand_place(OperandRole::gradient)));
    CHECK_FALSE(state.has_bias(other, operand_place(OperandRole::weight)));
    CHECK(bias({.source = ScaleSource::amax, .margin = 3}, 57344.0f) == -3);
    CHECK(bias({.source = ScaleSource::amax}, 2.0f) == 14);
    CHECK(state.last_bias(site, OperandRole::gradient) == 14);

    const ScaleRule largest{.source = ScaleSource::delayed, .history = 2};
    const auto unit = 57344.0f;  // bias 0: each amax below is this times a power of two
    state.set_step(1);
    CHECK(bias(largest, unit * 4.0f) == -2);  // no past yet: its own
    CHECK(bias(largest, unit * 8.0f) == -3);  // another micro-batch
    state.set_step(2);
    CHECK(bias(largest, unit) == -3);  // the largest of step 1
    state.set_step(3);
    CHECK(bias(largest, unit / 2.0f) == -3);
    ScaleRule latest = largest;
    latest.latest = true;
    CHECK(bias(latest, unit) == 0);                 // the amax of step 2
    CHECK(bias(latest, unit * 64.0f, false) == 0);  // evaluation reads the history and does not change it
    state.set_step(4);
    CHECK(bias(largest, unit) == 0);  // steps 2 and 3: the history has length 2

    std::map<std::string, double> saved;
    const auto visit = [&](ScalingState& target, bool load) {
        struct Visitor {
            std::map<std::string, double>& saved;
            bool load;
            void scalar(const char*, std::uint64_t&) {}
            void table(const std::string& name, std::map<std::string, double>& table) {
                if (name != "amax") return;
                if (load) table = saved;
                else saved = table;
            }
        };
        target.visit_state(Visitor{saved, load});
    };
    visit(state, false);
    ScalingState again(1);
    visit(again, true);
    const Site same = again.site(0, "linear", 0);
    again.set_step(5);
    state.set_step(5);
    const auto next = again.operand_bias(same, OperandRole::gradient, e5m2, largest, true, [&] { return unit; });
    CHECK(next == bias(largest, unit));
    saved = {{"linear|colour|0", 1.0}};
    CHECK_THROWS_WITH(visit(again, true), "ScalingState: amax entry 'linear|colour|0' has an unknown role");
    saved = {{"linear", 1.0}};
    CHECK_THROWS_WITH(visit(again, true), "ScalingState: amax entry 'linear'; expected path|role|name");
    saved = {{"linear|weight|x", 1.0}};
    CHECK_THROWS_WITH(visit(again, true),
                      "ScalingState: amax entry 'linear|weight|x'; expected step, current or a number");
}

TEST_CASE("an operand with a largest magnitude that is not finite has no bias and is counted once") {
    ScalingState state(1);
    const Site site = state.site(0, "linear", 0);
    for (int i = 0; i < 3; ++i)
        CHECK(state.operand_bias(site, OperandRole::activation, e4m3, {.source = ScaleSource::amax, .margin = 2}, true,
                                 [] { return std::numeric_limits<float>::infinity(); }) == 0);
    CHECK(state.non_finite_operands() == 1);
}
