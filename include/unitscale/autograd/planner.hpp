// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/cut_edges.hpp>
#include <unitscale/autograd/recorded_graph.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/scaling/state.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace unitscale {

/// Finds, from the recorded graph of a step, where scale constraints are needed.
///
/// The graph is an undirected multigraph. It has one vertex per op, even for several outputs. It has one vertex per
/// input and per parameter, however often it is used. One more vertex, the end, joins the losses. Each use of a tensor
/// by an op is an edge. Tensors that carry no gradient, and tensors on which no loss depends, are left out.
/// An input of an op lies on a cycle if its edge is no cut-edge. Its gradient then meets gradients that came along
/// other paths, and all must carry one factor. Hence alpha = beta there; a cut-edge's beta is free (Unit Scaling,
/// theorem 5.2).
/// Gradients inside a residual branch may carry a factor of their own, which is taken back where the branch began. This
/// requires that the branch's two ends together cut it off: it must not share a weight with the outside.
/// Time O(nodes + edges). Nothing is allocated for a graph no larger than an earlier one.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5 and appendix E.
/// Test: tests/autograd/planner_test.cpp
class Planner {
public:
    /// Sets Node::edges of every node. `losses` are slots.
    template <class T>
    void find_cut_edges(RecordedGraph<T>& graph, std::span<const std::uint32_t> losses) {
        ReusedList<Node<T>>& nodes = graph.nodes();
        visits_ = 0;
        mark_wanted(graph, losses);
        list_edges(graph, losses);
        const std::span<const std::uint8_t> cut = finder_.find(nodes.size() + graph.slots().size() + 1, edges_);
        std::size_t next = 0;
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            ++visits_;
            for (EdgeKind& edge : nodes[n].edges)
                if (edge != EdgeKind::none) edge = cut[next++] != 0 ? EdgeKind::cut : EdgeKind::joined;
        }
        visits_ += finder_.visits();
    }

    /// Sets beta = alpha for every input of a planned op that is not a cut-edge. Weighted branches follow
    /// JoinedBy::branch.
    template <class T>
    void join_betas(RecordedGraph<T>& graph) {
        ReusedList<Node<T>>& nodes = graph.nodes();
        for (std::uint32_t n = 0; n < nodes.size(); ++n) {
            Node<T>& node = nodes[n];
            if (node.joined_by == JoinedBy::branch) {
                const std::uint32_t begin = graph.slots()[node.inputs[1]].producer;
                if (cut_off(nodes, begin, n)) branch_edge_[begin] = no_edge;  // the weight of `begin` stands
                else node.betas[0] = node.alpha;
            } else if (node.joined_by == JoinedBy::plan) {
                for (std::size_t i = 0; i < node.betas.size(); ++i)
                    if (node.edges[i] == EdgeKind::joined) node.betas[i] = node.alpha;
            }
        }
        for (std::uint32_t n = 0; n < nodes.size(); ++n)
            if (branch_edge_[n] != no_edge)
                std::fill(nodes[n].output_weights.begin(), nodes[n].output_weights.end(), 1.0);
    }

    /// Begins and ends a dry pass, in which ops ask for the forward factors that `fix_alphas` will plan.
    void begin_planning() {
        planning_ = true;
        asked_.clear();
    }
    void end_planning() noexcept { planning_ = false; }

    /// The forward factor of the op at `site`: see `Tape::forward_factor`.
    [[nodiscard]] double forward_factor(const char* op, Site site, double alpha, Constraint rule,
                                        const ScalingState& state) {
        if (planning_) {
            asked_.push_back(site.id);
            return alpha;
        }
        if (const std::optional<double> planned = state.planned_alpha(site)) return *planned;
        check(rule == Constraint::to_output_scale, op, ": no forward factor planned for ", state.path(site),
              "; the rule ", unitscale::name(rule),
              " joins it with gradient factors: call Tape::plan before the first step");
        return alpha;
    }

    /// Keeps the forward factors of the planned ops that asked in the state. Each factor is alpha, joined by `rule`
    /// with the ideal betas of the inputs that are not cut-edges. To be called before `join_betas` replaces these
    /// betas.
    template <class T>
    void fix_alphas(const RecordedGraph<T>& graph, Constraint rule, ScalingState& state) {
        std::sort(asked_.begin(), asked_.end());
        const ReusedList<Node<T>>& nodes = graph.nodes();
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            const Node<T>& node = nodes[n];
            if (node.joined_by != JoinedBy::plan || !std::binary_search(asked_.begin(), asked_.end(), node.site.id))
                continue;
            group_.assign(1, node.alpha);
            for (std::size_t i = 0; i < node.betas.size(); ++i)
                if (node.edges[i] == EdgeKind::joined) group_.push_back(node.betas[i]);
            state.set_planned_alpha(node.site, joined_factor(node.op, rule, group_));
        }
    }

    /// How often the last `find_cut_edges` looked at a node, a tensor or along an edge.
    [[nodiscard]] std::size_t visits() const noexcept { return visits_; }

