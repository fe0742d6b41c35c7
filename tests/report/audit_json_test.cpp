// SPDX-License-Identifier: MIT
#include <unitscale/report/audit_json.hpp>

#include "support/catch.hpp"

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/tensor/fill.hpp>

#include <nlohmann/json.hpp>

#include <string>

using namespace unitscale;

TEST_CASE("the audit as JSON: verdict, parameters, and each op with its edges; null where no gradient arrives") {
    const Recipe recipe{.name = "check", .scaling = Scaling::unit};
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    Parameter<float> weight("w", {2, 3}, {});
    fill_zero(weight.write());
    tape.begin_step();
    static_cast<void>(ops::gelu(tape.input(zeros<float>({1}))));  // no gradient flows through this one
    const auto x = tape.parameter(weight);
    const auto y = analysis::project(ops::gelu(x, {.constraint = Constraint::none}), zeros<float>({2, 3}));
    const auto json = nlohmann::ordered_json::parse(report::to_json(analysis::audit(tape, y)));
    CHECK(json.at("valid") == true);
    CHECK(json.at("faults").empty());
    CHECK(json.at("extra_work") == 0.0);
    CHECK(json.at("parameters").dump().starts_with(R"([{"name":"w","shape":[2,3],"s":)"));
    REQUIRE(json.at("ops").size() == 3);
    CHECK(json.at("ops")[0].at("phi").is_null());
    const auto& op = json.at("ops")[1];
    CHECK(op.at("path") == "gelu.1");
    CHECK(op.at("op") == "gelu");
    CHECK(op.at("alpha").get<double>() == Approx(1.767).epsilon(1e-3));
    CHECK(op.at("phi") == 1.0);
    CHECK(op.at("joined_by") == "hand");
    CHECK(op.at("outputs").dump() == "[[2,3]]");
    CHECK(op.at("inputs")[0].at("from") == "w");
    CHECK(op.at("inputs")[0].at("edge") == "cut");
    CHECK(op.at("inputs")[0].at("beta").get<double>() == Approx(1.516).epsilon(1e-3));
    CHECK(json.at("ops")[2].at("joined_by") == "plan");
}
