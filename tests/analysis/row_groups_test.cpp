// SPDX-License-Identifier: MIT
#include <unitscale/analysis/row_groups.hpp>
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/autograd/tape.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <unitscale/ops/gather.hpp>
#include <unitscale/ops/reshape.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;
using analysis::RowGroup;
using analysis::RowGroups;
using analysis::Track;
using analysis::TrackedRows;
using analysis::TrackedTensor;
using analysis::Tracker;

namespace {

const TrackedTensor& find(const Track& track, const std::string& label) {
    for (const TrackedTensor& tensor : track.tensors)
        if (tensor.label() == label) return tensor;
    FAIL("no tensor " << label);
    throw 0;
}

/// loss = sum of the squares of the rows 1 and 4 of y = 2 x, with x [2,3,2] and y's rows counted over both dimensions.
struct Model {
    Recipe recipe{};
    ScalingState state{};
    Tape<float> tape{recipe, state};
    Parameter<float> weight{"model/weight", Shape{6, 2}, {}};

    Model() { std::fill_n(weight.write().data(), 12, 1.0F); }

    void step() {
        tape.begin_step({});
        const auto scope = tape.scope("model");
        Tensor<float> x({2, 3, 2});
        for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(1 << (i / 2));  // row r: 2^r
        const Variable<float> y = square(mul(tape.input(x), ops::reshape(tape.parameter(weight), {2, 3, 2})));
        const Variable<float> read = ops::gather(ops::reshape(y, {6, 2}), from(std::vector<std::int32_t>{1, 4}));
        tape.backward(sum(read));
    }
};

}  // namespace

TEST_CASE("row groups: a tensor's first dimensions are its rows") {
    const RowGroups groups(12, {{"some", {0, 11}}});
    CHECK_FALSE(groups.empty());
    CHECK(RowGroups().empty());
    CHECK(groups.row_size({12, 5}) == 5U);
    CHECK(groups.row_size({3, 4, 5}) == 5U);
    CHECK(groups.row_size({3, 4, 3, 2, 8}) == 48U);
    CHECK(groups.row_size({1, 12, 5}) == 5U);
    CHECK(groups.row_size({12}) == 1U);
    CHECK_FALSE(groups.row_size({5, 12}));
    CHECK_FALSE(groups.row_size({24}));
    CHECK_FALSE(groups.row_size({3, 5, 4}));
    CHECK_FALSE(groups.row_size({3}));
    CHECK_FALSE(groups.row_size({}));
    CHECK_FALSE(groups.row_size({0, 12}));
}

TEST_CASE("row groups: rows are gathered with their scale") {
    Tensor<float> tensor({2, 2, 3});
    for (std::size_t i = 0; i < 12; ++i) tensor.data()[i] = static_cast<float>(i);
    tensor.set_scale(0.5);
    const RowGroup wanted{"wanted", {3, 0}};
    const Tensor<float> rows = RowGroups(4, {wanted}).gathered(wanted, tensor);
    CHECK(rows.shape() == Shape{2, 3});
    CHECK(rows.scale() == 0.5);
    const std::vector<float> expected{9, 10, 11, 0, 1, 2};
    CHECK(std::equal(expected.begin(), expected.end(), rows.data()));
    REQUIRE_THROWS_WITH(RowGroups(5, {wanted}).gathered(wanted, tensor),
                        "row groups: a tensor [2,2,3] does not have 5 rows");
}

TEST_CASE("row groups: statistics of each group over steps; a group without rows adds no step") {
    Tensor<float> tensor({4, 2});
    const std::vector<float> data{1, 1, 2, 2, 0, 4, 8, 8};
    std::copy(data.begin(), data.end(), tensor.data());
    std::vector<TrackedRows> tracked;
    RowGroups(4, {{"first", {0}}, {"others", {1, 2, 3}}}).record(tensor, Pass::gradient, 3, {}, tracked);
    RowGroups(4, {{"first", {3}}, {"others", {}}}).record(tensor, Pass::gradient, 5, {}, tracked);
    RowGroups(3, {{"first", {0}}}).record(tensor, Pass::gradient, 7, {}, tracked);  // other rows
    REQUIRE(tracked.size() == 2);
    CHECK(tracked[0].name == "first");
    CHECK(tracked[0].value.steps.empty());
    const analysis::TrackedPass& first = tracked[0].gradient;
    REQUIRE(first.steps.size() == 2);
    CHECK(first.steps[0].step == 3);
    CHECK(first.steps[0].summary.rms == 1.0);
    CHECK(first.steps[1].step == 5);
    CHECK(first.steps[1].summary.rms == 8.0);
    CHECK(first.first.at(0) == 2);
    CHECK(first.last.at(3) == 2);
    CHECK(first.last.total() == 2);
    const analysis::TrackedPass& others = tracked[1].gradient;
    REQUIRE(others.steps.size() == 1);
    CHECK(others.steps[0].summary.count == 6);
    CHECK(others.steps[0].summary.zeros == 1);
    CHECK(others.last.at(1) == 2);
    CHECK(others.last.at(2) == 1);
    CHECK(others.last.at(3) == 2);
}

