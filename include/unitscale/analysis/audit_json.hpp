// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/audit.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

namespace unitscale::analysis {

/// The audit as one JSON object: "valid", "faults", "extra_work", "parameters" [{name, shape, s}], "ops" [{path, op, alpha, phi,
/// joined_by, outputs, inputs [{from, shape, edge, beta}]}]; phi is null where no gradient arrives.
/// An entry header: it needs nlohmann-json. Test: tests/analysis/audit_json_test.cpp
[[nodiscard]] inline nlohmann::ordered_json to_json(const Audit& audit) {
    using Json = nlohmann::ordered_json;
    const auto shape_of = [](const Shape& shape) { return Json(std::vector<std::size_t>(shape.begin(), shape.end())); };
    Json ops = Json::array(), parameters = Json::array();
    for (const AuditedOp& op : audit.ops) {
        Json inputs = Json::array(), outputs = Json::array();
        for (const AuditedInput& input : op.inputs)
            inputs.push_back({{"from", input.from},
                              {"shape", shape_of(input.shape)},
                              {"edge", input.edge == EdgeKind::cut      ? "cut"
                                       : input.edge == EdgeKind::joined ? "joined"
                                                                        : "none"},
                              {"beta", input.beta}});
        for (const Shape& output : op.outputs) outputs.push_back(shape_of(output));
        ops.push_back({{"path", op.path},
                       {"op", op.op},
                       {"alpha", op.alpha},
                       {"phi", std::isnan(op.phi) ? Json() : Json(op.phi)},
                       {"joined_by", op.joined_by == JoinedBy::plan ? "plan" : "hand"},
                       {"inputs", inputs},
                       {"outputs", outputs}});
    }
    for (const AuditedLeaf& leaf : audit.leaves)
        parameters.push_back({{"name", leaf.name}, {"shape", shape_of(leaf.shape)}, {"s", leaf.s}});
    return {{"valid", audit.valid()},
            {"faults", audit.faults},
            {"extra_work", audit.extra_work()},
            {"parameters", parameters},
            {"ops", ops}};
}

}  // namespace unitscale::analysis
