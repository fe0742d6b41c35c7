// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/audit.hpp>
#include <unitscale/report/json_text.hpp>

#include <cstddef>
#include <string>

namespace unitscale::report {

/// The audit as one JSON object: "valid", "faults", "extra_work", "parameters" [{name, shape, s}], "ops" [{path, op, alpha, phi,
/// joined_by, outputs, inputs [{from, shape, edge, beta}]}]; phi is null where no gradient arrives.
/// Test: tests/report/audit_json_test.cpp
[[nodiscard]] inline std::string to_json(const analysis::Audit& audit) {
    JsonText json;
    const auto write_shape = [&json](const Shape& shape) {
        json.open('[');
        for (const std::size_t extent : shape) json.value(extent);
        json.close(']');
    };
    json.open('{').member("valid", audit.valid()).key("faults").open('[');
    for (const std::string& fault : audit.faults) json.value(fault);
    json.close(']').member("extra_work", audit.extra_work()).key("parameters").open('[');
    for (const analysis::AuditedLeaf& leaf : audit.leaves) {
        json.open('{').member("name", leaf.name).key("shape");
        write_shape(leaf.shape);
        json.member("s", leaf.s).close('}');
    }
    json.close(']').key("ops").open('[');
    for (const analysis::AuditedOp& op : audit.ops) {
        json.open('{').member("path", op.path).member("op", op.op).member("alpha", op.alpha).member("phi", op.phi);
        json.member("joined_by", op.joined_by == JoinedBy::plan   ? "plan"
                                 : op.joined_by == JoinedBy::hand ? "hand"
                                                                  : "branch");
        json.key("outputs").open('[');
        for (const Shape& output : op.outputs) write_shape(output);
        json.close(']').key("inputs").open('[');
        for (const analysis::AuditedInput& input : op.inputs) {
            json.open('{').member("from", input.from).key("shape");
            write_shape(input.shape);
            json.member("edge", input.edge == EdgeKind::cut      ? "cut"
                                : input.edge == EdgeKind::joined ? "joined"
                                                                 : "none");
            json.member("beta", input.beta).close('}');
        }
        json.close(']').close('}');
    }
    json.close(']').close('}');
    return json.text();
}

}  // namespace unitscale::report
