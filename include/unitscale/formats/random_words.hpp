// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/random.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if UNITSCALE_X86
#include <immintrin.h>
#endif

namespace unitscale {

// Philox over vectors of 64-bit lanes, one block to a lane: the product instruction reads the low halves, so high
// halves may hold anything. Words 0, 1 and 2, 3 of a block are joined to 64 bits. Unpacking joins these to blocks: even
// lanes go to the first half of the output and odd lanes to the second. Hence the order of the lanes' block numbers.
// Two vectors are computed side by side, because a round waits for its product. The intrinsics with a full mask are the
// plain instructions; the plain intrinsics make GCC 12 warn of uninitialised values in its own header.

/// Words per iteration of the vector loops.
inline constexpr std::size_t random_group = 64;

#if UNITSCALE_X86
/// Words of `groups` groups of 16 blocks from block `first_block` on.
UNITSCALE_TARGET_AVX512 inline void random_groups_avx512(RandomKey key, std::uint64_t first_block, std::uint32_t* out,
                                                         std::size_t groups) noexcept {
    constexpr __mmask8 all = 0xFF;
    const __m512i lanes = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i multiplier0 = _mm512_set1_epi64(0xD2511F53u);
    const __m512i multiplier1 = _mm512_set1_epi64(0xCD9E8D57u);
    const __m512i low = _mm512_set1_epi64(0xFFFFFFFFu);
    const __m512i stream = _mm512_set1_epi64(static_cast<long long>(key.stream));
    __m512i keys[20];
    for (unsigned round = 0; round < 10; ++round) {
        keys[2 * round] = _mm512_set1_epi64(static_cast<std::uint32_t>(key.seed) + round * 0x9E3779B9u);
        keys[2 * round + 1] = _mm512_set1_epi64(static_cast<std::uint32_t>(key.seed >> 32) + round * 0xBB67AE85u);
    }
    for (std::size_t group = 0; group < groups; ++group, out += random_group) {
        const __m512i first =
            _mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>(first_block + 16 * group)), lanes);
        const __m512i second = _mm512_add_epi64(first, _mm512_set1_epi64(8));
        __m512i a0 = first, a1 = _mm512_maskz_srli_epi64(all, first, 32);
        __m512i b0 = second, b1 = _mm512_maskz_srli_epi64(all, second, 32);
        __m512i a2 = stream, a3 = _mm512_maskz_srli_epi64(all, stream, 32);
        __m512i b2 = a2, b3 = a3;
        for (int round = 0; round < 20; round += 2) {
            const __m512i a_product0 = _mm512_maskz_mul_epu32(all, a0, multiplier0);
            const __m512i b_product0 = _mm512_maskz_mul_epu32(all, b0, multiplier0);
            const __m512i a_product1 = _mm512_maskz_mul_epu32(all, a2, multiplier1);
            const __m512i b_product1 = _mm512_maskz_mul_epu32(all, b2, multiplier1);
            a0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_maskz_srli_epi64(all, a_product1, 32), a1), keys[round]);
            b0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_maskz_srli_epi64(all, b_product1, 32), b1), keys[round]);
            a2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_maskz_srli_epi64(all, a_product0, 32), a3), keys[round + 1]);
            b2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_maskz_srli_epi64(all, b_product0, 32), b3), keys[round + 1]);
            a1 = a_product1;
            b1 = b_product1;
            a3 = a_product0;
            b3 = b_product0;
        }
        const __m512i a01 = _mm512_or_si512(_mm512_and_si512(a0, low), _mm512_maskz_slli_epi64(all, a1, 32));
        const __m512i a23 = _mm512_or_si512(_mm512_and_si512(a2, low), _mm512_maskz_slli_epi64(all, a3, 32));
        const __m512i b01 = _mm512_or_si512(_mm512_and_si512(b0, low), _mm512_maskz_slli_epi64(all, b1, 32));
        const __m512i b23 = _mm512_or_si512(_mm512_and_si512(b2, low), _mm512_maskz_slli_epi64(all, b3, 32));
        _mm512_storeu_si512(out, _mm512_maskz_unpacklo_epi64(all, a01, a23));
        _mm512_storeu_si512(out + 16, _mm512_maskz_unpackhi_epi64(all, a01, a23));
        _mm512_storeu_si512(out + 32, _mm512_maskz_unpacklo_epi64(all, b01, b23));
        _mm512_storeu_si512(out + 48, _mm512_maskz_unpackhi_epi64(all, b01, b23));
    }
}

