// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale::analysis {

/// One use of a tensor by an op.
struct AuditedInput {
    std::string from{};  ///< path of the op that made it, name of the parameter, or "input"
    Shape shape{};
    EdgeKind edge = EdgeKind::none;
    double beta = 1.0;
};

/// One op of the step.
struct AuditedOp {
    std::string path{}, op{};
    double alpha = 1.0;
    double phi = 0.0;  ///< factor of its gradient, relative to the true gradient; NaN if no gradient arrives
    JoinedBy joined_by = JoinedBy::plan;
    std::vector<AuditedInput> inputs{};
    std::vector<Shape> outputs{};
};

/// A parameter (or an input that asked for a gradient) and the constant that its gradient carries.
struct AuditedLeaf {
    std::string name{};
    Shape shape{};
    double s = 1.0;  ///< gradient = s times the true gradient
};

/// The result of `audit`.
struct Audit {
    std::vector<AuditedOp> ops{};
    std::vector<AuditedLeaf> leaves{};
    /// One line for each tensor with consumers that disagree on phi, and for each op with outputs that disagree on phi.
    /// The gradients from there on are mixtures in the wrong proportions.
    std::vector<std::string> faults{};
    std::vector<std::string> warnings{};   ///< more lines for the text, such as scale warnings
    double scaling_multiplications = 0.0;  ///< by factors other than 1, in a forward and backward pass
    double product_operations = 0.0;       ///< multiplications and additions of the matrix products in these passes

    [[nodiscard]] bool valid() const noexcept { return faults.empty(); }
    /// Multiplications by factors as a share of the operations of the matrix products.
    [[nodiscard]] double extra_work() const noexcept {
        return product_operations > 0.0 ? scaling_multiplications / product_operations : 0.0;
    }
};

/// True if two products of factors differ by rounding only.
[[nodiscard]] inline bool same_factor(double a, double b) noexcept {
    return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

/// A factor as the audit writes it: six digits.
[[nodiscard]] inline std::string factor_text(double factor) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", factor);
    return text;
}

/// Checks the scale factors of a recorded step: is every gradient the true gradient of the scaled function times a
/// constant, and by which constant?
///
/// phi(tensor) is the ratio of the gradient that the tape computes to the tensor's true gradient. The walk starts from
/// phi(loss) = 1 and goes back: phi(op) = phi(output) times the output's weight,
///   phi(input of an edge) = phi(op) beta / alpha
/// Gradients are valid if and only if all consumers of every tensor agree on phi: then phi is its constant s.
/// The condition is always sufficient. It is necessary except for coincidences of values, such as two consumers with
/// parallel gradients. The walk needs no cut-edges: it also judges plans, explicit constraints and factors that are
/// right by construction (residual split and add).
///
/// Call it after the step is recorded, before or after `backward`. It joins the betas as `backward` does.
/// Under `propagate` every gradient carries its factor: its data is the true gradient over its scale, so phi = 1 /
/// scale, and nothing can disagree. Alphas and betas are the ideal ones, of which the scales were made.
/// Time O(nodes + edges). Errors: no losses; under `propagate`, a step without `retain` and `backward`.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5 and appendix E. Test: tests/analysis/audit_test.cpp
template <class T>
[[nodiscard]] Audit audit(Tape<T>& tape, std::span<const Variable<T>> losses) {
    check(!losses.empty(), "audit: no losses");
    check(!tape.propagates() || (tape.step_options().retain && tape.backward_done()),
          "audit: under scaling propagate, expected a step begun with {.retain = true}, and its backward pass");
    if (tape.unit_scaled()) tape.join_factors(losses);
    else tape.find_cut_edges(losses);
    const double unset = std::numeric_limits<double>::quiet_NaN();
    const std::size_t slot_count = tape.slot_count();
    std::vector<double> phi(slot_count, unset);
    for (const std::uint32_t loss : tape.loss_slots()) phi[loss] = 1.0;
    if (tape.propagates())
        for (std::uint32_t i = 0; i < slot_count; ++i) {
            const Slot<T>& slot = tape.slot(i);
            const bool trained = slot.parameter != nullptr && slot.parameter->has_gradient();
            if (trained) phi[i] = 1.0 / slot.parameter->gradient().scale();
            else phi[i] = slot.has_gradient ? 1.0 / slot.gradient.scale() : unset;
        }

    const auto slot_name = [&](std::uint32_t index) -> std::string {
        const Slot<T>& slot = tape.slot(index);
        if (slot.source != nullptr) return slot.source->name();
        return slot.producer == Slot<T>::no_producer ? "input" : tape.state().path(tape.node(slot.producer).site);
    };
    const auto shape_of = [&](std::uint32_t index) -> const Shape& { return tape.slot(index).shape; };
    Audit result;
    result.ops.resize(tape.node_count());
    for (std::size_t n = tape.node_count(); n-- > 0;) {
        const Node<T>& node = tape.node(n);
        AuditedOp& op = result.ops[n];
        op.path = tape.state().path(node.site);
        op.op = node.op;
        op.alpha = node.alpha;
        op.phi = unset;
        op.joined_by = node.joined_by;
        for (std::size_t i = 0; i < node.outputs.size(); ++i) {
            op.outputs.push_back(shape_of(node.outputs[i]));
            if (node.alpha != 1.0)
                result.scaling_multiplications += static_cast<double>(element_count(op.outputs.back()));
            const double arrived = phi[node.outputs[i]] * (node.output_weights.empty() ? 1.0 : node.output_weights[i]);
            if (std::isnan(arrived)) continue;
            if (!tape.propagates() && !std::isnan(op.phi) && !same_factor(op.phi, arrived))
                result.faults.push_back(concatenate(op.path, ": the gradients of its outputs carry different factors, ",
                                                    factor_text(op.phi), " and ", factor_text(arrived)));
            op.phi = arrived;
        }
        std::size_t gradients = 0;
        for (std::size_t i = 0; i < node.inputs.size(); ++i) {
            const EdgeKind edge = node.edges[i];
            const double beta = node.betas[i];
            op.inputs.push_back(
                {.from = slot_name(node.inputs[i]), .shape = shape_of(node.inputs[i]), .edge = edge, .beta = beta});
            if (edge == EdgeKind::none || std::isnan(op.phi)) continue;
            ++gradients;
            if (beta != 1.0)
                result.scaling_multiplications += static_cast<double>(element_count(op.inputs.back().shape));
            double& known = phi[node.inputs[i]];
            if (tape.propagates()) continue;
            const double sent = op.phi * beta / node.alpha;
            if (std::isnan(known)) known = sent;
            else if (!same_factor(known, sent))
                result.faults.push_back(concatenate(op.path, ": sends ", op.inputs.back().from,
                                                    " a gradient with the factor ", factor_text(sent),
                                                    "; another consumer's has ", factor_text(known)));
        }
        // Each gradient of an operand is one more product of equal size; the three gradients of attention cost two.
        const auto passes = static_cast<double>(1 + std::min<std::size_t>(gradients, 2));
        result.product_operations += 2.0 * static_cast<double>(node.multiply_adds) * passes;
    }
    for (std::uint32_t i = 0; i < slot_count; ++i)
        if (tape.slot(i).leaf && tape.slot(i).producer == Slot<T>::no_producer && !std::isnan(phi[i]))
            result.leaves.push_back({.name = slot_name(i), .shape = shape_of(i), .s = phi[i]});
    return result;
}
template <class T>
[[nodiscard]] Audit audit(Tape<T>& tape, std::initializer_list<Variable<T>> losses) {
    return audit(tape, std::span<const Variable<T>>(losses.begin(), losses.size()));
}
template <class T>
[[nodiscard]] Audit audit(Tape<T>& tape, Variable<T> loss) {
    return audit(tape, std::span<const Variable<T>>(&loss, 1));
}

