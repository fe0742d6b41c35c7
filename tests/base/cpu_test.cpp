// SPDX-License-Identifier: MIT
#include <unitscale/base/cpu.hpp>

#include "support/catch.hpp"

using namespace unitscale;

static_assert(Isa::baseline < Isa::avx2 && Isa::avx2 < Isa::avx512);

TEST_CASE("instruction sets have names that parse back") {
    REQUIRE(name(Isa::avx512) == "avx512");
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) REQUIRE(parse_isa(name(isa)) == isa);
}

TEST_CASE("an unknown instruction set is an error that lists the known ones") {
    REQUIRE_THROWS_WITH(parse_isa("sse9"),
                        "UNITSCALE_ISA: unknown instruction set 'sse9'; expected baseline, avx2 or avx512");
    REQUIRE_THROWS_AS(parse_isa(""), Error);
    REQUIRE_THROWS_AS(parse_isa("AVX2"), Error);
}

TEST_CASE("the active instruction set is one that the processor has") {
    REQUIRE(active_isa() <= detected_isa());
    if (has_avx512_bf16()) REQUIRE(active_isa() == Isa::avx512);
    if (const char* wanted = std::getenv("UNITSCALE_ISA"); wanted != nullptr && *wanted != '\0')
        REQUIRE(active_isa() <= parse_isa(wanted));
    else REQUIRE(active_isa() == detected_isa());
}

namespace {

UNITSCALE_TARGET_AVX512 void halve_avx512(float* x) {
    for (int i = 0; i < 64; ++i) x[i] *= 0.5f;
}
UNITSCALE_TARGET_AVX2 void halve_avx2(float* x) {
    for (int i = 0; i < 64; ++i) x[i] *= 0.5f;
}

}  // namespace

TEST_CASE("functions of a detected instruction set run") {
    float x[64];
    for (float& value : x) value = 4;
    if (detected_isa() >= Isa::avx2) halve_avx2(x);
    else x[63] /= 2;
    if (detected_isa() >= Isa::avx512) halve_avx512(x);
    else x[63] /= 2;
    REQUIRE(x[63] == 1);
}
