// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

// Encodes tensors to 8-bit codes, one to a byte, and decodes them. Saved activations are kept as such codes.
namespace unitscale::kernels {

/// Elements of types other than float that are converted at a time.
inline constexpr std::ptrdiff_t coding_chunk = 1024;
static_assert(coding_chunk % block_size == 0);

/// codes[i] = the code of in[i], quantised once.   in, codes [n] Stochastic rounding takes piece i of the stream `key`
/// for element i (`random_piece`), as a product does for the element at data[i]. Bits do not depend on the thread
/// count.
/// Errors, before anything is written: `encode: ...` for an invalid quantiser, a format of more than 8 bits, or NaN to
/// a format without NaN. Test: tests/kernels/coding_test.cpp
template <class T>
void encode(const Execution& execution, const T* in, std::uint8_t* codes, std::ptrdiff_t n, const Quantiser& quantiser,
            RandomKey key = {}) {
    using A = Accum<T>;
    constexpr auto block = static_cast<std::size_t>(block_size);
    const FloatFormat format = quantiser.format;
    const QuantiseOptions all = quantiser.options(key);
    check_options("encode", format, all);
    check_code_word<std::uint8_t>("encode", format);
    check_no_nan("encode", format, in, n);
    parallel_for(execution.threads, n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        QuantiseOptions options = all;
        if constexpr (std::is_same_v<A, double>) {
            for (std::ptrdiff_t i = begin; i < end; ++i)
                codes[i] =
                    static_cast<std::uint8_t>(unitscale::encode(format, in[i], options, static_cast<std::uint64_t>(i)));
        } else {
            const std::ptrdiff_t step = std::is_same_v<T, float> ? end - begin : coding_chunk;
            for (std::ptrdiff_t i = begin; i < end; i += step) {
                const auto count = static_cast<std::size_t>(std::min(step, end - i));
                options.first_index = static_cast<std::uint64_t>(i);
                const std::span<std::uint8_t> out(codes + i, count);
                if constexpr (std::is_same_v<T, float>) {
                    unitscale::encode(format, std::span<const float>(in + i, count), out, options);
                } else {
                    std::array<float, static_cast<std::size_t>(coding_chunk)> values;
                    std::size_t l = 0;
                    for (; l + block <= count; l += block) load_lanes<block>(in + i + l, values.data() + l);
                    for (; l < count; ++l) values[l] = widen(in[i + static_cast<std::ptrdiff_t>(l)]);
                    unitscale::encode(format, std::span<const float>(values).first(count), out, options);
                }
            }
        }
    });
}

/// out[i] = the number that codes[i] stands for, rounded to nearest even where T holds less than the format.
///   codes, out [n]
/// Errors: `decode: ...` for an invalid format or a format of more than 8 bits. Test: tests/kernels/coding_test.cpp
template <class T>
void decode(const Execution& execution, const std::uint8_t* codes, T* out, std::ptrdiff_t n,
            const FloatFormat& format) {
    constexpr auto block = static_cast<std::size_t>(block_size);
    if (const auto message = problem(format); !message.empty()) fail("decode: format: ", message);
    check_code_word<std::uint8_t>("decode", format);
    parallel_for(execution.threads, n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        const std::ptrdiff_t step = std::is_same_v<T, float> ? end - begin : coding_chunk;
        for (std::ptrdiff_t i = begin; i < end; i += step) {
            const auto count = static_cast<std::size_t>(std::min(step, end - i));
            const std::span<const std::uint8_t> in(codes + i, count);
            if constexpr (std::is_same_v<T, float>) {
                unitscale::decode(format, in, std::span<float>(out + i, count));
            } else {
                std::array<float, static_cast<std::size_t>(coding_chunk)> values;
                unitscale::decode(format, in, std::span<float>(values).first(count));
                if constexpr (std::is_same_v<T, double>) {
                    std::copy_n(values.begin(), count, out + i);
                } else {
                    std::size_t l = 0;
                    for (; l + block <= count; l += block) store_lanes<block>(values.data() + l, out + i + l);
                    for (; l < count; ++l) out[i + static_cast<std::ptrdiff_t>(l)] = narrow<T>(values[l]);
                }
            }
        }
    });
}

}  // namespace unitscale::kernels