/// A path with its numbers left out, which the blocks of a model share: `decoder/block*/ffn/up/linear`.
[[nodiscard]] inline std::string without_numbers(std::string_view path) {
    std::string text;
    for (const char c : path) {
        const bool digit = c >= '0' && c <= '9';
        if (!digit) text += c;
        else if (text.empty() || text.back() != '*') text += '*';
    }
    return text;
}

/// Rows of a table, of which rows that differ in the numbers of their first cell only become one, with its count:
/// `decoder/block*/norm (x 4)`. A row that is alone keeps its numbers.
[[nodiscard]] inline std::vector<std::vector<std::string>> folded(const std::vector<std::vector<std::string>>& rows) {
    struct Fold {
        std::vector<std::string> key, first;
        std::size_t count;
    };
    std::vector<Fold> folds;
    for (const std::vector<std::string>& row : rows) {
        std::vector<std::string> key = row;
        key.front() = without_numbers(row.front());
        const auto found = std::find_if(folds.begin(), folds.end(), [&](const Fold& fold) { return fold.key == key; });
        if (found == folds.end()) folds.push_back({std::move(key), row, 1});
        else ++found->count;
    }
    std::vector<std::vector<std::string>> result;
    for (Fold& fold : folds) {
        result.push_back(fold.count == 1 ? fold.first : fold.key);
        if (fold.count > 1) result.back().front() += concatenate(" (x ", fold.count, ")");
    }
    return result;
}

/// The audit as text: the verdict with its faults and warnings, then tables of the ops in order of recording and of the
/// constants of the parameters. Rows that the blocks of a model repeat are one row (`folded`).
/// After a beta, `|` marks a cut-edge and `=` a joined edge. `-` stands for an input without gradient.
[[nodiscard]] inline std::string to_text(const Audit& audit) {
    std::string text =
        audit.valid() ? "gradients: valid, each a constant times the true one\n" : "gradients: NOT valid\n";
    for (const std::string& fault : audit.faults) (text += "fault: ") += fault + '\n';
    for (const std::string& warning : audit.warnings) (text += "warning: ") += warning + '\n';
    char extra[96];
    std::snprintf(extra, sizeof extra, "scale factors cost %.3f %% of the matrix products' operations\n\n",
                  100.0 * audit.extra_work());
    text += extra;
    std::vector<std::vector<std::string>> rows = {{"op", "inputs", "output", "alpha", "betas", "phi"}};
    for (const AuditedOp& op : audit.ops) {
        std::string inputs, betas, outputs;
        for (const AuditedInput& input : op.inputs) {
            if (!inputs.empty()) inputs += ' ', betas += "  ";
            inputs += to_string(input.shape);
            betas += input.edge == EdgeKind::none ? "-" : factor_text(input.beta);
            betas += input.edge == EdgeKind::cut ? " |" : input.edge == EdgeKind::joined ? " =" : "";
        }
        for (const Shape& output : op.outputs) (outputs += outputs.empty() ? "" : " ") += to_string(output);
        rows.push_back(
            {op.path, inputs, outputs, factor_text(op.alpha), betas, std::isnan(op.phi) ? "-" : factor_text(op.phi)});
    }
    text += io::text_table(folded(rows));
    text += '\n';
    rows = {{"parameter", "shape", "s"}};
    for (const AuditedLeaf& leaf : audit.leaves)
        rows.push_back({leaf.name, to_string(leaf.shape), factor_text(leaf.s)});
    return text + io::text_table(folded(rows));
}

}  // namespace unitscale::analysis
