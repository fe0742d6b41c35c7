// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/audit.hpp>

#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace unitscale::report {

/// The audit as one JSON object: "valid", "faults", "extra_work", "parameters" [{name, shape, s}], "ops" [{path, op,
/// alpha, phi, joined_by, outputs, inputs [{from, shape, edge, beta}]}]. phi is null where no gradient arrives.
/// Test: tests/report/audit_json_test.cpp
[[nodiscard]] inline std::string to_json(const analysis::Audit& audit) {
    using Json = nlohmann::ordered_json;
    const auto shape_json = [](const Shape& shape) { return Json(std::vector(shape.begin(), shape.end())); };
    Json parameters = Json::array(), ops = Json::array();
    for (const analysis::AuditedLeaf& leaf : audit.leaves)
        parameters.push_back({{"name", leaf.name}, {"shape", shape_json(leaf.shape)}, {"s", leaf.s}});
    for (const analysis::AuditedOp& op : audit.ops) {
        Json outputs = Json::array(), inputs = Json::array();
        for (const Shape& output : op.outputs) outputs.push_back(shape_json(output));
        for (const analysis::AuditedInput& input : op.inputs)
            inputs.push_back({{"from", input.from},
                              {"shape", shape_json(input.shape)},
                              {"edge", input.edge == EdgeKind::cut      ? "cut"
                                       : input.edge == EdgeKind::joined ? "joined"
                                                                        : "none"},
                              {"beta", input.beta}});
        ops.push_back({{"path", op.path},
                       {"op", op.op},
                       {"alpha", op.alpha},
                       {"phi", op.phi},
                       {"joined_by", op.joined_by == JoinedBy::plan   ? "plan"
                                     : op.joined_by == JoinedBy::hand ? "hand"
                                                                      : "branch"},
                       {"outputs", std::move(outputs)},
                       {"inputs", std::move(inputs)}});
    }
    const Json json = {{"valid", audit.valid()},
                       {"faults", audit.faults},
                       {"extra_work", audit.extra_work()},
                       {"parameters", std::move(parameters)},
                       {"ops", std::move(ops)}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace unitscale::report