TEST_CASE("row groups: a tracker records known gradients by row, of tensors with these rows only") {
    Model model;
    Tracker<float> tracker;
    tracker.set_row_groups({6, {{"read", {1, 4}}, {"others", {0, 2, 3, 5}}}});
    model.tape.set_observer(&tracker);
    model.step();
    tracker.set_row_groups({6, {{"read", {4}}, {"others", {0, 2, 3, 5}}}});
    for (int i = 0; i < 10; ++i) model.step();  // of which the last one is tracked
    const Track& track = tracker.finish();
    const TrackedTensor& product = find(track, "model/mul");
    REQUIRE(product.rows.size() == 2);
    CHECK(product.rows[0].name == "read");
    // The gradient of x w is 2 x w = 2^(r+1) in the rows r that the loss reads, and 0 in the others.
    const analysis::TrackedPass& read = product.rows[0].gradient;
    REQUIRE(read.steps.size() == 2);
    CHECK(read.steps[0].step == 1);
    CHECK(read.steps[1].step == 11);
    CHECK(read.first.at(2) == 2);
    CHECK(read.first.at(5) == 2);
    CHECK(read.first.total() == 4);
    CHECK(read.last.at(5) == 2);
    CHECK(read.last.total() == 2);
    CHECK(product.rows[0].value.first.at(1) == 2);
    CHECK(product.rows[0].value.first.at(4) == 2);
    const analysis::TrackedPass& others = product.rows[1].gradient;
    CHECK(others.first.total() == 0);
    CHECK(others.steps[0].summary.zeros == 8);
    CHECK(product.rows[1].value.first.at(0) == 2);
    CHECK(product.rows[1].value.first.total() == 8);
    CHECK(find(track, "model/gather").rows.empty());  // two rows
    CHECK(find(track, "model/weight").rows.empty());  // a parameter
    CHECK(find(track, "model/reshape").rows.size() == 2);
}

TEST_CASE("row groups: patterns select the tensors; groups that fit none are an error") {
    Model model;
    Tracker<float> tracker({.row_patterns = {"*/square"}});
    tracker.set_row_groups({6, {{"read", {1, 4}}}});
    model.tape.set_observer(&tracker);
    model.step();
    for (const TrackedTensor& tensor : tracker.finish().tensors)
        CHECK(tensor.rows.size() == (tensor.path == "model/square" ? 1U : 0U));
    Tracker<float> wrong;
    wrong.set_row_groups({7, {{"read", {1, 4}}}});
    model.tape.set_observer(&wrong);
    model.step();
    REQUIRE_THROWS_WITH(wrong.finish(),
                        "tracker: no tensor with 7 rows matched a row pattern; the row groups are of so many rows");
}

TEST_CASE("row groups: errors") {
    REQUIRE_THROWS_WITH(RowGroups(0, {{"a", {}}}), "row groups: of 0 rows; expected at least 1");
    REQUIRE_THROWS_WITH(RowGroups(4, {}), "row groups: none given; expected at least one");
    REQUIRE_THROWS_WITH(RowGroups(4, {{"", {}}}), "row groups: a group has no name");
    REQUIRE_THROWS_WITH(RowGroups(4, {{"a", {}}, {"a", {1}}}), "row groups: two groups are called 'a'");
    REQUIRE_THROWS_WITH(RowGroups(4, {{"a", {1, 4}}}), "row groups: 'a' has row 4; expected 0 to 3");
}
