// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/error.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#if UNITSCALE_X86
#include <cpuid.h>
#endif

namespace unitscale {

/// A level of data caches: the bytes of one cache, and the cores that share it. 0 bytes: the processor has none.
struct CacheLevel {
    std::size_t bytes = 0;
    std::size_t cores = 1;

    /// The part of one core, if all cores work.
    [[nodiscard]] constexpr std::size_t share() const noexcept { return bytes / cores; }
    friend constexpr bool operator==(const CacheLevel&, const CacheLevel&) = default;
};

/// The data caches of a processor, from level 1 on.
struct Caches {
    std::array<CacheLevel, 3> levels{};

    [[nodiscard]] constexpr const CacheLevel& level(std::size_t number) const noexcept { return levels[number - 1]; }
    friend constexpr bool operator==(const Caches&, const Caches&) = default;
};

/// What is assumed where neither the processor nor the system says anything: small caches, which cost least where they
/// are wrong.
inline constexpr Caches assumed_caches{{{{32 << 10, 1}, {512 << 10, 1}, {0, 1}}}};

/// A size as `48k` or `32m`, without a fraction.
[[nodiscard]] inline std::string cache_size_text(std::size_t bytes) {
    const bool mega = bytes >= (1u << 20) && bytes % (1u << 20) == 0;
    return concatenate(bytes >> (mega ? 20 : 10), mega ? "m" : "k");
}

/// The caches in words: `32k, 1m, 32m shared by 2 cores`.
[[nodiscard]] inline std::string text(const Caches& caches) {
    std::string words;
    for (const CacheLevel& level : caches.levels) {
        if (level.bytes == 0) continue;
        words += (words.empty() ? "" : ", ") + cache_size_text(level.bytes);
        if (level.cores > 1) words += concatenate(" shared by ", level.cores, " cores");
    }
    return words;
}

/// The sizes of three levels, with the cores that share a cache: the processors that share it, over the threads of a
/// core. Threads of one core share level 1.
[[nodiscard]] constexpr Caches with_cores(Caches caches, const std::array<std::size_t, 3>& processors) noexcept {
    for (std::size_t i = 0; i < 3; ++i)
        caches.levels[i].cores = std::max<std::size_t>(processors[i] / processors[0], 1);
    return caches;
}

/// Reads `32k,1m,16m`: the sizes of level 1, 2 and 3, each of one core. k: 2^10 bytes, m: 2^20. A last `0` says that
/// there is no level 3. Error: any other text.
[[nodiscard, gnu::cold]] inline Caches parse_caches(std::string_view text) {
    const auto fail_with = [text]() {
        fail("UNITSCALE_CACHES: is '", text,
             "'; expected the sizes of three levels, such as 32k,1m,16m, of at least 4k for levels 1 and 2");
    };
    Caches caches;
    std::string_view rest = text;
    for (std::size_t i = 0; i < 3; ++i) {
        const std::size_t comma = std::min(rest.find(','), rest.size());
        const std::string_view word = rest.substr(0, comma);
        if ((comma == rest.size()) != (i == 2)) fail_with();
        std::size_t size = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
        const std::string_view unit(end, static_cast<std::size_t>(word.data() + word.size() - end));
        if (error != std::errc() || size >= (std::size_t{1} << 30) ||
            !(unit == "k" || unit == "m" || (unit.empty() && size == 0 && i == 2)))
            fail_with();
        caches.levels[i].bytes = size << (unit == "m" ? 20 : 10);
        if (i < 2 && caches.levels[i].bytes < 4096) fail_with();
        rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    return caches;
}

/// The caches that a folder in the form of Linux' `/sys/devices/system/cpu/cpu0/cache` lists: index*/level, type, size
/// and shared_cpu_list.
[[nodiscard, gnu::cold]] inline Caches read_caches(const std::string& folder) {
    Caches caches;
    std::array<std::size_t, 3> processors{1, 1, 1};
    for (int index = 0; index < 16; ++index) {
        const auto word = [&](const char* name) {
            char text[256] = "";
            if (std::FILE* const file = std::fopen(concatenate(folder, "/index", index, "/", name).c_str(), "r")) {
                if (std::fscanf(file, "%255s", text) != 1) text[0] = '\0';
                std::fclose(file);
            }
            return std::string(text);
        };
        const std::size_t level = std::strtoull(word("level").c_str(), nullptr, 10);
        const std::string type = word("type"), size = word("size"), list = word("shared_cpu_list");
        if (level < 1 || level > 3 || type == "Instruction" || size.empty()) continue;
        caches.levels[level - 1].bytes = std::strtoull(size.c_str(), nullptr, 10) << (size.back() == 'M' ? 20 : 10);
        std::size_t count = 0;
        for (std::size_t at = 0; at < list.size();) {  // such as 0-3,8-11
            const std::size_t comma = std::min(list.find(',', at), list.size()), dash = list.find('-', at);
            const auto number = [&](std::size_t from) { return std::strtoull(list.c_str() + from, nullptr, 10); };
            count += dash < comma ? static_cast<std::size_t>(number(dash + 1) - number(at) + 1) : 1;
            at = comma + 1;
        }
        processors[level - 1] = std::max<std::size_t>(count, 1);
    }
    return with_cores(caches, processors);
}

#if UNITSCALE_X86
/// The caches that the instruction CPUID lists: leaf 4 of Intel's processors, leaf 0x8000001D of AMD's, of one form.
[[nodiscard, gnu::cold]] inline Caches read_caches_by_cpuid() {
    Caches caches;
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool amd = __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & (1u << 22)) != 0;
    std::array<std::size_t, 3> processors{1, 1, 1};
    for (unsigned index = 0; index < 16; ++index) {
        if (__get_cpuid_count(amd ? 0x8000001D : 4, index, &a, &b, &c, &d) == 0 || (a & 31u) == 0) break;
        const std::size_t type = a & 31u, level = (a >> 5) & 7u;
        if (type == 2 || level < 1 || level > 3) continue;  // 2: of instructions
        const std::size_t ways = (b >> 22) + 1, partitions = ((b >> 12) & 1023u) + 1, line = (b & 4095u) + 1;
        caches.levels[level - 1].bytes = ways * partitions * line * (std::size_t{c} + 1);
        processors[level - 1] = ((a >> 14) & 4095u) + 1;
    }
    return with_cores(caches, processors);
}
#endif

/// The caches of this processor: what Linux lists, or else CPUID, or else the assumed ones.
[[nodiscard, gnu::cold]] inline Caches detected_caches() {
    const auto complete = [](const Caches& caches) {
        return caches.level(1).bytes >= 4096 && caches.level(2).bytes >= 4096;
    };
    if (const Caches listed = read_caches("/sys/devices/system/cpu/cpu0/cache"); complete(listed)) return listed;
#if UNITSCALE_X86
    if (const Caches listed = read_caches_by_cpuid(); complete(listed)) return listed;
#endif
    return assumed_caches;
}

/// The caches that products choose their blocks for: the detected ones, or the sizes in the environment variable
/// UNITSCALE_CACHES (parse_caches). They change times, never bits. Read once per process. Error: a text of another
/// form. Test: tests/base/caches_test.cpp
[[nodiscard]] inline const Caches& active_caches() {
    static const Caches caches = [] {
        const char* const wanted = std::getenv("UNITSCALE_CACHES");
        return wanted != nullptr && *wanted != '\0' ? parse_caches(wanted) : detected_caches();
    }();
    return caches;
}

}  // namespace unitscale
