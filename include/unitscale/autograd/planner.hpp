// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/cut_edges.hpp>
#include <unitscale/autograd/recorded_graph.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/scaling/state.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unitscale {

/// Finds where scale constraints are needed, from the recorded graph of a step.
///
/// The graph is an undirected multigraph: a vertex per op (one even with several outputs), per input and parameter (one
/// however often it is used) and one for the end, which joins the losses; an edge per use of a tensor by an op. What carries
/// no gradient and what no loss depends on is left out. An input of an op whose edge is no cut-edge lies on a cycle: its
/// gradient meets others that came along other paths, and they must carry the same factor. Hence alpha = beta there; a
/// cut-edge's beta is free (Unit Scaling, theorem 5.2). Gradients inside a residual branch may carry a factor of their own,
/// taken back where the branch began, if the branch's two ends together cut it off: not if it shares a weight with the outside.
/// Time O(nodes + edges); nothing is allocated for a graph no larger than an earlier one.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, section 5 and appendix E. Test: tests/autograd/planner_test.cpp
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

    /// beta = alpha for every input of a planned op that is not a cut-edge; weighted branches as JoinedBy::branch says.
    template <class T>
    void join_betas(RecordedGraph<T>& graph) {
        ReusedList<Node<T>>& nodes = graph.nodes();
        for (std::uint32_t n = 0; n < nodes.size(); ++n) {
            Node<T>& node = nodes[n];
            if (node.joined_by == JoinedBy::branch) {
                const std::uint32_t begin = graph.slots()[node.inputs[1]].producer;
                if (cut_off(nodes, begin, n)) branch_edge_[begin] = no_edge;  // its weight stands
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

    /// Keeps the forward factor of the planned ops at `sites` (sorted) in the state: alpha joined with the ideal betas of its inputs that are not
    /// cut-edges, by `rule`. To be called before `join_betas` has replaced them.
    template <class T>
    void fix_alphas(const RecordedGraph<T>& graph, Constraint rule, std::span<const std::uint32_t> sites,
                    ScalingState& state) {
        const ReusedList<Node<T>>& nodes = graph.nodes();
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            const Node<T>& node = nodes[n];
            if (node.joined_by != JoinedBy::plan || !std::binary_search(sites.begin(), sites.end(), node.site.id))
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
    /// Which tensors a loss depends on, from the last op to the first.
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

    /// Vertices: nodes by their number, then tensors by their slot's (leaves, and outputs with a weight: these get an edge of
    /// their own), then the end. Edges in the order of the nodes' inputs first.
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

    /// Whether the branch from node `begin`'s first output to node `end`'s first input hangs on its two ends only, and the
    /// factors there make up for each other.
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
    std::vector<std::uint32_t> first_edge_{};   ///< of each node's inputs
    std::vector<std::uint32_t> branch_edge_{};  ///< from a node to its weighted output; `no_edge` for most
    std::vector<std::uint8_t> wanted_{};
    std::vector<double> group_{};
    std::size_t visits_ = 0;
};

}  // namespace unitscale
