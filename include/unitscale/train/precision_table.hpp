// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/format.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/scaling/state.hpp>

#include <optional>
#include <string>
#include <vector>

namespace unitscale::train {

/// A quantiser as tables name it: its format, then what is not the default; `-` for none.
[[nodiscard]] inline std::string quantiser_text(const std::optional<Quantiser>& quantiser) {
    if (!quantiser) return "-";
    std::string text(name(quantiser->format));
    if (quantiser->rounding != Rounding::nearest_even) (text += ' ') += name(quantiser->rounding);
    if (quantiser->overflow != Overflow::saturate) text += " overflowing";
    return text;
}

/// The products that a tape has met, one line each: where, kind, and the format of each role's operand (`-`: not
/// rounded). It is read from the state that the products themselves read, so it says what they do. Run a step first.
/// Test: tests/train/precision_table_test.cpp
[[nodiscard]] inline std::string precision_table(const ScalingState& state) {
    std::vector<std::vector<std::string>> rows = {{"product", "kind", "activation", "weight", "gradient"}};
    for (const ScalingState::Product& product : state.products())
        rows.push_back({state.path(product.site), std::string(name(product.kind)), quantiser_text(product.formats.activation),
                        product.kind == ProductKind::matmul ? quantiser_text(product.formats.activation)
                                                            : quantiser_text(product.formats.weight),
                        quantiser_text(product.formats.gradient)});
    return io::text_table(rows);
}

}  // namespace unitscale::train
