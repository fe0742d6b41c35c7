// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/state.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

namespace unitscale {

/// Factors of an op, one per input (or output). A list in braces is copied. A span is not copied: its numbers must
/// outlive this object. Error: more than eight in braces.
class Betas {
public:
    Betas(std::initializer_list<double> list) : count_(list.size()) {
        check(list.size() <= own_.size(), "betas: ", list.size(), " in braces; expected at most ", own_.size(),
              ", or a span");
        std::copy(list.begin(), list.end(), own_.begin());
    }
    Betas(std::span<const double> values) : others_(values.data()), count_(values.size()) {}
    [[nodiscard]] std::span<const double> values() const noexcept {
        return {others_ != nullptr ? others_ : own_.data(), count_};
    }

private:
    std::array<double, 8> own_{};
    const double* others_ = nullptr;
    std::size_t count_;
};

/// How alpha and the betas of an op become equal where they must.
///   plan: the recorded betas are the ideal ones. Before the backward pass, betas become alpha for inputs that are not
///     cut-edges.
///   hand: the recorded betas stand, because an explicit constraint has joined them.
///   branch: the op ends a branch, which is its first input. The op behind its second input, an op with output weights,
///     began the branch. If the branch meets the rest of the graph at its two ends only, the recorded beta stands, and
///     that op's weight makes up for it. Otherwise beta = alpha here, and the weight becomes 1.
enum class JoinedBy : std::uint8_t { plan, hand, branch };

/// The kind of an edge of the recorded graph: left out of it (no gradient flows), a cut-edge, or part of a cycle.
enum class EdgeKind : std::uint8_t { none, cut, joined };

/// The values that the backward function of an op reads, as bits by number; by default all of them. Shapes are always
/// available. The tape frees a value if no handle names it and no backward function will read it.
struct Reads {
    static constexpr std::uint32_t all = 0xFFFFFFFF;
    std::uint32_t inputs = all;
    std::uint32_t outputs = all;
    std::uint32_t rounded = 0;  ///< further inputs, read only as declared by `Tape::read_rounded`

    [[nodiscard]] static constexpr bool contains(std::uint32_t set, std::size_t i) noexcept {
        return i < 31 ? (set >> i & 1) != 0 : set >> 31 != 0;
    }
};
inline constexpr Reads reads_nothing{.inputs = 0, .outputs = 0};
inline constexpr Reads reads_inputs{.outputs = 0};
inline constexpr Reads reads_outputs{.inputs = 0};

/// The data that an op gives the tape when it is recorded.
/// Test: tests/autograd/op_info_test.cpp
struct OpInfo {
    const char* name = "";
    Site site{};
    double alpha = 1.0;                               ///< the factor of its value
    Betas betas{std::span<const double>()};           ///< factors of the gradients, one per input
    JoinedBy joined_by = JoinedBy::plan;              ///< see JoinedBy
    std::uint64_t multiply_adds = 0;                  ///< of its matrix products in the forward pass
    Betas output_weights{std::span<const double>()};  ///< factors of arriving gradients, one per output; empty: all 1
    Reads reads{};                                    ///< see Reads
    bool propagates = false;       ///< its value and gradients have the scales that `propagate` requires
    std::optional<double> item{};  ///< a loss before rounding to the tape's type: see Variable::item
};

}  // namespace unitscale
