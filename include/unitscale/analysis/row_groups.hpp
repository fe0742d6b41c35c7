// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/statistics.hpp>
#include <unitscale/analysis/track.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::analysis {

/// Some rows of a step's tensors, by number. A row may be in several groups, or in none.
struct RowGroup {
    std::string name{};
    std::vector<std::size_t> rows{};
};

/// Groups of rows whose statistics are recorded apart from the tensor's (`Tracker::set_row_groups`). A tensor has
/// `rows` rows if the product of its first dimensions is `rows`: with 12 rows [12,5], [3,4,5] and [12] do, [5,12] does
/// not.
///   const RowGroups groups(batch * length, {{"first rows", {0, length}}, {"masked rows", places}});
/// Example: only some positions of a sequence enter a loss. Their gradients are larger than all others, and fill
/// columns of their own in a histogram. Groups tell the columns apart.
/// Errors: no rows, no groups; a group without a name; two groups of one name; a row that does not exist.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, figures A.4 to A.7.
/// Test: tests/analysis/row_groups_test.cpp
class RowGroups {
public:
    RowGroups() = default;
    RowGroups(std::size_t rows, std::vector<RowGroup> groups) : rows_(rows), groups_(std::move(groups)) {
        check(rows_ >= 1, "row groups: of 0 rows; expected at least 1");
        check(!groups_.empty(), "row groups: none given; expected at least one");
        std::set<std::string> names;
        for (const RowGroup& group : groups_) {
            check(!group.name.empty(), "row groups: a group has no name");
            check(names.insert(group.name).second, "row groups: two groups are called '", group.name, "'");
            for (const std::size_t row : group.rows)
                check(row < rows_, "row groups: '", group.name, "' has row ", row, "; expected 0 to ", rows_ - 1);
        }
    }

    [[nodiscard]] bool empty() const noexcept { return groups_.empty(); }
    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    [[nodiscard]] const std::vector<RowGroup>& groups() const noexcept { return groups_; }

    /// The number of elements in a row of a tensor of this shape. Empty: the tensor does not have these rows.
    [[nodiscard]] std::optional<std::size_t> row_size(const Shape& shape) const {
        std::size_t leading = 1, at = 0;
        while (at < shape.size() && leading < rows_) leading *= shape[at++];
        if (at == 0 || leading != rows_) return std::nullopt;
        std::size_t size = 1;
        for (; at < shape.size(); ++at) size *= shape[at];
        return size;
    }

    /// The rows of a group, one below the other. The tensor must have these rows.
    template <class T>
    [[nodiscard]] Tensor<T> gathered(const RowGroup& group, const Tensor<T>& tensor) const {
        const std::optional<std::size_t> size = row_size(tensor.shape());
        check(size.has_value(), "row groups: a tensor ", to_string(tensor.shape()), " does not have ", rows_, " rows");
        Tensor<T> result(Shape{group.rows.size(), *size});
        for (std::size_t i = 0; i < group.rows.size(); ++i)
            std::copy_n(tensor.data() + group.rows[i] * *size, *size, result.data() + i * *size);
        result.set_scale(tensor.scale());
        return result;
    }

    /// Adds one step's statistics of each group that has rows to `tracked`, which holds an entry for each name. A
    /// tensor without these rows adds nothing.
    template <class T>
    void record(const Tensor<T>& tensor, Pass pass, std::uint64_t step, const StatisticsOptions& options,
                std::vector<TrackedRows>& tracked) const {
        if (!row_size(tensor.shape())) return;
        for (const RowGroup& group : groups_) {
            auto entry = std::find_if(tracked.begin(), tracked.end(),
                                      [&](const TrackedRows& known) { return known.name == group.name; });
            if (entry == tracked.end()) entry = tracked.insert(entry, TrackedRows{.name = group.name});
            if (group.rows.empty()) continue;
            TrackedPass& side = entry->side(pass);
            const TensorStatistics statistics = tensor_statistics(gathered(group, tensor), options);
            side.steps.push_back({step, statistics});
            side.last = statistics.exponents;
            if (side.steps.size() == 1) side.first = side.last;
        }
    }

private:
    std::size_t rows_ = 0;
    std::vector<RowGroup> groups_{};
};

}  // namespace unitscale::analysis
