// SPDX-License-Identifier: MIT
#include <unitscale/scaling/storage.hpp>

#include "support/catch.hpp"

using namespace unitscale;

TEST_CASE("storage: element types have the names of their formats") {
    CHECK(name(ElementType::float32) == "fp32");
    CHECK(name(ElementType::float16) == "fp16");
    CHECK(name(ElementType::bfloat16) == "bf16");
}

TEST_CASE("storage: element types have their formats") {
    CHECK(element_format(ElementType::float32) == fp32);
    CHECK(element_format(ElementType::float16) == fp16);
    CHECK(element_format(ElementType::bfloat16) == bf16);
}

TEST_CASE("storage: by default everything is float and as computed") {
    const Storage storage;
    CHECK(storage.element == ElementType::float32);
    CHECK_FALSE(storage.master.has_value());
    CHECK(storage.first_moment == StateFormat{});
    CHECK_FALSE(StateFormat{}.format.has_value());
    CHECK_FALSE(storage.weight_gradient.has_value());
    CHECK_NOTHROW(storage.validate());
}

TEST_CASE("storage: a state format holds signed numbers, zero and NaN in at most 16 bits") {
    const auto validate = [](const StateFormat& how) { how.validate("here"); };
    for (const FloatFormat& format : {fp16, bf16, e5m2, e4m3, e5m2fnuz, e4m3fnuz, e3m4})
        for (const std::size_t block : {0u, 16u, 128u, 1024u})
            CHECK_NOTHROW(validate({.format = format, .block = block}));
    CHECK_NOTHROW(validate({.format = fp16, .scaled = false}));
    CHECK_NOTHROW(validate({.block = 7}));  // no condition on tensors kept as computed
    CHECK_THROWS_WITH(validate({.format = tf32}),
                      "here: tf32 has 19 bits; expected at most 16, or none for what is kept as computed");
    CHECK_THROWS_WITH(validate({.format = e2m1}), "here: e2m1 has no NaN; expected a format with zero, NaN and sign");
    CHECK_THROWS_WITH(validate({.format = e8m0}), "here: e8m0 has no zero; expected a format with zero, NaN and sign");
    CHECK_THROWS_WITH(validate({.format = p3109(8, 4, Signedness::unsigned_format, Domain::finite)}),
                      "here: p3109_k8p4uf has no sign; expected a format with zero, NaN and sign");
    CHECK_THROWS_WITH(validate({.format = FloatFormat{9, 3, 7}}),
                      "here: exponent_bits must be 1 to 8, so that values are exact in float");
    for (const std::size_t block : {8u, 100u, 2048u})
        CHECK_THROWS_WITH(validate({.format = e4m3, .block = block}),
                          concatenate("here: block is ", block, "; expected 0, or a power of two from 16 to 1024"));
    CHECK_NOTHROW(validate({.format = fp16, .propagated = true}));
    for (const StateFormat& how : {StateFormat{.format = fp16, .scaled = false, .propagated = true},
                                   StateFormat{.format = fp16, .propagated = true, .block = 64}})
        CHECK_THROWS_WITH(validate(how),
                          "here: propagated is for one scale of the whole tensor; expected scaled true and block 0");
    CHECK_THROWS_WITH(validate({.propagated = true}), "here: propagated is for codes; the values are kept as computed");
    CHECK_THROWS_WITH(validate({.format = e4m3, .scaled = false, .block = 128}),
                      "here: block is 128, but nothing is scaled; expected 0");
}

TEST_CASE("storage: errors name the part") {
    CHECK_THROWS_WITH(Storage{.master = StateFormat{.format = e8m0}}.validate(),
                      Catch::StartsWith("storage.master: e8m0 has no zero"));
    CHECK_THROWS_WITH((Storage{.master = StateFormat{.format = fp16, .propagated = true}}.validate()),
                      "storage.master: propagated is for moments; expected false");
    CHECK_FALSE(Storage{}.carries_scales());
    CHECK(Storage{.rescale_every = 1}.carries_scales());
    CHECK(Storage{.second_moment = {.format = fp16, .propagated = true}}.carries_scales());
    CHECK_THROWS_WITH(Storage{.first_moment = {.format = e2m1}}.validate(),
                      Catch::StartsWith("storage.first_moment: e2m1 has no NaN"));
    CHECK_THROWS_WITH((Storage{.second_moment = {.format = e4m3, .block = 3}}.validate()),
                      Catch::StartsWith("storage.second_moment: block is 3"));
    CHECK_THROWS_WITH((Storage{.weight_gradient = Quantiser{.format = {0, 3, 7}}}.validate()),
                      Catch::StartsWith("storage.weight_gradient: exponent_bits must be 1 to 8"));
    CHECK_THROWS_WITH(Storage{.weight_gradient_scale = {.source = ScaleSource::delayed}}.validate(),
                      "storage.weight_gradient_scale: delayed by tensor; expected none, constant or amax by tensor");
    CHECK_THROWS_WITH(
        (Storage{.weight_gradient_scale = {.source = ScaleSource::amax, .granularity = ScaleGranularity::row}}
             .validate()),
        "storage.weight_gradient_scale: amax by row; expected none, constant or amax by tensor");
}
