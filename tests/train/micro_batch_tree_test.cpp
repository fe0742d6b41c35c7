// SPDX-License-Identifier: MIT
#include <unitscale/train/micro_batch_tree.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

using Range = train::MicroBatchRange;

void join(std::string& left, std::string&& right, Range) { left = "(" + left + right + ")"; }

/// The sum of all micro-batches of processes that each hold a part of them.
std::string sum_of(std::size_t count, std::size_t processes) {
    train::TreeSum<std::string> whole;
    for (std::size_t r = 0; r < processes; ++r) {
        train::TreeSum<std::string> own;
        const Range share = train::share_of(count, r, processes);
        for (std::size_t i = share.begin; i < share.end; ++i) own.add({i, i + 1}, std::to_string(i), count, join);
        const auto ranges = train::nodes_of(share, count);
        REQUIRE(ranges.size() == own.nodes().size());
        for (std::size_t n = 0; n < ranges.size(); ++n) {
            CHECK(ranges[n] == own.nodes()[n].range);
            whole.add(ranges[n], std::move(own.nodes()[n].part), count, join);
        }
    }
    REQUIRE(whole.nodes().size() == 1);
    CHECK(whole.nodes().front().range == Range{0, count});
    return whole.nodes().front().part;
}

}  // namespace

TEST_CASE("micro-batches are added in a tree that depends on their number alone") {
    CHECK(sum_of(1, 1) == "0");
    CHECK(sum_of(2, 1) == "(01)");
    CHECK(sum_of(3, 1) == "((01)2)");
    CHECK(sum_of(4, 1) == "((01)(23))");
    CHECK(sum_of(5, 1) == "(((01)(23))4)");
    CHECK(sum_of(6, 1) == "(((01)(23))(45))");
    CHECK(sum_of(7, 1) == "(((01)(23))((45)6))");
    for (std::size_t count = 1; count <= 17; ++count)
        for (std::size_t processes = 1; processes <= count; ++processes) {
            INFO(count << " micro-batches of " << processes << " processes");
            CHECK(sum_of(count, processes) == sum_of(count, 1));
        }
}

TEST_CASE("processes get neighbouring shares of micro-batches, as equal as their number allows") {
    CHECK(train::share_of(4, 1, 2) == Range{2, 4});
    CHECK(train::share_of(5, 0, 3) == Range{0, 1});
    CHECK(train::share_of(5, 1, 3) == Range{1, 3});
    CHECK(train::share_of(5, 2, 3) == Range{3, 5});
    CHECK(train::share_of(0, 1, 2) == Range{0, 0});
}

TEST_CASE("siblings in the tree of micro-batches") {
    CHECK(train::are_siblings({0, 1}, {1, 2}, 8));
    CHECK(train::are_siblings({4, 6}, {6, 8}, 8));
    CHECK(train::are_siblings({4, 6}, {6, 7}, 7));
    CHECK_FALSE(train::are_siblings({1, 2}, {2, 3}, 8));  // cousins
    CHECK_FALSE(train::are_siblings({0, 1}, {2, 3}, 8));  // no neighbours
    CHECK_FALSE(train::are_siblings({0, 2}, {2, 3}, 8));  // half of the right child
    CHECK_FALSE(train::are_siblings({0, 3}, {3, 6}, 8));
}

TEST_CASE("a tree sum keeps few parts") {
    train::TreeSum<std::string> sum;
    std::size_t most = 0;
    for (std::size_t i = 0; i < 64; ++i) {
        sum.add({i, i + 1}, "x", 64, join);
        most = std::max(most, sum.nodes().size());
    }
    CHECK(most == 6);
    sum.clear();
    CHECK(sum.nodes().empty());
}
