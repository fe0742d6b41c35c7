// SPDX-License-Identifier: MIT
#include <unitscale/autograd/cut_edges.hpp>

#include "support/catch.hpp"

#include <unitscale/base/random.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

using namespace unitscale;

namespace {

/// The number of connected parts of the graph without edge `left_out`.
std::size_t parts(std::size_t vertices, const std::vector<Edge>& edges, std::size_t left_out) {
    std::vector<std::uint32_t> parent(vertices);
    std::iota(parent.begin(), parent.end(), 0u);
    const auto root = [&](std::uint32_t v) {
        while (parent[v] != v) v = parent[v];
        return v;
    };
    std::size_t count = vertices;
    for (std::size_t e = 0; e < edges.size(); ++e) {
        const std::uint32_t a = root(edges[e].a), b = root(edges[e].b);
        if (e == left_out || a == b) continue;
        parent[a] = b;
        --count;
    }
    return count;
}

/// The cut-edges by definition: edges without which the graph has more parts.
std::vector<std::uint8_t> by_definition(std::size_t vertices, const std::vector<Edge>& edges) {
    std::vector<std::uint8_t> cut;
    for (std::size_t e = 0; e < edges.size(); ++e)
        cut.push_back(parts(vertices, edges, e) > parts(vertices, edges, edges.size()) ? 1 : 0);
    return cut;
}
std::vector<std::uint8_t> found(CutEdgeFinder& finder, std::size_t vertices, const std::vector<Edge>& edges) {
    const auto cut = finder.find(vertices, edges);
    return {cut.begin(), cut.end()};
}

using Cut = std::vector<std::uint8_t>;

}  // namespace

TEST_CASE("every edge of a tree is a cut-edge, no edge of a cycle is") {
    CutEdgeFinder finder;
    CHECK(found(finder, 4, {{0, 1}, {1, 2}, {1, 3}}) == Cut{1, 1, 1});
    CHECK(found(finder, 3, {{0, 1}, {1, 2}, {2, 0}}) == Cut{0, 0, 0});
    CHECK(found(finder, 5, {{0, 1}, {1, 2}, {2, 0}, {2, 3}, {3, 4}}) == Cut{0, 0, 0, 1, 1});
}

TEST_CASE("parallel edges and loops are no cut-edges") {
    CutEdgeFinder finder;
    CHECK(found(finder, 3, {{0, 1}, {1, 0}, {1, 2}}) == Cut{0, 0, 1});
    CHECK(found(finder, 2, {{0, 0}, {0, 1}}) == Cut{0, 1});
}

TEST_CASE("graphs without edges, without vertices, in several parts") {
    CutEdgeFinder finder;
    CHECK(found(finder, 0, {}).empty());
    CHECK(found(finder, 7, {}).empty());
    CHECK(found(finder, 6, {{4, 5}, {0, 1}, {1, 2}, {0, 2}}) == Cut{1, 0, 0, 0});
}

TEST_CASE("random multigraphs agree with the definition, and every vertex and edge is met a fixed number of times") {
    CutEdgeFinder finder;
    std::size_t cuts = 0, joined = 0;
    for (std::uint64_t graph = 0; graph < 500; ++graph) {
        const RandomKey key{3, graph};
        const std::size_t vertices = 1 + random_word(key, 0) % 12, count = random_word(key, 1) % 20;
        std::vector<Edge> edges;
        for (std::size_t e = 0; e < count; ++e)
            edges.push_back({static_cast<std::uint32_t>(random_word(key, 2 * e + 2) % vertices),
                             static_cast<std::uint32_t>(random_word(key, 2 * e + 3) % vertices)});
        const Cut cut = found(finder, vertices, edges);
        INFO("graph " << graph);
        REQUIRE(cut == by_definition(vertices, edges));
        REQUIRE(finder.visits() == vertices + 2 * edges.size());
        for (const std::uint8_t c : cut) ++(c != 0 ? cuts : joined);
    }
    CHECK(cuts > 500);
    CHECK(joined > 500);
}

TEST_CASE("two edges have one label if and only if removing both disconnects nodes that removing either one does not") {
    CutEdgeFinder finder;
    std::size_t pairs = 0, others = 0;
    for (std::uint64_t graph = 0; graph < 200; ++graph) {
        const RandomKey key{4, graph};
        const std::size_t vertices = 2 + random_word(key, 0) % 8, count = 4 + random_word(key, 1) % 12;
        std::vector<Edge> edges;
        for (std::size_t e = 0; e < count; ++e)
            edges.push_back({static_cast<std::uint32_t>(random_word(key, 2 * e + 2) % vertices),
                             static_cast<std::uint32_t>(random_word(key, 2 * e + 3) % vertices)});
        const Cut cut = found(finder, vertices, edges);
        const std::vector<std::uint64_t> labels(finder.labels().begin(), finder.labels().end());
        INFO("graph " << graph);
        for (std::size_t e = 0; e < edges.size(); ++e) {
            REQUIRE((labels[e] == 0) == (cut[e] != 0));
            for (std::size_t f = e + 1; f < edges.size(); ++f) {
                if (cut[e] != 0 || cut[f] != 0) continue;
                std::vector<Edge> rest = edges;
                rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(e));
                const bool disconnects = parts(vertices, rest, f - 1) > parts(vertices, edges, edges.size());
                REQUIRE((labels[e] == labels[f]) == disconnects);
                ++(disconnects ? pairs : others);
            }
        }
    }
    CHECK(pairs > 200);
    CHECK(others > 5000);
}

TEST_CASE("a chain of a million vertices needs no deep recursion") {
    constexpr std::uint32_t n = 1'000'000;
    std::vector<Edge> edges;
    for (std::uint32_t v = 0; v + 1 < n; ++v) edges.push_back({v, v + 1});
    edges.push_back({n / 2, n - 1});
    CutEdgeFinder finder;
    const auto cut = finder.find(n, edges);
    CHECK(std::accumulate(cut.begin(), cut.end(), std::size_t{0}) == n / 2);
    CHECK(cut[0] == 1);
    CHECK(cut[n / 2] == 0);
}
