// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/cached_attention.hpp>
#include <unitscale/kernels/cached_lines.hpp>
#include <unitscale/record/attention_sizes.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace unitscale::ops {

/// Keys and values that one attention layer has seen, in buffers that the caller owns: lines [batch, groups, capacity]
/// of columns / groups elements each, so that a head reads memory in order. Position p is line p mod capacity.
/// The row b of a call continues item b, of which the first `length` positions are written. `spans`, if there are any,
/// say it row by row: the row's item, the item's own length, and how many of the row's tokens count. The others are
/// padding: they are not written, and their outputs are 0.
template <class T>
struct KeyValueRows {
    kernels::CachedLines<T> keys{}, values{};
    std::size_t batch = 0, capacity = 0, columns = 0, length = 0;
    std::vector<kernels::CachedSpan> spans{};
};

/// What a call of `cached_attention` writes and reads. `sizes`: of the call's q, k and v.
/// Errors: buffers of other sizes than k's, or too short for it; spans that fit neither.
/// Test: tests/record/key_value_rows_test.cpp
template <class T>
class CachedCall {
public:
    CachedCall(const KeyValueRows<T>& past, const AttentionSizes& sizes)
        : past_(past), sizes_(sizes), spans_(past.spans) {
        const std::size_t added = sizes.queries, columns = sizes.groups * sizes.depth, window = sizes.window,
                          rows = past.spans.empty() ? past.batch : past.spans.size();
        check(past.columns == columns && rows == sizes.batch, "cached_attention: buffers for ", rows, " x ",
              past.columns, " columns do not fit k ", shape_text({sizes.batch, added, columns}));
        if (spans_.empty())
            for (std::size_t b = 0; b < sizes.batch; ++b)
                spans_.push_back({index(b), index(past.length), index(added)});
        for (const kernels::CachedSpan& span : spans_) {
            check(span.item >= 0 && span.item < index(past.batch) && span.count >= 0 && span.count <= index(added),
                  "cached_attention: a row of ", span.count, " tokens for item ", span.item, "; expected at most ",
                  added, " for one of ", past.batch, " items");
            const std::size_t end = static_cast<std::size_t>(span.past + span.count);
            check(span.past >= 0 && (end <= past.capacity || (window > 0 && window <= past.capacity)),
                  "cached_attention: ", span.past, " positions and ", span.count, " more; the buffers end at ",
                  past.capacity);
            longest_ = std::max(longest_, end);
            AttentionSizes row = sizes;
            row.batch = 1;
            row.queries = static_cast<std::size_t>(span.count);
            row.keys = end;
            pairs_ += seen_pairs(row);
        }
        part_ = longest_ <= past.capacity ? added : std::min(added, past.capacity - window + 1);
    }

    [[nodiscard]] const std::vector<kernels::CachedSpan>& spans() const noexcept { return spans_; }
    /// The positions of the longest item after the call.
    [[nodiscard]] std::size_t longest() const noexcept { return longest_; }
    /// Pairs of a query and a key, for all heads.
    [[nodiscard]] std::size_t pairs() const noexcept { return pairs_; }
    /// Tokens of a row that are written, then read, at a time: all, unless they overwrite positions that others see.
    [[nodiscard]] std::size_t part() const noexcept { return part_; }
    /// One length for all rows, which are the items in their order, and all tokens at a time.
    [[nodiscard]] bool together() const noexcept { return past_.spans.empty() && part_ == sizes_.queries; }

    /// Writes the keys and values of the tokens [begin, end) of all rows.   key, value [B,T,G d]
    void write(const Tensor<T>& key, const Tensor<T>& value, std::size_t begin, std::size_t end) const {
        const std::size_t depth = sizes_.depth;
        for (std::size_t head = 0; head < spans_.size() * sizes_.groups; ++head) {
            const std::size_t b = head / sizes_.groups, group = head % sizes_.groups;
            const kernels::CachedSpan& span = spans_[b];
            const auto lines = [&](const kernels::CachedLines<T>& of) {
                return kernels::HeadLines<T>(of, span.item * index(sizes_.groups) + index(group), index(past_.capacity),
                                             index(depth));
            };
            const kernels::HeadLines<T> keys = lines(past_.keys), values = lines(past_.values);
            for (std::size_t i = begin; i < std::min(end, static_cast<std::size_t>(span.count)); ++i) {
                const std::size_t from = (b * sizes_.queries + i) * past_.columns + group * depth;
                keys.store(span.past + index(i), key.data() + from);
                values.store(span.past + index(i), value.data() + from);
            }
        }
    }

private:
    [[nodiscard]] static constexpr std::ptrdiff_t index(std::size_t i) noexcept {
        return static_cast<std::ptrdiff_t>(i);
    }

    const KeyValueRows<T>& past_;
    AttentionSizes sizes_;
    std::vector<kernels::CachedSpan> spans_;
    std::size_t longest_ = 0, pairs_ = 0, part_ = 0;
};

}  // namespace unitscale::ops