/// The words of `random_groups_avx512`, in vectors of 4 blocks, two iterations to a group.
UNITSCALE_TARGET_AVX2 inline void random_groups_avx2(RandomKey key, std::uint64_t first_block, std::uint32_t* out,
                                                     std::size_t groups) noexcept {
    const __m256i lanes = _mm256_setr_epi64x(0, 2, 1, 3);
    const __m256i multiplier0 = _mm256_set1_epi64x(0xD2511F53u);
    const __m256i multiplier1 = _mm256_set1_epi64x(0xCD9E8D57u);
    const __m256i low = _mm256_set1_epi64x(0xFFFFFFFFu);
    const __m256i stream = _mm256_set1_epi64x(static_cast<long long>(key.stream));
    __m256i keys[20];
    for (unsigned round = 0; round < 10; ++round) {
        keys[2 * round] = _mm256_set1_epi64x(static_cast<std::uint32_t>(key.seed) + round * 0x9E3779B9u);
        keys[2 * round + 1] = _mm256_set1_epi64x(static_cast<std::uint32_t>(key.seed >> 32) + round * 0xBB67AE85u);
    }
    for (std::size_t turn = 0; turn < 2 * groups; ++turn, out += random_group / 2) {
        const __m256i first =
            _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(first_block + 8 * turn)), lanes);
        const __m256i second = _mm256_add_epi64(first, _mm256_set1_epi64x(4));
        __m256i a0 = first, a1 = _mm256_srli_epi64(first, 32);
        __m256i b0 = second, b1 = _mm256_srli_epi64(second, 32);
        __m256i a2 = stream, a3 = _mm256_srli_epi64(stream, 32);
        __m256i b2 = a2, b3 = a3;
        for (int round = 0; round < 20; round += 2) {
            const __m256i a_product0 = _mm256_mul_epu32(a0, multiplier0);
            const __m256i b_product0 = _mm256_mul_epu32(b0, multiplier0);
            const __m256i a_product1 = _mm256_mul_epu32(a2, multiplier1);
            const __m256i b_product1 = _mm256_mul_epu32(b2, multiplier1);
            a0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a_product1, 32), a1), keys[round]);
            b0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b_product1, 32), b1), keys[round]);
            a2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a_product0, 32), a3), keys[round + 1]);
            b2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b_product0, 32), b3), keys[round + 1]);
            a1 = a_product1;
            b1 = b_product1;
            a3 = a_product0;
            b3 = b_product0;
        }
        const __m256i a01 = _mm256_or_si256(_mm256_and_si256(a0, low), _mm256_slli_epi64(a1, 32));
        const __m256i a23 = _mm256_or_si256(_mm256_and_si256(a2, low), _mm256_slli_epi64(a3, 32));
        const __m256i b01 = _mm256_or_si256(_mm256_and_si256(b0, low), _mm256_slli_epi64(b1, 32));
        const __m256i b23 = _mm256_or_si256(_mm256_and_si256(b2, low), _mm256_slli_epi64(b3, 32));
        auto* to = reinterpret_cast<__m256i*>(out);
        _mm256_storeu_si256(to, _mm256_unpacklo_epi64(a01, a23));
        _mm256_storeu_si256(to + 1, _mm256_unpackhi_epi64(a01, a23));
        _mm256_storeu_si256(to + 2, _mm256_unpacklo_epi64(b01, b23));
        _mm256_storeu_si256(to + 3, _mm256_unpackhi_epi64(b01, b23));
    }
}
#endif

/// Words first_index, first_index + 1, ... of a stream, as `random_word` gives them. Made by vectors of blocks where
/// the instruction set, which the processor must have, allows.
/// Test: tests/formats/random_words_test.cpp
inline void random_words(Isa isa, RandomKey key, std::uint64_t first_index, std::span<std::uint32_t> out) noexcept {
#if UNITSCALE_X86
    if (isa != Isa::baseline) {
        const auto groups_of = isa == Isa::avx512 ? random_groups_avx512 : random_groups_avx2;
        const std::size_t head = std::min<std::size_t>((4 - first_index % 4) % 4, out.size());
        fill_random_words(key, first_index, out.first(head));
        const std::uint64_t block = (first_index + head) / 4;
        const auto body = out.subspan(head);
        const std::size_t groups = body.size() / random_group;
        groups_of(key, block, body.data(), groups);
        if (const auto tail = body.subspan(groups * random_group); !tail.empty()) {
            std::array<std::uint32_t, random_group> words;
            groups_of(key, block + random_group / 4 * groups, words.data(), 1);
            std::copy_n(words.begin(), tail.size(), tail.begin());
        }
        return;
    }
#endif
    static_cast<void>(isa);
    fill_random_words(key, first_index, out);
}

/// Chunk size of the loops with random words, buffers or checks, in elements: their buffers stay in the first-level
/// cache.
inline constexpr std::size_t random_chunk = 1024;

/// A stream read as words, or as half words (the low half of a word first), at most `random_chunk` at a time. The
/// memory that a call returns is valid until the next call.
class RandomPieces {
public:
    /// Words first, first + 1, ...
    const std::uint32_t* words(Isa isa, RandomKey key, std::uint64_t first, std::size_t count) noexcept {
        const auto skipped = static_cast<std::size_t>(first % 4);  // whole blocks are made faster
        random_words(isa, key, first - skipped, std::span(words_).first(skipped + count));
        return words_.data() + skipped;
    }

    /// Half words first, first + 1, ...
    const std::uint16_t* halves(Isa isa, RandomKey key, std::uint64_t first, std::size_t count) noexcept {
        const auto skipped = static_cast<std::size_t>(first % 8);
        const auto whole = std::span(words_).first((skipped + count + 1) / 2);
        random_words(isa, key, first / 8 * 4, whole);
        if constexpr (std::endian::native == std::endian::big)
            for (std::uint32_t& word : whole) word = std::rotl(word, 16);
        std::memcpy(halves_.data(), whole.data(), whole.size_bytes());
        return halves_.data() + skipped;
    }

    /// Half words first, first + 1, ..., each at the top of a word.
    const std::uint32_t* halves_as_words(Isa isa, RandomKey key, std::uint64_t first, std::size_t count) noexcept {
        const std::uint16_t* const narrow = halves(isa, key, first, count);
        constexpr std::size_t block = 64;  // a fixed count, so that the loop is vectorised
        std::size_t begin = 0;
        for (; begin + block <= count; begin += block)
            for (std::size_t i = begin; i < begin + block; ++i) words_[i] = std::uint32_t{narrow[i]} << 16;
        for (; begin < count; ++begin) words_[begin] = std::uint32_t{narrow[begin]} << 16;
        return words_.data();
    }

    const std::uint32_t* zeros(std::size_t count) noexcept {
        std::fill_n(words_.begin(), count, 0u);
        return words_.data();
    }

private:
    alignas(64) std::array<std::uint32_t, random_chunk + 4> words_;
    alignas(64) std::array<std::uint16_t, random_chunk + 8> halves_;
};

}  // namespace unitscale
