// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/crc32.hpp>
#include <unitscale/io/safetensors_header.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

// The checksum of a safetensors file, in its metadata. Programs that do not know it read the file all the same.
namespace unitscale::io {

/// The metadata key of a file's checksum: eight hexadecimal digits.
inline constexpr std::string_view safetensors_checksum_key = "checksum";

/// The CRC-32 of a file's elements, from the end of the header to the end of the file, and then of the metadata: every
/// key and value with a zero byte behind it, in the order of the keys, without the checksum's own. Keys of formats are
/// left out too. `each(sink)` gives the elements' bytes to the sink, in order.
/// Test: tests/io/safetensors_checksum_test.cpp
template <class Each>
[[nodiscard]] std::string safetensors_checksum(const Each& each,
                                               const std::map<std::string, std::string, std::less<>>& metadata) {
    std::uint32_t crc = 0;
    each([&crc](std::span<const std::byte> bytes) { crc = crc32(bytes, crc); });
    for (const auto& [key, value] : metadata) {
        if (key == safetensors_checksum_key || key.starts_with(safetensors_format_key)) continue;
        for (const std::string* text : {&key, &value})  // with the zero at its end
            crc = crc32(std::as_bytes(std::span<const char>(text->c_str(), text->size() + 1)), crc);
    }
    std::string digits(8, '0');
    for (std::size_t i = 0; i < 8; ++i) digits[i] = "0123456789abcdef"[crc >> (28 - 4 * i) & 0xFu];
    return digits;
}

}  // namespace unitscale::io
