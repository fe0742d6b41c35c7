// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/random.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace unitscale {

/// An undirected edge between two vertices.
struct Edge {
    std::uint32_t a = 0, b = 0;
};

/// Finds the cut-edges (bridges) of an undirected multigraph. Removing a cut-edge disconnects the vertices that it
/// connects. An edge with a parallel edge is never a cut-edge. Depth-first search numbers the vertices in order of
/// discovery. low(v) is the lowest number that v's subtree reaches without the tree edge by which v was entered. Only
/// this *edge* is excluded: a parallel edge to the parent counts. The tree edge into v is a cut-edge if low(v) is v's
/// own number: no edge below leads back past v.
///
/// The search also finds pairs of edges that disconnect the graph if both are removed: edges that lie on the same
/// cycles. Every edge outside the search tree gets 64 random bits as its label. Each of these edges closes a cycle of
/// tree edges. The label of a tree edge is the exclusive or of the labels of all such cycles through it. Edges on the
/// same cycles have equal labels; other edges do with a probability of 2^-64.
/// Time and memory O(vertices + edges), without recursion. A second call of the same size allocates nothing.
/// References: R. E. Tarjan, A note on finding the bridges of a graph, Information Processing Letters 2 (1974) 160-161;
/// D. Pritchard, R. Thurimella, Fast computation of small cuts via cycle space sampling,
/// ACM Trans. Algorithms 7 (2011) 46.
/// Test: tests/autograd/cut_edges_test.cpp
class CutEdgeFinder {
public:
    /// Element e of the result: whether edges[e] is a cut-edge. Valid until the next call.
    [[nodiscard, gnu::cold]] std::span<const std::uint8_t> find(std::size_t vertex_count, std::span<const Edge> edges) {
        visits_ = 0;
        list_neighbours(vertex_count, edges);
        cut_.assign(edges.size(), 0);
        number_.assign(vertex_count, unseen);
        low_.assign(vertex_count, 0);
        through_.assign(vertex_count, 0);
        labels_.assign(edges.size(), 0);
        path_.clear();
        std::uint32_t next_number = 0;
        for (std::uint32_t root = 0; root < vertex_count; ++root) {
            if (number_[root] != unseen) continue;
            enter(root, no_edge, next_number);
            while (!path_.empty()) {
                Visit& at = path_.back();
                if (at.next == begin_[at.vertex + 1]) {
                    leave();
                    continue;
                }
                ++visits_;
                const Neighbour to = neighbours_[at.next++];
                if (to.edge == at.entered_by) continue;
                if (number_[to.vertex] == unseen) enter(to.vertex, to.edge, next_number);
                else if (number_[to.vertex] <= number_[at.vertex]) close_cycle(at.vertex, to);
            }
        }
        return cut_;
    }

    /// Element e: the label of edges[e] in the last search; 0 for cut-edges.
    [[nodiscard]] std::span<const std::uint64_t> labels() const noexcept { return labels_; }

    /// How often the last search looked at a vertex or along an edge: vertices + 2 edges.
    [[nodiscard]] std::size_t visits() const noexcept { return visits_; }

private:
    static constexpr std::uint32_t unseen = std::numeric_limits<std::uint32_t>::max();
    static constexpr std::uint32_t no_edge = unseen;

    struct Neighbour {
        std::uint32_t vertex = 0, edge = 0;
    };
    struct Visit {
        std::uint32_t vertex = 0, entered_by = 0, next = 0;
    };

    /// The far ends of the edges at each vertex, one vertex after the other. neighbours_[begin_[v] .. begin_[v + 1])
    /// belong to vertex v.
    void list_neighbours(std::size_t vertex_count, std::span<const Edge> edges) {
        begin_.assign(vertex_count + 2, 0);
        for (const Edge edge : edges) {
            ++begin_[edge.a + 2];
            ++begin_[edge.b + 2];
        }
        for (std::size_t v = 2; v < begin_.size(); ++v) begin_[v] += begin_[v - 1];
        neighbours_.resize(2 * edges.size());
        for (std::uint32_t e = 0; e < edges.size(); ++e) {
            neighbours_[begin_[edges[e].a + 1]++] = {edges[e].b, e};
            neighbours_[begin_[edges[e].b + 1]++] = {edges[e].a, e};
        }
    }

    void enter(std::uint32_t vertex, std::uint32_t edge, std::uint32_t& next_number) {
        ++visits_;
        number_[vertex] = low_[vertex] = next_number++;
        path_.push_back({vertex, edge, begin_[vertex]});
    }

    /// An edge from a vertex back to one above it, or to itself.
    void close_cycle(std::uint32_t vertex, Neighbour back) {
        if (number_[back.vertex] < low_[vertex]) low_[vertex] = number_[back.vertex];
        labels_[back.edge] = random_word({0x6375742D65646765, 0}, back.edge);
        if (back.vertex == vertex) return;
        through_[vertex] ^= labels_[back.edge];
        through_[back.vertex] ^= labels_[back.edge];
    }

    void leave() {
        const Visit done = path_.back();
        path_.pop_back();
        if (path_.empty()) return;
        const std::uint32_t above = path_.back().vertex;
        if (low_[done.vertex] < low_[above]) low_[above] = low_[done.vertex];
        if (low_[done.vertex] == number_[done.vertex]) cut_[done.entered_by] = 1;
        labels_[done.entered_by] = through_[done.vertex];
        through_[above] ^= through_[done.vertex];
    }

    std::vector<std::uint32_t> begin_{};
    std::vector<Neighbour> neighbours_{};
    std::vector<std::uint32_t> number_{};
    std::vector<std::uint32_t> low_{};
    std::vector<std::uint64_t> through_{};  ///< by vertex: exclusive or of the labels of cycles that leave its subtree
    std::vector<std::uint64_t> labels_{};
    std::vector<Visit> path_{};
    std::vector<std::uint8_t> cut_{};
    std::size_t visits_ = 0;
};

}  // namespace unitscale
