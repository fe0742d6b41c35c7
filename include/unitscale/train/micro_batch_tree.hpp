// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace unitscale::train {

/// Neighbouring micro-batches: from `begin` up to `end`, without `end`.
struct MicroBatchRange {
    std::size_t begin, end;

    friend constexpr bool operator==(const MicroBatchRange&, const MicroBatchRange&) = default;
};

/// The micro-batches that process `rank` of `processes` computes, of `count`.
/// Test: tests/train/micro_batch_tree_test.cpp
[[nodiscard]] constexpr MicroBatchRange share_of(std::size_t count, std::size_t rank, std::size_t processes) noexcept {
    return {count * rank / processes, count * (rank + 1) / processes};
}

/// Whether two ranges are the children of one node of the tree over `count` micro-batches. Node j of level l is
///   [j 2^l, min((j + 1) 2^l, count))
/// Its children are nodes 2 j and 2 j + 1 of level l - 1; a node without a second child equals the first.
/// Test: tests/train/micro_batch_tree_test.cpp
[[nodiscard]] constexpr bool are_siblings(MicroBatchRange left, MicroBatchRange right, std::size_t count) noexcept {
    const std::size_t half = left.end - left.begin;
    const bool power = half > 0 && (half & (half - 1)) == 0;
    return power && left.begin % (2 * half) == 0 && right.begin == left.end &&
           right.end == std::min(left.begin + 2 * half, count);
}

/// A sum over micro-batches in the tree of `are_siblings`. The tree depends on the number of micro-batches alone, so a
/// sum of rounded numbers has equal bits wherever its parts were computed.
/// Parts are added from left to right, as micro-batches or whole nodes. At most log2(count) + 1 parts are kept.
/// Test: tests/train/micro_batch_tree_test.cpp
template <class Part>
class TreeSum {
public:
    struct Node {
        MicroBatchRange range;
        Part part;
    };

    /// Adds the part of a range, which begins where the last one ended.
    /// join(Part& left, Part&& right, MicroBatchRange whole) adds the right part to the left one.
    template <class Join>
    void add(MicroBatchRange range, Part&& part, std::size_t count, const Join& join) {
        nodes_.push_back({range, std::move(part)});
        while (nodes_.size() > 1 && are_siblings(nodes_[nodes_.size() - 2].range, nodes_.back().range, count)) {
            Node& left = nodes_[nodes_.size() - 2];
            left.range.end = nodes_.back().range.end;
            join(left.part, std::move(nodes_.back().part), left.range);
            nodes_.pop_back();
        }
    }
    /// Adds a part without a sum.
    void append(MicroBatchRange range, Part&& part) { nodes_.push_back({range, std::move(part)}); }
    /// The nodes that were not summed with a sibling, from left to right; one, if all micro-batches were added.
    [[nodiscard]] std::vector<Node>& nodes() noexcept { return nodes_; }
    void clear() noexcept { nodes_.clear(); }

private:
    std::vector<Node> nodes_{};
};

/// The nodes that a process is left with, which has added the micro-batches of a range.
[[nodiscard]] inline std::vector<MicroBatchRange> nodes_of(MicroBatchRange range, std::size_t count) {
    struct Nothing {};
    TreeSum<Nothing> sum;
    for (std::size_t i = range.begin; i < range.end; ++i)
        sum.add({i, i + 1}, {}, count, [](Nothing&, Nothing&&, MicroBatchRange) {});
    std::vector<MicroBatchRange> ranges;
    for (const auto& node : sum.nodes()) ranges.push_back(node.range);
    return ranges;
}

}  // namespace unitscale::train
