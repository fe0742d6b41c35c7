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

/// Factors of an op, one per input (or output): a list in braces, which is copied, or a span, which is not: the numbers outlive this.
/// Error: more than eight in braces.
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

/// Who makes alpha and the betas of an op agree where they must.
///   plan: the recorded betas are the ideal ones; those of inputs that are not cut-edges become alpha before the backward pass
///   hand: the recorded betas stand: an explicit constraint has joined them
///   branch: the op ends a branch (its first input) that the op with output weights behind its second input began. The recorded
///     beta stands, and that op's weight makes up for it, where the branch meets the rest of the graph at its two ends only;
///     else beta = alpha here and the weight becomes 1
enum class JoinedBy : std::uint8_t { plan, hand, branch };

/// What an edge of the recorded graph is: left out of it (no gradient flows), a cut-edge, or part of a cycle.
enum class EdgeKind : std::uint8_t { none, cut, joined };

/// Which values the backward function of an op reads (shapes are always there), as bits by number; by default all of them. The
/// tape frees a value that no handle names and no backward function will read.
struct Reads {
    static constexpr std::uint32_t all = 0xFFFFFFFF;
    std::uint32_t inputs = all;
    std::uint32_t outputs = all;
    std::uint32_t rounded = 0;  ///< inputs that are read only as `Tape::read_rounded` has said, besides `inputs`

    [[nodiscard]] static constexpr bool contains(std::uint32_t set, std::size_t i) noexcept {
        return i < 31 ? (set >> i & 1) != 0 : set >> 31 != 0;
    }
};
inline constexpr Reads reads_nothing{.inputs = 0, .outputs = 0};
inline constexpr Reads reads_inputs{.outputs = 0};
inline constexpr Reads reads_outputs{.inputs = 0};

/// What an op tells the tape when it is recorded.
/// Test: tests/autograd/op_info_test.cpp
struct OpInfo {
    const char* name = "";
    Site site{};
    double alpha = 1.0;                               ///< the factor that its value was computed with
    Betas betas{std::span<const double>()};           ///< factors of the gradients, one per input
    JoinedBy joined_by = JoinedBy::plan;              ///< see JoinedBy
    std::uint64_t multiply_adds = 0;                  ///< of its matrix products in the forward pass
    Betas output_weights{std::span<const double>()};  ///< factors of arriving gradients, one per output; empty: all 1
    Reads reads{};                                    ///< see Reads
    bool propagates = false;       ///< its value and gradients have the scales that `propagate` asks for
    std::optional<double> item{};  ///< a loss before it was rounded to the tape's type: see Variable::item
};

}  // namespace unitscale
