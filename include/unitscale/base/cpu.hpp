// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <cstdlib>
#include <string_view>

/// Target attributes for leaf functions compiled for instruction sets beyond the build's own. Such a function is a free
/// function or a template. It holds no lambda and no OpenMP region, and is called only when `active_isa()` allows it.
#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define UNITSCALE_X86 1
#define UNITSCALE_TARGET_AVX2 __attribute__((target("avx2,fma,f16c,bmi2")))
#if defined(__clang__)  // Clang ignores a whole target list that holds an unknown option
#define UNITSCALE_TARGET_AVX512 \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2"), min_vector_width(512)))
#define UNITSCALE_TARGET_AVX512_BF16 \
    __attribute__((target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2"), min_vector_width(512)))
#else
#define UNITSCALE_TARGET_AVX512 \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,prefer-vector-width=512")))
#define UNITSCALE_TARGET_AVX512_BF16                                               \
    __attribute__((                                                                \
        target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2," \
               "prefer-vector-width=512")))
#endif
#else
#define UNITSCALE_X86 0
#define UNITSCALE_TARGET_AVX2
#define UNITSCALE_TARGET_AVX512
#define UNITSCALE_TARGET_AVX512_BF16
#endif

namespace unitscale {

/// Instruction sets of the dispatched kernels, in rising order. `baseline` is the set that the build's flags allow.
enum class Isa { baseline, avx2, avx512 };

[[nodiscard]] constexpr std::string_view name(Isa isa) noexcept {
    return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "baseline";
}

/// The instruction set with the given name. Error: an unknown name; the message lists the known ones.
[[nodiscard]] inline Isa parse_isa(std::string_view text) {
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (text == name(isa)) return isa;
    fail("UNITSCALE_ISA: unknown instruction set '", text, "'; expected baseline, avx2 or avx512");
}

/// The highest instruction set that this processor and its operating system run.
[[nodiscard]] inline Isa detected_isa() noexcept {
#if UNITSCALE_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return Isa::avx512;
    if (avx2) return Isa::avx2;
#endif
    return Isa::baseline;
}

/// The instruction set in use: the detected one, or a lower one that the environment variable UNITSCALE_ISA names
/// (baseline, avx2, avx512). Read once per process. Error: an unknown name.
/// Test: tests/base/cpu_test.cpp
[[nodiscard]] inline Isa active_isa() {
    static const Isa isa = [] {
        const Isa detected = detected_isa();
        const char* wanted = std::getenv("UNITSCALE_ISA");
        if (wanted == nullptr || *wanted == '\0') return detected;
        const Isa parsed = parse_isa(wanted);
        return parsed < detected ? parsed : detected;
    }();
    return isa;
}

/// Whether the bf16 dot-product instruction may be used.
[[nodiscard]] inline bool has_avx512_bf16() {
#if UNITSCALE_X86
    static const bool has = active_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
    return has;
#else
    return false;
#endif
}

}  // namespace unitscale