private:
    /// Marks the tensors on which a loss depends, from the last op to the first.
    template <class T>
    void mark_wanted(const RecordedGraph<T>& graph, std::span<const std::uint32_t> losses) {
        const ReusedList<Node<T>>& nodes = graph.nodes();
        wanted_.assign(graph.slots().size(), 0);
        for (const std::uint32_t loss : losses) wanted_[loss] = 1;
        for (std::size_t n = nodes.size(); n-- > 0;) {
            ++visits_;
            const Node<T>& node = nodes[n];
            const bool live = std::any_of(node.outputs.begin(), node.outputs.end(),
                                          [&](std::uint32_t output) { return wanted_[output] != 0; });
            if (!live) continue;
            for (const std::uint32_t input : node.inputs) wanted_[input] = 1;
        }
    }

    /// Lists the edges. Vertices are numbered: nodes by their number, then tensors by their slot's number, then the
    /// end. The tensors with a vertex are leaves and outputs with a weight; such an output gets an edge of its own. The
    /// edges of the nodes' inputs come first, in the order of the inputs.
    template <class T>
    [[gnu::cold]] void list_edges(RecordedGraph<T>& graph, std::span<const std::uint32_t> losses) {
        ReusedList<Node<T>>& nodes = graph.nodes();
        const ReusedList<Slot<T>>& slots = graph.slots();
        const auto node_count = static_cast<std::uint32_t>(nodes.size());
        const auto end = static_cast<std::uint32_t>(nodes.size() + slots.size());
        const auto weighted = [&](std::uint32_t slot) {
            const Node<T>& producer = nodes[slots[slot].producer];
            return !producer.output_weights.empty() && producer.outputs[0] == slot;
        };
        const auto vertex_of = [&](std::uint32_t slot) {
            const bool own = slots[slot].producer == Slot<T>::no_producer || weighted(slot);
            return own ? node_count + slot : slots[slot].producer;
        };
        edges_.clear();
        first_edge_.resize(node_count);
        branch_edge_.assign(node_count, no_edge);
        for (std::uint32_t n = 0; n < node_count; ++n) {
            ++visits_;
            Node<T>& node = nodes[n];
            const bool live = std::any_of(node.outputs.begin(), node.outputs.end(),
                                          [&](std::uint32_t output) { return wanted_[output] != 0; });
            node.edges.assign(node.inputs.size(), EdgeKind::none);
            first_edge_[n] = static_cast<std::uint32_t>(edges_.size());
            for (std::size_t i = 0; i < node.inputs.size(); ++i) {
                if (!live || !slots[node.inputs[i]].requires_gradient) continue;
                node.edges[i] = EdgeKind::joined;
                edges_.push_back({vertex_of(node.inputs[i]), n});
            }
        }
        for (const std::uint32_t loss : losses)
            if (slots[loss].requires_gradient) edges_.push_back({vertex_of(loss), end});
        for (std::uint32_t n = 0; n < node_count; ++n) {
            if (nodes[n].output_weights.empty()) continue;
            branch_edge_[n] = static_cast<std::uint32_t>(edges_.size());
            edges_.push_back({n, node_count + nodes[n].outputs[0]});
        }
    }

    /// Whether a branch hangs on its two ends only, and the factors there make up for each other. The branch goes from
    /// node `begin`'s first output to node `end`'s first input.
    template <class T>
    [[nodiscard]] bool cut_off(const ReusedList<Node<T>>& nodes, std::uint32_t begin, std::uint32_t end) const {
        if (begin == Slot<T>::no_producer || branch_edge_[begin] == no_edge || nodes[end].edges[0] == EdgeKind::none)
            return false;
        const double product = nodes[begin].output_weights[0] * nodes[end].betas[0] / nodes[end].alpha;
        return std::abs(product - 1.0) < 1e-12 &&
               finder_.labels()[branch_edge_[begin]] == finder_.labels()[first_edge_[end]];
    }

    static constexpr std::uint32_t no_edge = 0xFFFFFFFF;

    CutEdgeFinder finder_{};
    std::vector<Edge> edges_{};
    std::vector<std::uint32_t> first_edge_{};   ///< by node: the first edge of its inputs
    std::vector<std::uint32_t> branch_edge_{};  ///< from a node to its weighted output; `no_edge` for most
    std::vector<std::uint8_t> wanted_{};
    std::vector<double> group_{};
    std::size_t visits_ = 0;
    bool planning_ = false;
    std::vector<std::uint32_t> asked_{};  ///< sites that asked for their forward factor while planning
};

}  // namespace unitscale
