// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/block_codes.hpp>

#include <string_view>
#include <vector>

namespace unitscale::test {

inline BlockFormat one_level_nvfp4() {
    BlockFormat format = nvfp4;
    format.tensor_scale = false;
    return format;
}
/// A scale format that no library has.
inline BlockFormat wide_scales() {
    return make_block_format(
        {.element = e2m1, .along = 24, .scale = {5, 3, 15, Specials::single_nan, 0}, .tensor_scale = true});
}

/// Formats of every kind of scale, with every rounding of exponents.
inline std::vector<BlockFormat> block_formats() {
    std::vector<BlockFormat> all{nvfp4_square, one_level_nvfp4(), wide_scales()};
    each_named_block_format([&](std::string_view, std::string_view, const BlockFormat& format) {
        if (format.along != whole_dimension) all.push_back(format);
    });
    return all;
}

}  // namespace unitscale::test
